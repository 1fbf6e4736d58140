//! Tells the log when a promise starts to fail, and whose fault it is, and when it is kept again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::{EventKind, TenantRow};
use client_socket::{About, Level, Sink};
use io_model::{Nanos, TenantId};
use policy::Percentile;
use poller::Board;

use crate::events::EventLog;
use crate::foresight::{Foresight, Observed};
use crate::snapshot::Mark;

/// How often promises are looked at.
const PERIOD: Duration = Duration::from_secs(5);

/// After a line about a tenant there is no other for so long: a promise on the edge must not fill the log.
const SILENCE: Nanos = Nanos(60_000_000_000);

/// Periods in a row without fault after which a promise counts as kept again.
const GOOD_PERIODS: u32 = 3;

/// Fewer commands than this have no percentile worth a line; of a higher one than the 99th as many more.
const COMMANDS_MIN: u64 = 100;

/// No span is longer: what was then is not now.
pub const SPAN_MAX: Nanos = Nanos::from_millis(300_000);

/// What the daemon's owner looks at every five seconds.
pub struct PromiseWatch {
    mark: Mark,
    next: Nanos,
    told: HashMap<TenantId, Told>,
    sink: Sink,
    events: Arc<EventLog>,
}

impl PromiseWatch {
    /// Begins without tenants.
    pub fn new(now: Nanos, sink: Sink, events: Arc<EventLog>) -> Self {
        Self { mark: Mark::of_nobody(now), next: now + period(), told: HashMap::new(), sink, events }
    }

    /// The tenants whose promises fail.
    pub fn broken(&self) -> impl Iterator<Item = TenantId> {
        self.told.iter().filter(|(_, told)| told.fails).map(|(id, _)| *id)
    }

    /// How long from `now` until it is to look again.
    pub fn patience(&self, now: Nanos) -> Duration {
        Duration::from_nanos((self.next - now).0)
    }

    /// Looks, if it is time to.
    pub fn look(&mut self, now: Nanos, board: &Board, foresight: &Foresight) {
        if now < self.next {
            return;
        }
        let observed = self.mark.measure(now, foresight);
        for tenant in &observed {
            let told = self.told.entry(tenant.id).or_default();
            if told.errors_are_news(tenant.row.errors, now) {
                let what = format!("{} commands failed", tenant.row.errors);
                self.events.tell(EventKind::DriveFailing, Some(&tenant.row.name), Some(what));
            }
            match told.turn(is_kept(tenant), now) {
                Some(Turn::Fails) => {
                    let cpu = self.mark.cpu_use(now, board);
                    let (blame, is_missing) = foresight.blame(&observed, &cpu, tenant.id);
                    if is_missing && told.put_off() {
                        continue;
                    }
                    let why = blame.map_or_else(|| "nobody to blame".into(), |blame| blame.in_words());
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
        self.told.retain(|id, _| observed.iter().any(|tenant| tenant.id == *id));
        let unclear: BTreeSet<TenantId> = observed.iter().filter(|it| goes_on(it)).map(|it| it.id).collect();
        self.mark.move_on((board, foresight), now, |id| unclear.contains(&id));
        self.next = now + period();
    }
}

fn period() -> Nanos {
    Nanos::from_millis(PERIOD.as_millis() as u64)
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

/// Whether a promise was kept over a span; `None` where too little was asked to tell. That it was not shows earlier:
/// two late commands of fewer than a hundred are too many for a 99th percentile, and so is one that does not come back.
pub fn is_kept(Observed { commands, row, .. }: &Observed) -> Option<bool> {
    let late_ppm = u64::from(row.latency_percentile.and_then(Percentile::new).unwrap_or_default().late_ppm());
    let enough = COMMANDS_MIN.max(1_000_000 / late_ppm);
    match row.kept {
        kept if *commands >= enough => kept,
        Some(_) if row.violations * 1_000_000 > late_ppm * enough => Some(false),
        Some(false) if row.overdue > 0 => Some(false),
        _ => None,
    }
}

/// Whether a tenant's span goes on, since there is too little in it to tell.
pub fn goes_on(observed: &Observed) -> bool {
    let is_promised = observed.row.latency_target_us.is_some() || observed.row.floor.is_some();
    is_promised && observed.commands > 0 && is_kept(observed).is_none() && observed.span < SPAN_MAX
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
    /// That it fails was not told a period ago, since a forecast was missing.
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

    /// Whether the failure that turned up now is told in the next period: once.
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

    /// A tenant with a target of 100 µs, over 5 s.
    fn observed(commands: u64, p99_us: f64, violations: u64, overdue: u64) -> Observed {
        let kept = if overdue > 0 { Some(false) } else { (commands > 0).then_some(p99_us <= 100.0) };
        let row = serde_json::json!({
            "name": "db", "drive": "fast", "class": "guaranteed", "weight": null, "latency_target_us": 100.0,
            "limits": null, "priority": null, "overcommit": false, "demand": "", "assumed": true, "iops": 0.0,
            "bw_bytes": 0.0, "mean_us": 0.0, "waited_us": 0.0, "served_us": 0.0, "p50_us": 0.0, "p99_us": p99_us,
            "p999_us": 0.0, "p9999_us": 0.0, "bound_us": null, "bound": null, "violations": violations,
            "overdue": overdue, "errors": 0, "hwqs": [], "predicted": null, "kept": kept, "blame": null
        });
        let row = serde_json::from_value(row).expect("a row");
        let (mean, at_percentile, served) = (Nanos(0), Nanos(0), Nanos(0));
        let (iops, read_share, mean_len_bytes, lateness) = (0.0, 1.0, 4096.0, planner::Lateness::default());
        let measured = planner::Measured { iops, read_share, mean_len_bytes, mean, at_percentile, served, lateness };
        Observed { id: TenantId(1), span: Nanos::from_millis(5_000), commands, outage: Nanos(0), row, measured }
    }

    #[test]
    fn few_commands_show_that_a_promise_fails_and_not_that_it_is_kept() {
        let judged = |it: Observed| (is_kept(&it), goes_on(&it));
        assert_eq!(judged(observed(1000, 90.0, 3, 0)), (Some(true), false));
        assert_eq!(judged(observed(1000, 200.0, 30, 0)), (Some(false), false));
        // Too few to tell, until there are more.
        assert_eq!(judged(observed(30, 90.0, 0, 0)), (None, true));
        assert_eq!(judged(observed(30, 200.0, 1, 0)), (None, true));
        assert_eq!(judged(observed(30, 200.0, 2, 0)), (Some(false), false));
        // The drive hangs.
        assert_eq!(judged(observed(0, 0.0, 0, 1)), (Some(false), false));
        assert_eq!(judged(observed(0, 0.0, 0, 0)), (None, false));
        let at = |percent: f64, commands, violations| {
            let mut it = observed(commands, 90.0, violations, 0);
            it.row.latency_percentile = Some(percent);
            is_kept(&it)
        };
        assert_eq!((at(99.9, 900, 1), at(99.9, 900, 2), at(99.9, 1_000, 1)), (None, Some(false), Some(true)));
        assert_eq!((at(50.0, 80, 40), at(50.0, 80, 51)), (None, Some(false)));
        let old = Observed { span: SPAN_MAX, ..observed(30, 90.0, 0, 0) };
        assert_eq!(judged(old), (None, false));
    }

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
