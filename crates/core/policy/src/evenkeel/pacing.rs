//! Oversized commands, each larger than the whole cap: one at a time, with a pause after each.
//!
//! They exist where a target is shorter than one command of a best-effort tenant takes. No cap on work in flight keeps
//! such a target. What helps is that oversized commands are rare: the fraction of guaranteed commands that is late is
//! about the fraction of time in which an oversized command is in flight.

use io_model::Nanos;

use crate::cost::COST_UNIT;
use crate::fair::Fair;

/// The least fraction of the drive's work that tenants with oversized commands get.
pub const LEAST_PART: f64 = 0.01;
/// How long a command that never ends holds up others at most.
const LONGEST: Nanos = Nanos::from_millis(1_000);

/// The pauses at one poller.
#[derive(Debug)]
pub(super) struct Pacing {
    /// The fraction of time in which an oversized command may be in flight here, where 1 means no pauses. And the
    /// reference commands per second that may always be sent.
    part: f64,
    least_iops: f64,
    /// The least cost of an oversized command, in ticks.
    least_cost: u32,
    /// The oversized command in flight, and since when.
    with_drive: Option<(Large, Nanos)>,
    /// When the next one may go.
    opens: Nanos,
    /// Tenants that wait for that, and the one that was readmitted.
    waiting: Fair,
    admitted: Option<u16>,
    /// When the interval began, and how long an oversized command was in flight in it.
    since: Nanos,
    was_there: Nanos,
}

/// An oversized command.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Large {
    pub(super) tenant: u16,
    pub(super) kind: usize,
    /// Its cost in ticks.
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

    /// Sets a weight, as [`Fair`] takes it.
    pub(super) fn set_weight(&mut self, tenant: u16, weight: u32) {
        self.waiting.set_weight(tenant, weight);
    }

    /// Sets the fraction of time for this poller, the drive's rate in reference commands per second, and the least cost
    /// of an oversized command.
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

    /// When the pause ends, for waiting tenants. A time in the past is skipped: the waiting tenants have looked since.
    pub(super) fn opens_after(&self, now: Nanos) -> Nanos {
        if self.waiting.is_empty() || self.is_open(now) { Nanos::MAX } else { self.opens }
    }

    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a tenant waits for the pause.
    pub(super) fn has(&self, tenant: u16) -> bool {
        self.waiting.waits(tenant)
    }

    pub(super) fn wait(&mut self, tenant: u16) {
        self.used(tenant);
        self.waiting.insert(tenant);
    }

    /// Readmits the waiting tenant whose turn it is.
    pub(super) fn admit(&mut self) -> Option<u16> {
        if self.admitted.is_some() {
            return None;
        }
        self.admitted = self.waiting.front();
        self.admitted.inspect(|tenant| self.waiting.remove(*tenant))
    }

    /// The tenant sent a command.
    #[inline]
    pub(super) fn used(&mut self, tenant: u16) {
        self.admitted.take_if(|admitted| *admitted == tenant);
    }

    /// The tenant has nothing to send any more.
    pub(super) fn left(&mut self, tenant: u16) {
        self.used(tenant);
        self.waiting.remove(tenant);
    }

    /// Another tenant has this identifier from now on.
    pub(super) fn forget(&mut self, tenant: u16) {
        self.waiting.forget(tenant);
    }

    /// An oversized command was sent. Returns whether a pause follows.
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

    /// The oversized command in flight, if a pause follows it.
    pub(super) fn with_drive(&self) -> Option<Large> {
        self.with_drive.map(|(large, _)| large)
    }

    /// An interval ended. Returns the fraction of it in which an oversized command was in flight. `None`: there are no
    /// pauses.
    pub(super) fn turn_over(&mut self, now: Nanos) -> Option<f64> {
        let since = std::mem::replace(&mut self.since, now);
        let was_there = std::mem::take(&mut self.was_there);
        let is_there = self.with_drive.map_or(Nanos(0), |(_, from)| now - from.max(since));
        let is_paced = self.part < 1.0 && (self.has_waiting() || was_there + is_there > Nanos(0));
        is_paced.then(|| ((was_there + is_there).0 as f64 / (now - since).0.max(1) as f64).min(1.0))
    }
}
