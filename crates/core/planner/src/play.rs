//! A question as a scenario of the engine, and what is read off its run.

use engine::workload::{Access, Arrivals, BlockSize, Fio, Open, Pattern, Workload};
use engine::{Copies, Effort, Layout, Scenario, TenantReport};
use io_model::Nanos;
use policy::{Class, Floor, Limits, PolicyConfig, PolicyKind, TenantPriority, Terms};
use ssd_model::MAX_QUEUES;

use crate::figures::map_write;
use crate::{FirstWrites, Load, Site, Size, Tenant};

/// What answers questions that promises rest on: about a second of one CPU at most.
pub const FULL: Effort = Effort { ios: 500_000, each: 20_000 };
/// What searches try values with.
pub(crate) const SHORT: Effort = Effort { ios: 50_000, each: 4_000 };
/// For a tenant alone.
pub(crate) const ALONE: Effort = Effort { ios: 5_000, each: 4_000 };

/// Everything random in a forecast follows from it, so that a question has one answer.
const SEED: u64 = 1;

/// The drive's queues at a poller of one tenant and at one of several, where it has enough.
const HWQS: [u16; 2] = [6, 8];
/// A queue holds all that a tenant has outstanding.
const HWQ_DEPTH: u32 = 8_192;
/// Disks large enough that addresses are random in every part of the drive.
const DISK_BYTES: u64 = 8 << 30;
/// Weights of block sizes are parts in this many.
const PARTS: f64 = 10_000.0;
/// The most threads of a workload, queues of a tenant, and bytes of a command that the engine plays.
const MOST_JOBS: u32 = 1_024;
const MOST_QUEUES: u16 = 127;
const MOST_BYTES: u64 = 16 << 20;
/// The longest that is measured: tenants that do little are seen rarely.
const LONGEST: Nanos = Nanos::from_millis(20_000);
/// What is late is counted for spans of this length.
const WINDOW: Nanos = Nanos::from_millis(10);
/// Nobody looks for starvation.
const NEVER: Nanos = Nanos::from_millis(1_000_000_000);

/// How long a policy takes to come to rest, at most: `lpns` and `evenkeel` find out what they may let go in steps of
/// 10 ms, and `evenkeel` takes a second to forget how it began.
fn warmup(kind: PolicyKind) -> Nanos {
    match kind {
        PolicyKind::Evenkeel => Nanos::from_millis(1_500),
        PolicyKind::Lpns => Nanos::from_millis(800),
        _ => Nanos::from_millis(200),
    }
}

/// The drive's queues at a poller of one tenant and at one of several.
pub(crate) fn hwqs(policy: &PolicyConfig, tenants: &[Tenant]) -> [u16; 2] {
    let own = tenants.iter().filter(|tenant| tenant.class.is_guaranteed()).count();
    let pollers = if policy.kind().gives_own_pollers() { own + 1 } else { 1 };
    let most = u16::try_from(usize::from(MAX_QUEUES) / pollers).unwrap_or(1).max(1);
    HWQS.map(|hwqs| hwqs.min(most))
}

/// The scenario that answers a question.
pub fn scenario(site: &Site, policy: &PolicyConfig, tenants: &[Tenant]) -> Scenario {
    let defaults = Scenario::new(site.profile.clone());
    let [hwqs_own, hwqs_shared] = hwqs(policy, tenants);
    Scenario {
        drive_bytes: defaults.drive_bytes.max(DISK_BYTES.saturating_mul(tenants.len() as u64 + 2)),
        costs: site.costs,
        layout: if policy.kind().gives_own_pollers() { Layout::Evenkeel } else { Layout::Mdev },
        policy: policy.clone(),
        hwqs_own,
        hwqs_shared,
        hwq_depth: HWQ_DEPTH,
        tenants: played_with_copiers(site, tenants),
        warmup: warmup(policy.kind()),
        duration: LONGEST,
        window: WINDOW,
        seed: SEED,
        starvation_limit: NEVER,
        ..defaults
    }
}

/// Bytes of a copier's commands, and the weights of copies for guaranteed tenants and for others: the daemon's.
const COPY_BYTES: u64 = 128 << 10;
const COPY_WEIGHTS: [u32; 2] = [10_000, 1];

