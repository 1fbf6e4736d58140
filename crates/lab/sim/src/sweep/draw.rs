//! A scenario from a seed.

use std::fmt::Write;
use std::sync::Arc;

use arbitration::{Arbitration, QuantaKib};
use fastrand::Rng;
use io_model::{Nanos, QueuePriority};
use policy::{
    ArbitratedConfig, Class, Cost, Curve, EvenkeelConfig, FairConfig, Floor, Lending, Limits, LpnsConfig, PolicyConfig,
    TenantPriority, Terms, Variant,
};
use rivals::LabConfig::{self, Product};
use rivals::{D2fqConfig, K2Config, MqfqConfig};
use ssd_model::{Gc, Placement, Profile, Writes};

use crate::workload::{Access, Arrivals, BlockSize, Fio, Open, Pattern, Replay, Webuser, Workload};
use crate::{
    Change, ChangeKind, Contention, Contestant, FREE, Fault, FaultKind, Kick, Layout, PathCosts, Scenario, Tenant,
};

const MIB: u64 = 1 << 20;
/// Layouts whose pollers see all queues of a tenant.
const WHOLE: [Layout; 6] = [Layout::Evenkeel, Layout::Mdev, Layout::Spdk, Layout::Virtio, Layout::SrIov, Layout::K2];
/// A command that waits for longer, while others are served, starves.
const STARVATION: Nanos = Nanos::from_millis(3);

/// The scenario of a seed: always one that can be played.
pub fn draw(seed: u64) -> Scenario {
    let mut rng = Rng::with_seed(seed);
    let mut tenants: Vec<Tenant> = (0..rng.usize(1..=12)).map(|at| tenant(&mut rng, at)).collect();
    if rng.u8(..4) == 0 {
        // Tenants that differ in nothing but their class, so that their shares can be compared.
        let access = Access { block_sizes: vec![BlockSize { bytes: 4_096, weight: 1 }], ..access(&mut rng) };
        let workload = Workload::Fio(Fio { jobs: 4, iodepth: 32, access });
        for tenant in &mut tenants {
            *tenant = Tenant { vcpus: 4, vqs: 4, workload: workload.clone(), ..tenant.clone() };
        }
    }
    let span_ms = if rng.u8(..20) == 0 { 50 } else { rng.u64(3..=30) };
    let warmup_ms = rng.u64(0..span_ms);
    let mut scenario = Scenario {
        layout: *choose(&mut rng, &WHOLE),
        policy: policy(&mut rng, &mut tenants),
        hwqs_own: rng.u16(1..=8),
        hwqs_shared: rng.u16(1..=16),
        hwq_depth: *choose(&mut rng, &[1, 2, 8, 64, 1024]),
        tenants,
        warmup: Nanos::from_millis(warmup_ms),
        duration: Nanos::from_millis(span_ms - warmup_ms),
        window: Nanos::from_millis(rng.u64(0..2)),
        seed,
        starvation_limit: STARVATION,
        ..Scenario::new(profile(&mut rng))
    };
    if let LabConfig::D2fq(_) = scenario.policy {
        // It needs an HWQ of each class.
        scenario.hwqs_own = scenario.hwqs_own.max(3);
        scenario.hwqs_shared = scenario.hwqs_shared.max(3);
        scenario.layout = *choose(&mut rng, &[Layout::Evenkeel, Layout::Mdev, Layout::Spdk, Layout::K2]);
    }
    arbitrated(&mut scenario);
    promised(&mut scenario);
    costs(&mut rng, &mut scenario);
    contention(&mut scenario);
    several_pollers(&mut scenario);
    limited(&mut scenario);
    membership(&mut scenario);
    if rng.bool() {
        let faults = 0..rng.usize(1..=3);
        scenario.faults = faults.map(|_| fault(&mut rng, &scenario)).collect();
    }
    disks(&mut scenario);
    scenario
}

fn choose<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}

/// Now and then a host with other costs.
fn costs(rng: &mut Rng, scenario: &mut Scenario) {
    let guest = &mut scenario.costs.guest;
    if rng.bool() {
        guest.app_ns = rng.u64(0..10_000);
        guest.complete_ns = rng.u64(0..3_000);
        guest.varies_permille = rng.u64(0..=1_000);
    }
    if rng.bool() {
        let mediated = &mut scenario.costs.mediated;
        mediated.batch = rng.u32(1..=64);
        mediated.fetch_ns = rng.u64(0..2_000);
        mediated.complete_ns = rng.u64(0..2_000);
        mediated.wake_ns = *choose(rng, &[0, 0, 5_000]);
        mediated.lock_ns = *choose(rng, &[0, 0, 1_000]);
    }
}

