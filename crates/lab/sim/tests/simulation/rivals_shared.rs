//! Rivals that give all tenants one order do so on several pollers too.

use crate::common::shared::{self, access, busy, bytes, on, with};
use crate::common::{GUARANTEED, clean, reader, scenario};
use io_model::Nanos;
use policy::{Class, Limits, Terms};
use rivals::{K2Config, LabConfig, MqfqConfig};
use sim::workload::{Access, Fio, Pattern, Workload};
use sim::{Layout, Scenario, Tenant};
use ssd_model::Profile;

fn k2() -> LabConfig {
    LabConfig::K2(K2Config::default())
}

fn mqfq() -> LabConfig {
    LabConfig::Mqfq(MqfqConfig::default())
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
            policy: mqfq(),
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
    [k2(), mqfq()].iter().for_each(shared::equal_tenants_have_what_they_have_on_one_poller);
}

#[test]
fn who_asks_for_little_is_not_who_asks_for_much() {
    [k2(), mqfq()].iter().for_each(shared::who_asks_for_little_is_not_who_asks_for_much);
}

#[test]
fn weights_hold_across_pollers() {
    shared::weights_hold_across_pollers(&mqfq());
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
fn a_tenant_on_several_pollers_counts_once() {
    shared::a_tenant_on_several_pollers_counts(&mqfq(), 1.0);
    // K2 knows queues alone.
    shared::a_tenant_on_several_pollers_counts(&k2(), 2.0);
}

#[test]
fn what_a_poller_does_not_use_others_have_within_50_ms() {
    [k2(), mqfq()].iter().for_each(shared::what_a_poller_does_not_use_others_have_within_50_ms);
}

#[test]
fn a_limit_is_kept_on_several_pollers_under_caps() {
    let limited = with(Terms { limits: Limits { rw_ios_per_sec: 20_000, ..Limits::default() }, ..Terms::default() });
    let scenario = on(1, &LabConfig::Caps, &[limited, busy(16, 50)]);
    let report = clean(&Scenario { layout: Layout::PerQueue, ..scenario });
    let iops = report.tenants[0].iops;
    assert!((19_000.0..20_100.0).contains(&iops), "{iops}");
}
