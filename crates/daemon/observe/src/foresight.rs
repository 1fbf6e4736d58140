//! What was said of the tenants beforehand, held against what they do.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Predicted, TenantRow};
use config::{Config, Group, Tenant};
use io_model::{Nanos, TenantId};
use planner::Site;
use policy::{Floor, Limits, PolicyConfig, TenantPriority};
use poller::TenantProbes;
use promises::forecasts::Forecasts;
use promises::planning::Question;
use promises::{planning, words};
use ssd_model::Profile;

use crate::ceilings::{Ceiling, Load, Loads};
use crate::cpu_waits::CpuUse;
use crate::verdict::{Measured, Party};
use crate::verdict_record::VerdictRecord;

/// What was measured of one tenant over a span.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The tenant.
    pub id: TenantId,
    /// Over how long.
    pub span: Nanos,
    /// Commands that completed meanwhile.
    pub commands: u64,
    /// How long the tenant was without a daemon before this one took it over.
    pub outage: Nanos,
    /// The row to show.
    pub row: TenantRow,
    /// The measurement in the model's terms.
    pub measured: Measured,
}

/// What was said of one tenant.
#[derive(Debug, Clone)]
struct Said {
    name: String,
    labels: BTreeMap<String, String>,
    limits: Option<String>,
    floor: Floor,
    held_to: Limits,
    group: Option<String>,
    priority: Option<TenantPriority>,
    overcommit: bool,
    asks: planner::Tenant,
    /// Its load is not declared.
    assumed: bool,
}

/// All that the configuration and the plan say of the tenants that are there. The daemon's owner changes it and hands
/// out copies.
#[derive(Debug, Clone)]
pub struct Foresight {
    tenants: BTreeMap<TenantId, Said>,
    probes: BTreeMap<TenantId, TenantProbes>,
    records: BTreeMap<TenantId, Arc<VerdictRecord>>,
    groups: BTreeMap<String, Limits>,
    site: Site,
    policy: PolicyConfig,
    /// The drive is the one that the file names. Of another, the model could only mislead.
    named: bool,
    forecasts: Forecasts,
}

impl Foresight {
    /// Nobody yet, on the drive that `config` names, under the policy in force.
    pub fn new(config: &Config, profile: &Profile, policy: PolicyConfig, forecasts: &Forecasts) -> Self {
        Self {
            tenants: BTreeMap::new(),
            probes: BTreeMap::new(),
            records: BTreeMap::new(),
            groups: ceilings(&config.groups),
            site: planning::site(profile.clone()),
            policy,
            named: config.device.profile_named,
            forecasts: forecasts.wishing(),
        }
    }

    /// A tenant comes, or is another one under the same identifier: as configured, served though its promise can't be
    /// kept or not.
    pub fn set(&mut self, id: TenantId, tenant: &Tenant, overcommits: bool) {
        let (asks, assumed) = planning::tenant(tenant);
        let said = Said {
            name: tenant.name.clone(),
            labels: tenant.labels.clone(),
            limits: tenant.terms.limits.in_words(),
            floor: tenant.terms.floor,
            held_to: tenant.terms.limits,
            group: tenant.group.clone(),
            priority: self.policy.kind().has_priorities().then_some(tenant.terms.priority),
            overcommit: tenant.is_promised() && overcommits,
            asks,
            assumed,
        };
        self.tenants.insert(id, said);
    }

    /// What measures a tenant that was [`set`](Self::set), from before its pollers have it, and the record of verdicts.
    pub fn measure(&mut self, probes: TenantProbes, record: Arc<VerdictRecord>) {
        self.records.insert(probes.tenant(), record);
        self.probes.insert(probes.tenant(), probes);
    }

    /// The verdicts on a tenant that is measured.
    pub fn record(&self, id: TenantId) -> Option<&VerdictRecord> {
        self.records.get(&id).map(|record| &**record)
    }

    /// What measures a tenant. `None`: it left.
    pub fn measured(&self, id: TenantId) -> Option<&TenantProbes> {
        self.probes.get(&id)
    }

    /// What measures each tenant, in the order in which they came.
    pub fn tenants(&self) -> impl Iterator<Item = &TenantProbes> {
        self.probes.values()
    }

    /// Another policy is in force: [`set`](Self::set) each tenant again.
    pub fn change_policy(&mut self, policy: PolicyConfig) {
        self.policy = policy;
    }

    /// Groups have other ceilings.
    pub fn change_groups(&mut self, groups: &[Group]) {
        self.groups = ceilings(groups);
    }

    /// A tenant left.
    pub fn forget(&mut self, id: TenantId) {
        self.tenants.remove(&id);
        self.probes.remove(&id);
        self.records.remove(&id);
    }

    /// The name of the policy in force.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// What a tenant is called. `None`: it left, or nothing is said of it.
    pub fn name(&self, id: TenantId) -> Option<&str> {
        self.tenants.get(&id).map(|said| said.name.as_str())
    }

    /// A tenant's labels.
    pub fn labels(&self, id: TenantId) -> BTreeMap<String, String> {
        self.tenants.get(&id).map(|said| said.labels.clone()).unwrap_or_default()
    }

    /// The labels of the tenant of that name.
    pub fn labels_of(&self, name: &str) -> BTreeMap<String, String> {
        self.tenants.values().find(|said| said.name == name).map(|said| said.labels.clone()).unwrap_or_default()
    }

