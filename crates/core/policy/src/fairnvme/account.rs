//! What is known of one tenant, and how its state moves its weight: as published, and corrected.

use io_model::{Nanos, Op};

use super::config::FairConfig;

/// A tenant's state by its latency (FairNVMe §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TenantState {
    /// Below Thresh_min: it has more than it needs.
    #[default]
    Idle,
    /// Below Thresh_cur.
    Balanced,
    /// Below Thresh_max: the shares may be unfair.
    Unbalanced,
    /// Thresh_max or more: it asks for more than there is.
    Saturated,
}

/// One tenant's state, weight and budget; see [`FairNvme::state`](crate::FairNvme::state).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FairState {
    /// By its latency in the last epoch (published: its last command's).
    pub state: TenantState,
    /// Thresh_cur now.
    pub thresh_cur: Nanos,
    /// By how much the policy raised or lowered the tenant's configured weight; 1 at rest.
    pub weight: f64,
    /// Time of a unit that the tenant may still use before it is ahead of its share, ns; negative: it is.
    pub budget_ns: f64,
    /// Commands with the drive.
    pub in_flight: u32,
}

/// Weights stay within this and its inverse (corrected).
const MAX_WEIGHT: f64 = 4.0;

/// Part of the way back to 1 that a weight goes each epoch when nothing holds it.
const DECAY: f64 = 0.125;

/// Part of what a share left or lacked that still counts an epoch later: long enough to tell a large command's turn,
/// which comes once in several epochs, from a tenant that is kept from its share.
const MEMORY: f64 = 0.5;

/// Part of its share that a tenant may lack in the long run before it counts as behind.
const SLACK: f64 = 0.125;

#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    pub(super) state: TenantState,
    pub(super) thresh_cur_ns: f64,
    /// Factor on the configured weight.
    pub(super) weight: f64,
    /// Published: what is left. Corrected: what the shares of former epochs left (positive) or overdrew, the older the
    /// less.
    pub(super) budget_ns: f64,
    /// The tenant's own weight, 1 to 10000.
    pub(super) configured: f64,
    pub(super) in_flight: u32,
    /// Had commands waiting or with the drive at some time in this epoch.
    pub(super) active: bool,
    /// Had them when the epoch began.
    whole: bool,
    /// Since the last epoch's end: time of a unit used, commands completed, and the integral of the commands that
    /// waited or were with the drive over time. By Little's law the last two give the mean latency that the tenant
    /// sees, its own queues included.
    pub(super) spent_ns: f64,
    pub(super) completed: u64,
    pub(super) load_ns: f64,
    /// Since when the load has been what it is.
    since: Nanos,
    /// Cost of its largest command so far: it may be ahead or behind by that.
    largest_ns: f64,
    /// Published: measured times of reads and of everything else since attach, and how many.
    time_ns: [f64; 2],
    count: [f64; 2],
}

impl Account {
    pub(super) fn new(config: &FairConfig, configured: u32, now: Nanos) -> Self {
        Self {
            state: TenantState::Idle,
            thresh_cur_ns: (config.thresh_min.0 + config.thresh_max.0) as f64 / 2.0,
            weight: 1.0,
            budget_ns: 0.0,
            configured: f64::from(configured),
            in_flight: 0,
            active: false,
            whole: false,
            spent_ns: 0.0,
            completed: 0,
            load_ns: 0.0,
            since: now,
            largest_ns: 0.0,
            time_ns: [0.0; 2],
            count: [0.0; 2],
        }
    }

    fn classify(&self, config: &FairConfig, latency_ns: f64) -> TenantState {
        if latency_ns < config.thresh_min.0 as f64 {
            TenantState::Idle
        } else if latency_ns < self.thresh_cur_ns {
            TenantState::Balanced
        } else if latency_ns < config.thresh_max.0 as f64 {
            TenantState::Unbalanced
        } else {
            TenantState::Saturated
        }
    }

    /// Thresh_cur after a latency: Eq. 3 and 4 below it, lines 14 and 20 of Algorithm 1 above.
    fn move_threshold(&mut self, config: &FairConfig, latency_ns: f64) {
        let max_ns = config.thresh_max.0 as f64;
        self.thresh_cur_ns = match self.state {
            TenantState::Idle | TenantState::Balanced => {
                let k = if latency_ns > self.thresh_cur_ns { config.k_up } else { config.k_down };
                self.thresh_cur_ns + k * (latency_ns - self.thresh_cur_ns)
            }
            TenantState::Unbalanced => (self.thresh_cur_ns + max_ns) / 2.0,
            TenantState::Saturated => max_ns,
        };
    }

    // Published.

    fn kind(op: Op) -> usize {
        usize::from(op != Op::Read)
    }

