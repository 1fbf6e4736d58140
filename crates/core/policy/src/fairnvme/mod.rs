//! FairNVMe: fair shares by tenant states and time budgets (FGCS 2025, §3).
//!
//! | file | what |
//! | --- | --- |
//! | `config` | settings, presets of known drives |
//! | `account` | one tenant's state, threshold, weight and budget |
//! | `queues` | who waits where; with `flows` and `fair` below |
//! | `published` | Algorithm 1 as printed |
//! | here | the corrected rules, and the contract |
//!
//! # Corrected
//!
//! - **Shares**: a command is charged its calibrated cost in time of a unit, and the tenant that used least for its
//!   weight goes next. That is budgets ∝ weight without the wait for an empty one: all who wait spend theirs together,
//!   command by command, and a tenant that does not use its own leaves it to the others at once.
//! - **Window**: with two or more tenants the drive gets [`FairConfig::window`] of work for each unit, enough to
//!   keep it busy. The rest waits in the tenants' queues, where turns are fair, so a tenant with one command at a time
//!   waits for one window and not for everything that its neighbours have queued. HWQs that hold less than the window
//!   must be kept from filling up for the same reason; with several of them, one may all the same.
//! - **States**: each epoch gives every active tenant a latency (waiting in its own queues included) and so a state. An
//!   unbalanced or saturated tenant's weight rises by β or 2β only if it also got less than its share: one that
//!   drowns in its own queue has no claim on its neighbours. An idle one gives back what it was given, all others'
//!   weights decay to 1. Weights stay within ¼ and 4 and add up to the configured ones.
//! - **Several pollers**: each has its part of the window (see `split`), by the weights of those who ask there, as the
//!   states have moved them. Shares, states and budgets are those of one poller's tenants among each other. Whether
//!   there are rivals at other pollers is known from [`interval`](Policy::interval).
//!
//! As published it takes one poller: all budgets are spent and given anew together.
//!
//! A guaranteed tenant is treated as a best-effort one with weight 1: this policy promises shares, not latencies.
//!
//! # Cost
//!
//! Corrected: O(1) per command, and O(tenants) once per epoch. Published: O(tenants) for each completion in an
//! unfair state, as printed.

mod account;
mod config;
mod published;
mod queues;

use io_model::{HwqId, Nanos, Op, TenantId, VqId};

pub use self::account::{FairState, TenantState};
pub use self::config::FairConfig;

use self::account::Account;
use self::queues::{Queues, weight_of};
use crate::ready::NONE;
use crate::{
    COST_UNIT, ConfigError, Demand, Next, Policy, PolicyFigure, TenantFigure, TenantReport, TenantSlot, Terms, Variant,
    VqSlot,
};

/// The FairNVMe policy of one poller.
#[derive(Debug)]
pub struct FairNvme {
    config: FairConfig,
    queues: Queues,
    /// By tenant.
    accounts: Vec<Account>,
    /// Cost ticks with the drive.
    in_flight_ticks: u64,
    /// Commands that the HWQs hold.
    room: u32,
    /// Tenants that were active in the last epoch, and so far in this one.
    active: (u32, u32),
    /// A tenant of another poller was active in the last interval.
    rivals_elsewhere: bool,
    epoch_end: Nanos,
    /// Published: i of Algorithm 1.
    cursor: u16,
    /// What all tenants here claimed of an epoch as of the last interval's end, for figures.
    claims: f64,
}