    /// The load assumed for the tenant of that name, and whether it is undeclared.
    pub fn asks(&self, name: &str) -> Option<(&planner::Tenant, bool)> {
        self.tenants.values().find(|said| said.name == name).map(|said| (&said.asks, said.assumed))
    }

    /// The ceiling that a tenant reaches, its own or its group's, with these loads of the drive's tenants. A group's
    /// members on other drives are not counted.
    pub fn ceiling(&self, id: TenantId, loads: &Loads<'_>) -> Option<Ceiling> {
        self.ceiling_of(self.tenants.get(&id)?, loads)
    }

    /// As [`ceiling`](Self::ceiling), for the tenant of that name.
    pub fn ceiling_named(&self, name: &str, loads: &Loads<'_>) -> Option<Ceiling> {
        self.ceiling_of(self.tenants.values().find(|said| said.name == name)?, loads)
    }

    fn ceiling_of(&self, said: &Said, loads: &Loads<'_>) -> Option<Ceiling> {
        if let Some(own) = Ceiling::reached(&said.held_to, loads.of(&said.name), None) {
            return Some(own);
        }
        let group = said.group.as_deref()?;
        let members = self.tenants.values().filter(|member| member.group.as_deref() == Some(group));
        let together = members.map(|member| loads.of(&member.name)).fold(Load::default(), Load::plus);
        Ceiling::reached(self.groups.get(group)?, together, Some(group))
    }

    /// What a tenant is taken to ask for.
    pub fn asks_of(&self, id: TenantId) -> Option<&planner::Tenant> {
        self.tenants.get(&id).map(|said| &said.asks)
    }

    /// The drive and host of the model, with the policy in force; `None` where the model could only mislead.
    pub fn model(&self) -> Option<(&Site, &PolicyConfig)> {
        self.named.then_some((&self.site, &self.policy))
    }

    /// What there is to ask of these tenants.
    pub(crate) fn question(&self, tenants: &[planner::Tenant]) -> Question {
        let (site, policy) = (self.site.clone(), self.policy.clone());
        Question { site, policy, tenants: tenants.to_vec(), assumed: Vec::new() }
    }

    pub(crate) fn forecasts(&self) -> &Forecasts {
        &self.forecasts
    }

    /// Fills in a tenant's forecast. `false`: it left.
    pub fn describe(&self, id: TenantId, row: &mut TenantRow) -> bool {
        let Some(said) = self.tenants.get(&id) else { return false };
        row.name.clone_from(&said.name);
        row.labels.clone_from(&said.labels);
        row.limits.clone_from(&said.limits);
        row.floor = said.floor.in_words();
        row.priority = said.priority.map(|priority| priority.name().to_owned());
        row.overcommit = said.overcommit;
        row.demand = words::demand(&said.asks);
        row.assumed = said.assumed;
        true
    }

    /// Fills in what was played beforehand beside what was measured of all tenants; nothing until there is an answer.
    pub fn predict(&self, observed: &mut [Observed]) {
        if !self.named {
            return;
        }
        let asked = |(at, Observed { id, measured, .. }): (usize, &Observed)| {
            let Said { asks, assumed, .. } = self.tenants.get(id)?;
            if *assumed {
                return Some((measured.as_demand(asks)?, (at, "measured")));
            }
            Some((asks.clone(), (at, "declared")))
        };
        let (tenants, known): (Vec<_>, Vec<_>) = observed.iter().enumerate().filter_map(asked).unzip();
        if tenants.is_empty() {
            return;
        }
        let Some(Ok(outcome)) = self.forecasts.outcome(&self.question(&tenants)) else { return };
        for ((at, demand), own) in known.into_iter().zip(outcome.forecast.tenants) {
            observed[at].row.predicted = Some(Predicted {
                iops: own.iops,
                mean_us: own.mean.as_micros_f64(),
                p99_us: own.p99.as_micros_f64(),
                alone_us: own.alone_p99.as_micros_f64(),
                demand: demand.to_owned(),
            });
        }
    }

    /// A tenant and its figures, as the evidence of a verdict has them; without usual values.
    pub(crate) fn party(&self, Observed { id, measured, .. }: &Observed, loads: &Loads<'_>) -> Option<Party> {
        let said = self.tenants.get(id)?;
        let held_to = self.ceiling_of(said, loads);
        let (asks, is_assumed) = (said.asks.clone(), said.assumed);
        Some(Party { asks, is_assumed, held_to, now: *measured, usual: None })
    }
}

impl<'a> Loads<'a> {
    /// The loads of all tenants, with what their pollers spent.
    pub(crate) fn observed(observed: &'a [Observed], cpu: &CpuUse) -> Self {
        let load = |it: &'a Observed| {
            let load = Load::new(it.row.iops, it.row.bw_bytes, it.measured.read_share);
            (it.row.name.as_str(), load.starved(cpu.most(&it.row.pollers).waited))
        };
        observed.iter().map(load).collect()
    }
}

fn ceilings(groups: &[Group]) -> BTreeMap<String, Limits> {
    groups.iter().map(|group| (group.name.clone(), group.limits)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    impl Foresight {
        /// That of a whole file. A drive without a profile counts as a P5800X.
        pub(crate) fn of_file(text: &str) -> Self {
            let config = Config::parse(Path::new("ek.toml"), text).expect("good");
            let profile = Profile::p5800x();
            let policy = planning::policy(&config, &profile);
            let mut foresight = Self::new(&config, &profile, policy, &Forecasts::default());
            (1..).zip(&config.tenants).for_each(|(id, tenant)| foresight.set(TenantId(id), tenant, false));
            foresight
        }
    }
}
