//! What `GET /metrics` answers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use api::{Drive, Operation};
use metrics::{DriveReading, FileSystem, Format, PollerReading, QueueReading, Reading, TenantReading};
use policy::{PolicyFigure, TenantFigure};
use poller::{Board, HistogramCounts, Iterations, Spent, TenantProbes};

use crate::response_cache::Answers;
use observe::DriveView;
use observe::clock::Clock;
use observe::cpu_waits::CpuWaits;
use observe::totals::{Ledger, Served};
use observe::verdicts::Verdicts;
use runtime::command::{DiskCommand, Handle};

/// The last answer, and the counts that outlive tenants.
pub(crate) struct Scrape {
    state_dir: PathBuf,
    started_at_s: f64,
    ledger: Ledger,
    answers: Answers<Reading, Format>,
}

impl Scrape {
    pub(crate) fn new(state_dir: PathBuf, clock: Clock, ledger: Ledger) -> Self {
        let started_at_s = clock.started_at_unix().as_secs_f64();
        Self { state_dir, started_at_s, ledger, answers: Answers::default() }
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.answers.is_fresh()
    }

    /// Nobody has asked for a while.
    pub(crate) fn forget(&mut self) {
        self.answers.forget();
    }

    /// Records the final counts of tenants that are no longer served.
    pub(crate) fn record_last(&mut self, tenants: &[Served]) {
        self.ledger.record_last(tenants);
    }

    /// The answer in a format.
    pub(crate) fn text(&mut self, format: Format, daemon: &Handle, verdicts: &Verdicts) -> Result<Arc<String>> {
        let mut answers = std::mem::take(&mut self.answers);
        let reading = answers.reading(|| self.read(daemon, verdicts));
        let text = reading.map(|reading| answers.text(format, || metrics::render(&reading, format)));
        self.answers = answers;
        text
    }

    fn read(&mut self, daemon: &Handle, verdicts: &Verdicts) -> Result<Reading> {
        let views = daemon.describe()?;
        let drives = daemon.ask_disks(DiskCommand::Drives)?;
        let disks = daemon.ask_disks(|reply| DiskCommand::List(None, reply))?;
        let operations: Vec<Operation> = daemon.ask_disks(DiskCommand::Operations)?;
        let file_systems = self.file_systems(&drives);
        let cpu_waits = CpuWaits::now();
        let verdicts = verdicts.last();
        let read = |drive: Drive| {
            let view = views.iter().find(|view| *view.name == drive.name);
            let pollers = view.map(|view| pollers(&view.board, &cpu_waits)).unwrap_or_default();
            let tenants = view.map(|view| tenants(view, verdicts, &mut self.ledger)).unwrap_or_default();
            let disks = disks.iter().filter(|disk| disk.drive == drive.name).cloned().collect();
            DriveReading { drive, disks, pollers, tenants }
        };
        let drives = drives.into_iter().map(read).collect();
        self.ledger.record();
        Ok(Reading {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at_s: self.started_at_s,
            drives,
            operations,
            file_systems,
        })
    }

    /// The file systems of the state directory and of drives that are files.
    fn file_systems(&self, drives: &[Drive]) -> Vec<FileSystem> {
        let state = ("state".to_owned(), self.state_dir.clone());
        let images = drives.iter().filter(|drive| drive.backend == "file");
        let images = images.filter_map(|drive| Some((drive.name.clone(), PathBuf::from(drive.path.as_ref()?))));
        let look = |(holds, path): (String, PathBuf)| {
            // A path that is missing, or that the daemon's user can't reach, is left out.
            let found = rustix::fs::statvfs(&path).ok()?;
            let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
            let (size_bytes, free_bytes) = (bytes(found.f_blocks), bytes(found.f_bavail));
            Some(FileSystem { path: path.display().to_string(), holds, size_bytes, free_bytes })
        };
        std::iter::once(state).chain(images).filter_map(look).collect()
    }
}

fn pollers(board: &Board, cpu_waits: &CpuWaits) -> Vec<PollerReading> {
    let read = |iterations: &Arc<Iterations>| {
        let Spent { iterations: count, busy_ns, sleeps, slept_ns, is_asleep } = iterations.spent();
        let (long_iterations, longest) = iterations.since(&HistogramCounts::default());
        let inside = iterations.inside();
        let mut figures = [None; PolicyFigure::COUNT];
        PolicyFigure::ALL.iter().for_each(|figure| figures[*figure as usize] = inside.figure(*figure));
        PollerReading {
            poller: iterations.poller(),
            iterations: count,
            busy_ns,
            sleeps,
            slept_ns,
            is_asleep,
            cpu_waited_ns: cpu_waits.of(iterations.poller()),
            long_iterations,
            longest_ns: longest.0,
            hwq_depth: inside.hwq_depth(),
            hwqs_in_flight: inside.in_flight(),
            figures,
        }
    };
    board.pollers().iter().map(read).collect()
}

fn tenants(
    view: &DriveView,
    verdicts: &BTreeMap<io_model::TenantId, metrics::Verdict>,
    ledger: &mut Ledger,
) -> Vec<TenantReading> {
    let read = |probes: &TenantProbes| {
        // Without a name the tenant has left.
        let name = view.foresight.name(probes.tenant())?;
        let totals = ledger.total(&view.name, name, probes);
        let verdict = verdicts.get(&probes.tenant()).cloned();
        let labels = view.foresight.labels(probes.tenant());
        Some(TenantReading { name: name.to_owned(), labels, totals, verdict, ..tenant(probes) })
    };
    view.foresight.tenants().filter_map(read).collect()
}

/// The current values of one tenant's probes.
fn tenant(probes: &TenantProbes) -> TenantReading {
    let class = probes.class();
    let mut figures = [None; TenantFigure::COUNT];
    TenantFigure::ALL.iter().for_each(|figure| figures[*figure as usize] = probes.figure(*figure));
    TenantReading {
        class: class.name().to_owned(),
        weight: class.weight(),
        target_ns: class.latency_target().map(|target| target.0),
        quantile: class.promise().map(|(_, percentile)| percentile.quantile()),
        bound_ns: probes.bound().and_then(|bound| bound.vouched).map(|bound| bound.0),
        in_flight: probes.counters().in_flight(),
        waiting: probes.waiting(),
        figures,
        queues: probes.hwqs().map(|(poller, queue, hwq)| QueueReading { queue, poller, hwq }).collect(),
        ..TenantReading::default()
    }
}