impl FairNvme {
    /// Over `hwqs` HWQs (at least 1) that hold `hwq_depth` commands each.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(config: FairConfig, hwqs: u16, hwq_depth: u32) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            queues: Queues::new(hwqs, hwq_depth, config.window_ticks()),
            accounts: Vec::new(),
            in_flight_ticks: 0,
            room: u32::from(hwqs).saturating_mul(hwq_depth),
            active: (0, 0),
            rivals_elsewhere: false,
            epoch_end: Nanos(0),
            cursor: 0,
            claims: 0.0,
            config,
        })
    }

    /// The settings.
    pub fn config(&self) -> &FairConfig {
        &self.config
    }

    /// A tenant's state, weight and budget. `None`: it has no VQ here.
    pub fn state(&self, tenant: TenantId) -> Option<FairState> {
        let slot = self.queues.slot_of(tenant);
        let others = (0..).zip(&self.accounts).filter(|(tenant, _)| self.queues.serves(*tenant));
        self.state_at(slot, others.map(|(_, account)| account.claim()).sum())
    }

    /// The state if all tenants together claim `claims`.
    fn state_at(&self, slot: u16, claims: f64) -> Option<FairState> {
        let account = self.accounts.get(usize::from(slot)).filter(|_| self.queues.serves(slot))?;
        let share_ns = || self.config.total_budget_ns() as f64 * account.claim() / claims.max(f64::MIN_POSITIVE);
        let budget_ns = match self.config.variant {
            Variant::Published => account.budget_ns,
            Variant::Corrected => account.budget_ns + share_ns() - account.spent_ns,
        };
        Some(FairState {
            state: account.state,
            thresh_cur: Nanos(account.thresh_cur_ns as u64),
            weight: account.weight,
            budget_ns,
            in_flight: account.in_flight,
        })
    }

    /// Nothing can be sent now.
    fn nothing(&self) -> Next {
        if self.queues.any_backlog() { Next::WaitUntil(Nanos::MAX) } else { Next::Idle }
    }

    /// Several tenants want the drive.
    fn is_contended(&self) -> bool {
        self.active.0.max(self.active.1) >= 2 || self.rivals_elsewhere
    }

    fn next_corrected(&mut self, now: Nanos) -> Next {
        if now >= self.epoch_end {
            self.end_epoch(now);
        }
        if !self.queues.any_backlog() {
            return Next::Idle;
        }
        if self.is_contended() {
            // A VQ that finds its HWQ full waits there in the order of arrival, whatever its weight.
            if self.queues.in_flight() >= self.room {
                return self.nothing();
            }
            if !self.queues.window().has_room(self.in_flight_ticks, now) {
                return self.queues.window().wait();
            }
        }
        while let Some(tenant) = self.queues.front() {
            if let Some(send) = self.queues.pick(tenant) {
                return send;
            }
        }
        self.nothing()
    }

    fn end_epoch(&mut self, now: Nanos) {
        let (mut spent_ns, mut claims, mut active) = (0.0, 0.0, 0_u32);
        for (tenant, account) in (0..).zip(&mut self.accounts) {
            account.tick(self.queues.backlog_of(tenant), now);
            if account.active {
                spent_ns += account.spent_ns;
                claims += account.claim();
                active += 1;
            }
        }
        let (mut configured, mut claimed) = (0.0, 0.0);
        for (tenant, account) in (0..).zip(&mut self.accounts) {
            if !account.active {
                account.sit_out();
                continue;
            }
            // Against what was really served: a wrong calibration moves no weight.
            let entitled_ns = spent_ns * account.claim() / claims;
            account.end_epoch(&self.config, entitled_ns, self.queues.backlog_of(tenant) > 0);
            configured += account.configured;
            claimed += account.claim();
        }
        let mut loaded = 0;
        for (tenant, account) in (0..).zip(&mut self.accounts) {
            if account.active {
                account.normalise(configured / claimed);
            }
            account.start_epoch(self.queues.backlog_of(tenant) > 0);
            loaded += u32::from(account.active);
        }
        self.active = (active, loaded);
        self.epoch_end = now + self.config.epoch;
    }

    /// A tenant's load is about to change.
    #[inline]
    fn tick(&mut self, tenant: u16, now: Nanos) {
        self.accounts[usize::from(tenant)].tick(self.queues.backlog_of(tenant), now);
    }

    /// Commands arrived; the first ones in an epoch make the tenant a rival.
    #[inline]
    fn woke(&mut self, tenant: u16) {
        let account = &mut self.accounts[usize::from(tenant)];
        if !account.active {
            account.active = true;
            self.active.1 += 1;
        }
    }
}

impl Policy for FairNvme {
    fn attach(&mut self, slot: VqSlot, vq: VqId, TenantSlot(tenant): TenantSlot, terms: &Terms, now: Nanos) {
        if slot.0 == NONE || tenant == NONE {
            return;
        }
        self.detach(slot, now);
        let fresh = Account::new(&self.config, weight_of(terms.class), now);
        if self.accounts.len() <= usize::from(tenant) {
            self.accounts.resize(usize::from(tenant) + 1, fresh);
        }
        if !self.queues.serves(tenant) {
            self.accounts[usize::from(tenant)].renew(fresh);
        }
        self.queues.attach(slot, vq.tenant, tenant, terms);
        if self.config.variant == Variant::Published {
            self.reallocate();
        }
    }

    fn change_terms(&mut self, TenantSlot(tenant): TenantSlot, terms: &Terms, _: Nanos) {
        if self.queues.serves(tenant) {
            self.accounts[usize::from(tenant)].configured = f64::from(weight_of(terms.class));
            self.queues.change_terms(tenant, terms);
        }
    }

    fn forget(&mut self, TenantSlot(tenant): TenantSlot) {
        self.queues.forget(tenant);
        if let Some(account) = self.accounts.get_mut(usize::from(tenant)) {
            self.active.1 = self.active.1.saturating_sub(account.active.into());
            *account = Account::new(&self.config, 1, Nanos(0));
        }
    }

