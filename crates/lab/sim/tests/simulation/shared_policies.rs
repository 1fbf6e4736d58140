//! Policies that give all tenants one order do so on several pollers too.

use crate::common::shared::{self, bytes, compare, on, with};
use io_model::{Nanos, QueuePriority};
use policy::{ArbitratedConfig, FairConfig, PolicyConfig, TenantPriority, Terms};
use rivals::LabConfig;
use sim::{Contestant, Scenario, Tenant};

fn by_weight() -> LabConfig {
    PolicyConfig::Fair(FairConfig::p5800x()).into()
}

/// Those that share by priority.
fn by_priority() -> [LabConfig; 2] {
    [PolicyConfig::Wrr(ArbitratedConfig::wrr()).into(), PolicyConfig::Drr(ArbitratedConfig::drr()).into()]
}

fn every() -> impl Iterator<Item = LabConfig> {
    by_priority().into_iter().chain([by_weight()])
}

fn of_class(priority: QueuePriority) -> Tenant {
    with(Terms { priority: TenantPriority::Fixed(priority), ..Terms::default() })
}

#[test]
fn equal_tenants_have_what_they_have_on_one_poller() {
    every().for_each(|policy| shared::equal_tenants_have_what_they_have_on_one_poller(&policy));
}

#[test]
fn who_asks_for_little_is_not_who_asks_for_much() {
    every().for_each(|policy| shared::who_asks_for_little_is_not_who_asks_for_much(&policy));
}

#[test]
fn weights_hold_across_pollers() {
    shared::weights_hold_across_pollers(&by_weight());
}

#[test]
fn priorities_hold_across_pollers() {
    use QueuePriority::{High, Low, Medium};
    // No poller of three has the classes in the proportion that all have.
    let tenants = [High, Medium, Low, High, Medium, Low, High, High, Low, High].map(of_class);
    by_priority().iter().for_each(|policy| compare(policy, &tenants, &[3, 10], 0.03));
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
    every().for_each(|policy| shared::a_tenant_on_several_pollers_counts(&policy, 1.0));
}

#[test]
fn what_a_poller_does_not_use_others_have_within_50_ms() {
    every().for_each(|policy| shared::what_a_poller_does_not_use_others_have_within_50_ms(&policy));
}