/// What makes the copies that first writes wait for: one for guaranteed tenants, one for the others.
pub(crate) fn copiers(tenants: &[Tenant]) -> Vec<Tenant> {
    let copier = |is_guaranteed: bool| {
        let is_its = |tenant: &&Tenant| tenant.has_copies() && tenant.class.is_guaranteed() == is_guaranteed;
        let of = tenants.iter().find(is_its)?;
        let weight = COPY_WEIGHTS[usize::from(!is_guaranteed)];
        Some(Tenant {
            class: Class::BestEffort { weight },
            floor: Floor::default(),
            limits: Limits::default(),
            read_share: 0.5,
            sizes: vec![Size { len_bytes: COPY_BYTES, part: 1.0 }],
            encrypted_sector_bytes: None,
            first_writes: None,
            vcpus: 1,
            ..of.clone()
        })
    };
    [true, false].into_iter().filter_map(copier).collect()
}

/// All tenants, and behind them those that copy.
fn played_with_copiers(site: &Site, tenants: &[Tenant]) -> Vec<engine::Tenant> {
    let copiers = copiers(tenants);
    let map = map_write(&site.profile);
    let first_writes = |tenant: &Tenant| {
        let FirstWrites { share, piece_bytes, are_shared } = tenant.first_writes?;
        let is_apart = copiers.len() > 1 && !tenant.class.is_guaranteed();
        let by = tenants.len() + usize::from(is_apart);
        Some(engine::FirstWrites { share, map, copies: are_shared.then_some(Copies { piece_bytes, by }) })
    };
    let own = tenants.iter().map(|tenant| engine::Tenant { first_writes: first_writes(tenant), ..played(tenant) });
    let copier = |tenant: &Tenant| engine::Tenant { workload: Workload::Copy, ..played(tenant) };
    own.chain(copiers.iter().map(copier)).collect()
}

fn played(tenant: &Tenant) -> engine::Tenant {
    let weight = |part: f64| ((part * PARTS).round() as u32).max(1);
    let block = |len_bytes: u64| (len_bytes.div_ceil(512) * 512).min(MOST_BYTES) as u32;
    let sizes = tenant.sizes.iter();
    let access = Access {
        read_percent: (tenant.read_share * 100.0).round() as u8,
        pattern: Pattern::Random,
        block_sizes: sizes.map(|size| BlockSize { bytes: block(size.len_bytes), weight: weight(size.part) }).collect(),
        working_set_bytes: None,
    };
    let workload = match tenant.load {
        Load::Closed { depth } => {
            let (jobs, iodepth) = jobs(depth, u32::from(tenant.vcpus));
            Workload::Fio(Fio { jobs, iodepth, access })
        }
        Load::Open { rate_iops } => Workload::Open(Open {
            jobs: tenant.vcpus.into(),
            arrivals: Arrivals::Poisson { iops: rate_iops },
            access,
            max_outstanding: 4_096,
        }),
    };
    let priority = TenantPriority::Fixed(tenant.priority);
    engine::Tenant {
        name: String::new(),
        terms: Terms { limits: tenant.limits, floor: tenant.floor, priority, ..tenant.class.into() },
        vcpus: tenant.vcpus.min(MOST_JOBS as u16),
        vqs: tenant.vcpus.min(MOST_QUEUES),
        queue_priorities: Vec::new(),
        size_bytes: DISK_BYTES,
        encrypted_sector_bytes: tenant.encrypted_sector_bytes,
        first_writes: None,
        workload,
    }
}

/// Threads and the depth of each, so that together they keep `depth` outstanding on CPUs as equally as can be.
fn jobs(depth: u32, vcpus: u32) -> (u32, u32) {
    match depth {
        _ if depth.is_multiple_of(vcpus) => (vcpus, depth / vcpus),
        0..=MOST_JOBS => (depth, 1),
        _ => (vcpus, depth / vcpus),
    }
}

/// What as many of a tenant's commands as were promised did not exceed, less what a run of this length can't tell.
pub(crate) fn at_percentile(seen: &TenantReport, tenant: &Tenant) -> Nanos {
    let percent = tenant.percentile().percent();
    let plain_ns = match () {
        () if percent > 99.9 => seen.latency.p9999_ns,
        () if percent > 99.0 => seen.latency.p999_ns,
        () => seen.latency.p99_ns,
    };
    Nanos(seen.cautious_ns.or(seen.at_percentile_ns).unwrap_or(plain_ns))
}
