//! Drives jobs: threads, the clock, live samples, and an eye on devices that fall silent.
//!
//! Worker threads only step jobs. The calling thread sleeps, merges what workers hand over about every
//! second, reports progress and, when a job gets no completions, asks its disk whether it lives.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use io_model::QueuePriority;
use nvme_driver::Arbitration;

use crate::Error;
use crate::attach::{AnyDisk, Frontend};
use crate::disk::{Disk, DiskQueue};
use crate::job::{Job, Step, shape};
use crate::spec::JobSpec;
use crate::stats::{JobResult, Totals};

/// How often workers hand counts over and progress is reported.
const INTERVAL: Duration = Duration::from_secs(1);
/// Without completions for this long, the device is asked whether it lives.
const SUSPICIOUS: Duration = Duration::from_millis(1500);
/// Sleeping is imprecise by about this much: shorter waits are spun.
const SLEEP_SLACK_NS: u64 = 150_000;
/// The longest sleep: a stop is noticed after that.
const MAX_SLEEP_NS: u64 = 20_000_000;

/// What a worker thread does when none of its jobs has anything to do but wait for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Patience {
    /// Polls on; best where the thread has a core to itself.
    #[default]
    Spin,
    /// Offers the core to others after every empty round; best where threads outnumber cores.
    Yield,
}

/// How jobs are driven.
#[derive(Debug, Clone)]
pub struct Options {
    /// Worker threads, at least 1; jobs are dealt out to them in turn.
    pub threads: usize,
    /// What an idle worker does.
    pub patience: Patience,
    /// A job without any completion for this long has failed.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 1, patience: Patience::Spin, timeout: Duration::from_secs(30) }
    }
}

/// A device and the jobs to run against it.
pub struct Target<D: Disk> {
    /// Its name in results.
    pub name: String,
    /// The device.
    pub disk: D,
    /// The jobs.
    pub specs: Vec<JobSpec>,
}

impl Target<AnyDisk> {
    /// Attaches to a tenant's socket, or to the directory that holds it. The target is named after the
    /// directory.
    pub fn connect(path: &Path, specs: Vec<JobSpec>) -> Result<Self, Error> {
        Self::connect_as(Frontend::Auto, None, path, specs)
    }

    /// As [`Target::connect`], where the socket's name does not tell what speaks there, or with a certain arbitration
    /// among its queues.
    pub fn connect_as(
        frontend: Frontend,
        arbitration: Option<Arbitration>,
        path: &Path,
        specs: Vec<JobSpec>,
    ) -> Result<Self, Error> {
        let disk = AnyDisk::attach_with(path, frontend, arbitration)?;
        let directory = if path.is_dir() { Some(path) } else { path.parent() };
        let name = directory.and_then(Path::file_name).unwrap_or(path.as_os_str());
        Ok(Self { name: name.to_string_lossy().into_owned(), disk, specs })
    }
}

/// What one job did in the last interval.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Name of the job.
    pub name: String,
    /// Name of its target.
    pub target: String,
    /// Length of the interval.
    pub elapsed_ns: u64,
    /// Commands that completed and counted (none while warming up).
    pub ios: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Mean latency (`lat`: from when they were due).
    pub mean_ns: f64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile of latency.
    pub p99_ns: u64,
    /// Largest latency.
    pub max_ns: u64,
    /// Whether the job is over.
    pub finished: bool,
}

/// A job on its way through a worker.
struct Seat<'a, Q: DiskQueue> {
    index: usize,
    job: Job<Q>,
    /// Set when the job must end at once.
    aborted: &'a OnceLock<String>,
    finished: bool,
    /// Whether it measured when its counts were last handed over.
    measured: bool,
}

/// From a worker to the calling thread.
enum Report<Q: DiskQueue> {
    Interval(Interval),
    Finished { index: usize, job: Box<Job<Q>> },
}

/// What a job did since its last report.
struct Interval {
    index: usize,
    totals: Box<Totals>,
    elapsed_ns: u64,
    /// Whether all of it was measured: neither warm-up nor end fell into it.
    whole: bool,
    in_flight: u16,
    completed_ios: u64,
}

/// One job's books, kept by the calling thread.
struct Book<Q: DiskQueue> {
    target: usize,
    name: String,
    spec: JobSpec,
    queue_priority: Option<QueuePriority>,
    totals: Totals,
    interval_iops: Vec<f64>,
    sample: Sample,
    seen_ios: u64,
    silent_ns: u64,
    finished: Option<Box<Job<Q>>>,
}