/// Now and then a poller for each VQ, or CPUs that wait for each other. From a source of its own, so that a seed's
/// other draws stay what they are.
fn contention(scenario: &mut Scenario) {
    let mut rng = Rng::with_seed(!scenario.seed);
    if rng.u8(..3) > 0 {
        return;
    }
    if scenario.policy == Product(PolicyConfig::Passthrough) && rng.bool() {
        scenario.layout = Layout::PerQueue;
        scenario.tenants.iter_mut().for_each(|tenant| tenant.vqs = tenant.vqs.min(8));
    }
    let mut lock = |most_ns| Contention { hold_ns: rng.u64(0..most_ns), handover_ns: rng.u64(0..most_ns / 4) };
    let (mutex, ring) = (lock(3_000), lock(500));
    let path = PathCosts {
        wake_ns: *choose(&mut rng, &[0, 10_000]),
        kick: *choose(&mut rng, &[Kick::Never, Kick::Asleep, Kick::Always]),
        kick_ns: rng.u64(0..3_000),
        mutex: if rng.bool() { mutex } else { FREE.mutex },
        ring,
        bounce_ns: rng.u64(0..500),
        beside_vcpu: rng.bool(),
        ..scenario.costs.mediated
    };
    scenario.costs.mediated = path;
    scenario.costs.virtio = PathCosts { mutex: path.mutex, kick: path.kick, ring, ..scenario.costs.virtio };
}

/// Now and then several pollers under a policy that gives all tenants one order, or one for each VQ. From a source of
/// its own too.
fn several_pollers(scenario: &mut Scenario) {
    let mut rng = Rng::with_seed(scenario.seed.rotate_left(40) ^ 0x5e7e);
    let policy = &scenario.policy;
    if policy.gives_own_pollers() || policy.needs_one_poller() || rng.bool() {
        return;
    }
    scenario.best_effort_pollers = rng.u16(2..=5);
    scenario.layout = *choose(&mut rng, &[Layout::Evenkeel, Layout::Evenkeel, Layout::PerQueue]);
    if scenario.layout == Layout::PerQueue {
        scenario.tenants.iter_mut().for_each(|tenant| tenant.vqs = tenant.vqs.min(8));
    }
}

/// Now and then `wrr` or `drr`. From a source of its own too.
fn arbitrated(scenario: &mut Scenario) {
    let mut rng = Rng::with_seed(scenario.seed.rotate_left(32) ^ 0xa4b1);
    if rng.u8(..4) > 0 {
        return;
    }
    let drr = rng.bool();
    let (preset, most) = if drr { (ArbitratedConfig::drr(), 1_024) } else { (ArbitratedConfig::wrr(), 256) };
    let weights = rng.bool();
    let mut weight = |usual: u16| if weights { rng.u16(1..=most) } else { usual };
    let (high_weight, medium_weight, low_weight) =
        (weight(preset.high_weight), weight(preset.medium_weight), weight(preset.low_weight));
    let config = ArbitratedConfig {
        high_weight,
        medium_weight,
        low_weight,
        arbitration_burst: *choose(&mut rng, &[1, 1, 8, 256]),
        max_in_flight: *choose(&mut rng, &[1, 8, 64, 256]),
    };
    for at in 0..rng.usize(0..=scenario.tenants.len()) {
        scenario.tenants[at].terms.priority = priority(&mut rng);
    }
    for tenant in &mut scenario.tenants {
        tenant.queue_priorities = (0..rng.u16(0..=tenant.vqs)).map(|_| class(&mut rng)).collect();
    }
    scenario.policy = if drr { PolicyConfig::Drr(config) } else { PolicyConfig::Wrr(config) }.into();
}

/// A bound stands from the second interval on: half of those under `lpns` run on for longer. From a source of its own
/// too.
fn promised(scenario: &mut Scenario) {
    let mut rng = Rng::with_seed(scenario.seed.rotate_left(16) ^ 0xb0d5);
    if matches!(scenario.policy, Product(PolicyConfig::Lpns(_))) && rng.bool() {
        scenario.duration += Nanos::from_millis(rng.u64(20..=80));
    }
}