    fn detach(&mut self, slot: VqSlot, now: Nanos) {
        if let Some(tenant) = self.queues.tenant_of(slot) {
            self.tick(tenant, now);
            self.queues.detach(slot, tenant);
        }
    }

    #[inline]
    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        if let Some(tenant) = self.queues.tenant_of(slot) {
            self.tick(tenant, now);
            self.queues.arrived(slot, tenant, backlog);
            if backlog > 0 {
                self.woke(tenant);
            }
        }
    }

    #[inline]
    fn next(&mut self, now: Nanos) -> Next {
        match self.config.variant {
            Variant::Corrected => self.next_corrected(now),
            Variant::Published => self.next_published(),
        }
    }

    #[inline]
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, _: Nanos) {
        let Some(tenant) = self.queues.tenant_of(slot) else { return };
        let cost = self.config.cost.of(op, len_bytes);
        let cost_ns = self.config.cost_ns(u64::from(cost));
        let account = &mut self.accounts[usize::from(tenant)];
        account.in_flight += 1;
        self.in_flight_ticks += u64::from(cost);
        match self.config.variant {
            Variant::Corrected => {
                account.charge(cost_ns);
                let charged =
                    if account.weight == 1.0 { cost } else { (f64::from(cost) / account.weight).round() as u32 };
                self.queues.serve(tenant, cost, charged.max(1));
            }
            Variant::Published => account.budget_ns -= account.estimate_ns(op, cost_ns),
        }
        // Its load stays the same: what left the VQ is with the drive.
        self.queues.sent(slot, tenant, hwq);
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos) {
        let Some(tenant) = self.queues.tenant_of(slot) else { return };
        self.tick(tenant, now);
        if consumed {
            // It took a turn and the poller's time, if not the drive's.
            self.queues.charge(tenant, COST_UNIT);
        }
        self.queues.refused(slot, tenant, consumed);
    }

    #[inline]
    fn completed(
        &mut self,
        _: VqSlot,
        hwq: HwqId,
        TenantSlot(tenant): TenantSlot,
        op: Op,
        len_bytes: u64,
        latency: Nanos,
        now: Nanos,
    ) {
        let cost = self.config.cost.of(op, len_bytes);
        self.in_flight_ticks = self.in_flight_ticks.saturating_sub(u64::from(cost));
        self.queues.completed(hwq);
        let backlog = self.queues.backlog_of(tenant);
        let Some(account) = self.accounts.get_mut(usize::from(tenant)) else { return };
        account.tick(backlog, now);
        account.in_flight = account.in_flight.saturating_sub(1);
        account.completed += 1;
        if self.config.variant == Variant::Published && account.completed_published(&self.config, op, latency) {
            self.reallocate();
            self.cursor = 0;
        }
    }

    fn demand(&mut self) -> Option<Demand> {
        if self.config.variant == Variant::Published {
            return None;
        }
        let Self { queues, accounts, in_flight_ticks, .. } = self;
        queues.demand(*in_flight_ticks, |tenant| accounts.get(usize::from(tenant)).map_or(1.0, Account::claim))
    }

    fn demands(&mut self, all: &[Demand], own: usize, now: Nanos) {
        self.queues.window().hear(all, own, now);
    }

    fn asks_here(&mut self, TenantSlot(tenant): TenantSlot, part: f64, _: Nanos) {
        self.queues.set_part(tenant, part);
    }

    fn interval(&mut self, reports: &[TenantReport], _: Nanos) {
        (self.claims, self.rivals_elsewhere) = (0.0, false);
        for report in reports {
            let slot = self.queues.slot_of(report.tenant);
            if self.queues.serves(slot) {
                self.claims += self.accounts[usize::from(slot)].claim();
            } else {
                self.rivals_elsewhere |= report.mean_latency > Nanos(0) || report.submitted > report.completed;
            }
        }
    }

    fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.queues.backlog_at(slot)
    }

    fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.queues.hwq_of(slot)
    }

    fn figures(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        if self.config.variant == Variant::Corrected {
            tell(PolicyFigure::Window, self.queues.window_size() / f64::from(COST_UNIT));
        }
    }

    fn tenant_figures(&self, TenantSlot(tenant): TenantSlot, tell: &mut dyn FnMut(TenantFigure, f64)) {
        let Some(FairState { state, thresh_cur, weight, budget_ns, .. }) = self.state_at(tenant, self.claims) else {
            return;
        };
        let state = match state {
            TenantState::Idle => 0.0,
            TenantState::Balanced => 1.0,
            TenantState::Unbalanced => 2.0,
            TenantState::Saturated => 3.0,
        };
        tell(TenantFigure::FairState, state);
        tell(TenantFigure::FairThreshold, thresh_cur.0 as f64 / 1e9);
        tell(TenantFigure::FairWeight, weight);
        tell(TenantFigure::FairBudget, budget_ns / 1e9);
    }
}
