//! The 1/64 of all work that tenants without any promise always get, whatever others ask for and at which poller.

use io_model::{Op, TenantId};

use crate::TenantReport;
use crate::cost::{COST_UNIT, Cost};

/// Tenants without any promise may always send 1/64 of the work.
pub const LEAST_PART: u32 = 64;
/// How much of that share may be saved up, and may be in flight beyond the cap, in reference commands. It is more
/// beside guaranteed tenants with much more in flight.
pub const MOST_OWED: u32 = 16;

/// The kind of tenant that sent a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Guaranteed,
    /// It has a floor: a minimum of commands or bytes per second.
    Promised,
    Unpromised,
}

/// The account of one poller. Work is in cost ticks.
#[derive(Debug)]
pub(super) struct Owed {
    /// What may be sent, in 1/64 ([`LEAST_PART`]) of a tick, and the most that is saved up. Below 0: more than the
    /// share was sent.
    owed: i64,
    most_owed: i64,
    /// Their work in flight, and the most that may be in flight beyond the cap.
    in_flight: u64,
    most_in_flight: u64,
    /// Work that guaranteed tenants sent here since the last interval.
    guaranteed: u64,
    /// Work since then that was forgiven, in [`LEAST_PART`]ths: it was sent while nobody else asked.
    forgiven: i64,
    /// Work of each guaranteed tenant so far at all pollers: by the last interval, and the interval before.
    done: Vec<(TenantId, f64)>,
    before: Vec<(TenantId, f64)>,
    /// Work of guaranteed tenants in flight when the last interval ended.
    guaranteed_in_flight: f64,
}

impl Owed {
    pub(super) fn new() -> Self {
        Self {
            owed: 0,
            most_owed: least_saved(),
            in_flight: 0,
            most_in_flight: 0,
            guaranteed: 0,
            forgiven: 0,
            done: Vec::new(),
            before: Vec::new(),
            guaranteed_in_flight: 0.0,
        }
    }

    /// Whether they had less than their share.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.owed >= 0
    }

    /// Whether more of their work may be in flight beyond the cap. A limit is needed, or there would be no latency
    /// bound.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.most_in_flight
    }

    /// Accounts for a command that was sent.
    #[inline]
    pub(super) fn sent(&mut self, cost: u32, by: Sender) {
        let cost = i64::from(cost);
        if by == Sender::Guaranteed {
            self.guaranteed += cost as u64;
        }
        if by != Sender::Unpromised {
            self.owed = (self.owed + cost).min(self.most_owed);
            return;
        }
        // Work that was sent while nobody else asked is forgiven, or only counts against the share of work at other
        // pollers.
        let least = -cost * i64::from(LEAST_PART);
        let owed = self.owed + cost + least;
        self.owed = owed.max(least);
        self.forgiven += self.owed - owed;
    }

    /// Counts their work that goes to the drive (`goes`) or comes back.
    #[inline]
    pub(super) fn count(&mut self, cost: u64, goes: bool) {
        self.in_flight = if goes { self.in_flight + cost } else { self.in_flight.saturating_sub(cost) };
    }

    /// An interval ended. Work of guaranteed tenants at pollers without best-effort tenants is owed 1/64 here. `part`:
    /// the fraction of the best-effort cap that this poller has.
    pub(super) fn learn(&mut self, cost: &Cost, reports: &[TenantReport], part: f64) {
        std::mem::swap(&mut self.done, &mut self.before);
        self.done.clear();
        self.guaranteed_in_flight = 0.0;
        let mut did = 0.0;
        for report in reports.iter().filter(|report| report.class.is_guaranteed()) {
            let done = done(cost, report);
            if let Ok(at) = self.before.binary_search_by_key(&report.tenant, |(tenant, _)| *tenant) {
                did += (done - self.before[at].1).max(0.0);
            }
            let in_flight = report.submitted.saturating_sub(report.completed) as f64;
            self.guaranteed_in_flight += in_flight * done / report.completed.max(1) as f64;
            self.done.push((report.tenant, done));
        }
        let elsewhere = (did - std::mem::take(&mut self.guaranteed) as f64).max(0.0) * part;
        let had = std::mem::take(&mut self.forgiven) as f64;
        self.most_owed = least_saved().max(elsewhere as i64);
        self.owed = (self.owed + (elsewhere - had).max(0.0) as i64).min(self.most_owed);
    }

    /// The most of their work that may be in flight beyond the cap, in reference commands.
    pub(super) fn most_units(&self) -> f64 {
        let of_guaranteed = self.guaranteed_in_flight / f64::from(LEAST_PART) / f64::from(COST_UNIT);
        of_guaranteed.max(MOST_OWED.into())
    }

    /// Sets how much of their work may be in flight beyond the cap, in reference commands.
    pub(super) fn allow(&mut self, units: f64) {
        self.most_in_flight = ((units * f64::from(COST_UNIT)) as u64).max(1);
    }
}

fn least_saved() -> i64 {
    i64::from(LEAST_PART * MOST_OWED * COST_UNIT)
}

/// The cost of a tenant's commands so far, as far as their mean lengths tell it.
fn done(cost: &Cost, report: &TenantReport) -> f64 {
    let of = |op: Op, count: u64, bytes: u64| {
        bytes.checked_div(count).map_or(0.0, |len_bytes| count as f64 * f64::from(cost.of(op, len_bytes)))
    };
    of(Op::Read, report.reads, report.read_bytes) + of(Op::Write, report.writes, report.write_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, LpnsConfig};

    /// Reports of a guaranteed tenant with 256 writes of 128 KiB in flight and `writes` completed.
    fn report(writes: u64) -> [TenantReport; 1] {
        let report = TenantReport::new(TenantId(3), Class::guaranteed(None));
        [TenantReport { submitted: writes + 256, completed: writes, writes, write_bytes: writes << 17, ..report }]
    }

    #[test]
    fn what_guaranteed_tenants_do_at_other_pollers_is_owed_for_too() {
        let (cost, mut owed) = (LpnsConfig::p5800x().cost, Owed::new());
        owed.sent(COST_UNIT, Sender::Unpromised);
        owed.learn(&cost, &report(1_000), 1.0);
        assert!(!owed.is_behind(), "what was done before it was looked is nobody's");
        owed.learn(&cost, &report(1_100), 1.0);
        let each = cost.of(Op::Write, 128 << 10);
        let of_these = 100 * each / LEAST_PART;
        let mut sent = 0;
        let intervals = 20;
        for interval in 1..=intervals {
            while owed.is_behind() {
                owed.sent(COST_UNIT, Sender::Unpromised);
                sent += COST_UNIT;
            }
            owed.learn(&cost, &report(1_100 + 100 * u64::from(interval)), 1.0);
        }
        let of_all = intervals * of_these;
        assert!(sent.abs_diff(of_all) <= of_all / 50, "{sent} of {of_all}");
        let beside = f64::from(256 * each / LEAST_PART / COST_UNIT);
        assert!((owed.most_units() - beside).abs() < 1.0, "{} of {beside}", owed.most_units());
        // Tenants that had more than their share are owed nothing.
        (0..2 * of_these / COST_UNIT + MOST_OWED).for_each(|_| owed.sent(COST_UNIT, Sender::Unpromised));
        owed.learn(&cost, &report(1_200 + 100 * u64::from(intervals)), 1.0);
        assert!(!owed.is_behind());
    }
}
