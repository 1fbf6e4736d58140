//! Policies that give all tenants one order do so on several pollers too.

mod common;

use common::{GUARANTEED, clean, reader, scenario};
use io_model::{Nanos, QueuePriority};
use policy::{ArbitratedConfig, Class, FairConfig, K2Config, Limits, MqfqConfig, PolicyConfig, TenantPriority, Terms};
use sim::workload::{Access, BlockSize, Fio, Pattern, Phase, Phases, Workload};
use sim::{Layout, Scenario, Tenant};
use ssd_model::Profile;

fn k2() -> PolicyConfig {
    PolicyConfig::K2(K2Config::default())
}

/// Those that share by weight.
fn by_weight() -> [PolicyConfig; 2] {
    [PolicyConfig::Mqfq(MqfqConfig::default()), PolicyConfig::Fair(FairConfig::p5800x())]
}

/// Those that share by priority.
fn by_priority() -> [PolicyConfig; 2] {
    [PolicyConfig::Wrr(ArbitratedConfig::wrr()), PolicyConfig::Drr(ArbitratedConfig::drr())]
}

fn every() -> impl Iterator<Item = PolicyConfig> {
    by_weight().into_iter().chain(by_priority()).chain([k2()])
}

fn access(kib: u32, read_percent: u8) -> Access {
    Access { block_sizes: vec![BlockSize { bytes: kib << 10, weight: 1 }], ..Access::random_4k(read_percent) }
}

/// Four jobs that each keep 32 commands outstanding, over four VQs.
fn busy(kib: u32, read_percent: u8) -> Tenant {
    let fio = Fio { jobs: 4, iodepth: 32, access: access(kib, read_percent) };
    Tenant { workload: Workload::Fio(fio), ..reader(Class::BestEffort { weight: 1 }, 4, 32) }
}

fn with(terms: impl Into<Terms>) -> Tenant {
    Tenant { terms: terms.into(), ..busy(16, 50) }
}

fn of_class(priority: QueuePriority) -> Tenant {
    with(Terms { priority: TenantPriority::Fixed(priority), ..Terms::default() })
}

fn on(pollers: u16, policy: &PolicyConfig, tenants: &[Tenant]) -> Scenario {
    Scenario {
        policy: policy.clone(),
        best_effort_pollers: pollers,
        warmup: Nanos::from_millis(600),
        duration: Nanos::from_millis(500),
        starvation_limit: Nanos::from_millis(100),
        ..scenario(tenants.to_vec())
    }
}

/// Bytes per second of each.
fn bytes(scenario: &Scenario) -> Vec<f64> {
    clean(scenario).tenants.iter().map(|tenant| tenant.bandwidth_bytes_s).collect()
}

/// Plays it with one poller and with these: each tenant has what it has on one, but for that part.
fn compare(policy: &PolicyConfig, tenants: &[Tenant], pollers: &[u16], but_for: f64) {
    let one = bytes(&on(1, policy, tenants));
    for &pollers in pollers {
        let several = bytes(&on(pollers, policy, tenants));
        let error = one.iter().zip(&several).map(|(one, several)| (several / one - 1.0).abs()).fold(0.0, f64::max);
        assert!(error <= but_for, "{} on {pollers}: {error:.4} of {one:.0?}, {several:.0?}", policy.name());
    }
}

/// A drive that takes one command at a time puts all in an order that repeats: a VQ may come too late in each round.
#[test]
fn every_queue_is_served_where_the_drives_queues_are_short_and_the_order_repeats() {
    let writer = |weight| {
        let access = Access { pattern: Pattern::Sequential, ..access(4, 0) };
        let fio = Fio { jobs: 4, iodepth: 32, access };
        Tenant { workload: Workload::Fio(fio), ..reader(Class::BestEffort { weight }, 4, 32) }
    };
    for seed in 0..4 {
        clean(&Scenario {
            layout: Layout::Spdk,
            policy: PolicyConfig::Mqfq(MqfqConfig::default()),
            profile: Profile { window: 1, ..Profile::pm1735() },
            hwqs_shared: 3,
            hwq_depth: 2,
            warmup: Nanos::from_millis(41),
            duration: Nanos::from_millis(9),
            starvation_limit: Nanos::from_millis(3),
            seed,
            ..scenario([1, 2, 1, 1].map(writer).to_vec())
        });
    }
}

#[test]
fn equal_tenants_have_what_they_have_on_one_poller() {
    every().for_each(|policy| compare(&policy, &vec![busy(16, 50); 8], &[2, 8], 0.02));
}

