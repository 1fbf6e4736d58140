//! Best-effort tenants on several pollers get what they would on one, and no promise is missed for it.

use crate::common::{clean, reader, scenario};
use io_model::Nanos;
use policy::{Class, EvenkeelConfig, Floor, Limits, LpnsConfig, PolicyConfig};
use sim::workload::{Access, BlockSize, Fio, Phase, Phases, Workload};
use sim::{Change, ChangeKind, Layout, Report, Scenario, Tenant};

fn evenkeel() -> PolicyConfig {
    PolicyConfig::Evenkeel(EvenkeelConfig::p5800x())
}

fn access(kib: u32, read_percent: u8) -> Access {
    Access { block_sizes: vec![BlockSize { bytes: kib << 10, weight: 1 }], ..Access::random_4k(read_percent) }
}

/// Four jobs that each keep 32 commands outstanding, over four VQs.
fn busy(kib: u32, read_percent: u8) -> Tenant {
    let fio = Fio { jobs: 4, iodepth: 32, access: access(kib, read_percent) };
    Tenant { workload: Workload::Fio(fio), ..reader(Class::BestEffort { weight: 1 }, 4, 32) }
}

/// The tenant with this weight, on this many VQs.
fn with(tenant: &Tenant, weight: u32, vqs: u16) -> Tenant {
    Tenant { terms: Class::BestEffort { weight }.into(), vcpus: vqs, vqs, ..tenant.clone() }
}

/// Reads with a target of 100 µs, one at a time, beside these.
fn beside(others: Vec<Tenant>, policy: PolicyConfig, pollers: u16) -> Scenario {
    let promised = reader(Class::guaranteed(Some(Nanos::from_micros(100))), 1, 1);
    Scenario {
        policy: policy.into(),
        best_effort_pollers: pollers,
        warmup: Nanos::from_millis(800),
        duration: Nanos::from_millis(700),
        starvation_limit: Nanos::from_millis(100),
        ..scenario(std::iter::once(promised).chain(others).collect())
    }
}

/// 99 % of the promised tenant's commands, in targets.
fn reached(report: &Report) -> f64 {
    report.tenants[0].latency.p99_ns as f64 / 1e5
}

/// Bytes per second of all but that.
fn others(report: &Report) -> Vec<f64> {
    report.tenants.iter().skip(1).map(|tenant| tenant.bandwidth_bytes_s).collect()
}

/// Jain's index: 1 where all are equal.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    sum * sum / shares.len() as f64 / squares
}

/// Plays it with one poller and with these; what each must have of the throughput of one, and of its promise.
fn compare(tenants: &[Tenant], policy: &PolicyConfig, pollers: &[u16], (least, most_of_target): (f64, f64)) {
    let run = |pollers| clean(&beside(tenants.to_vec(), policy.clone(), pollers));
    let one = others(&run(1)).iter().sum::<f64>();
    for &pollers in pollers {
        let report = run(pollers);
        let others = others(&report);
        let shares: Vec<f64> = others.iter().zip(tenants).map(weighted).collect();
        let (sum, jain, reached) = (others.iter().sum::<f64>(), jain(&shares), reached(&report));
        let told = format!("{} {pollers}: {:.3} of one, Jain {jain:.4}, p99 {reached:.3}", policy.name(), sum / one);
        assert!(sum >= least * one && jain >= 0.97 && reached <= most_of_target, "{told}");
    }
}

fn weighted((bytes, tenant): (&f64, &Tenant)) -> f64 {
    bytes / f64::from(tenant.terms.class.weight().unwrap_or(1))
}

#[test]
fn evenkeel_on_several_pollers_is_evenkeel_on_one() {
    for (kib, read_percent) in [(16, 50), (128, 0)] {
        compare(&vec![busy(kib, read_percent); 8], &evenkeel(), &[2, 4, 8], (0.97, 1.0));
    }
}

#[test]
fn lpns_on_several_pollers_is_lpns_on_one() {
    let lpns = PolicyConfig::Lpns(LpnsConfig::p5800x());
    for (kib, read_percent) in [(4, 100), (64, 100)] {
        compare(&vec![busy(kib, read_percent); 8], &lpns, &[2, 8], (0.97, 1.0));
    }
    let weighted: Vec<Tenant> = (0..8).map(|at| with(&busy(16, 50), 1 + 3 * (at % 3), 4)).collect();
    compare(&weighted, &lpns, &[4], (0.97, 1.0));
}

#[test]
fn who_asks_for_little_is_not_who_asks_for_much() {
    let mixed = |at| if at % 2 == 0 { busy(4, 100) } else { busy(64, 0) };
    compare(&(0..8).map(mixed).collect::<Vec<_>>(), &evenkeel(), &[2, 8], (0.97, 1.0));
}

#[test]
fn weights_hold_across_pollers() {
    let weighted: Vec<Tenant> = (0..8).map(|at| with(&busy(16, 50), 1 + 3 * (at % 3), 4)).collect();
    compare(&weighted, &evenkeel(), &[4, 8], (0.97, 1.0));
}

/// A thread and a queue of the drive for each VQ.
fn per_queue(others: Vec<Tenant>, policy: PolicyConfig) -> Report {
    clean(&Scenario { layout: Layout::PerQueue, ..beside(others, policy, 1) })
}

