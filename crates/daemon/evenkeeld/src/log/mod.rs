//! Log lines to standard error or the journal, which never block a thread of the daemon.
//!
//! The reader of standard error may have stopped reading, or be gone, or its disk is full. So a thread of its own
//! writes. A line that finds too many waiting is dropped and counted, and the count is told as soon as there is room.
//! By hand, because what `tracing-appender` offers for this can't be flushed before the daemon says that it serves, and
//! what `tracing-journald` offers writes from whichever thread has something to say.
//!
//! | module | what |
//! | --- | --- |
//! | `format` | a line as text, as JSON, or with its fields as the journal takes them |
//! | `limit` | how many lines one tenant may cause |

mod format;
mod limit;

use std::fmt;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use client_socket::Sink;
use confine::ThreadKind;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};

use self::format::{Entry, Style};
use self::limit::Limits;
use runtime::{panics, threads};

/// Lines that may wait for a slow reader.
const WAITING_LINES: usize = 1024;

/// How long the last lines may take when the process ends.
const FAREWELL: Duration = Duration::from_millis(200);

/// Where the journal takes messages with fields.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people; with fields where standard error is the journal.
    Text,
    /// One JSON object a line.
    Json,
}

impl Format {
    /// What is said of an error where there is no log yet, or no more.
    pub fn error(self, message: &str) -> String {
        let entry = Entry { level: Level::ERROR, ..Entry::warning(message) };
        match self {
            Self::Text => format!("evenkeeld: {message}\n"),
            Self::Json => String::from_utf8_lossy(&entry.in_style(Style::Json, SystemTime::now())).into_owned(),
        }
    }
}

/// Takes every event of `level` and above. They wait until [`LogWriter::start`].
pub fn start(level: LevelFilter, format: Format) -> (Log, LogWriter) {
    let journal = if format == Format::Text { Journal::behind_stderr() } else { Journal::None };
    let style = match (format, &journal) {
        (Format::Json, _) => Style::Json,
        (Format::Text, Journal::None) => Style::Text,
        (Format::Text, Journal::Lines) => Style::Prefixed,
        (Format::Text, Journal::Fields(_)) => Style::Fields,
    };
    let (log, writer) = Log::start(style, journal);
    let subscriber = tracing_subscriber::registry().with(level).with(log.clone());
    // Once in a process: a test that starts two daemons keeps the first one's.
    let _ = tracing::subscriber::set_global_default(subscriber);
    (log, writer)
}

/// Where the protocol crates' log lines go.
pub fn sink() -> Sink {
    Arc::new(|about, line| {
        let client_socket::About { level, tenant, drive, promise } = about;
        match level {
            client_socket::Level::Info => tracing::info!(tenant, drive, promise, "{line}"),
            client_socket::Level::Warn => tracing::warn!(tenant, drive, promise, "{line}"),
        }
    })
}

/// A sink for lines of one drive.
pub fn on_drive(sink: Sink, drive: &str) -> Sink {
    let drive = drive.to_owned();
    Arc::new(move |about, line| sink(client_socket::About { drive: about.drive.or(Some(&drive)), ..about }, line))
}

/// The journal behind standard error, if it is there.
enum Journal {
    /// Standard error is something else.
    None,
    /// It takes lines alone.
    Lines,
    /// It takes messages with fields, here.
    Fields(UnixDatagram),
}

impl Journal {
    /// As systemd.exec(5) has it: `JOURNAL_STREAM` says which file the journal gave us as standard error. A program
    /// that was started with another standard error has inherited the variable alone.
    fn behind_stderr() -> Self {
        let told = std::env::var("JOURNAL_STREAM").ok();
        let is = rustix::fs::fstat(std::io::stderr().as_fd()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
        if told.is_none() || told != is.ok() {
            return Self::None;
        }
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect(JOURNAL)?;
            std::io::Result::Ok(socket)
        };
        connect().map_or(Self::Lines, Self::Fields)
    }
}

/// The lines that wait to be written; cloning it is cheap.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<Line>,
    shared: Arc<Shared>,
}