/// Runs every job of every target to its end, or until `stop` is set; then still drains and reports.
/// `progress` gets the newest sample of every job about once a second. One result per job and copy, in
/// order.
pub fn run<D: Disk>(
    mut targets: Vec<Target<D>>,
    options: &Options,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&[Sample]),
) -> Result<Vec<JobResult>, Error> {
    let mut books = Vec::new();
    let mut jobs = Vec::new();
    // Open until the end.
    let mut idle = Vec::new();
    for (index, target) in targets.iter_mut().enumerate() {
        for job in make_jobs(target, &mut idle)? {
            books.push(Book::new(index, target, &job));
            jobs.push(job);
        }
    }
    let aborts: Vec<OnceLock<String>> = books.iter().map(|_| OnceLock::new()).collect();
    let threads = options.threads.clamp(1, jobs.len().max(1));
    let mut hands: Vec<Vec<Seat<'_, D::Queue>>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, (job, aborted)) in jobs.into_iter().zip(&aborts).enumerate() {
        hands[index % threads].push(Seat { index, job, aborted, finished: false, measured: false });
    }
    thread::scope(|scope| {
        let (reports, received) = channel();
        for seats in hands {
            let reports = reports.clone();
            scope.spawn(move || Worker { seats, reports, patience: options.patience, stop }.run());
        }
        drop(reports);
        keep_books(&received, &mut books, &mut targets, &aborts, options, progress);
    });
    Ok(books.into_iter().map(|book| book.close(&mut targets)).collect())
}

/// Every copy of every job of a target, with its queue; into `idle`, the queues that are to have no job.
fn make_jobs<D: Disk>(target: &mut Target<D>, idle: &mut Vec<D::Queue>) -> Result<Vec<Job<D::Queue>>, Error> {
    let geometry = target.disk.geometry();
    let mut copies = Vec::new();
    for spec in &target.specs {
        // Without copies it is still checked, and refused.
        for copy in 0..spec.numjobs.max(1) {
            copies.push((spec, copy, spec.range(&geometry, copy)?));
        }
    }
    let mut shapes: Vec<_> = copies.iter().map(|(spec, copy, _)| shape(spec, *copy)).collect();
    let idle_shapes = target.specs.iter().map(|spec| (shape(spec, 0), usize::from(spec.idle_queues)));
    shapes.extend(idle_shapes.flat_map(|(shape, count)| std::iter::repeat_n(shape, count)));
    let mut queues = target.disk.open_queues(&shapes)?;
    idle.extend(queues.drain(copies.len()..));
    let jobs = copies.into_iter().zip(queues);
    jobs.map(|((spec, copy, range), queue)| Job::new(spec, copy, queue, range)).collect()
}

struct Worker<'a, Q: DiskQueue> {
    seats: Vec<Seat<'a, Q>>,
    reports: Sender<Report<Q>>,
    patience: Patience,
    stop: &'a AtomicBool,
}

