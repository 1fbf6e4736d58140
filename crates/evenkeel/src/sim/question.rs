//! From a scenario to what the planner asks: the site, the policy, the tenants with their demands.

use planner::{FirstWrites, Site, Tenant};
use policy::PolicyConfig;
use promises::planning::{Question, undeclared, with_demand};
use scenario::{Host as ScenarioHost, Scenario, ScenarioTenant};
use sim::HostCosts;
use ssd_model::Profile;

use super::plan;

/// A pool's usual one. Nothing is copied here, so no figure follows from it.
const PIECE_BYTES: u64 = 1 << 20;

/// What a scenario asks without a policy. Its workloads are the demands; one that is neither `fio` nor `open`
/// has no figures before it has run, and is assumed like an undeclared demand.
pub fn of_scenario(scenario: &Scenario, profile: &Profile) -> Question {
    let (tenants, assumed) = scenario.tenants.iter().map(scenario_tenant).unzip();
    Question {
        site: Site { profile: profile.clone(), costs: scenario_costs(&scenario.host) },
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
        encrypted_sector_bytes: tenant.encrypted_sector_bytes,
        ..undeclared(tenant.terms.class.is_guaranteed())
    };
    let first = tenant.demand.as_ref().and_then(|demand| demand.first_writes);
    let first_writes = first.map(|first| {
        let share = f64::from(first.of_10_000) / 10_000.0;
        FirstWrites { share, piece_bytes: PIECE_BYTES, are_shared: first.are_shared }
    });
    let asked = Tenant { first_writes, ..asked };
    match &tenant.demand {
        Some(demand) => (with_demand(asked, demand), false),
        None => (asked, true),
    }
}

/// A plan's pollers are mediated ones: they cost what those of the scenario's layout do.
fn scenario_costs(host: &ScenarioHost) -> HostCosts {
    let layout = plan::layout(host.layout, PolicyConfig::Passthrough.kind().gives_own_pollers());
    HostCosts { mediated: layout.path(&host.costs), ..host.costs }
}