#[test]
fn who_asks_for_little_is_not_who_asks_for_much() {
    let tenants: Vec<_> = (0..8).map(|at| if at % 2 == 0 { busy(4, 100) } else { busy(64, 0) }).collect();
    every().for_each(|policy| compare(&policy, &tenants, &[2, 8], 0.04));
}

#[test]
fn weights_hold_across_pollers() {
    let tenants: Vec<_> = (0..8).map(|at| with(Class::BestEffort { weight: 1 + 3 * (at % 3) })).collect();
    by_weight().iter().for_each(|policy| compare(policy, &tenants, &[4, 8], 0.02));
}

#[test]
fn priorities_hold_across_pollers() {
    use QueuePriority::{High, Low, Medium};
    // No poller of three has the classes in the proportion that all have.
    let tenants = [High, Medium, Low, High, Medium, Low, High, High, Low, High].map(of_class);
    by_priority().iter().for_each(|policy| compare(policy, &tenants, &[3, 10], 0.03));
}

#[test]
fn real_time_tenants_go_first_across_pollers() {
    let deep = reader(GUARANTEED, 4, 32);
    let shallow = reader(GUARANTEED, 4, 2);
    for (first, least_of_one) in [(deep, 0.97), (shallow, 0.97)] {
        let mut tenants = vec![busy(16, 50); 5];
        tenants[0] = first;
        let scenario = Scenario { starvation_limit: Nanos::from_millis(2_000), ..on(4, &k2(), &tenants) };
        let several = bytes(&scenario);
        let one = bytes(&Scenario { layout: Layout::Mdev, ..scenario });
        assert!(several[0] >= least_of_one * one[0], "{one:.0?} {several:.0?}");
    }
}

#[test]
fn urgent_tenants_go_first_across_pollers() {
    let tenants: Vec<_> =
        [0, 1, 2, 3].map(|at| if at == 0 { QueuePriority::Urgent } else { QueuePriority::Low }).map(of_class).into();
    for policy in by_priority() {
        let scenario = Scenario { starvation_limit: Nanos::from_millis(2_000), ..on(4, &policy, &tenants) };
        let (several, one) = (bytes(&scenario), bytes(&Scenario { best_effort_pollers: 1, ..scenario }));
        assert!(several[0] >= 0.97 * one[0], "{}: {one:.0?} {several:.0?}", policy.name());
    }
}

#[test]
fn a_tenant_on_several_pollers_counts_once() {
    for policy in every() {
        let several_vqs = |vqs| Tenant { vcpus: vqs, vqs, ..busy(16, 50) };
        let scenario = on(1, &policy, &[several_vqs(4), several_vqs(2)]);
        let got = bytes(&Scenario { layout: Layout::PerQueue, ..scenario });
        // K2 knows queues alone.
        let expected = if matches!(policy, PolicyConfig::K2(_)) { 2.0 } else { 1.0 };
        assert!((got[0] / got[1] / expected - 1.0).abs() < 0.03, "{}: {got:.0?}", policy.name());
    }
}

#[test]
fn what_a_poller_does_not_use_others_have_within_50_ms() {
    let ms = Nanos::from_millis;
    let phases = [Some(access(16, 50)), None].map(|access| Phase { lasts: ms(300), access }).to_vec();
    let on_off = Workload::Phases(Phases { jobs: 4, iodepth: 32, phases });
    let on_off = Tenant { workload: on_off, ..busy(16, 50) };
    let tenants: Vec<_> = (0..8).map(|at| if at % 2 == 0 { on_off.clone() } else { busy(16, 50) }).collect();
    for policy in every() {
        let report = clean(&Scenario { window: ms(10), ..on(8, &policy, &tenants) });
        let bytes = |from: usize, to: usize| {
            let windows = report.tenants.iter().map(|tenant| &tenant.windows[from..to]);
            windows.flatten().map(|window| window.bytes as f64).sum::<f64>() / (to - from) as f64
        };
        // Half of them are away from 300 to 600 and from 900 ms on; the first window is of 600 ms.
        let (there, away) = (bytes(10, 30), bytes(40, 50));
        for (what, part) in [("came", bytes(4, 7) / there), ("went", bytes(34, 37) / away), ("away", away / there)] {
            assert!((0.93..1.06).contains(&part), "{}, {what}: {part}", policy.name());
        }
    }
}

#[test]
fn a_limit_is_kept_on_several_pollers_under_caps() {
    let limited = with(Terms { limits: Limits { rw_ios_per_sec: 20_000, ..Limits::default() }, ..Terms::default() });
    let scenario = on(1, &PolicyConfig::Caps, &[limited, busy(16, 50)]);
    let report = clean(&Scenario { layout: Layout::PerQueue, ..scenario });
    let iops = report.tenants[0].iops;
    assert!((19_000.0..20_100.0).contains(&iops), "{iops}");
}
