//! Judges how tenants fared lately, beside predictions, and what broke promises.
//!
//! It does so while clients ask for metrics or the page. Forecasts are those that are known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use io_model::{Nanos, TenantId};
use metrics::Verdict;

use crate::clock::Clock;
use crate::foresight::Observed;
use crate::promises_watch::{SPAN_MAX, goes_on, is_kept};
use crate::snapshot::DriveMarks;
use crate::{Daemon, DriveView};

/// A span that is judged is this long at least. Over one that is longer than [`SPAN_MAX`], in which nobody asked,
/// nothing is said: so long Prometheus takes a sample for the present.
const SPAN_MIN: Nanos = Nanos::from_millis(5_000);
/// How long one round may look for causes. The tenants left over come first in the next round.
const BLAME_LIMIT: Duration = Duration::from_millis(100);

type Judged = BTreeMap<TenantId, Verdict>;

/// What was judged last.
pub struct Verdicts {
    clock: Clock,
    /// Where the span began.
    marks: DriveMarks,
    rounds: usize,
    judged: Judged,
    is_wanted: bool,
}

impl Verdicts {
    /// Nothing is judged before a client wants it.
    pub fn new(clock: Clock) -> Self {
        let marks = DriveMarks::of_nobody(Nanos(0));
        Self { clock, marks, rounds: 0, judged: Judged::new(), is_wanted: false }
    }

    /// A client wants a verdict: judge anew, if it is time to.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Of each tenant that was judged.
    pub fn last(&self) -> &BTreeMap<TenantId, Verdict> {
        &self.judged
    }

    /// Judges anew, if a client wants it and it is time to. `None`: the daemon has ended.
    pub fn judge_if_due(&mut self, daemon: &impl Daemon) -> Option<()> {
        let span = self.clock.now() - self.marks.at();
        if !std::mem::take(&mut self.is_wanted) || span < SPAN_MIN {
            return Some(());
        }
        let views = daemon.views()?;
        let now = self.clock.now();
        let (judged, unclear) = if span > SPAN_MAX { Default::default() } else { self.judge(&views, now) };
        self.judged = judged;
        self.marks.move_on(&views, now, |id| unclear.contains(&id));
        self.rounds = self.rounds.wrapping_add(1);
        Some(())
    }

    /// What is said, and of whom too little is known yet: what was said last of those holds until then.
    fn judge(&self, views: &[DriveView], now: Nanos) -> (Judged, BTreeSet<TenantId>) {
        let deadline = Instant::now() + BLAME_LIMIT;
        let mut before = self.judged.clone();
        let (mut judged, mut unclear) = (Judged::new(), BTreeSet::new());
        for view in views {
            let mark = self.marks.of(view);
            let mut observed = mark.measure(now, &view.foresight);
            view.foresight.predict(&mut observed);
            for tenant in &observed {
                let mut verdict = verdict(tenant);
                if goes_on(tenant) {
                    unclear.insert(tenant.id);
                    let last = before.remove(&tenant.id);
                    (verdict.kept, verdict.blame) = last.map(|last| (last.kept, last.blame)).unwrap_or_default();
                }
                judged.insert(tenant.id, verdict);
            }
            let cpu = mark.cpu_use(now, &view.board);
            let mut broken: Vec<TenantId> =
                observed.iter().filter(|tenant| is_kept(tenant) == Some(false)).map(|tenant| tenant.id).collect();
            let first = self.rounds % broken.len().max(1);
            broken.rotate_left(first);
            for id in broken {
                if Instant::now() >= deadline {
                    break;
                }
                if let Some(verdict) = judged.get_mut(&id) {
                    verdict.blame = view.foresight.blame(&observed, &cpu, id).0;
                }
            }
        }
        (judged, unclear)
    }
}

fn verdict(tenant: &Observed) -> Verdict {
    let row = &tenant.row;
    Verdict {
        p99_us: (row.iops > 0.0).then_some(row.p99_us),
        predicted: row.predicted.clone(),
        kept: is_kept(tenant),
        blame: None,
    }
}
