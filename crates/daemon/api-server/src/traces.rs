//! Traces: a tenant's commands as lines of text, for a client. A thread of its own takes them from the rings
//! that pollers fill, and never waits for who reads: what finds no room is counted.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use confine::ThreadKind;
use hyper::body::Bytes;
use io_model::{Nanos, Op, TenantId};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use api::{DiskError, Reason};
use observe::summaries::unix_ms;
use runtime::command::{Command, Handle, Recorded};
use runtime::{panics, threads};

/// Traces at a time.
const MOST: usize = 4;

/// Chunks that a slow reader may leave waiting, and their bytes.
const CHUNKS: usize = 64;
const CHUNK_BYTES: usize = 64 << 10;

/// How often the rings are looked at: much more often than they can fill.
const PAUSE: Duration = Duration::from_millis(5);

/// How long the last commands and their reader may take once a trace is to end.
const FAREWELL: Duration = Duration::from_secs(5);

/// A trace's columns. The reader of `evenkeel sim` knows a file by them.
const COLUMNS: &str = "time_ns,disk,op,lba,len_bytes,waited_ns,served_ns,status";

/// Keeps a connection alive beyond its usual time.
#[derive(Debug, Clone, Default)]
pub struct Stay(Arc<AtomicUsize>);

impl Stay {
    /// Whether a reader still needs it.
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Marks it as wanted while the returned value lives.
    pub fn hold(&self) -> Held {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(self.clone())
    }
}

/// A connection that is kept.
pub struct Held(Stay);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The handle of the thread. The thread ends when no handle is left and the last trace is over.
#[derive(Clone)]
pub struct Traces {
    jobs: Sender<Job>,
    taken: Arc<Mutex<HashSet<String>>>,
}

/// A tenant that is being traced; not any more when this is dropped.
struct Place {
    name: String,
    taken: Arc<Mutex<HashSet<String>>>,
}

fn lock(taken: &Mutex<HashSet<String>>) -> MutexGuard<'_, HashSet<String>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.taken).remove(&self.name);
    }
}

/// A trace that may begin.
pub struct Claim(Place);

impl Traces {
    /// Starts the thread.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(daemon: Handle) -> Result<Self> {
        let (jobs, asked) = channel();
        let run = move || run(&asked, &daemon);
        std::thread::Builder::new().name("trace".into()).spawn(run).context("can't start the thread that traces")?;
        Ok(Self { jobs, taken: Arc::default() })
    }

    /// Claims one of the few places for a tenant.
    ///
    /// # Errors
    /// It is being traced, or enough others are.
    pub fn claim(&self, name: &str) -> Result<Claim, DiskError> {
        let mut taken = lock(&self.taken);
        if taken.contains(name) {
            let title = format!("{name:?} is being traced");
            return Err(DiskError::new(Reason::Traced, title, "wait until that trace is over, or end it"));
        }
        if taken.len() >= MOST {
            let title = format!("{MOST} tenants are being traced");
            return Err(DiskError::new(Reason::TooManyTraces, title, "wait until one of these traces is over"));
        }
        taken.insert(name.to_owned());
        Ok(Claim(Place { name: name.to_owned(), taken: Arc::clone(&self.taken) }))
    }

    /// Begins. What is received is the file, in pieces that end with a line.
    pub fn begin(&self, claim: Claim, recorded: Recorded, seconds: u32, stay: &Stay) -> mpsc::Receiver<Bytes> {
        let (chunks, body) = mpsc::channel(CHUNKS);
        let Claim(place) = claim;
        let text = head(&place.name, &recorded);
        let ends = Instant::now() + Duration::from_secs(seconds.into());
        let state = State::Recording;
        let job =
            Job { _place: place, _held: stay.hold(), recorded, ends, state, chunks, text, waiting: None, lines: 0 };
        // If the daemon is ending, the body is empty.
        let _ = self.jobs.send(job);
        body
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Recording,
    /// The pollers were told to stop; the wait ends at that time.
    Stopping(Instant),
    /// Everything is in the text.
    Ending(Instant),
}

struct Job {
    _place: Place,
    _held: Held,
    recorded: Recorded,
    ends: Instant,
    state: State,
    chunks: mpsc::Sender<Bytes>,
    /// Lines that make no chunk yet.
    text: Vec<u8>,
    /// A chunk that found no room.
    waiting: Option<Bytes>,
    lines: u64,
}

fn run(asked: &Receiver<Job>, daemon: &Handle) {
    threads::enter(ThreadKind::Trace);
    panics::drill();
    let mut jobs: Vec<Job> = Vec::new();
    loop {
        if jobs.is_empty() {
            match asked.recv() {
                Ok(job) => jobs.push(job),
                Err(_) => return,
            }
        }
        jobs.extend(asked.try_iter());
        jobs.retain_mut(|job| job.turn(Instant::now(), daemon));
        std::thread::sleep(PAUSE);
    }
}

