//! Tenants that do nothing, as the simulated poller has them: at rest, as in the daemon.

use crate::common::{BEST_EFFORT, clean, reader, scenario, steady};
use io_model::Nanos;
use sim::workload::{Arrivals, Open, Workload};
use sim::{FREE, HostCosts, Report, Scenario, Tenant};

const VQS: u16 = 16;

/// A read now and then, each from a rest.
fn seldom(iops: f64) -> Tenant {
    let open = Open { arrivals: Arrivals::Constant { iops }, ..Open::random_4k(u32::from(VQS), iops, 100) };
    Tenant { workload: Workload::Open(open), ..reader(BEST_EFFORT, VQS, 1) }
}

/// A tenant that always works, one that seldom does, and others that do nothing; with what a look costs.
fn beside_idle(idle: usize, look_ns: u64) -> Report {
    let tenants = [reader(BEST_EFFORT, 1, 1), seldom(500.0)].into_iter();
    let tenants = tenants.chain(std::iter::repeat_n(seldom(0.001), idle)).collect();
    let mut costs = HostCosts { mediated: FREE, ..steady() };
    costs.mediated.look_ns = look_ns;
    clean(&Scenario { costs, duration: Nanos::from_millis(100), ..scenario(tenants) })
}

#[test]
fn who_rested_waits_for_the_patrol_and_no_longer() {
    let (alone, beside) = (beside_idle(0, 0), beside_idle(62, 0));
    let seldom_ns = |report: &Report| report.tenants[1].latency.max_ns;
    let waited_ns = seldom_ns(&beside).saturating_sub(seldom_ns(&alone));
    assert!((1_000..50_000).contains(&waited_ns), "{waited_ns} ns");
}

#[test]
fn looks_are_paid_for_and_rarer_where_many_tenants_are_idle() {
    let busy = |idle, look_ns| beside_idle(idle, look_ns).poller_utilization[0];
    assert_eq!(busy(62, 0), 0.0);
    // A look for each 500 ns, or each 1000 ns, and one for each step.
    let paid = [62, 254].map(|idle| busy(idle, 50));
    assert!((0.09..0.13).contains(&paid[0]), "{paid:?}");
    assert!((0.045..0.065).contains(&paid[1]), "{paid:?}");
}
