//! Tells the log and the event log when a promise starts to fail, and by what, and when it is kept again.

use std::collections::HashMap;
use std::sync::Arc;

use api::{BlameRow, EventKind, TenantRow};
use client_socket::{About, Level, Sink};
use io_model::{Nanos, TenantId};
use policy::Percentile;

use crate::events::EventLog;
use crate::foresight::Observed;

/// After a line about a tenant there is no other for so long: a promise on the edge must not fill the log.
const SILENCE: Nanos = Nanos(60_000_000_000);

/// Periods in a row without fault after which a promise counts as kept again.
const GOOD_PERIODS: u32 = 3;

/// The last report of each tenant.
pub struct PromiseEvents {
    told: HashMap<TenantId, Told>,
    sink: Sink,
    events: Arc<EventLog>,
}

impl PromiseEvents {
    /// No report yet.
    pub fn new(sink: Sink, events: Arc<EventLog>) -> Self {
        Self { told: HashMap::new(), sink, events }
    }

    /// Whether the tenant's promise fails, by the last report.
    pub fn is_broken(&self, tenant: TenantId) -> bool {
        self.told.get(&tenant).is_some_and(|told| told.fails)
    }

    /// Tells what is news about a tenant's span. `blame`: the cause of a broken promise; `None`: not all forecasts for
    /// it are there yet.
    pub fn tell(&mut self, tenant: &Observed, blame: Option<Option<&BlameRow>>, now: Nanos) {
        let told = self.told.entry(tenant.id).or_default();
        if told.errors_are_news(tenant.row.errors, now) {
            let what = format!("{} commands failed", tenant.row.errors);
            self.events.tell(EventKind::DriveFailing, Some(&tenant.row.name), Some(what));
        }
        match told.turn(tenant.row.kept, now) {
            Some(Turn::Fails) => {
                if blame.is_none() && told.put_off() {
                    return;
                }
                let why = blame.flatten().map_or_else(|| "nobody to blame".into(), BlameRow::in_words);
                let about = Level::Warn.of_tenant(&tenant.row.name);
                (self.sink)(About { promise: Some("broken"), ..about }, &fails(&tenant.row, &why));
                self.events.tell(EventKind::PromiseBroken, Some(&tenant.row.name), Some(why));
            }
            Some(Turn::IsKept) => {
                let about = Level::Info.of_tenant(&tenant.row.name);
                let line = format!("{}: its promise is kept again", tenant.row.name);
                (self.sink)(About { promise: Some("kept"), ..about }, &line);
                self.events.tell(EventKind::PromiseKept, Some(&tenant.row.name), None);
            }
            None => {}
        }
    }

    /// Forgets tenants that left.
    pub fn retain(&mut self, is_there: impl Fn(TenantId) -> bool) {
        self.told.retain(|id, _| is_there(*id));
    }
}

fn fails(row: &TenantRow, why: &str) -> String {
    let target = row.latency_target_us.unwrap_or_default();
    if row.overdue > 0 {
        return format!("{}: its promise of {target:.0} µs fails: {why}", row.name);
    }
    if row.latency_target_us.is_none() {
        return format!("{}: its promise fails: {why}", row.name);
    }
    let percentile = row.latency_percentile.and_then(Percentile::new).unwrap_or_default();
    format!(
        "{}: its promise fails: {} commands took up to {:.0} µs, not {target:.0} µs; {why}",
        row.name,
        percentile.in_words(),
        row.at_percentile_us.unwrap_or_default()
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Fails,
    IsKept,
}

/// What the log knows of a promise.
#[derive(Debug, Clone, Default)]
struct Told {
    fails: bool,
    good_periods: u32,
    silent_until: Nanos,
    /// The failure was not reported a period ago, since a forecast was missing.
    was_put_off: bool,
    /// The time until which no further line about failed commands is logged.
    errors_silent_until: Nanos,
}

impl Told {
    /// Whether commands that failed in a period are worth an event.
    fn errors_are_news(&mut self, errors: u64, now: Nanos) -> bool {
        let is_news = errors > 0 && now >= self.errors_silent_until;
        if is_news {
            self.errors_silent_until = now + SILENCE;
        }
        is_news
    }

    /// Whether the failure found now is reported in the next period: once.
    fn put_off(&mut self) -> bool {
        self.was_put_off = !self.was_put_off;
        if self.was_put_off {
            (self.fails, self.silent_until) = (false, Nanos(0));
        }
        self.was_put_off
    }

    /// Whether a period's outcome is worth a line.
    fn turn(&mut self, kept: Option<bool>, now: Nanos) -> Option<Turn> {
        self.good_periods = if kept? { self.good_periods.saturating_add(1) } else { 0 };
        let fails = self.good_periods < if self.fails { GOOD_PERIODS } else { 1 };
        if fails == self.fails || now < self.silent_until {
            return None;
        }
        self.fails = fails;
        self.silent_until = now + SILENCE;
        Some(if fails { Turn::Fails } else { Turn::IsKept })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_told_once_and_not_too_often() {
        let mut told = Told::default();
        let second = |s: u64| Nanos(s * 1_000_000_000);
        let mut turn = |kept, s| told.turn(kept, second(s));
        assert_eq!(turn(Some(true), 5), None);
        assert_eq!(turn(None, 10), None);
        assert_eq!(turn(Some(false), 15), Some(Turn::Fails));
        assert_eq!(turn(Some(false), 20), None, "told already");
        // Kept for three periods, but a line was written less than a minute ago.
        assert_eq!((turn(Some(true), 25), turn(Some(true), 30), turn(Some(true), 35)), (None, None, None));
        assert_eq!(turn(None, 80), None, "nothing was asked");
        assert_eq!(turn(Some(true), 85), Some(Turn::IsKept));
        assert_eq!(turn(Some(false), 90), None);
        assert_eq!(turn(Some(false), 145), Some(Turn::Fails));
        // A good period between bad ones is no end.
        assert_eq!((turn(Some(true), 300), turn(Some(false), 305), turn(Some(true), 310)), (None, None, None));
    }
}
