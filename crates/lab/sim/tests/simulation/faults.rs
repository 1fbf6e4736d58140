//! What goes wrong is seen by whom it concerns, loses nothing, and leaves the others alone.

use crate::common::{BEST_EFFORT, clean, reader, scenario, with_fault};
use io_model::Nanos;
use sim::{FaultKind, Scenario};

fn two() -> Scenario {
    scenario(vec![reader(BEST_EFFORT, 2, 8), reader(BEST_EFFORT, 2, 8)])
}

#[test]
fn a_failing_drive_is_seen_by_the_guests() {
    let lasts = Nanos::from_millis(100);
    let report = clean(&with_fault(two(), Nanos(0), FaultKind::Errors { ppm: 250_000, lasts }));
    for tenant in &report.tenants {
        let part = tenant.errors as f64 / tenant.latency.count as f64;
        assert!((0.2..0.3).contains(&part), "{part} of all failed");
    }
    assert_eq!(clean(&two()).tenants[0].errors, 0);
    let short = FaultKind::Errors { ppm: 1_000_000, lasts: Nanos::from_millis(1) };
    let report = clean(&with_fault(two(), Nanos::from_millis(3), short));
    let errors: u64 = report.tenants.iter().map(|tenant| tenant.errors).sum();
    assert!(errors > 0 && report.tenants[0].latency.count > 2 * errors, "it ended");
}

#[test]
fn a_stall_delays_and_fails_nothing() {
    let lasts = Nanos::from_millis(4);
    let report = clean(&with_fault(two(), Nanos::from_millis(5), FaultKind::Stall { lasts }));
    let calm = clean(&two());
    for (tenant, calm) in report.tenants.iter().zip(&calm.tenants) {
        assert_eq!(tenant.errors, 0);
        assert!(tenant.latency.max_ns > lasts.0 - 100_000, "somebody waited through all of it");
        let left = tenant.latency.count as f64 / calm.latency.count as f64;
        assert!((0.7..0.85).contains(&left), "14 of 18 ms were left: {left}");
    }
}

#[test]
fn commands_of_a_lost_hwq_end_once_with_an_error() {
    // Completions come after the host gave up, at the earliest when their tags would have been used again.
    for timeout_us in [1, 10, 500, 3_000] {
        let timeout = Nanos::from_micros(timeout_us);
        let lost = FaultKind::LoseHwq { hwq: 0, timeout };
        let mut scenario = with_fault(two(), Nanos::from_millis(4), lost);
        scenario.starvation_limit = Nanos::from_millis(10);
        let report = clean(&scenario);
        let errors: u64 = report.tenants.iter().map(|tenant| tenant.errors).sum();
        assert!(errors > 0, "timeout {timeout}");
        let ios: u64 = report.tenants.iter().map(|tenant| tenant.latency.count).sum();
        assert!(ios > 4 * errors || timeout_us < 500, "the other HWQs went on: {errors} of {ios}");
    }
}

#[test]
fn a_reset_fails_what_was_under_way_and_the_guest_goes_on() {
    let report = clean(&with_fault(two(), Nanos::from_millis(5), FaultKind::Reset { tenant: 0 }));
    let [reset, other] = &report.tenants[..] else { panic!("two tenants") };
    assert_eq!(other.errors, 0);
    assert!((1..=16).contains(&reset.errors), "n2d8 has 16 at most: {}", reset.errors);
    assert!(reset.latency.count > other.latency.count / 2, "it went on after a millisecond");
}

#[test]
fn a_tenant_that_leaves_takes_nothing_along() {
    let report = clean(&with_fault(two(), Nanos::from_millis(6), FaultKind::Leave { tenant: 0 }));
    let calm = clean(&two());
    assert!(report.tenants[0].latency.count < calm.tenants[0].latency.count / 3, "4 of 18 ms");
    assert!(report.tenants[1].latency.count > calm.tenants[1].latency.count, "the other has the drive for itself");
    assert_eq!(report.tenants[1].errors, 0);
}

#[test]
fn a_rogue_doorbell_costs_the_neighbour_next_to_nothing() {
    let report = clean(&with_fault(two(), Nanos(0), FaultKind::Rogue { tenant: 0 }));
    let calm = clean(&two());
    let left = report.tenants[1].latency.count as f64 / calm.tenants[1].latency.count as f64;
    assert!(left > 0.9, "{left}");
}
