//! What a plan says, as data: `--json` prints it, `text` lays it out.

use std::path::PathBuf;

use config::Config;
use io_model::Nanos;
use planner::{Change, LimitedBy, Obstacle, Outcome, Planner, Promise, Tenant, TenantForecast, Unmodelled, Verdict};
use promises::words;
use serde::Serialize;

use super::choices::Choice;

/// What `evenkeel plan` prints. Times in µs, rates per second.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The configuration file.
    pub config: PathBuf,
    /// The drive that is planned for.
    pub drive: Drive,
    /// What an operator should know before relying on the figures.
    pub warnings: Vec<String>,
    /// In the file's order, added ones last.
    pub tenants: Vec<TenantRow>,
    /// The configured policy first.
    pub policies: Vec<PolicyReport>,
    /// Single changes to the first of the policies, the smallest first.
    pub advice: Vec<AdviceRow>,
    /// With `--add`.
    pub addition: Option<Addition>,
    /// One for each of the first promises.
    pub prices: Vec<PriceRow>,
    /// One for each tenant with a floor.
    pub floors: Vec<FloorRow>,
    /// With `--solve`.
    pub solution: Option<Solution>,
}

/// The drive that is planned for.
#[derive(Debug, Serialize)]
pub struct Drive {
    /// What the configuration calls it.
    pub name: String,
    /// Its profile.
    pub profile: String,
    /// Whether the configuration says so; if not, it is the default.
    pub named: bool,
}

/// What a tenant asks for.
#[derive(Debug, Serialize)]
pub struct TenantRow {
    pub name: String,
    /// guaranteed or best-effort.
    pub class: &'static str,
    pub latency_target_us: Option<f64>,
    pub latency_percentile: Option<f64>,
    /// What it gets at least, in words.
    pub floor: Option<String>,
    pub weight: Option<u32>,
    /// Its configured priority, where the configured policy has any.
    pub priority: Option<&'static str>,
    /// What it will ask for, in words.
    pub demand: String,
    /// Nobody declared the demand.
    pub assumed: bool,
    /// It comes from `--add`.
    pub added: bool,
    /// Its promise may be broken.
    pub overcommit: bool,
}

/// What comes of all tenants under one policy.
#[derive(Debug, Serialize)]
pub struct PolicyReport {
    pub policy: &'static str,
    /// Whether the configuration names it.
    pub configured: bool,
    /// What differs from the configuration, in words.
    pub note: Option<String>,
    /// Why nothing can be said.
    pub unmodelled: Option<String>,
    pub drive_busy_percent: Option<f64>,
    /// Of the busiest poller.
    pub poller_busy_percent: Option<f64>,
    /// Commands that were played for it.
    pub played_ios: Option<u64>,
    /// One for each tenant, or none.
    pub tenants: Vec<ForecastRow>,
    /// One for each guaranteed tenant.
    pub promises: Vec<PromiseRow>,
    /// Every promise holds but those that may be broken.
    pub promises_kept: bool,
}

/// What one tenant gets.
#[derive(Debug, Serialize)]
pub struct ForecastRow {
    pub tenant: String,
    pub iops: f64,
    pub bandwidth_bytes_s: f64,
    pub mean_us: f64,
    pub p99_us: f64,
    /// No command takes longer; none where nothing can be promised.
    pub bound_us: Option<f64>,
    /// As many of its commands as it was promised, 99 of 100 without a promise, take no longer one at a time on the
    /// idle drive: no target below it is possible.
    pub alone_us: f64,
    /// demand, share, throttle, limits, poller, guest or drive.
    pub limited_by: &'static str,
}

/// What becomes of a promise.
#[derive(Debug, Serialize)]
pub struct PromiseRow {
    pub tenant: String,
    pub latency_target_us: f64,
    /// certain, expected, not kept or impossible.
    pub verdict: &'static str,
    /// Where it is impossible: the lowest one with the drive to itself.
    pub lowest_target_us: Option<f64>,
    /// A sentence without a full stop.
    pub reason: String,
    /// The neighbour in the way.
    pub neighbour: Option<String>,
    /// It may be broken: `overcommit = true`.
    pub overcommit: bool,
}

/// What a promise costs tenants without one: bytes per second that they get together.
#[derive(Debug, Serialize)]
pub struct PriceRow {
    pub tenant: String,
    pub latency_target_us: f64,
    pub best_effort_bytes_s: f64,
    /// If it were a best-effort tenant.
    pub without_bytes_s: f64,
    pub looser_target_us: f64,
    /// Beside that.
    pub looser_bytes_s: f64,
}

