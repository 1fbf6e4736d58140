//! Judges every few seconds how all tenants fare: for metrics, the page and the event log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::BlameRow;
use client_socket::Sink;
use io_model::{Nanos, TenantId};
use metrics::Verdict;

use crate::blame::blame;
use crate::ceilings::Loads;
use crate::clock::Clock;
use crate::events::EventLog;
use crate::foresight::{Foresight, Observed};
use crate::promise_events::PromiseEvents;
use crate::snapshot::DriveMarks;
use crate::usual::Usuals;
use crate::verdict_record::OwnVerdict;
use crate::{Daemon, DriveView};

/// Length of a span that is judged. Spans of tenants with few commands go on, up to [`SPAN_MAX`].
const SPAN: Nanos = Nanos::from_millis(5_000);

/// No span is longer: older commands say nothing about the present.
const SPAN_MAX: Nanos = Nanos::from_millis(300_000);

/// How long one round may look for causes. The tenants left over come first in the next round.
const BLAME_LIMIT: Duration = Duration::from_millis(100);

type Judged = BTreeMap<TenantId, Verdict>;

/// The verdicts of the last round, and what they rest on.
pub struct Verdicts {
    clock: Clock,
    /// Where the spans begin.
    marks: DriveMarks,
    rounds: usize,
    judged: Judged,
    usuals: Usuals,
    events: PromiseEvents,
    /// Names of tenants whose promises fail, as reported to the daemon.
    broken: Vec<String>,
}

impl Verdicts {
    /// No verdict yet. Changes of verdicts are reported to `sink` and `events`.
    pub fn new(clock: Clock, sink: Sink, events: Arc<EventLog>) -> Self {
        let (marks, events) = (DriveMarks::of_nobody(clock.now()), PromiseEvents::new(sink, events));
        let (judged, usuals) = Default::default();
        Self { clock, marks, rounds: 0, judged, usuals, events, broken: Vec::new() }
    }

    /// The last verdict on each tenant.
    pub fn last(&self) -> &BTreeMap<TenantId, Verdict> {
        &self.judged
    }

    /// What tenants usually do.
    pub fn usuals(&self) -> &Usuals {
        &self.usuals
    }

    /// How long until the next round.
    pub fn patience(&self) -> Duration {
        Duration::from_nanos((self.marks.at() + SPAN - self.clock.now()).0)
    }

    /// Judges anew, if it is time to.
    pub fn judge_if_due(&mut self, daemon: &impl Daemon) {
        let now = self.clock.now();
        if now - self.marks.at() < SPAN {
            return;
        }
        // Without views, the daemon is ending.
        let views = daemon.views().unwrap_or_default();
        let unclear = self.judge(&views, now);
        self.marks.move_on(&views, now, |id| unclear.contains(&id));
        self.rounds = self.rounds.wrapping_add(1);
        let judged = &self.judged;
        self.usuals.retain(|id| judged.contains_key(&id));
        self.events.retain(|id| judged.contains_key(&id));
        let names = |view: &DriveView| {
            let broken = judged.keys().filter(|id| self.events.is_broken(**id));
            broken.filter_map(|id| view.foresight.name(*id).map(str::to_owned)).collect::<Vec<_>>()
        };
        let broken: Vec<String> = views.iter().flat_map(names).collect();
        if broken != self.broken {
            daemon.tell_broken(broken.clone());
            self.broken = broken;
        }
    }