/// Now and then some tenants have limits, whatever the policy. From a source of its own too.
fn limited(scenario: &mut Scenario) {
    let mut rng = Rng::with_seed(scenario.seed.rotate_left(8) ^ 0x11a1);
    if scenario.policy == LabConfig::Caps || rng.u8(..3) > 0 {
        return;
    }
    for at in 0..scenario.tenants.len() {
        if rng.bool() {
            scenario.tenants[at].terms.limits = limits(&mut rng);
        }
    }
}

/// Now and then tenants that come later, go, or get other terms. From a source of its own too.
fn membership(scenario: &mut Scenario) {
    let mut rng = Rng::with_seed(scenario.seed.rotate_left(48) ^ 0x3e3b);
    if rng.u8(..3) > 0 {
        return;
    }
    let end_ns = (scenario.warmup + scenario.duration).0;
    for _ in 0..rng.usize(1..=12) {
        let tenant = rng.usize(..scenario.tenants.len());
        let kind = match rng.u8(..4) {
            0 => ChangeKind::Joins,
            1 => ChangeKind::Leaves,
            _ => ChangeKind::NewTerms(terms(&mut rng, &scenario.policy)),
        };
        scenario.changes.push(Change { at: Nanos(rng.u64(0..end_ns)), tenant, kind });
    }
}

/// Now and then disks that are made, grow, get other limits and are deleted, on a drive that they nearly fill. From a
/// source of its own too, and last: faults and other changes are about the tenants above.
fn disks(scenario: &mut Scenario) {
    let mut rng = Rng::with_seed(scenario.seed.rotate_left(24) ^ 0xd15c);
    if rng.u8(..3) > 0 {
        return;
    }
    let before = scenario.clone();
    for tenant in &mut scenario.tenants {
        shrink(&mut rng, tenant);
    }
    // Wiping takes its time.
    scenario.duration += Nanos::from_millis(*choose(&mut rng, &[0, 5, 20]));
    let wiper = Tenant {
        name: "wiper".to_owned(),
        terms: Terms::best_effort(1),
        vcpus: 1,
        vqs: 1,
        queue_priorities: Vec::new(),
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes: scenario.drive_bytes,
        workload: Workload::Wipe,
    };
    let wiper_at = scenario.tenants.len();
    scenario.tenants.push(wiper);
    // New disks begin at whole MiB.
    let room = |tenant: &Tenant| tenant.size_bytes.next_multiple_of(MIB);
    let taken: u64 = scenario.tenants[..wiper_at].iter().map(room).sum();
    scenario.drive_bytes = taken + rng.u64(0..=8) * MIB;
    scenario.tenants[wiper_at].size_bytes = 0;
    let end_ns = (scenario.warmup + scenario.duration).0;
    for _ in 0..rng.usize(4..=32) {
        let at = Nanos(rng.u64(0..end_ns));
        let change = disk_change(&mut rng, scenario, wiper_at);
        scenario.changes.extend(change.map(|(tenant, kind)| Change { at, tenant, kind }));
    }
    if scenario.validate().is_err() {
        // A poller or HWQ too many for the wiper.
        *scenario = before;
    }
}

/// One event, about whom. `None`: one tenant more would be too many for the drive's HWQs.
fn disk_change(rng: &mut Rng, scenario: &mut Scenario, wiper: usize) -> Option<(usize, ChangeKind)> {
    let mut any = rng.usize(..scenario.tenants.len());
    if any == wiper {
        any = 0;
    }
    match rng.u8(..8) {
        0..2 => {
            let at = scenario.tenants.len();
            let mut new = tenant(rng, at);
            shrink(rng, &mut new);
            new.vqs = new.vqs.min(8);
            new.terms = Terms { class: new.terms.class, ..terms(rng, &scenario.policy) };
            scenario.tenants.push(new);
            if scenario.validate().is_err() {
                scenario.tenants.pop();
                return None;
            }
            Some((at, ChangeKind::Joins))
        }
        2..4 => Some((any, ChangeKind::Grows(rng.u64(1..=1_024) * 4_096))),
        4..6 => {
            let limits = if rng.u8(..3) == 0 { Limits::default() } else { limits(rng) };
            Some((any, ChangeKind::NewTerms(Terms { limits, ..scenario.tenants[any].terms })))
        }
        _ => Some((any, ChangeKind::Deleted)),
    }
}

