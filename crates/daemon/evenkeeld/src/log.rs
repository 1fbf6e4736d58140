//! Log lines to standard error, which never hold anybody up.
//!
//! Whoever reads our standard error may have stopped reading, or be gone, or its disk is full. A thread of its own
//! writes; a line that finds too many waiting is dropped and counted, and the count is told as soon as there is room.
//! By hand, because what `tracing-appender` offers for this can't be flushed before the daemon says that it serves.
//!
//! Service managers put the time before lines. To the journal each line says its level as sd-daemon(3) has it.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use client_socket::Sink;
use confine::ThreadKind;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::{panics, threads};

/// Lines that may wait for a slow reader.
const WAITING_LINES: usize = 1024;

/// How long the last lines may take when the process ends.
const FAREWELL: Duration = Duration::from_millis(200);

/// Takes every event of `level` and above. They wait until [`LogWriter::start`].
pub fn start(level: LevelFilter) -> (Log, LogWriter) {
    let (log, writer) = Log::start();
    // The journal's socket is standard error: systemd says so, and where it is not true, nobody reads prefixes.
    let lines = Lines { for_journal: std::env::var_os("JOURNAL_STREAM").is_some() };
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).event_format(lines).with_writer(log.clone()).finish();
    // Once in a process: a test that starts two daemons keeps the first one's.
    let _ = tracing::subscriber::set_global_default(subscriber);
    (log, writer)
}

/// Where the protocol crates' log lines go.
pub fn sink() -> Sink {
    Arc::new(|level, line| match level {
        client_socket::Level::Info => tracing::info!("{line}"),
        client_socket::Level::Warn => tracing::warn!("{line}"),
    })
}

/// The lines that wait to be written; cloning it is cheap.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<Vec<u8>>,
    waiting: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Log {
    fn start() -> (Self, LogWriter) {
        let (lines, received) = sync_channel(WAITING_LINES);
        let log = Self { lines, waiting: Arc::default(), lost: Arc::default() };
        let (waiting, lost) = (Arc::clone(&log.waiting), Arc::clone(&log.lost));
        (log, LogWriter { received, waiting, lost })
    }

    /// Gives what waits a moment to be written: the process is about to end.
    pub fn flush(&self) {
        let pause = Duration::from_millis(5);
        let mut left = FAREWELL;
        while self.waiting.load(Ordering::Acquire) > 0 && !left.is_zero() {
            std::thread::sleep(pause);
            left = left.saturating_sub(pause);
        }
    }
}

/// The end at which lines come out.
pub struct LogWriter {
    received: Receiver<Vec<u8>>,
    waiting: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl LogWriter {
    /// Has them written to standard error, on a thread.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(self) -> std::io::Result<()> {
        let Self { received, waiting, lost } = self;
        std::thread::Builder::new().name("log".into()).spawn(move || write(&received, &waiting, &lost))?;
        Ok(())
    }
}

fn write(received: &Receiver<Vec<u8>>, waiting: &AtomicU64, lost: &AtomicU64) {
    threads::enter(ThreadKind::Log);
    for line in received {
        panics::drill();
        // Nobody can be told that the log can't be written.
        let _ = std::io::stderr().write_all(&line);
        if waiting.fetch_sub(1, Ordering::Release) == 1 {
            let lost = lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let _ = writeln!(std::io::stderr(), "evenkeeld: {lost} log lines were lost: nobody read them in time");
            }
        }
    }
}

/// One line that is being made; it goes its way when it is dropped.
pub struct Line<'a> {
    log: &'a Log,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.log.waiting.fetch_add(1, Ordering::Relaxed);
        if self.log.lines.try_send(std::mem::take(&mut self.text)).is_err() {
            self.log.waiting.fetch_sub(1, Ordering::Relaxed);
            self.log.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { log: self, text: Vec::new() }
    }
}

/// `evenkeeld: db: a client attached`.
struct Lines {
    for_journal: bool,
}

impl Lines {
    fn prefix(&self, level: Level) -> &'static str {
        match (self.for_journal, level) {
            (true, Level::ERROR) => "<3>",
            (true, Level::WARN) => "<4>",
            (true, Level::INFO) => "<6>",
            (true, _) => "<7>",
            (false, Level::ERROR) => "evenkeeld: error: ",
            (false, Level::WARN) => "evenkeeld: warning: ",
            (false, _) => "evenkeeld: ",
        }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        out.write_str(self.prefix(*event.metadata().level()))?;
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}