    /// Judges all tenants. Returns those with too few commands yet: their last verdicts hold until then.
    fn judge(&mut self, views: &[DriveView], now: Nanos) -> BTreeSet<TenantId> {
        let deadline = Instant::now() + BLAME_LIMIT;
        let mut before = std::mem::take(&mut self.judged);
        let mut unclear = BTreeSet::new();
        for view in views {
            let mark = self.marks.of(view);
            let mut observed = mark.measure(now, &view.foresight);
            view.foresight.predict(&mut observed);
            let cpu = mark.cpu_use(now, &view.board);
            let is_broken = |tenant: &&Observed| tenant.row.kept == Some(false);
            let mut broken: Vec<&Observed> = observed.iter().filter(is_broken).collect();
            let first = self.rounds % broken.len().max(1);
            broken.rotate_left(first);
            let broken = broken.into_iter().take_while(|_| Instant::now() < deadline);
            let causes: BTreeMap<TenantId, (Option<BlameRow>, bool)> = broken
                .map(|tenant| (tenant.id, blame(&view.foresight, &observed, &cpu, &self.usuals, tenant.id)))
                .collect();
            let loads = Loads::observed(&observed, &cpu);
            for tenant in &observed {
                let cause = causes.get(&tenant.id);
                let known = cause.filter(|(_, is_missing)| !is_missing).map(|(blame, _)| blame.as_ref());
                self.events.tell(tenant, known, now);
                let verdict = verdict_of(tenant, cause.and_then(|(blame, _)| blame.clone()));
                let is_unclear = goes_on(tenant);
                record(&view.foresight, tenant, &loads, now, is_unclear);
                unclear.extend(is_unclear.then_some(tenant.id));
                let last = before.remove(&tenant.id).filter(|_| is_unclear);
                self.judged.insert(tenant.id, last.unwrap_or(verdict));
            }
            if !observed.iter().any(|tenant| tenant.row.kept == Some(false)) {
                let clear = observed.iter().filter(|tenant| !unclear.contains(&tenant.id));
                clear.for_each(|tenant| self.usuals.add(tenant, cpu.most(&tenant.row.pollers).waited));
            }
        }
        unclear
    }
}

fn verdict_of(tenant: &Observed, blame: Option<BlameRow>) -> Verdict {
    let row = &tenant.row;
    Verdict {
        span_ms: tenant.span.0 / 1_000_000,
        p99_us: (row.iops > 0.0).then_some(row.p99_us),
        at_percentile_us: row.at_percentile_us,
        predicted: row.predicted.clone(),
        kept: row.kept,
        blame,
    }
}

/// Has a tenant's guest know of its verdict.
fn record(foresight: &Foresight, tenant: &Observed, loads: &Loads<'_>, now: Nanos, is_unclear: bool) {
    let Some(record) = foresight.record(tenant.id) else { return };
    let row = &tenant.row;
    let at_percentile = row.at_percentile_us.map(|us| Nanos((us * 1e3).round() as u64));
    let verdict = OwnVerdict { kept: row.kept, span: tenant.span, at_percentile };
    let at_limits = foresight.ceiling(tenant.id, loads).is_some();
    record.add(now, (!is_unclear).then_some(verdict), at_limits);
}

/// Whether a tenant's span goes on, since it has too few commands for a verdict.
fn goes_on(observed: &Observed) -> bool {
    let is_promised = observed.row.latency_target_us.is_some() || observed.row.floor.is_some();
    is_promised && observed.commands > 0 && observed.row.kept.is_none() && observed.span < SPAN_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Measured;

    #[test]
    fn a_span_goes_on_until_there_are_enough_commands() {
        let observed = |commands, kept: Option<bool>, span| {
            let row = serde_json::json!({
                "name": "db", "drive": "fast", "class": "guaranteed", "weight": null, "latency_target_us": 100.0,
                "limits": null, "priority": null, "overcommit": false, "demand": "", "assumed": true, "iops": 0.0,
                "bw_bytes": 0.0, "mean_us": 0.0, "waited_us": 0.0, "served_us": 0.0, "p50_us": 0.0, "p99_us": 90.0,
                "p999_us": 0.0, "p9999_us": 0.0, "bound_us": null, "bound": null, "violations": 0,
                "overdue": 0, "errors": 0, "hwqs": [], "predicted": null, "kept": kept, "blame": null
            });
            let row = serde_json::from_value(row).expect("a row");
            let measured = Measured::default();
            Observed { id: TenantId(1), span, commands, outage: Nanos(0), row, measured }
        };
        assert!(goes_on(&observed(30, None, SPAN)));
        assert!(!goes_on(&observed(30, Some(false), SPAN)), "few commands show that a promise is broken");
        assert!(!goes_on(&observed(1_000, Some(true), SPAN)));
        assert!(!goes_on(&observed(0, None, SPAN)), "it is idle");
        assert!(!goes_on(&observed(30, None, SPAN_MAX)));
    }
}
