//! Where the throttle of `lpns` (corrected) comes to rest.

use policy::LpnsConfig;
use policy::lpns_rule::{self, SPENT_OF_BUDGET};

use super::Pool;
use crate::Tenant;

/// How fast the model's budget moves; it settles within a few dozen steps, and then sways by this much.
const FIRST_STEP: f64 = 0.2;
const LEAST_STEP: f64 = 0.002;

/// What best effort may have in flight beside promises.
#[derive(Debug, Clone)]
pub(super) struct Throttle {
    /// Guaranteed tenants.
    pub(super) guaranteed: Vec<usize>,
    /// Those with a number, and it, ns.
    pub(super) targets: Vec<(usize, f64)>,
    /// The pool of best effort.
    pub(super) pool: Option<usize>,
    /// Part of the commands that may miss before the policy acts.
    pub(super) may_miss: f64,
    /// Cost in flight of a guaranteed tenant.
    pub(super) guaranteed_cap: f64,
    crowded: bool,
    budget: f64,
    ceiling: f64,
    floor: f64,
    r: f64,
    floor_rate_permille: u32,
    saturation: f64,
    step: f64,
    missed: bool,
}

fn is_guaranteed(tenant: &Tenant) -> bool {
    tenant.class.is_guaranteed()
}

/// What may be in flight at most beside promises like these, in reference commands.
pub(crate) fn ceiling(config: &LpnsConfig, tenants: &[Tenant]) -> f64 {
    lpns_rule::ceiling(config, tenants.iter().filter_map(|tenant| tenant.class.latency_target()).min())
}

/// What one guaranteed tenant may have in flight, in reference commands.
pub(crate) fn guaranteed_limit(config: &LpnsConfig, tenants: &[Tenant]) -> f64 {
    let guaranteed = tenants.iter().filter(|tenant| is_guaranteed(tenant)).count();
    if guaranteed == 1 && tenants.len() == 1 {
        return f64::INFINITY;
    }
    lpns_rule::guaranteed_limit(config, ceiling(config, tenants), guaranteed as u32)
}

impl Throttle {
    pub(super) fn new(config: &LpnsConfig, tenants: &[Tenant], pools: &[Pool]) -> Option<Self> {
        let all: Vec<usize> = (0..tenants.len()).filter(|&at| is_guaranteed(&tenants[at])).collect();
        let target = |at: usize| Some((at, tenants[at].class.latency_target()?.0 as f64));
        let targets: Vec<(usize, f64)> = all.iter().filter_map(|&at| target(at)).collect();
        let r = config.r_iops / 1e9;
        let ceiling = ceiling(config, tenants);
        let best_effort = tenants.len() - all.len();
        Some(Self {
            pool: pools.iter().position(|pool| pool.members.iter().any(|&at| !is_guaranteed(&tenants[at]))),
            targets,
            may_miss: f64::from(config.miss_budget_permille) / 1_000.0 / SPENT_OF_BUDGET as f64,
            guaranteed_cap: guaranteed_limit(config, tenants),
            guaranteed: all,
            crowded: best_effort > 1,
            budget: ceiling,
            ceiling,
            floor: f64::from(config.floor_in_flight),
            r,
            floor_rate_permille: config.floor_rate_permille,
            saturation: lpns_rule::saturation(config),
            step: FIRST_STEP,
            missed: false,
        })
    }

    /// A step towards the budget with which the promises are just kept.
    pub(super) fn judge(&mut self, missed: bool) {
        if missed != self.missed {
            self.step = (self.step * 0.8).max(LEAST_STEP);
        }
        self.missed = missed;
        let factor = if missed { 1.0 / (1.0 + self.step) } else { 1.0 + self.step };
        self.budget = (self.budget * factor).clamp(self.floor, self.ceiling);
    }

    /// Cap and rate of best effort, beside guaranteed tenants of this depth and rate.
    pub(super) fn best_effort(&self, depth: f64, rate: f64) -> (f64, f64) {
        if self.guaranteed.is_empty() {
            return (if self.crowded { self.saturation } else { f64::INFINITY }, f64::INFINITY);
        }
        let cap = lpns_rule::best_effort_cap(self.floor, self.budget, depth);
        (cap, lpns_rule::best_effort_rate(self.r, self.floor_rate_permille, rate))
    }
}
