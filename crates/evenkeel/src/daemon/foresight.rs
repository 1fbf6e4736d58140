//! What was said of the tenants beforehand, held against what they do.

use config::{Config, Priority};
use planner::{Culprit, Evidence, Measured, Planner, Tenant, Unmodelled, blame};
use serde::{Deserialize, Serialize};
use ssd_model::Profile;

use super::snapshot::TenantRow;
use crate::plan::words;
use crate::planning::{self, Question};

/// What a tenant was expected to get over a span, were it long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// Completions per second.
    pub iops: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// `declared`, or `measured`: nobody declared what it asks for, so this is for what it asked in the span.
    pub demand: String,
}

/// Whose fault it is that a promise failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlameRow {
    /// `own`, `neighbour`, `drive` or `host`.
    pub culprit: String,
    /// The neighbour.
    pub neighbour: Option<String>,
    /// What shows it.
    pub why: String,
}

impl BlameRow {
    /// For a table or a log: `neighbour "batch": it keeps …`.
    pub fn in_words(&self) -> String {
        let who = match (&self.neighbour, self.culprit.as_str()) {
            (Some(name), _) => format!("neighbour {name:?}"),
            (None, "own") => "its own load".to_owned(),
            (None, culprit) => format!("the {culprit}"),
        };
        format!("{who}: {}", self.why)
    }
}

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