impl PriceRow {
    /// Of the first promises, under a policy that holds others back for them.
    pub fn all(planner: &Planner<'_>, choice: &Choice, outcome: &Outcome) -> Vec<Self> {
        let row = |price: planner::Price| {
            let tenant = choice.tenants.get(price.tenant)?;
            Some(Self {
                tenant: tenant.name.clone(),
                latency_target_us: tenant.target()?.as_micros_f64(),
                best_effort_bytes_s: price.others_bytes_s,
                without_bytes_s: price.without_bytes_s,
                looser_target_us: price.looser.as_micros_f64(),
                looser_bytes_s: price.looser_bytes_s,
            })
        };
        let all = planner::prices(planner, &choice.policy, &choice.tenants, outcome);
        all.into_iter().filter_map(row).collect()
    }
}

/// What becomes of what a best-effort tenant is to get at least, under a policy that keeps floors.
#[derive(Debug, Serialize)]
pub struct FloorRow {
    pub tenant: String,
    /// In words.
    pub floor: String,
    /// Commands per second that it comes to, and those of them that the tenant is expected to get.
    pub asked_iops: f64,
    pub expected_iops: f64,
    pub kept: bool,
    /// A sentence without a full stop.
    pub reason: String,
    /// It may be broken: `overcommit = true`.
    pub overcommit: bool,
}

impl FloorRow {
    /// All floors of a configuration at once.
    pub fn all(config: &Config, (planner, choice, outcome): (&Planner<'_>, &Choice, &Outcome)) -> Vec<Self> {
        let tenants = &choice.tenants;
        let judged = planner::judge_floors(planner, &choice.policy, tenants, outcome);
        // Admission refuses them too.
        let late = judged.late.iter().filter_map(|at| config.tenants.get(*at));
        let late = late.filter(|tenant| !tenant.overcommit).map(|tenant| tenant.name.as_str());
        let late = late.collect::<Vec<_>>().join(", ");
        let row = |floor: planner::FloorForecast| {
            let tenant = config.tenants.get(floor.tenant)?;
            let reason = match floor.is_kept() && !late.is_empty() {
                true => format!("beside all floors {late} can't meet its target; lower them, or raise that"),
                false => words::floor(&floor, tenants.get(floor.tenant)?),
            };
            Some(Self {
                tenant: tenant.name.clone(),
                floor: tenant.terms.floor.to_string(),
                asked_iops: floor.asked_iops,
                expected_iops: floor.got_iops,
                kept: floor.is_kept() && late.is_empty(),
                reason,
                overcommit: tenant.overcommit,
            })
        };
        judged.floors.into_iter().filter_map(row).collect()
    }

    /// Whether nothing is to be said against it.
    pub fn is_good(&self) -> bool {
        self.kept || self.overcommit
    }
}

/// One change that makes every promise hold.
#[derive(Debug, Serialize)]
pub struct AdviceRow {
    /// setting, priority, elsewhere or target.
    pub kind: &'static str,
    /// What to do.
    pub change: String,
    /// What tenants without a promise get together then, and now: bytes per second.
    pub best_effort_bytes_s: [f64; 2],
}

/// Whether what is added fits.
#[derive(Debug, Serialize)]
pub struct Addition {
    pub tenants: Vec<String>,
    pub fits: bool,
    /// In a sentence.
    pub why: String,
}

/// What `--solve` found.
#[derive(Debug, Serialize)]
pub struct Solution {
    pub found: bool,
    pub policy: Option<&'static str>,
    /// For the configuration, in place of its own `[policy]` section.
    pub policy_toml: Option<String>,
    /// Priorities that differ from the configuration's, for the `[[tenant]]` sections.
    pub priorities: Vec<PriorityRow>,
    /// Priorities of the configuration mean nothing under this policy and must go.
    pub remove_priorities: bool,
    /// What comes of the promises.
    pub promises: Vec<PromiseRow>,
    /// In a sentence.
    pub why: String,
}

impl Solution {
    /// This solution beside floors: if a floor does not fit, no settings help.
    pub fn beside(self, floors: &[FloorRow]) -> Self {
        let broken: Vec<&str> =
            floors.iter().filter(|floor| !floor.is_good()).map(|floor| floor.tenant.as_str()).collect();
        if broken.is_empty() || !self.found {
            return self;
        }
        let why = format!("no settings give {} the floor that is asked for; lower it", broken.join(", "));
        Self {
            found: false,
            policy: None,
            policy_toml: None,
            priorities: Vec::new(),
            remove_priorities: false,
            why,
            ..self
        }
    }
}

/// A tenant's priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PriorityRow {
    pub tenant: String,
    pub priority: &'static str,
}

