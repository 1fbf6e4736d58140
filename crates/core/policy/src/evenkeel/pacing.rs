//! Commands that are more than others may have with the drive: one at a time, and a pause after each.
//!
//! No cap on the work in flight keeps a target that is shorter than a single command of others takes. What is left is
//! how often there is one: of a guaranteed tenant's commands about as many are late as there is time with such a one.

use io_model::Nanos;

use crate::cost::COST_UNIT;
use crate::fair::Fair;

/// Who sends such commands has that part of what the drive does at least.
pub const LEAST_PART: f64 = 0.01;
/// A command that never ends holds others up for so long at most.
const LONGEST: Nanos = Nanos::from_millis(1_000);

/// The pauses of one poller's best-effort tenants.
#[derive(Debug)]
pub(super) struct Pacing {
    /// The part of the time in which such a command may be with the drive here, 1: there is no pause; and how many
    /// reference commands they may send in a second whatever that is.
    part: f64,
    least_iops: f64,
    /// What such a command costs at least, in ticks.
    least_cost: u32,
    /// What is with the drive, and since when.
    with_drive: Option<(Large, Nanos)>,
    /// When the next one may go.
    opens: Nanos,
    /// Tenants that wait for that, and the one that need not any more.
    waiting: Fair,
    admitted: Option<u16>,
    /// Since when the interval lasts, and how long such a command was there in it.
    since: Nanos,
    was_there: Nanos,
}

/// A command that is more than others may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Large {
    pub(super) tenant: u16,
    pub(super) kind: usize,
    /// What it costs, in ticks.
    pub(super) cost: u32,
}

impl Pacing {
    pub(super) fn new() -> Self {
        Self {
            part: 1.0,
            least_iops: 0.0,
            least_cost: u32::MAX,
            with_drive: None,
            opens: Nanos(0),
            waiting: Fair::default(),
            admitted: None,
            since: Nanos(0),
            was_there: Nanos(0),
        }
    }

    pub(super) fn grow(&mut self, len: usize) {
        self.waiting.grow(len);
    }

    /// As [`Fair`] takes it.
    pub(super) fn set_weight(&mut self, tenant: u16, weight: u32) {
        self.waiting.set_weight(tenant, weight);
    }

    /// From now on: `part` as for this poller, of a drive that does so many reference commands in a second. Commands
    /// of less than `least_units` have no pauses.
    pub(super) fn set(&mut self, part: f64, rate_iops: f64, least_units: f64) {
        (self.part, self.least_iops) = (part, rate_iops * LEAST_PART);
        self.least_cost = (least_units * f64::from(COST_UNIT)) as u32;
        if part >= 1.0 {
            self.opens = Nanos(0);
        }
    }

    #[inline]
    pub(super) fn least_cost(&self) -> u32 {
        self.least_cost
    }

    #[inline]
    pub(super) fn is_open(&self, now: Nanos) -> bool {
        now >= self.opens
    }

    /// When that changes by itself, for those who wait. What has come is for nobody: who waits for room looked.
    pub(super) fn opens_after(&self, now: Nanos) -> Nanos {
        if self.waiting.is_empty() || self.is_open(now) { Nanos::MAX } else { self.opens }
    }

    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether it waits.
    pub(super) fn has(&self, tenant: u16) -> bool {
        self.waiting.waits(tenant)
    }

    pub(super) fn wait(&mut self, tenant: u16) {
        self.used(tenant);
        self.waiting.insert(tenant);
    }

    /// Whose turn it is of those who wait; it does so no more.
    pub(super) fn admit(&mut self) -> Option<u16> {
        if self.admitted.is_some() {
            return None;
        }
        self.admitted = self.waiting.front();
        self.admitted.inspect(|tenant| self.waiting.remove(*tenant))
    }

    /// It sent something.
    #[inline]
    pub(super) fn used(&mut self, tenant: u16) {
        self.admitted.take_if(|admitted| *admitted == tenant);
    }

    /// It has nothing to send any more.
    pub(super) fn left(&mut self, tenant: u16) {
        self.used(tenant);
        self.waiting.remove(tenant);
    }

    /// Another one has this identifier from now on.
    pub(super) fn forget(&mut self, tenant: u16) {
        self.waiting.forget(tenant);
    }

    /// Such a command was sent. Whether there is a pause after it.
    pub(super) fn sent(&mut self, large: Large, now: Nanos) -> bool {
        let pauses = self.part < 1.0;
        if pauses {
            self.waiting.charge(large.tenant, large.cost);
            self.with_drive = Some((large, now));
            self.opens = now + LONGEST;
        }
        pauses
    }

    /// A command ended.
    #[inline]
    pub(super) fn completed(&mut self, tenant: u16, cost: u32, now: Nanos) {
        let is_it = |(large, _): &mut (Large, Nanos)| (large.tenant, large.cost) == (tenant, cost);
        if let Some((_, since)) = self.with_drive.take_if(is_it) {
            let took_ns = (now - since).0 as f64;
            let longest_ns = f64::from(cost) / f64::from(COST_UNIT) / self.least_iops * 1e9;
            let every_ns = (took_ns / self.part).min(longest_ns.max(took_ns));
            self.opens = since + Nanos(every_ns as u64).min(LONGEST);
            self.was_there += now - since.max(self.since);
        }
    }

    /// What is with the drive and has a pause after it.
    pub(super) fn with_drive(&self) -> Option<Large> {
        self.with_drive.map(|(large, _)| large)
    }

    /// An interval ends: for which part of it such a command was there. `None`: there are no pauses.
    pub(super) fn turn_over(&mut self, now: Nanos) -> Option<f64> {
        let since = std::mem::replace(&mut self.since, now);
        let was_there = std::mem::take(&mut self.was_there);
        let is_there = self.with_drive.map_or(Nanos(0), |(_, from)| now - from.max(since));
        let is_paced = self.part < 1.0 && (self.has_waiting() || was_there + is_there > Nanos(0));
        is_paced.then(|| ((was_there + is_there).0 as f64 / (now - since).0.max(1) as f64).min(1.0))
    }
}
