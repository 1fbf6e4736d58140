//! The thread that reads the probes for `GET /live`, `/metrics` and `/v1/stats`, and judges promises.
//!
//! Pollers do no work for it, and no other request waits for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use api::DiskError;
use confine::ThreadKind;
use metrics::Format;
use tokio::sync::oneshot;

use crate::api_error::Refused;
use crate::live::Live;
use crate::response_cache::FRESH;
use crate::scrape::Scrape;
use observe::clock::Clock;
use observe::events::EventLog;
use observe::totals::{Ledger, Served};
use observe::verdicts::Verdicts;
use runtime::command::Handle;
use runtime::{panics, threads};

/// How long the last record may take when the daemon ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// The daemon, its tenants, and their last readings.
pub(crate) struct Sources {
    pub(crate) daemon: Handle,
    pub(crate) clock: Clock,
    pub(crate) verdicts: Verdicts,
    live: Live,
    scrape: Scrape,
}

type Job = Box<dyn FnOnce(&mut Sources) + Send>;

/// The handle through which requests reach the thread. It ends when all handles are gone.
#[derive(Clone)]
pub struct Observer {
    jobs: Sender<Job>,
}

impl Observer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel refused it.
    pub fn start(
        daemon: Handle,
        clock: Clock,
        verdicts: Verdicts,
        events: Arc<EventLog>,
        state_dir: PathBuf,
        ledger: Ledger,
    ) -> Result<Self> {
        let (jobs, asked) = channel();
        let (live, scrape) = (Live::new(events, clock), Scrape::new(state_dir, clock, ledger));
        let sources = Sources { daemon, clock, verdicts, live, scrape };
        let run = move || {
            panics::drill();
            sources.answer_all(&asked);
        };
        threads::spawn("observer", ThreadKind::Metrics, run).context("can't start the observer's thread")?;
        Ok(Self { jobs })
    }

    /// Has the thread answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Sources) -> Result<T> + Send + 'static,
    ) -> Result<T, Refused> {
        let (answer, answered) = oneshot::channel();
        let run = move |sources: &mut Sources| {
            if let Ok(found) = job(sources) {
                // The client may have disconnected.
                let _ = answer.send(found);
            }
        };
        // If the thread is gone, or the daemon ends, nothing answers.
        let _ = self.jobs.send(Box::new(run));
        answered.await.map_err(|_| DiskError::ending().into())
    }

    /// Records the final counts of tenants that are no longer served.
    pub fn record_last(&self, tenants: Vec<Served>) {
        let (done, answer) = channel();
        let record = move |sources: &mut Sources| {
            sources.scrape.record_last(&tenants);
            // The caller may have stopped waiting.
            let _ = done.send(());
        };
        if self.jobs.send(Box::new(record)).is_ok() {
            // The thread may be waiting for the owner, or for a file.
            let _ = answer.recv_timeout(FAREWELL);
        }
    }
}

impl Sources {
    pub(crate) fn live(&mut self) -> Result<Arc<String>> {
        self.live.of_all(&self.daemon, &self.verdicts)
    }

    /// The inner error: there is no such tenant.
    pub(crate) fn live_of(&mut self, name: &str) -> Result<Result<String, DiskError>> {
        self.live.of(name, &self.daemon, &self.verdicts)
    }

    pub(crate) fn metrics(&mut self, format: Format) -> Result<Arc<String>> {
        self.scrape.text(format, &self.daemon, &self.verdicts)
    }

    fn answer_all(mut self, jobs: &Receiver<Job>) {
        loop {
            let is_fresh = self.live.is_fresh() || self.scrape.is_fresh();
            let next_round = self.verdicts.patience();
            match jobs.recv_timeout(if is_fresh { next_round.min(FRESH) } else { next_round }) {
                Ok(job) => {
                    job(&mut self);
                    jobs.try_iter().for_each(|job| job(&mut self));
                }
                Err(RecvTimeoutError::Timeout) if FRESH <= next_round => {
                    self.live.forget();
                    self.scrape.forget();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // After the answers: it looks for causes, and may take a while.
            self.verdicts.judge_if_due(&self.daemon);
        }
    }
}