    /// Time_r or Time_w: the mean measured time of a command of this kind, `seed_ns` before there is one.
    pub(super) fn estimate_ns(&self, op: Op, seed_ns: f64) -> f64 {
        let kind = Self::kind(op);
        if self.count[kind] > 0.0 { self.time_ns[kind] / self.count[kind] } else { seed_ns }
    }

    /// Cost_r + Cost_w of Eq. 6 and 7: requests × part of that kind × mean time is the time that they took.
    pub(super) fn demand_ns(&self, seed_ns: f64) -> f64 {
        let taken_ns = self.time_ns[0] + self.time_ns[1];
        if taken_ns > 0.0 { taken_ns } else { seed_ns }
    }

    /// One completion, lines 4 to 24 of Algorithm 1. True: the budgets are to be allocated anew.
    pub(super) fn completed_published(&mut self, config: &FairConfig, op: Op, latency: Nanos) -> bool {
        let latency_ns = latency.0 as f64;
        let kind = Self::kind(op);
        self.time_ns[kind] += latency_ns;
        self.count[kind] += 1.0;
        self.state = self.classify(config, latency_ns);
        self.move_threshold(config, latency_ns);
        match self.state {
            TenantState::Idle => {
                if self.weight > config.beta {
                    self.weight -= config.beta;
                }
                false
            }
            TenantState::Balanced => false,
            TenantState::Unbalanced => {
                self.weight += config.beta;
                true
            }
            TenantState::Saturated => {
                self.weight += 2.0 * config.beta;
                true
            }
        }
    }

    // Corrected.

    /// The load is about to change from this.
    #[inline]
    pub(super) fn tick(&mut self, backlog: u64, now: Nanos) {
        let load = backlog + u64::from(self.in_flight);
        if load > 0 {
            self.load_ns += load as f64 * (now - self.since).0 as f64;
        }
        self.since = now;
    }

    #[inline]
    pub(super) fn charge(&mut self, cost_ns: f64) {
        self.spent_ns += cost_ns;
        self.largest_ns = self.largest_ns.max(cost_ns);
    }

    /// A former user's commands in flight still count.
    pub(super) fn renew(&mut self, fresh: Self) {
        *self = Self { in_flight: self.in_flight, ..fresh };
    }

    /// What an active tenant is entitled to beside its rivals: its configured weight with the policy's factor.
    pub(super) fn claim(&self) -> f64 {
        self.configured * self.weight
    }

    /// An epoch ended in which the tenant was active and its share was `entitled_ns`. Moves state, threshold and
    /// weight; the weights are to be normalised afterwards. `backlogged`: it has commands that were not sent.
    pub(super) fn end_epoch(&mut self, config: &FairConfig, entitled_ns: f64, backlogged: bool) {
        let latency_ns = self.load_ns / self.completed.max(1) as f64;
        self.state = self.classify(config, latency_ns);
        self.move_threshold(config, latency_ns);
        let (min_ns, max_ns) = (config.thresh_min.0 as f64, config.thresh_max.0 as f64);
        self.thresh_cur_ns = self.thresh_cur_ns.clamp(min_ns + 1.0, max_ns - 1.0);

        self.budget_ns = self.budget_ns * MEMORY + entitled_ns - self.spent_ns;
        if !(backlogged && self.whole) {
            // A tenant that waits for nothing, or that has only just come, lacks nothing: its unused budget is not
            // saved.
            self.budget_ns = self.budget_ns.min(0.0);
        }
        let behind = self.budget_ns > self.largest_ns + SLACK / (1.0 - MEMORY) * entitled_ns;
        self.weight += match self.state {
            TenantState::Unbalanced if behind => config.beta,
            TenantState::Saturated if behind => 2.0 * config.beta,
            TenantState::Idle if self.weight > 1.0 => -config.beta.min(self.weight - 1.0),
            _ => (1.0 - self.weight) * DECAY,
        };
    }

    /// The weights of all active tenants are multiplied so that they add up to the configured ones again.
    pub(super) fn normalise(&mut self, factor: f64) {
        self.weight = (self.weight * factor).clamp(1.0 / MAX_WEIGHT, MAX_WEIGHT);
    }

    /// An epoch ended in which the tenant did nothing: nothing is kept but the weight, on its way back to 1.
    pub(super) fn sit_out(&mut self) {
        self.state = TenantState::Idle;
        self.budget_ns = 0.0;
        self.weight += (1.0 - self.weight) * DECAY;
    }

    /// Counts from 0 again.
    pub(super) fn start_epoch(&mut self, backlogged: bool) {
        let loaded = backlogged || self.in_flight > 0;
        self.active = loaded;
        self.whole = loaded;
        self.spent_ns = 0.0;
        self.completed = 0;
        self.load_ns = 0.0;
    }
}