#[test]
fn a_tenant_on_several_pollers_counts_once() {
    for policy in [evenkeel(), PolicyConfig::Lpns(LpnsConfig::p5800x())] {
        let name = policy.name();
        let report = per_queue(vec![with(&busy(16, 50), 3, 4), with(&busy(16, 50), 1, 2)], policy);
        let [first, second] = others(&report)[..] else { panic!("two") };
        assert!((first / second / 3.0 - 1.0).abs() < 0.03, "{name}: {first} {second}");
        assert!(reached(&report) <= 1.0, "{name}: {}", reached(&report));
    }
}

#[test]
fn a_promised_tenant_may_leave_several_pollers() {
    let ms = Nanos::from_millis;
    let mut scenario = beside(vec![busy(16, 50); 2], evenkeel(), 1);
    scenario.tenants[0] = reader(Class::guaranteed(Some(Nanos::from_micros(100))), 4, 1);
    scenario.layout = Layout::PerQueue;
    scenario.changes = vec![Change { at: ms(55), tenant: 0, kind: ChangeKind::Leaves }];
    (scenario.warmup, scenario.duration) = (ms(20), ms(80));
    clean(&scenario);
}

#[test]
fn a_floor_and_a_limit_are_parted_by_where_their_tenant_asks() {
    let mut kept = busy(16, 50);
    kept.terms.floor = Floor { ios_per_sec: 100_000, mbytes_per_sec: 0 };
    let mut limited = busy(16, 50);
    limited.terms.limits = Limits { rw_ios_per_sec: 20_000, ..Limits::default() };
    // All that it asks for comes through one of its VQs.
    limited.vcpus = 1;
    let report = per_queue(vec![kept, limited, busy(16, 50), busy(16, 50)], evenkeel());
    let [_, kept, limited, ..] = &report.tenants[..] else { panic!("five") };
    assert!(kept.iops > 98_000.0, "{}", kept.iops);
    assert!((19_000.0..20_100.0).contains(&limited.iops), "{}", limited.iops);
    assert!(reached(&report) <= 1.0);
}

#[test]
fn a_floor_is_kept_beside_other_pollers() {
    for pollers in [2, 4] {
        let mut tenants = vec![busy(16, 50); 8];
        tenants[1].terms.floor = Floor { ios_per_sec: 100_000, mbytes_per_sec: 0 };
        tenants[2].terms.floor = Floor { ios_per_sec: 0, mbytes_per_sec: 1_000 };
        let report = clean(&beside(tenants, evenkeel(), pollers));
        let (ios, bytes) = (report.tenants[2].iops, report.tenants[3].bandwidth_bytes_s);
        assert!(ios > 98_000.0 && bytes > 0.98 * (1_000 << 20) as f64, "{pollers}: {ios} {bytes}");
        assert!(reached(&report) <= 1.03, "{pollers}: {}", reached(&report));
    }
}

#[test]
fn a_floor_is_kept_by_who_is_alone_on_a_poller() {
    // A quarter of what there is, by its weight, would be 200,000 and 400,000.
    for (pollers, floor) in [(4, 300_000), (2, 450_000)] {
        let mut tenants = vec![busy(4, 100); pollers];
        tenants[0].terms.floor = Floor { ios_per_sec: floor, mbytes_per_sec: 0 };
        let mut scenario = Scenario { policy: evenkeel().into(), ..scenario(tenants) };
        scenario.best_effort_pollers = pollers as u16;
        (scenario.warmup, scenario.duration) = (Nanos::from_millis(1_000), Nanos::from_millis(500));
        scenario.starvation_limit = Nanos::from_millis(100);
        let report = clean(&scenario);
        let iops: Vec<f64> = report.tenants.iter().map(|tenant| tenant.iops).collect();
        assert!(iops[0] > 0.98 * floor as f64, "{iops:?}");
        // Others share what is left: it is no more than its floor to it.
        let least = iops[1..].iter().copied().fold(f64::INFINITY, f64::min);
        assert!(iops[0] < 1.05 * floor as f64 && jain(&iops[1..]) > 0.99 && least > 120_000.0, "{iops:?}");
    }
}

#[test]
fn what_a_poller_does_not_use_others_have_within_50_ms() {
    let ms = Nanos::from_millis;
    let phases = [Some(access(16, 50)), None].map(|access| Phase { lasts: ms(300), access }).to_vec();
    let on_off = Workload::Phases(Phases { jobs: 4, iodepth: 32, phases });
    let on_off = Tenant { workload: on_off, ..busy(16, 50) };
    for pollers in [2, 8] {
        let tenants = (0..8).map(|at| if at % 2 == 0 { on_off.clone() } else { busy(16, 50) }).collect();
        let report = clean(&Scenario { window: ms(10), ..beside(tenants, evenkeel(), pollers) });
        let bytes = |from: usize, to: usize| {
            let windows = report.tenants.iter().skip(1).map(|tenant| &tenant.windows[from..to]);
            windows.flatten().map(|window| window.bytes as f64).sum::<f64>() / (to - from) as f64
        };
        // Half of them are there until 900 ms, away until 1,200 and there until the end; the first window is of 800 ms.
        let (away, there) = (bytes(20, 40), bytes(50, 70));
        for (what, part) in [("went", bytes(14, 17) / away), ("came", bytes(44, 47) / there), ("away", away / there)] {
            assert!((0.95..1.06).contains(&part), "{pollers}, {what}: {part}");
        }
        let of = |tenant: usize| report.tenants[tenant].windows[44..].iter().map(|window| window.bytes as f64).sum();
        let jain = jain(&[1, 2, 3, 4, 5, 6, 7, 8].map(of));
        assert!(jain > 0.97, "{pollers}: {jain}");
    }
}
