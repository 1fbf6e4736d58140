//! No command takes longer than the promised bound, while the bound's assumptions hold.
//!
//! A bound says: what finds no more than b at the drive is back within b/R + L_h. So a command that took longer was let
//! down by one of three:
//!
//! - the drive (or the host in front of it): it did not even clear what the command really found, w, within w/R + L_h;
//! - the load: guaranteed tenants had more with the drive than they had when the bound was given, which is about the
//!   present load;
//! - the policy: it let more best-effort work go than it said. That is the rule.
//!
//! The size of a command is known only once it was let go, so at each poller best effort may overdraw by one command. A
//! bound counts only the largest one that its own poller has seen; what others overdraw is told apart.

use std::collections::{HashMap, VecDeque};

use io_model::{Command, Nanos};
use policy::{Bound, COST_UNIT, Cost};
use poller::INTERVAL;
use serde::Serialize;

/// Commands that were fetched while a bound was vouched for, and those that took longer by whose fault it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BoundCounts {
    /// Commands held against a bound.
    pub held: u64,
    /// Of these, commands that took longer …
    pub over: u64,
    /// … because the drive, or the host in front of it, was slower than R and L_h say.
    pub slow_drive: u64,
    /// … because guaranteed tenants had more with the drive than the bound counts.
    pub more_load: u64,
    /// … because best-effort commands were with the drive for more than an interval: no cap takes them back.
    pub left_over: u64,
    /// … because best-effort commands overdrew the cap by more than the bound counts.
    pub overdrawn: u64,
}

impl std::ops::AddAssign for BoundCounts {
    fn add_assign(&mut self, other: Self) {
        self.held += other.held;
        self.over += other.over;
        self.slow_drive += other.slow_drive;
        self.more_load += other.more_load;
        self.overdrawn += other.overdrawn;
        self.left_over += other.left_over;
    }
}

/// Work in cost ticks with the drive: fetched and not completed.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    guaranteed: u64,
    best_effort: u64,
    /// Of the latter, what is there for more than an interval.
    old: u64,
}

impl Work {
    fn of(&mut self, guaranteed: bool) -> &mut u64 {
        if guaranteed { &mut self.guaranteed } else { &mut self.best_effort }
    }
}

/// Best-effort work of one poller.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    /// With the drive.
    ticks: u64,
    /// The largest command so far.
    largest: u64,
}

/// What a command found when it was fetched, itself included.
#[derive(Debug, Clone, Copy)]
struct Found {
    bound: Bound,
    work: Work,
    /// By how much best effort may have exceeded its cap: one command at each poller that has some with the drive.
    overdraft: u64,
}

/// The poller that fetched a command, for which tenant, under which bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetched {
    pub(crate) poller: u16,
    pub(crate) tenant: u16,
    pub(crate) bound: Option<Bound>,
}

/// A command with the drive.
#[derive(Debug, Clone, Copy)]
struct Flight {
    poller: u16,
    ticks: u64,
    /// What its tenant was when it was fetched.
    guaranteed: bool,
    old: bool,
    /// If a bound was vouched for.
    found: Option<Found>,
}

/// Holds every command of guaranteed tenants against the bound that was in force when it was fetched.
#[derive(Debug)]
pub(super) struct Bounds {
    cost: Cost,
    /// By tenant: whether it is guaranteed.
    guaranteed: Vec<bool>,
    lanes: Vec<Lane>,
    work: Work,
    flights: HashMap<u64, Flight>,
    /// Best-effort commands by the time of their fetch, but for old ones: when, and which.
    young: VecDeque<(u64, u64)>,
    /// Until then pollers may not have heard of each other's tenants.
    settled_ns: u64,
    counts: BoundCounts,
}

impl Bounds {
    /// `cost` is what commands cost to the policy.
    pub(super) fn new(cost: Cost) -> Self {
        Self {
            cost,
            guaranteed: Vec::new(),
            lanes: Vec::new(),
            work: Work::default(),
            flights: HashMap::new(),
            young: VecDeque::new(),
            settled_ns: 0,
            counts: BoundCounts::default(),
        }
    }

    pub(super) fn set_class(&mut self, tenant: u16, guaranteed: bool) {
        let at = usize::from(tenant);
        if self.guaranteed.len() <= at {
            self.guaranteed.resize(at + 1, false);
        }
        self.guaranteed[at] = guaranteed;
    }