struct Shared {
    style: Style,
    waiting: AtomicU64,
    lost: AtomicU64,
    limits: Mutex<Limits>,
}

impl Shared {
    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line, as it is to be written.
struct Line {
    level: Level,
    bytes: Vec<u8>,
}

impl Line {
    fn new(entry: &Entry<'_>, style: Style) -> Self {
        Self { level: entry.level, bytes: entry.in_style(style, SystemTime::now()) }
    }
}

impl Log {
    fn start(style: Style, journal: Journal) -> (Self, LogWriter) {
        let (lines, received) = sync_channel(WAITING_LINES);
        let (waiting, lost, limits) = Default::default();
        let shared = Arc::new(Shared { style, waiting, lost, limits });
        (Self { lines, shared: Arc::clone(&shared) }, LogWriter { received, shared, journal })
    }

    fn write(&self, entry: &Entry<'_>) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        if self.lines.try_send(Line::new(entry, self.shared.style)).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives what waits a moment to be written: the process is about to end.
    pub fn flush(&self) {
        let pause = Duration::from_millis(5);
        let mut left = FAREWELL;
        while self.shared.waiting.load(Ordering::Acquire) > 0 && !left.is_zero() {
            std::thread::sleep(pause);
            left = left.saturating_sub(pause);
        }
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut told = Told::default();
        event.record(&mut told);
        let Told { message, tenant, drive, promise } = &told;
        if let Some(tenant) = tenant
            && !self.shared.limits().may_write(tenant, Instant::now())
        {
            return;
        }
        let level = *event.metadata().level();
        let (tenant, drive, promise) = (tenant.as_deref(), drive.as_deref(), promise.as_deref());
        self.write(&Entry { level, message, tenant, drive, promise });
    }
}

/// What an event says.
#[derive(Default)]
struct Told {
    message: String,
    tenant: Option<String>,
    drive: Option<String>,
    promise: Option<String>,
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        let of = match field.name() {
            "tenant" => &mut self.tenant,
            "drive" => &mut self.drive,
            "promise" => &mut self.promise,
            _ => return,
        };
        *of = Some(value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

/// The end at which lines come out.
pub struct LogWriter {
    received: Receiver<Line>,
    shared: Arc<Shared>,
    journal: Journal,
}

impl LogWriter {
    /// Has them written, on a thread.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(self) -> std::io::Result<()> {
        std::thread::Builder::new().name("log".into()).spawn(move || self.run())?;
        Ok(())
    }

    fn run(self) {
        threads::enter(ThreadKind::Log);
        loop {
            let over_at = self.shared.limits().next_end();
            let received = match over_at {
                Some(end) => self.received.recv_timeout(end.saturating_duration_since(Instant::now())),
                None => self.received.recv().map_err(RecvTimeoutError::from),
            };
            match received {
                Ok(line) => {
                    panics::drill();
                    self.write(&line);
                    if self.shared.waiting.fetch_sub(1, Ordering::Release) == 1 {
                        self.tell_what_was_lost();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let ended = self.shared.limits().take_ended(Instant::now());
            for (tenant, count) in ended {
                let message = limit::in_words(&tenant, count);
                self.tell(&Entry { tenant: Some(&tenant), ..Entry::warning(&message) });
            }
        }
    }

    fn tell_what_was_lost(&self) {
        let lost = self.shared.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.tell(&Entry::warning(&format!("{lost} log lines were lost: they were read too slowly")));
        }
    }

    fn tell(&self, entry: &Entry<'_>) {
        self.write(&Line::new(entry, self.shared.style));
    }

    fn write(&self, line: &Line) {
        let written = match &self.journal {
            // A socket that is gone, or does not take a message of that length, gets the bare line.
            Journal::Fields(socket) => socket.send(&line.bytes).is_ok(),
            Journal::None | Journal::Lines => false,
        };
        if !written {
            let bytes = match self.journal {
                Journal::Fields(_) => format::message_of(line.level, &line.bytes),
                Journal::None | Journal::Lines => line.bytes.as_slice().into(),
            };
            // Nobody can be told that the log can't be written.
            let _ = std::io::stderr().write_all(&bytes);
        }
    }
}
