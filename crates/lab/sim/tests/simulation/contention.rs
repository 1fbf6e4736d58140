//! A thread for each queue, loops that must be woken, and CPUs that wait for each other.

use crate::common::{BEST_EFFORT, clean, reader, scenario};
use sim::{Contention, FREE, GuestCosts, HostCosts, Kick, Layout, PathCosts, Report, Scenario, Tenant};
use ssd_model::{Placement, Profile, Writes};

const GUEST: GuestCosts =
    GuestCosts { app_ns: 2_000, submit_ns: 1_000, write_ns: 0, irq_ns: 0, complete_ns: 2_000, varies_permille: 0 };
/// What an I/O takes a vCPU.
const GUEST_NS: u64 = 5_000;
/// Passes so short that nobody waits for one.
const PATH: PathCosts = PathCosts { fetch_ns: 2_000, complete_ns: 1_000, batch: 8, ..FREE };
const PATH_NS: u64 = 3_000;

/// A drive that is never in the way.
fn instant() -> Profile {
    Profile {
        placement: Placement::Pooled,
        units: 64,
        read_ns: 1,
        writes: Writes::InPlace { write_ns: 1, ack_ns: 0 },
        controller_ns: 0,
        pipeline_ns: 0,
        link_read_mb_s: 1_000_000,
        ..Profile::p5800x()
    }
}

/// A guest with this many busy vCPUs on this many queues, behind these costs.
fn run(layout: Layout, path: PathCosts, (jobs, depth): (u16, u32), vqs: u16) -> Report {
    let tenant = Tenant { vqs, ..reader(BEST_EFFORT, jobs, depth) };
    let costs = HostCosts { guest: GUEST, mediated: path, virtio: path, ..HostCosts::default() };
    clean(&Scenario { layout, costs, profile: instant(), ..scenario(vec![tenant]) })
}

fn iops(layout: Layout, path: PathCosts, jobs: u16, vqs: u16) -> f64 {
    run(layout, path, (jobs, 32), vqs).total_iops()
}

fn about(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.03, "{found} IOPS, expected {expected}");
}

fn rate(ns: u64) -> f64 {
    1e9 / ns as f64
}

#[test]
fn a_thread_for_each_queue_works_beside_the_others() {
    let slow = PathCosts { fetch_ns: 10_000, complete_ns: 0, ..PATH };
    for vqs in [1, 2, 4] {
        let report = run(Layout::PerQueue, slow, (4, 32), vqs);
        assert_eq!(report.poller_utilization.len(), usize::from(vqs));
        assert!(report.poller_utilization.iter().all(|share| *share > 0.99), "{:?}", report.poller_utilization);
        about(report.total_iops(), f64::from(vqs) * rate(10_000));
    }
    about(iops(Layout::Virtio, slow, 4, 4), rate(10_000));
}

#[test]
fn a_thread_beside_its_vcpu_adds_to_its_work() {
    let beside = PathCosts { beside_vcpu: true, ..PATH };
    about(iops(Layout::PerQueue, PATH, 4, 4), 4.0 * rate(GUEST_NS));
    about(iops(Layout::PerQueue, beside, 4, 4), 4.0 * rate(GUEST_NS + PATH_NS));
}

#[test]
fn a_sleeping_loop_is_woken_by_an_exit_and_a_busy_one_is_not() {
    let latency_ns = |path| run(Layout::PerQueue, path, (1, 1), 1).tenants[0].latency.max_ns;
    let event = PathCosts { kick: Kick::Asleep, kick_ns: 700, wake_ns: 9_000, ..PATH };
    assert_eq!(latency_ns(event), latency_ns(PATH) + 700 + 2 * 9_000, "woken for the doorbell, and for the drive");
    // A loop that always has work costs the guests nothing, unless it never tells them to be quiet.
    let busy = |kick| iops(Layout::Virtio, PathCosts { kick, kick_ns: 20_000, ..PATH }, 4, 4);
    about(busy(Kick::Never), rate(PATH_NS));
    about(busy(Kick::Asleep), rate(PATH_NS));
    about(busy(Kick::Always), 4.0 * rate(GUEST_NS + 20_000));
}

#[test]
fn a_loop_under_the_global_mutex_slows_down_with_the_vcpus() {
    let with = |handover_ns, jobs| {
        let mutex = Contention { hold_ns: 1_000, handover_ns };
        iops(Layout::Virtio, PathCosts { kick: Kick::Always, mutex, ..PATH }, jobs, 1)
    };
    // Every command takes the mutex for its exit and for its part of the loop's pass …
    for jobs in [4, 8, 16] {
        about(with(0, jobs), rate(1_000 + PATH_NS));
    }
    // … and where hand-overs cost more the more wait, more vCPUs get less.
    let falling = [2, 4, 8, 16].map(|jobs| with(300, jobs));
    assert!(falling.is_sorted_by(|more, less| *less < more * 0.95), "{falling:?}");
}

#[test]
fn a_shared_queues_lock_slows_down_with_the_vcpus_and_a_queue_each_helps() {
    let ring = Contention { hold_ns: 200, handover_ns: 400 };
    let with = |jobs, vqs| iops(Layout::PerQueue, PathCosts { ring, ..FREE }, jobs, vqs);
    let falling = [4, 8, 16].map(|jobs| with(jobs, 1));
    assert!(falling.is_sorted_by(|more, less| *less < more * 0.7), "{falling:?}");
    // Nobody waits: twice the time that it is held.
    about(with(16, 16), 16.0 * rate(GUEST_NS + 2 * 200));
}

#[test]
fn a_command_from_another_vcpu_costs_its_cache_lines() {
    let path = PathCosts { fetch_ns: 6_000, complete_ns: 0, bounce_ns: 3_000, ..PATH };
    about(iops(Layout::Virtio, path, 1, 1), rate(6_000));
    let shared = iops(Layout::Virtio, path, 8, 1);
    assert!(shared < rate(6_000) && shared >= rate(9_000) * 0.99, "{shared} IOPS");
}
