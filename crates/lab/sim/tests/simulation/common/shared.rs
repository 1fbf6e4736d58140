//! Scenarios under policies that give all tenants one order, and what must hold of each such policy.

use super::{clean, reader, scenario};
use io_model::Nanos;
use policy::{Class, Terms};
use rivals::LabConfig;
use sim::workload::{Access, BlockSize, Fio, Phase, Phases, Workload};
use sim::{Contestant, Layout, Scenario, Tenant};

pub fn access(kib: u32, read_percent: u8) -> Access {
    Access { block_sizes: vec![BlockSize { bytes: kib << 10, weight: 1 }], ..Access::random_4k(read_percent) }
}

/// Four jobs that each keep 32 commands outstanding, over four VQs.
pub fn busy(kib: u32, read_percent: u8) -> Tenant {
    let fio = Fio { jobs: 4, iodepth: 32, access: access(kib, read_percent) };
    Tenant { workload: Workload::Fio(fio), ..reader(Class::BestEffort { weight: 1 }, 4, 32) }
}

pub fn with(terms: impl Into<Terms>) -> Tenant {
    Tenant { terms: terms.into(), ..busy(16, 50) }
}

pub fn on(pollers: u16, policy: &LabConfig, tenants: &[Tenant]) -> Scenario {
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
pub fn bytes(scenario: &Scenario) -> Vec<f64> {
    clean(scenario).tenants.iter().map(|tenant| tenant.bandwidth_bytes_s).collect()
}

/// Plays it with one poller and with these: each tenant has what it has on one, but for that part.
pub fn compare(policy: &LabConfig, tenants: &[Tenant], pollers: &[u16], but_for: f64) {
    let one = bytes(&on(1, policy, tenants));
    for &pollers in pollers {
        let several = bytes(&on(pollers, policy, tenants));
        let error = one.iter().zip(&several).map(|(one, several)| (several / one - 1.0).abs()).fold(0.0, f64::max);
        assert!(error <= but_for, "{} on {pollers}: {error:.4} of {one:.0?}, {several:.0?}", policy.name());
    }
}

pub fn equal_tenants_have_what_they_have_on_one_poller(policy: &LabConfig) {
    compare(policy, &vec![busy(16, 50); 8], &[2, 8], 0.02);
}

pub fn who_asks_for_little_is_not_who_asks_for_much(policy: &LabConfig) {
    let tenants: Vec<_> = (0..8).map(|at| if at % 2 == 0 { busy(4, 100) } else { busy(64, 0) }).collect();
    compare(policy, &tenants, &[2, 8], 0.04);
}

pub fn weights_hold_across_pollers(policy: &LabConfig) {
    let tenants: Vec<_> = (0..8).map(|at| with(Class::BestEffort { weight: 1 + 3 * (at % 3) })).collect();
    compare(policy, &tenants, &[4, 8], 0.02);
}

/// What a tenant with four VQs has beside one with two, each VQ on a poller of its own, is `expected` times as much.
pub fn a_tenant_on_several_pollers_counts(policy: &LabConfig, expected: f64) {
    let several_vqs = |vqs| Tenant { vcpus: vqs, vqs, ..busy(16, 50) };
    let scenario = on(1, policy, &[several_vqs(4), several_vqs(2)]);
    let got = bytes(&Scenario { layout: Layout::PerQueue, ..scenario });
    assert!((got[0] / got[1] / expected - 1.0).abs() < 0.03, "{}: {got:.0?}", policy.name());
}

pub fn what_a_poller_does_not_use_others_have_within_50_ms(policy: &LabConfig) {
    let ms = Nanos::from_millis;
    let phases = [Some(access(16, 50)), None].map(|access| Phase { lasts: ms(300), access }).to_vec();
    let on_off = Workload::Phases(Phases { jobs: 4, iodepth: 32, phases });
    let on_off = Tenant { workload: on_off, ..busy(16, 50) };
    let tenants: Vec<_> = (0..8).map(|at| if at % 2 == 0 { on_off.clone() } else { busy(16, 50) }).collect();
    let report = clean(&Scenario { window: ms(10), ..on(8, policy, &tenants) });
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