/// A disk so small that it is soon wiped, and a workload that fits on it.
fn shrink(rng: &mut Rng, tenant: &mut Tenant) {
    tenant.size_bytes = rng.u64(256..=2_048) * 4_096;
    if tenant.workload.validate(tenant.size_bytes).is_err() {
        let block_sizes = [4_096, 131_072].map(|bytes| BlockSize { bytes, weight: 1 }).to_vec();
        let access = Access { block_sizes, ..Access::random_4k(70) };
        tenant.workload = Workload::Fio(Fio { jobs: rng.u32(1..=4), iodepth: *choose(rng, &[1, 4, 32]), access });
    }
}

/// Terms of which those that the policy heeds are drawn.
pub(super) fn terms(rng: &mut Rng, policy: &LabConfig) -> Terms {
    let limits = if *policy == LabConfig::Caps || rng.u8(..3) == 0 { limits(rng) } else { Limits::default() };
    let priority = match policy {
        Product(PolicyConfig::Wrr(_) | PolicyConfig::Drr(_)) => priority(rng),
        _ => TenantPriority::default(),
    };
    let class = promise(rng);
    let floor = match policy {
        Product(PolicyConfig::Evenkeel(_)) if !class.is_guaranteed() && limits.is_empty() && rng.u8(..3) == 0 => {
            floor(rng)
        }
        _ => Floor::default(),
    };
    Terms { class, limits, floor, priority, pollers: 1, group: None }
}

/// Up to more than any drive has.
fn floor(rng: &mut Rng) -> Floor {
    let up_to = |rng: &mut Rng, most: u64| if rng.bool() { rng.u64(1..=most) } else { 0 };
    Floor { ios_per_sec: up_to(rng, 1_000_000), mbytes_per_sec: up_to(rng, 4_000) }
}

fn promise(rng: &mut Rng) -> Class {
    if rng.u8(..3) == 0 {
        Class::guaranteed(rng.bool().then(|| Nanos::from_micros(rng.u64(20..=500))))
    } else {
        Class::BestEffort { weight: *choose(rng, &[1, 1, 1, 2, 4, 8, 100]) }
    }
}

fn class(rng: &mut Rng) -> QueuePriority {
    *choose(rng, &[QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low])
}

fn priority(rng: &mut Rng) -> TenantPriority {
    let fixed = TenantPriority::Fixed;
    match rng.u8(..16) {
        0 => fixed(QueuePriority::Urgent),
        1..5 => fixed(QueuePriority::High),
        5..9 => fixed(QueuePriority::Medium),
        9..13 => fixed(QueuePriority::Low),
        _ => TenantPriority::OfQueue,
    }
}

fn profile(rng: &mut Rng) -> Profile {
    let known = Profile::built_in();
    let mut profile = choose(rng, known).clone();
    if rng.bool() {
        return profile;
    }
    profile.units = rng.u32(1..=64);
    profile.placement = *choose(rng, &[Placement::Hashed, Placement::Pooled]);
    profile.read_ns = rng.u64(2_000..=120_000);
    profile.further_ns = rng.u64(0..=2_000);
    profile.controller_ns = rng.u64(0..=2_000);
    profile.pipeline_ns = rng.u64(0..=10_000);
    profile.window = *choose(rng, &[1, 4, 64, 256, 1024]);
    profile.writes = match rng.u8(..3) {
        0 => Writes::InPlace { write_ns: rng.u64(2_000..=200_000), ack_ns: rng.u64(0..=20_000) },
        1 => Writes::Buffered {
            ack_ns: rng.u64(0..=20_000),
            buffer_bytes: rng.u64(1..=16) * MIB,
            drain_ns: rng.u64(500..=20_000),
        },
        _ => profile.writes,
    };
    profile.gc = rng.bool().then(|| Gc {
        enabled: rng.bool(),
        over_provisioning_percent: rng.u32(7..=50),
        utilization_percent: rng.u32(10..=100),
    });
    let burst = rng.u32(1..=8);
    let mut weight = || rng.u16(1..=16);
    let weights = io_model::WrrWeights { high: weight(), medium: weight(), low: weight() };
    profile.arbitration = match rng.u8(..3) {
        0 => Arbitration::RoundRobin { burst },
        1 => Arbitration::WeightedRoundRobin { burst, weights },
        _ => Arbitration::DeficitRoundRobin { quanta: QuantaKib { high: 256, medium: 64, low: 16 } },
    };
    profile
}

