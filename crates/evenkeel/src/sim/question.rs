//! From a scenario to what the planner asks: the site, the policy, the tenants with their demands.

use planner::{Host, Site, Tenant};
use policy::PolicyConfig;
use promises::planning::{Question, undeclared, with_demand};
use scenario::{Host as ScenarioHost, Scenario, ScenarioTenant};
use ssd_model::Profile;

use super::plan;

/// What a scenario asks without a policy. Its workloads are the demands; one that is neither `fio` nor `open`
/// has no figures before it has run, and is assumed like an undeclared demand.
pub fn of_scenario(scenario: &Scenario, profile: &Profile) -> Question {
    let (tenants, assumed) = scenario.tenants.iter().map(scenario_tenant).unzip();
    Question {
        site: Site { profile: profile.clone(), host: scenario_host(&scenario.host) },
        policy: PolicyConfig::Passthrough,
        tenants,
        assumed,
    }
}

fn scenario_tenant(tenant: &ScenarioTenant) -> (Tenant, bool) {
    let asked = Tenant {
        name: tenant.name.clone(),
        class: tenant.terms.class,
        floor: tenant.terms.floor,
        limits: tenant.terms.limits,
        priority: tenant.terms.priority.unasked(),
        vcpus: tenant.vcpus,
        ..undeclared(tenant.terms.class.is_guaranteed())
    };
    match &tenant.demand {
        Some(demand) => (with_demand(asked, demand), false),
        None => (asked, true),
    }
}

fn scenario_host(host: &ScenarioHost) -> Host {
    let layout = plan::layout(host.layout, PolicyConfig::Passthrough.kind().gives_own_pollers());
    let (guest, path) = (host.costs.guest, layout.path(&host.costs));
    let ns = |ns: u64| ns as f64;
    Host {
        guest_app_ns: ns(guest.app_ns),
        guest_submit_ns: ns(guest.submit_ns),
        guest_write_ns: ns(guest.write_ns),
        guest_irq_ns: ns(guest.irq_ns),
        guest_complete_ns: ns(guest.complete_ns),
        guest_varies: ns(guest.varies_permille) / 1_000.0,
        poller_pass_ns: ns(path.pass_ns),
        poller_fetch_ns: ns(path.fetch_ns),
        poller_write_ns: ns(path.write_ns),
        poller_complete_ns: ns(path.complete_ns),
        poller_doorbell_ns: ns(path.doorbell_ns),
        poller_interrupt_ns: ns(path.interrupt_ns),
        poller_batch: path.batch,
        delay_ns: ns(path.delivery_ns + path.wake_ns),
        ..Host::FREE
    }
}
