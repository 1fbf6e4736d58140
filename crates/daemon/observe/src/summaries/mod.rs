//! Keeps summaries of what tenants got, ten seconds at a time, and what happened, in files: on a thread of its own that
//! reads the probes. No poller and no change waits for it.

mod measure;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use client_socket::{Level, Sink};
use confine::ThreadKind;
use history::{INTERVAL_S, Interval, PastEvent, Store, Written};

use self::measure::Marks;
use crate::clock::Clock;
use crate::events::{EventLog, Happened};
use crate::{Daemon, DriveView};

const INTERVAL_MS: u64 = INTERVAL_S * 1_000;

/// An interval that would be shorter than this becomes part of the next one.
const SHORTEST_MS: u64 = 1_000;

/// The longest wait for an answer of this thread, which may wait for a disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the last summary may take when the daemon ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// The wall clock's time, in ms since 1970.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Messages to the thread.
enum Order {
    Current(Sender<Current>),
    Stop(Sender<()>),
}

/// What no file has yet.
pub struct Current {
    /// The interval that goes on, of each drive.
    pub intervals: Vec<Interval>,
    /// How far the files are written.
    pub written: Option<Written>,
    /// Why nothing is written, if so.
    pub trouble: Option<String>,
}

/// The others' end of the thread.
#[derive(Clone)]
pub struct Summaries {
    orders: Sender<Order>,
    directory: Arc<Path>,
}

/// The thread's sources and its log.
pub struct Around {
    /// Reads the drives and tenants.
    pub daemon: Box<dyn Daemon>,
    /// The pollers' clock.
    pub clock: Clock,
    /// What happens, to be kept too.
    pub events: Arc<EventLog>,
    /// Where a warning goes.
    pub sink: Sink,
}

impl Summaries {
    /// Keeps them in `directory`, whose parent may not be there: then nothing is kept.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(directory: PathBuf, around: Around) -> Result<Self> {
        let (orders, told) = channel();
        let summaries = Self { orders, directory: directory.as_path().into() };
        let keeper = Keeper::new(directory, around);
        let thread = std::thread::Builder::new().name("history".into());
        thread.spawn(move || keeper.run(&told)).context("can't start the thread that keeps summaries")?;
        Ok(summaries)
    }

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Summaries that no file has yet. `None`: unavailable now.
    pub fn current(&self) -> Option<Current> {
        let (done, answer) = channel();
        self.orders.send(Order::Current(done)).ok()?;
        answer.recv_timeout(PATIENCE).ok()
    }

    /// Has what goes on written, and ends the thread.
    pub fn stop(&self) {
        let (done, answer) = channel();
        if self.orders.send(Order::Stop(done)).is_ok() {
            // It may wait for a disk, or for us.
            let _ = answer.recv_timeout(FAREWELL);
        }
    }
}

/// The thread's side.
struct Keeper {
    directory: PathBuf,
    around: Around,
    store: Option<Store>,
    /// Why nothing is written, as reported.
    trouble: Option<String>,
    views: Vec<DriveView>,
    marks: Marks,
    /// The last event that was kept.
    seen: u64,
    due: Instant,
}

impl Keeper {
    fn new(directory: PathBuf, around: Around) -> Self {
        let marks = Marks::start(around.clock.now());
        Self { directory, around, store: None, trouble: None, views: Vec::new(), marks, seen: 0, due: next() }
    }

    fn run(mut self, orders: &Receiver<Order>) {
        self.around.daemon.begin(ThreadKind::History);
        loop {
            if Instant::now() >= self.due {
                self.look();
                self.keep();
                self.due = next();
            }
            match orders.recv_timeout(self.due.saturating_duration_since(Instant::now())) {
                Ok(Order::Current(done)) => {
                    self.look();
                    let (intervals, _) = self.measure();
                    let written = self.store.as_ref().and_then(Store::written);
                    // The asking thread may have given up.
                    let _ = done.send(Current { intervals, written, trouble: self.trouble.clone() });
                }
                Ok(Order::Stop(done)) => {
                    // Of the drives as they were: their owner is waiting for us.
                    self.keep();
                    let _ = done.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// At which drives and tenants there are now.
    fn look(&mut self) {
        if let Some(views) = self.around.daemon.views() {
            self.views = views;
        }
    }

    fn measure(&self) -> (Vec<Interval>, Marks) {
        self.marks.until(self.around.clock.now(), unix_ms(), &self.views)
    }

    /// Ends the interval.
    fn keep(&mut self) {
        let (intervals, marks) = self.measure();
        self.marks = marks;
        let events = self.happened();
        let kept = match &mut self.store {
            Some(store) => store.append(&intervals, &events),
            None => Store::open(&self.directory).and_then(|store| self.store.insert(store).append(&intervals, &events)),
        };
        let trouble = kept.err().map(|error| error.to_string());
        if trouble.is_some() {
            // The directory may be another one by now, or be made again.
            self.store = None;
        }
        let directory = self.directory.display();
        match (&self.trouble, &trouble) {
            (None, Some(why)) => {
                // A daemon on trial has no such directory, and nobody misses its summaries.
                let is_there = self.directory.parent().is_some_and(Path::is_dir);
                let level = if is_there { Level::Warn } else { Level::Info };
                let line =
                    format!("no summaries of the last day are kept in {directory}: {why}; they resume once that ends");
                (self.around.sink)(level.of_daemon(), &line);
            }
            (Some(_), None) => {
                (self.around.sink)(Level::Info.of_daemon(), &format!("summaries are kept again in {directory}"));
            }
            _ => {}
        }
        self.trouble = trouble;
    }

    /// What happened since it was asked last.
    fn happened(&mut self) -> Vec<PastEvent> {
        let mut all = Vec::new();
        loop {
            let told = self.around.events.after(self.seen, Happened::in_full);
            self.seen = told.next;
            if told.events.is_empty() {
                return all;
            }
            let past = told.events.iter().filter_map(|event| {
                Some(PastEvent { at_unix_ms: event.at_unix_ms, what: serde_json::to_vec(event).ok()? })
            });
            all.extend(past);
        }
    }
}

/// When the next interval is to end: at a whole ten seconds of the wall clock, so that summaries of several hosts can
/// be laid beside each other.
fn next() -> Instant {
    let left_ms = INTERVAL_MS - unix_ms() % INTERVAL_MS;
    let left_ms = if left_ms < SHORTEST_MS { left_ms + INTERVAL_MS } else { left_ms };
    Instant::now() + Duration::from_millis(left_ms)
}
