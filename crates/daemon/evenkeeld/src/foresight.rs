//! What was said of the tenants beforehand, held against what they do.

use api::{BlameRow, Predicted, TenantRow};
use config::{Config, Priority};
use planner::{Culprit, Evidence, Measured, Planner, Tenant, Unmodelled, blame};
use promises::planning::{self, Question};
use promises::words;
use ssd_model::Profile;

/// All that the configuration and the plan say of the tenants; vectors are by tenant.
pub struct Foresight {
    names: Vec<String>,
    limits: Vec<Option<String>>,
    priorities: Vec<Option<Priority>>,
    overcommitted: Vec<bool>,
    question: Question,
    /// The drive is the one that the file names. Of another, the model could only mislead.
    named: bool,
}

impl Foresight {
    /// What `config` says, on the drive that it names.
    pub fn new(config: &Config, profile: &Profile) -> Self {
        let tenants = || config.tenants.iter();
        Self {
            names: tenants().map(|tenant| tenant.name.clone()).collect(),
            limits: tenants().map(|tenant| tenant.limits.in_words()).collect(),
            priorities: tenants().map(|tenant| config.policy.has_priorities().then_some(tenant.priority)).collect(),
            overcommitted: tenants().map(|tenant| tenant.is_guaranteed() && config.overcommits(tenant)).collect(),
            question: planning::of_config(config, profile),
            named: config.device.profile_named,
        }
    }

    /// The names of the tenants.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Fills in what was said of the tenant at `index`.
    pub fn describe(&self, index: usize, row: &mut TenantRow) {
        row.name = self.names.get(index).cloned().unwrap_or_default();
        row.limits = self.limits.get(index).cloned().flatten();
        row.priority = self.priorities.get(index).copied().flatten().map(|priority| priority.name().to_owned());
        row.overcommit = self.overcommitted.get(index).copied().unwrap_or(false);
        row.demand = self.question.tenants.get(index).map(words::demand).unwrap_or_default();
        row.assumed = self.is_assumed(index);
    }

    fn is_assumed(&self, index: usize) -> bool {
        self.question.assumed.get(index).copied().unwrap_or(true)
    }

    /// Fills in what the model says beside what was measured; nothing where it says nothing. Rows and measurements are
    /// those of all tenants, in their order.
    pub fn predict(&self, rows: &mut [TenantRow], measured: &[Measured]) {
        if !self.named {
            return;
        }
        let asked = |(index, (tenant, measured)): (usize, (&Tenant, &Measured))| {
            if self.is_assumed(index) {
                return Some((index, measured.as_demand(tenant)?, "measured"));
            }
            Some((index, tenant.clone(), "declared"))
        };
        let each = self.question.tenants.iter().zip(measured).enumerate();
        let (tenants, known): (Vec<Tenant>, Vec<(usize, &str)>) =
            each.filter_map(asked).map(|(index, tenant, demand)| (tenant, (index, demand))).unzip();
        if tenants.is_empty() {
            return;
        }
        let Ok(forecast) = planner::predict(&self.question.site, &self.question.policy, &tenants) else { return };
        for ((index, demand), own) in known.into_iter().zip(forecast.tenants) {
            let Some(row) = rows.get_mut(index) else { continue };
            row.predicted = Some(Predicted {
                iops: own.iops,
                mean_us: own.mean.as_micros_f64(),
                p99_us: own.p99.as_micros_f64(),
                demand: demand.to_owned(),
            });
        }
    }

    /// Whose fault it is that the promise to the tenant at `broken` fails, if it does. `starved` is the part of the span in
    /// which pollers waited for a CPU.
    pub fn blame(&self, measured: &[Measured], starved: f64, broken: usize) -> Option<BlameRow> {
        let Question { site, policy, tenants, assumed } = &self.question;
        let planner = if self.named {
            Planner::new(site)
        } else {
            Planner::with_model(site, |policy, _| Err(Unmodelled::Policy { policy: policy.name() }))
        };
        let found = blame(&planner, Evidence { policy, tenants, assumed, measured, starved }, broken)?;
        let (culprit, neighbour) = match found.culprit {
            Culprit::Own => ("own", None),
            Culprit::Neighbour(index) => ("neighbour", self.names.get(index).cloned()),
            Culprit::Drive => ("drive", None),
            Culprit::Host => ("host", None),
        };
        Some(BlameRow { culprit: culprit.to_owned(), neighbour, why: found.why })
    }
}