impl Job {
    /// `false`: it is over.
    fn turn(&mut self, now: Instant, daemon: &Handle) -> bool {
        let stop = |tenant: TenantId| daemon.tell(Command::StopRecording(tenant));
        // A tenant that does nothing gives nothing to send.
        if self.chunks.is_closed() || self.pass_on().is_err() {
            // The client has disconnected.
            stop(self.recorded.tenant);
            return false;
        }
        match self.state {
            State::Recording if now >= self.ends => {
                stop(self.recorded.tenant);
                self.state = State::Stopping(now + FAREWELL);
            }
            State::Recording if !self.is_over() => {}
            State::Recording => self.state = State::Stopping(now),
            State::Stopping(until) if self.is_over() && self.waiting.is_none() || now >= until => {
                self.end();
                self.state = State::Ending(now + FAREWELL);
            }
            State::Stopping(_) => {}
            State::Ending(until) => return self.waiting.is_some() && now < until,
        }
        true
    }

    /// Whether no poller records any more.
    fn is_over(&self) -> bool {
        self.recorded.rings.iter().all(poller::Recording::is_over)
    }

    /// Passes on what the rings have, as far as there is room.
    ///
    /// # Errors
    /// Nobody reads any more.
    fn pass_on(&mut self) -> Result<(), Gone> {
        loop {
            if let Some(chunk) = self.waiting.take() {
                self.send(chunk)?;
            }
            if self.waiting.is_some() {
                return Ok(());
            }
            self.fill(CHUNK_BYTES);
            if self.text.is_empty() {
                return Ok(());
            }
            let chunk = std::mem::take(&mut self.text).into();
            self.send(chunk)?;
        }
    }

    fn send(&mut self, chunk: Bytes) -> Result<(), Gone> {
        match self.chunks.try_send(chunk) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(chunk)) => {
                self.waiting = Some(chunk);
                Ok(())
            }
            Err(TrySendError::Closed(_)) => Err(Gone),
        }
    }

    /// Takes lines from the rings until the text has that length or the rings are empty.
    fn fill(&mut self, most_bytes: usize) {
        let Self { recorded: Recorded { rings, start, .. }, text, lines, state, .. } = self;
        if matches!(state, State::Ending(_)) {
            return;
        }
        for ring in rings {
            while text.len() < most_bytes
                && let Some(command) = ring.take()
            {
                line(&command, *start, text);
                *lines += 1;
            }
        }
    }

    /// Has the last commands and the last line in the text. What its reader leaves no room for counts as lost.
    fn end(&mut self) {
        if self.waiting.is_none() {
            self.fill(usize::MAX);
        }
        let rings = &mut self.recorded.rings;
        let left: usize = rings.iter_mut().map(|ring| std::iter::from_fn(|| ring.take()).count()).sum();
        let lost = left as u64 + rings.iter().map(poller::Recording::lost).sum::<u64>();
        self.text.extend(api::trace_end(self.lines, lost).bytes());
        if self.waiting.is_none() {
            // A client that has disconnected does not miss it.
            let chunk = std::mem::take(&mut self.text).into();
            let _ = self.send(chunk);
        }
    }
}

/// Nobody reads any more.
struct Gone;

fn head(name: &str, recorded: &Recorded) -> Vec<u8> {
    let Recorded { drive, policy, .. } = recorded;
    let now = unix_ms();
    format!(
        "# evenkeel trace, version 1\n# tenant {name}, drive {drive}, policy {policy}, from {now} ms since 1970\n\
         {COLUMNS}\n"
    )
    .into_bytes()
}

/// Blocks of this size are what a trace counts in.
const LBA_BYTES: u64 = 512;

fn line(command: &poller::Recorded, start: Nanos, text: &mut Vec<u8>) {
    let op = match command.op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::WriteZeroes => "zeroes",
        Op::Discard => "discard",
    };
    let mut number = itoa::Buffer::new();
    let mut put = |value: u64, text: &mut Vec<u8>| {
        text.extend(number.format(value).bytes());
        text.push(b',');
    };
    // What was under way at the start arrived before it.
    put(command.arrived.0.saturating_sub(start.0), text);
    put(command.disk.into(), text);
    text.extend(op.bytes());
    text.push(b',');
    put(command.offset_bytes / LBA_BYTES, text);
    put(command.len_bytes, text);
    put(command.waited.0, text);
    put(command.served.0, text);
    text.extend(if command.failed { &b"failed\n"[..] } else { b"ok\n" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_line() {
        let command = poller::Recorded {
            arrived: Nanos(1_500),
            op: Op::Write,
            disk: 2,
            failed: false,
            offset_bytes: 8_192,
            len_bytes: 4_096,
            waited: Nanos(10),
            served: Nanos(80_000),
        };
        let mut text = Vec::new();
        line(&command, Nanos(500), &mut text);
        line(&poller::Recorded { arrived: Nanos(3), op: Op::Flush, failed: true, ..command }, Nanos(500), &mut text);
        let text = String::from_utf8(text).expect("text");
        assert_eq!(text, "1000,2,write,16,4096,10,80000,ok\n0,2,flush,16,4096,10,80000,failed\n");
    }

    #[test]
    fn a_few_tenants_are_traced_at_a_time_and_each_once() {
        let (jobs, _asked) = channel();
        let traces = Traces { jobs, taken: Arc::default() };
        let first = traces.claim("a").expect("free");
        let refused = |name: &str| traces.claim(name).err().map(|error| error.reason);
        assert_eq!(refused("a"), Some(Reason::Traced));
        let _others: Vec<Claim> = ["b", "c", "d"].into_iter().filter_map(|name| traces.claim(name).ok()).collect();
        assert_eq!(refused("e"), Some(Reason::TooManyTraces));
        drop(first);
        assert_eq!(refused("e"), None);
    }
}