    /// A tenant came or changed its class. Pollers hear of it with their next interval, publish their demands, and
    /// split the cap by those with the one after it. Commands sent before that may be in flight beside another cap.
    pub(super) fn unsettle(&mut self, now_ns: u64) {
        self.settled_ns = now_ns + 3 * INTERVAL.0;
    }

    pub(super) fn fetched(&mut self, by: Fetched, serial: u64, command: &Command, now_ns: u64) {
        let Fetched { poller, tenant, bound } = by;
        let ticks = u64::from(self.cost.of(command.op, command.len_bytes));
        let guaranteed = self.guaranteed[usize::from(tenant)];
        *self.work.of(guaranteed) += ticks;
        if !guaranteed {
            let at = usize::from(poller);
            if self.lanes.len() <= at {
                self.lanes.resize(at + 1, Lane::default());
            }
            let lane = &mut self.lanes[at];
            lane.ticks += ticks;
            lane.largest = lane.largest.max(ticks);
            self.young.push_back((now_ns, serial));
        }
        // Where nothing is enforced yet, or ever (the published rule), a bound rests on luck.
        self.age(now_ns);
        let settled = now_ns >= self.settled_ns;
        let stands = |bound: &Bound| settled && bound.rests_on.engaged && bound.rests_on.best_effort_cap.is_some();
        let found = bound.filter(|bound| bound.vouched.is_some() && stands(bound)).map(|bound| {
            let busy = self.lanes.iter().filter(|lane| lane.ticks > 0);
            Found { bound, work: self.work, overdraft: busy.map(|lane| lane.largest).sum() }
        });
        self.flights.insert(serial, Flight { poller, ticks, guaranteed, old: false, found });
    }

    fn age(&mut self, now_ns: u64) {
        while let Some(&(at_ns, serial)) = self.young.front()
            && at_ns + INTERVAL.0 < now_ns
        {
            self.young.pop_front();
            if let Some(flight) = self.flights.get_mut(&serial) {
                flight.old = true;
                self.work.old += flight.ticks;
            }
        }
    }

    /// `served`: from the fetch to the completion. What is wrong, if it is.
    pub(super) fn completed(&mut self, serial: u64, served: Nanos) -> Option<String> {
        let Flight { poller, ticks, guaranteed, old, found } = self.flights.remove(&serial)?;
        *self.work.of(guaranteed) -= ticks;
        if old {
            self.work.old -= ticks;
        }
        if !guaranteed {
            self.lanes[usize::from(poller)].ticks -= ticks;
        }
        self.judge(&found?, served)
    }

    fn judge(&mut self, found: &Found, served: Nanos) -> Option<String> {
        let Found { bound: Bound { vouched, rests_on, .. }, work, overdraft } = found;
        let vouched = (*vouched)?;
        self.counts.held += 1;
        if served <= vouched {
            return None;
        }
        self.counts.over += 1;
        let commands = |ticks: u64| ticks as f64 / f64::from(COST_UNIT);
        let (guaranteed, best_effort) = (commands(work.guaranteed), commands(work.best_effort));
        let clears_ns = (guaranteed + best_effort) / rests_on.r_iops * 1e9 + rests_on.l_h.0 as f64;
        if served.0 as f64 > clears_ns.ceil() {
            self.counts.slow_drive += 1;
            return None;
        }
        if guaranteed > rests_on.guaranteed_in_flight {
            self.counts.more_load += 1;
            return None;
        }
        let cap = rests_on.best_effort_cap.unwrap_or(0.0);
        let most = cap + commands(*overdraft);
        if best_effort <= most {
            self.counts.overdrawn += 1;
            return None;
        }
        if best_effort - commands(work.old) <= most {
            self.counts.left_over += 1;
            return None;
        }
        Some(format!(
            "a command took {served} with the drive, {vouched} was vouched for: it found {best_effort:.1} of \
             best-effort work, of which {cap:.1} may go, and {guaranteed:.1} of guaranteed work, {:.1} counted",
            rests_on.guaranteed_in_flight
        ))
    }

    pub(super) fn counts(&self) -> BoundCounts {
        self.counts
    }
}
