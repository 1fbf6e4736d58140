//! How tenants fared lately, beside what was predicted, and whose fault a broken promise was: judged on a thread of its
//! own while somebody asks for metrics, since the model takes its time over a thousand tenants.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use confine::ThreadKind;
use io_model::{Nanos, TenantId};
use metrics::Verdict;

use crate::clock::Clock;
use crate::daemon::{DriveView, Handle};
use crate::foresight::Observed;
use crate::promises_watch::is_kept;
use crate::snapshot::DriveMarks;
use crate::{panics, threads};

/// A span that is judged is this long at least …
const SPAN_MIN: Nanos = Nanos::from_millis(5_000);
/// … and at most: over a longer one, in which nobody asked, nothing is said. As long as Prometheus takes a sample for
/// the present.
const SPAN_MAX: Nanos = Nanos::from_millis(300_000);

/// How long one round may look for whose fault it was. Who is left is looked at first the next time.
const BLAME_LIMIT: Duration = Duration::from_secs(1);

type Judged = BTreeMap<TenantId, Verdict>;

/// What was judged last.
pub struct Verdicts {
    judged: Arc<Mutex<Judged>>,
    wake: SyncSender<()>,
}

impl Verdicts {
    /// Starts the thread; nothing is judged before somebody wants it.
    ///
    /// # Errors
    /// The kernel refused a thread.
    pub fn start(daemon: Handle, clock: Clock) -> Result<Self> {
        let judged = Arc::<Mutex<Judged>>::default();
        let (wake, woken) = sync_channel(1);
        let marks = DriveMarks::of_nobody(Nanos(0));
        let judge = Judge { daemon, clock, marks, rounds: 0, judged: Arc::clone(&judged) };
        let run = move || {
            threads::enter(ThreadKind::Metrics);
            panics::drill();
            judge.run(&woken);
        };
        std::thread::Builder::new().name("verdicts".into()).spawn(run).context("can't start the verdicts' thread")?;
        Ok(Self { judged, wake })
    }

    /// Somebody wants to know: judge anew, if it is time to.
    pub fn wanted(&self) {
        // One who waits already is enough.
        let _ = self.wake.try_send(());
    }

    /// Of each tenant that was judged.
    pub fn now(&self) -> BTreeMap<TenantId, Verdict> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Judged> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Judge {
    daemon: Handle,
    clock: Clock,
    /// Where the span began.
    marks: DriveMarks,
    rounds: usize,
    judged: Arc<Mutex<Judged>>,
}

impl Judge {
    fn run(mut self, woken: &Receiver<()>) {
        while woken.recv().is_ok() {
            let span = self.clock.now() - self.marks.at();
            if span < SPAN_MIN {
                continue;
            }
            let Ok(views) = self.daemon.describe() else { return };
            let now = self.clock.now();
            let judged = if span > SPAN_MAX { Judged::new() } else { self.judge(&views, now) };
            *self.judged.lock().unwrap_or_else(PoisonError::into_inner) = judged;
            self.marks.move_on(&views, now);
            self.rounds = self.rounds.wrapping_add(1);
        }
    }

    fn judge(&self, views: &[DriveView], now: Nanos) -> Judged {
        let (span, deadline) = (Duration::from_nanos((now - self.marks.at()).0), Instant::now() + BLAME_LIMIT);
        let mut judged = Judged::new();
        for view in views {
            let mark = self.marks.of(view);
            let mut observed = mark.measure(now, &view.board, &view.foresight);
            view.foresight.predict(&mut observed);
            judged.extend(observed.iter().map(|tenant| (tenant.id, verdict(tenant, span))));
            let starved = mark.starved(now);
            let mut broken: Vec<TenantId> =
                observed.iter().map(|tenant| tenant.id).filter(|id| judged[id].kept == Some(false)).collect();
            let first = self.rounds % broken.len().max(1);
            broken.rotate_left(first);
            for id in broken {
                if Instant::now() >= deadline {
                    break;
                }
                if let Some(verdict) = judged.get_mut(&id) {
                    verdict.blame = view.foresight.blame(&observed, starved, id);
                }
            }
        }
        judged
    }
}

fn verdict(tenant: &Observed, span: Duration) -> Verdict {
    let row = &tenant.row;
    Verdict {
        p99_us: (row.iops > 0.0).then_some(row.p99_us),
        predicted: row.predicted.clone(),
        kept: is_kept(row, span),
        blame: None,
    }
}
