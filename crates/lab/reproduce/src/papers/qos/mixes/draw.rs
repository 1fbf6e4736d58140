//! A mix of tenants from a seed, for the planner and for the simulator.

use engine::HostCosts;
use fastrand::Rng;
use io_model::{Nanos, QueuePriority};
use planner::{Load, Site, Size, Tenant, drive_figures};
use policy::{ArbitratedConfig, Class, EvenkeelConfig, Floor, Limits, PolicyConfig};
use ssd_model::{Profile, Writes};

const SMALLEST_BYTES: u64 = 512;
/// From 512 bytes to 128 KiB.
const SIZES: u32 = 9;

/// One mix on one drive.
#[derive(Debug, Clone)]
pub struct Mix {
    pub seed: u64,
    pub site: Site,
    pub tenants: Vec<Tenant>,
}

/// The mix of a seed: 2 to 32 tenants on the profiles in turn.
pub fn draw(seed: u64) -> Mix {
    let mut rng = Rng::with_seed(seed);
    let built_in = Profile::built_in();
    let profile = built_in[(seed % built_in.len() as u64) as usize].clone();
    let count = rng.usize(2..=32);
    let site = Site { profile, costs: HostCosts::default() };
    let mut mix = Mix { seed, site, tenants: Vec::new() };
    for at in 0..count {
        add_tenant(&mut mix, &mut rng, at, count);
    }
    mix
}

fn add_tenant(mix: &mut Mix, rng: &mut Rng, at: usize, count: usize) {
    let read_percent = match rng.u8(..5) {
        0 => 0,
        1 => 100,
        _ => rng.u8(0..=100),
    };
    let mut sizes: Vec<(u64, u32)> = Vec::new();
    for _ in 0..rng.u8(1..=3) {
        let len_bytes = SMALLEST_BYTES << rng.u32(..SIZES);
        if sizes.iter().all(|size| size.0 != len_bytes) {
            sizes.push((len_bytes, rng.u32(1..=4)));
        }
    }
    let whole = f64::from(sizes.iter().map(|size| size.1).sum::<u32>());
    let size = |&(len_bytes, weight): &(u64, u32)| Size { len_bytes, part: f64::from(weight) / whole };
    let vcpus = 1 << rng.u16(..3);
    let class = if rng.u8(..4) == 0 {
        let factor = 1.5 * 8_f64.powf(rng.f64());
        let target = Nanos((factor * lone_ns(&mix.site.profile, read_percent) as f64) as u64);
        Class::guaranteed(Some(target))
    } else {
        Class::BestEffort { weight: rng.u32(1..=8) }
    };
    let priority = match rng.u8(..16) {
        0 => QueuePriority::Urgent,
        1..6 => QueuePriority::High,
        6..11 => QueuePriority::Medium,
        _ => QueuePriority::Low,
    };
    let mut tenant = Tenant {
        name: format!("t{at}"),
        class,
        floor: Floor::default(),
        limits: Limits::default(),
        priority,
        load: Load::Closed { depth: 1 },
        read_share: f64::from(read_percent) / 100.0,
        sizes: sizes.iter().map(size).collect(),
        encrypted_sector_bytes: None,
        first_writes: None,
        vcpus,
    };
    tenant.load = if rng.u8(..3) == 0 {
        let fair = rough_iops(&mix.site.profile, &tenant) / count as f64;
        Load::Open { rate_iops: (fair * (0.05 + 0.75 * rng.f64())).round().max(50.0) }
    } else {
        let most = f64::from(128 / vcpus);
        let depth = most.powf(rng.f64()).round() as u32;
        Load::Closed { depth: u32::from(vcpus) * depth.max(1) }
    };
    if tenant.priority == QueuePriority::Urgent && matches!(tenant.load, Load::Closed { .. }) {
        // An urgent closed loop starves everyone; there is nothing to predict beside it.
        tenant.priority = QueuePriority::High;
    }
    mix.tenants.push(tenant);
}

/// About what a lone small command takes on the drive and its host.
fn lone_ns(profile: &Profile, read_percent: u8) -> u64 {
    let write_ns = match profile.writes {
        Writes::InPlace { write_ns, ack_ns } => write_ns + ack_ns,
        Writes::Buffered { ack_ns, .. } | Writes::Programmed { ack_ns, .. } => ack_ns,
    };
    let read_ns = profile.read_ns + profile.pipeline_ns;
    4_500 + profile.controller_ns + if read_percent == 0 { write_ns } else { read_ns }
}

/// About what the drive would do if all commands were like this tenant's.
fn rough_iops(profile: &Profile, tenant: &Tenant) -> f64 {
    let bytes: f64 = tenant.sizes.iter().map(|size| size.part * size.len_bytes.max(4_096) as f64).sum();
    let stripes = bytes / profile.stripe_bytes as f64;
    let unit_ns = profile.read_ns as f64 * stripes.max(1.0) / f64::from(profile.units);
    let write_ns = match profile.writes {
        Writes::InPlace { .. } => unit_ns,
        Writes::Buffered { drain_ns, .. } => drain_ns as f64 + bytes * 1e3 / f64::from(profile.link_write_mb_s),
        Writes::Programmed { nand, .. } => {
            nand.program_ns as f64 * bytes / nand.page_bytes as f64 / f64::from(profile.units)
        }
    };
    let read_ns = unit_ns.max(bytes * 1e3 / f64::from(profile.link_read_mb_s));
    let mean_ns = tenant.read_share * read_ns + (1.0 - tenant.read_share) * write_ns;
    1e9 / mean_ns.max(profile.controller_ns as f64).max(2_500.0)
}

/// The policies that are compared, by name.
pub const POLICIES: [&str; 6] = ["passthrough", "wrr", "drr", "lpns", "fair", "evenkeel"];

/// A policy as the daemon would configure it for the mix's drive.
pub fn policy(name: &str, mix: &Mix) -> PolicyConfig {
    let figures = drive_figures(&mix.site.profile);
    match name {
        "wrr" => PolicyConfig::Wrr(ArbitratedConfig::wrr()),
        "drr" => PolicyConfig::Drr(ArbitratedConfig::drr()),
        "fair" => PolicyConfig::Fair(figures.fair),
        "lpns" => PolicyConfig::Lpns(figures.lpns),
        "evenkeel" => PolicyConfig::Evenkeel(EvenkeelConfig::on(&figures)),
        _ => PolicyConfig::Passthrough,
    }
}