/// Policies that want to know more of tenants than their class have that drawn too.
fn policy(rng: &mut Rng, tenants: &mut [Tenant]) -> LabConfig {
    let cost = if rng.bool() { Cost::default() } else { Cost { read: Curve::linear(13), ..Cost::default() } };
    match rng.u8(..9) {
        0 => PolicyConfig::Passthrough.into(),
        8 => {
            let max_in_flight = *choose(rng, &[1, 16, 48, 1_000]);
            PolicyConfig::Evenkeel(EvenkeelConfig { max_in_flight, cost, ..EvenkeelConfig::p5800x() }).into()
        }
        1 | 2 => PolicyConfig::Lpns(lpns(rng)).into(),
        3 => PolicyConfig::Fair(fair(rng)).into(),
        4 => LabConfig::K2(K2Config { max_in_flight: *choose(rng, &[1, 8, 16, 32, 1_000]) }),
        5 => LabConfig::Mqfq(MqfqConfig {
            gap_commands: *choose(rng, &[1, 12, 100]),
            max_in_flight: *choose(rng, &[1, 8, 64, 1_000]),
            guaranteed_weight: rng.u32(1..=10),
            cost,
        }),
        6 => LabConfig::D2fq(D2fqConfig {
            medium_gap_commands: rng.u32(1..=3),
            low_gap_commands: rng.u32(3..=20),
            ratio: rng.u32(3..=256),
            adaptive: rng.bool(),
            guaranteed_weight: rng.u32(1..=10),
            cost,
        }),
        _ => {
            for at in 0..rng.usize(0..=tenants.len()) {
                tenants[at].terms.limits = limits(rng);
            }
            LabConfig::Caps
        }
    }
}

fn lpns(rng: &mut Rng) -> LpnsConfig {
    let preset = if rng.bool() { LpnsConfig::p5800x() } else { LpnsConfig::pm1735() };
    if rng.bool() {
        return preset;
    }
    LpnsConfig {
        variant: *choose(rng, &[Variant::Corrected, Variant::Corrected, Variant::Published]),
        lending: *choose(rng, &[Lending::Backlog, Lending::Backlog, Lending::Turns, Lending::Never]),
        omega: rng.f64() * 400.0 + 1.0,
        r_iops: rng.f64() * 1e6 + 50_000.0,
        depth: rng.u32(1..=32),
        parallelism: rng.u32(1..=128),
        saturation_factor: rng.u32(4..=64),
        floor_in_flight: rng.u32(1..=8),
        floor_rate_permille: rng.u32(100..=1_000),
        miss_budget_permille: rng.u32(1..=1_000),
        ..preset
    }
}

fn fair(rng: &mut Rng) -> FairConfig {
    let presets = [FairConfig::p3520(), FairConfig::pm1735(), FairConfig::p5800x()];
    let preset = choose(rng, &presets).clone();
    FairConfig {
        variant: *choose(rng, &[Variant::Corrected, Variant::Corrected, Variant::Published]),
        beta: rng.f64(),
        epoch: Nanos::from_micros(*choose(rng, &[100, 1_000, 1_000, 5_000])),
        ..preset
    }
}

/// Limits under which a tenant is still served every millisecond or two.
fn limits(rng: &mut Rng) -> Limits {
    let mut maybe = |limit: u64| if rng.u8(..3) == 0 { limit } else { 0 };
    Limits {
        rw_ios_per_sec: maybe(5_000),
        rw_mbytes_per_sec: maybe(500),
        r_mbytes_per_sec: maybe(400),
        w_mbytes_per_sec: maybe(300),
        r_ios_per_sec: maybe(4_000),
        w_ios_per_sec: maybe(3_000),
        burst: Nanos(*choose(rng, &[0, 0, 300_000, 5_000_000])),
    }
}