impl TenantRow {
    /// All tenants of a configuration; those from `present` on were added.
    pub fn all(config: &Config, tenants: &[Tenant], assumed: &[bool], present: usize) -> Vec<Self> {
        let row = |(index, ((configured, tenant), assumed)): (usize, ((&config::Tenant, &Tenant), &bool))| Self {
            name: tenant.name.clone(),
            class: configured.terms.class.name(),
            latency_target_us: tenant.target().map(Nanos::as_micros_f64),
            latency_percentile: tenant.target().map(|_| tenant.percentile().percent()),
            floor: configured.terms.floor.in_words(),
            weight: configured.terms.class.weight(),
            priority: config.policy.kind().has_priorities().then(|| configured.terms.priority.name()),
            demand: words::demand(tenant),
            assumed: *assumed,
            added: index >= present,
            overcommit: configured.is_promised() && configured.overcommit,
        };
        config.tenants.iter().zip(tenants).zip(assumed).enumerate().map(row).collect()
    }
}

impl PolicyReport {
    /// What the model says of a choice.
    pub fn new(choice: &Choice, outcome: &Result<Outcome, Unmodelled>, rows: &[TenantRow]) -> Self {
        let tenants = &choice.tenants;
        let empty = Self {
            policy: choice.policy.name(),
            configured: choice.configured,
            note: choice.priorities_assumed.then(|| "with priority high for guaranteed tenants".to_owned()),
            unmodelled: None,
            drive_busy_percent: None,
            poller_busy_percent: None,
            played_ios: None,
            tenants: Vec::new(),
            promises: Vec::new(),
            promises_kept: false,
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(why) => {
                // Where nobody is promised anything nothing is broken.
                let promises_kept = rows.iter().all(|row| row.latency_target_us.is_none());
                return Self { unmodelled: Some(why.to_string()), promises_kept, ..empty };
            }
        };
        let promises = PromiseRow::all(&outcome.promises, tenants, rows);
        Self {
            drive_busy_percent: Some(outcome.forecast.drive_utilization * 100.0),
            poller_busy_percent: Some(outcome.forecast.poller_utilization * 100.0),
            played_ios: Some(outcome.forecast.played_ios),
            tenants: tenants.iter().zip(&outcome.forecast.tenants).map(ForecastRow::new).collect(),
            promises_kept: promises.iter().all(PromiseRow::is_good),
            promises,
            ..empty
        }
    }
}

impl ForecastRow {
    fn new((tenant, forecast): (&Tenant, &TenantForecast)) -> Self {
        Self {
            tenant: tenant.name.clone(),
            iops: forecast.iops,
            bandwidth_bytes_s: forecast.bandwidth_bytes_s,
            mean_us: forecast.mean.as_micros_f64(),
            p99_us: forecast.p99.as_micros_f64(),
            bound_us: forecast.bound.map(Nanos::as_micros_f64),
            alone_us: forecast.alone.as_micros_f64(),
            limited_by: match forecast.limited_by {
                LimitedBy::Demand => "demand",
                LimitedBy::Share => "share",
                LimitedBy::Throttle => "throttle",
                LimitedBy::Limits => "limits",
                LimitedBy::Poller => "poller",
                LimitedBy::Guest => "guest",
                LimitedBy::Drive => "drive",
            },
        }
    }
}

impl PromiseRow {
    /// The promises to these tenants.
    pub fn all(promises: &[Promise], tenants: &[Tenant], rows: &[TenantRow]) -> Vec<Self> {
        let name = |index: usize| tenants.get(index).map(|tenant| tenant.name.clone());
        let row = |promise: &Promise| Self {
            tenant: name(promise.tenant).unwrap_or_default(),
            latency_target_us: promise.target.as_micros_f64(),
            verdict: promise.verdict.name(),
            lowest_target_us: match promise.verdict {
                Verdict::Impossible { lowest } => Some(lowest.as_micros_f64()),
                _ => None,
            },
            reason: promise.reason.clone(),
            neighbour: match promise.obstacle {
                Obstacle::Neighbour { tenant, .. } => name(tenant),
                _ => None,
            },
            overcommit: rows.get(promise.tenant).is_some_and(|row| row.overcommit),
        };
        promises.iter().map(row).collect()
    }

    /// Whether it holds, or may be broken.
    pub fn is_good(&self) -> bool {
        self.overcommit || matches!(self.verdict, "certain" | "expected")
    }
}

impl AdviceRow {
    /// What helps a choice.
    pub fn all(planner: &Planner<'_>, choice: &Choice, outcome: &Outcome) -> Vec<Self> {
        let now = outcome.best_effort_bytes_s(&choice.tenants);
        let advice = planner::advise(planner, &choice.policy, &choice.tenants, outcome);
        let row = |advice: planner::Advice| {
            let (_, tenants) = advice.change.apply(&choice.policy, &choice.tenants);
            Self {
                kind: match advice.change {
                    Change::Setting { .. } => "setting",
                    Change::Priority { .. } => "priority",
                    Change::Elsewhere { .. } => "elsewhere",
                    Change::Target { .. } => "target",
                },
                change: words::change(&advice.change, &choice.tenants),
                best_effort_bytes_s: [advice.outcome.best_effort_bytes_s(&tenants), now],
            }
        };
        advice.map(row).collect()
    }
}