impl<Q: DiskQueue> Worker<'_, Q> {
    fn run(mut self) {
        let clock = Instant::now();
        let now_ns = || clock.elapsed().as_nanos() as u64;
        let interval_ns = INTERVAL.as_nanos() as u64;
        let mut last_ns = 0;
        while !self.seats.is_empty() {
            let wait = self.round(&now_ns);
            let now = now_ns();
            if now - last_ns >= interval_ns || self.seats.iter().any(|seat| seat.finished) {
                self.report(now, now - last_ns);
                last_ns = now;
            }
            match wait {
                Step::IdleUntil(due_ns) if due_ns > now + SLEEP_SLACK_NS => {
                    let sleep_ns = (due_ns - now - SLEEP_SLACK_NS).min(MAX_SLEEP_NS);
                    thread::sleep(Duration::from_nanos(sleep_ns));
                }
                Step::Busy => {}
                _ if self.patience == Patience::Yield => thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Steps every job once; returns what the thread as a whole may do next.
    fn round(&mut self, now_ns: &impl Fn() -> u64) -> Step {
        let stop = self.stop.load(Ordering::Relaxed);
        let mut together = Step::Finished;
        for seat in &mut self.seats {
            if stop {
                seat.job.stop();
            }
            if let Some(why) = seat.aborted.get() {
                seat.job.abort(why);
            }
            // Read for every job: with one reading for all, later jobs would see completions before
            // their time.
            let step = seat.job.step(now_ns());
            seat.finished = step == Step::Finished;
            together = match (together, step) {
                (Step::Busy, _) | (_, Step::Busy) => Step::Busy,
                (Step::Waiting, _) | (_, Step::Waiting) => Step::Waiting,
                (Step::IdleUntil(a), Step::IdleUntil(b)) => Step::IdleUntil(a.min(b)),
                (Step::Finished, other) | (other, Step::Finished) => other,
            };
        }
        together
    }

    /// Hands the interval's counts over, and jobs that are over.
    fn report(&mut self, now_ns: u64, elapsed_ns: u64) {
        for seat in &mut self.seats {
            let measuring = seat.job.is_measuring(now_ns);
            let interval = Interval {
                index: seat.index,
                // One allocation per job and second; its pages are touched when the first latency comes.
                totals: seat.job.swap_interval(Box::default()),
                elapsed_ns,
                whole: std::mem::replace(&mut seat.measured, measuring) && measuring,
                in_flight: seat.job.in_flight(),
                completed_ios: seat.job.completed_ios(),
            };
            // The other side waits until we are gone: it is there.
            if self.reports.send(Report::Interval(interval)).is_err() {
                return;
            }
        }
        for seat in self.seats.extract_if(.., |seat| seat.finished) {
            let report = Report::Finished { index: seat.index, job: Box::new(seat.job) };
            if self.reports.send(report).is_err() {
                return;
            }
        }
    }
}

/// Takes reports until every worker is gone.
fn keep_books<D: Disk>(
    received: &Receiver<Report<D::Queue>>,
    books: &mut [Book<D::Queue>],
    targets: &mut [Target<D>],
    aborts: &[OnceLock<String>],
    options: &Options,
    progress: &mut dyn FnMut(&[Sample]),
) {
    let mut next_progress = Instant::now() + INTERVAL;
    loop {
        match received.recv_timeout(INTERVAL / 4) {
            Ok(Report::Interval(interval)) => {
                let index = interval.index;
                let book = &mut books[index];
                book.add(&interval);
                if let Some(why) = book.trouble(targets, options.timeout) {
                    // Set once; the first reason stays.
                    let _ = aborts[index].set(why);
                }
            }
            Ok(Report::Finished { index, job }) => {
                books[index].sample.finished = true;
                books[index].finished = Some(job);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if Instant::now() >= next_progress {
            next_progress += INTERVAL;
            let samples: Vec<Sample> = books.iter().map(|book| book.sample.clone()).collect();
            progress(&samples);
        }
    }
}

impl<Q: DiskQueue> Book<Q> {
    fn new<D: Disk>(index: usize, target: &Target<D>, job: &Job<Q>) -> Self {
        let spec = job.spec();
        let name = spec.title(&target.name);
        let sample = Sample { name: name.clone(), target: target.name.clone(), ..Sample::default() };
        Self {
            target: index,
            name,
            spec: spec.clone(),
            queue_priority: job.queue_priority(),
            totals: Totals::default(),
            interval_iops: Vec::new(),
            sample,
            seen_ios: 0,
            silent_ns: 0,
            finished: None,
        }
    }

    fn add(&mut self, interval: &Interval) {
        let all = interval.totals.combined();
        self.totals.merge(&interval.totals);
        if interval.whole && interval.elapsed_ns >= INTERVAL.as_nanos() as u64 {
            self.interval_iops.push(all.ios as f64 * 1e9 / interval.elapsed_ns as f64);
        }
        let lat = all.lat();
        self.sample.elapsed_ns = interval.elapsed_ns;
        self.sample.ios = all.ios;
        self.sample.bytes = all.bytes;
        self.sample.mean_ns = lat.mean_ns();
        self.sample.p50_ns = lat.percentile_ns(50.0);
        self.sample.p99_ns = lat.percentile_ns(99.0);
        self.sample.max_ns = lat.max_ns();
        let silent = interval.completed_ios == self.seen_ios && interval.in_flight > 0;
        self.silent_ns = if silent { self.silent_ns + interval.elapsed_ns } else { 0 };
        self.seen_ios = interval.completed_ios;
    }

    /// Why the job must be given up, if it must.
    fn trouble<D: Disk>(&self, targets: &mut [Target<D>], timeout: Duration) -> Option<String> {
        let silent = Duration::from_nanos(self.silent_ns);
        if silent < SUSPICIOUS {
            return None;
        }
        if let Err(error) = targets[self.target].disk.check() {
            return Some(error.to_string());
        }
        (silent >= timeout).then(|| format!("no command completed for {} s: the daemon lost some", silent.as_secs()))
    }

    fn close<D: Disk<Queue = Q>>(self, targets: &mut [Target<D>]) -> JobResult {
        let mut result = JobResult {
            name: self.name,
            target: self.sample.target,
            spec: self.spec,
            queue_priority: self.queue_priority,
            totals: self.totals,
            runtime_ns: 0,
            interval_iops: self.interval_iops,
            failed_ios: 0,
            error: Some("its worker thread died".into()),
            verify: None,
        };
        let Some(job) = self.finished else { return result };
        result.runtime_ns = job.measured_ns();
        result.failed_ios = job.failed_ios();
        result.error = job.error().map(str::to_string);
        result.verify = job.verify_result();
        let quiet = job.in_flight() == 0;
        if quiet {
            let closed = targets[self.target].disk.close_queue(job.into_queue());
            result.error = result.error.or(closed.err().map(|error| error.to_string()));
        }
        result
    }
}