fn tenant(rng: &mut Rng, at: usize) -> Tenant {
    let class = promise(rng);
    let size_bytes = rng.u64(64..=1_024) * MIB;
    let drawn = workload(rng, size_bytes);
    let workload = if drawn.validate(size_bytes).is_ok() { drawn } else { Workload::Fio(Fio::random_4k(1, 1, 100)) };
    let vqs = if rng.u8(..32) == 0 { 127 } else { rng.u16(1..=8) };
    let queue_priorities = Vec::new();
    Tenant {
        name: format!("t{at}"),
        terms: class.into(),
        vcpus: rng.u16(1..=8),
        vqs,
        queue_priorities,
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes,
        workload,
    }
}

fn workload(rng: &mut Rng, size_bytes: u64) -> Workload {
    match rng.u8(..16) {
        0..7 | 12 | 13 => {
            Workload::Fio(Fio { jobs: rng.u32(1..=8), iodepth: *choose(rng, &[1, 1, 4, 32, 128]), access: access(rng) })
        }
        7..10 | 14 => Workload::Open(Open {
            jobs: rng.u32(1..=4),
            arrivals: arrivals(rng),
            access: access(rng),
            max_outstanding: rng.u32(1..=4096),
        }),
        10 => Workload::Webuser(Webuser { mean_iops: rng.f64() * 50_000.0 + 100.0, ..Webuser::default() }),
        11 => Workload::Replay(replay(rng, size_bytes)),
        _ => Workload::Idle,
    }
}

fn access(rng: &mut Rng) -> Access {
    let sizes = [512, 4_096, 4_096, 4_096, 16_384, 131_072];
    let mut block = || BlockSize { bytes: *choose(rng, &sizes), weight: rng.u32(1..=4) };
    let mut block_sizes = vec![block()];
    if rng.bool() {
        block_sizes.push(BlockSize { bytes: *choose(rng, &sizes), weight: rng.u32(1..=4) });
    }
    Access {
        read_percent: *choose(rng, &[0, 50, 70, 100, 100]),
        pattern: *choose(rng, &[Pattern::Random, Pattern::Random, Pattern::Sequential]),
        block_sizes,
        working_set_bytes: rng.bool().then(|| rng.u64(8..=64) * MIB),
    }
}

fn arrivals(rng: &mut Rng) -> Arrivals {
    let iops = 10_f64.powf(2.0 + rng.f64() * 3.5);
    match rng.u8(..3) {
        0 => Arrivals::Poisson { iops },
        1 => Arrivals::Constant { iops },
        _ => Arrivals::Bursts { iops, on: Nanos(rng.u64(1_000..2_000_000)), off: Nanos(rng.u64(0..2_000_000)) },
    }
}

/// A made-up trace in fio's form.
fn replay(rng: &mut Rng, size_bytes: u64) -> Replay {
    let mut text = "fio version 3 iolog\n".to_owned();
    let mut at_us = 0;
    for _ in 0..rng.u32(1..=200) {
        at_us += rng.u64(0..200);
        let (offset, len) = (rng.u64(0..size_bytes / 2), rng.u64(0..65_536));
        let op = choose(rng, &["read", "write"]);
        // Writing to a string can't fail.
        let _ = writeln!(text, "{at_us} disk {op} {offset} {len}");
    }
    let limits = trace::Limits::default();
    let read = trace::read(text.as_bytes(), "drawn", Some(trace::Format::FioIolog), limits);
    let trace = Arc::new(read.expect("a drawn trace is well-formed"));
    Replay { speed: 0.5 + rng.f64() * 4.0, looping: rng.bool(), jobs: rng.u32(1..=4), ..crate::replay(&trace) }
}

fn fault(rng: &mut Rng, scenario: &Scenario) -> Fault {
    let tenant = rng.usize(..scenario.tenants.len());
    let lasts = Nanos(rng.u64(10_000..3_000_000));
    let hwqs: u16 = scenario.poller_hwqs().iter().sum();
    let kind = match rng.u8(..6) {
        0 => FaultKind::Errors { ppm: rng.u32(1..=1_000_000), lasts },
        1 => FaultKind::Stall { lasts },
        2 => FaultKind::LoseHwq { hwq: rng.u16(..hwqs), timeout: lasts },
        3 => FaultKind::Reset { tenant },
        4 => FaultKind::Leave { tenant },
        _ => FaultKind::Rogue { tenant },
    };
    let end_ns = (scenario.warmup + scenario.duration).0;
    Fault { at: Nanos(rng.u64(0..end_ns)), kind }
}
