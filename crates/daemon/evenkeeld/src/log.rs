//! Log lines to standard error, which never hold anybody up.
//!
//! Whoever reads our standard error may have stopped reading, or be gone, or its disk is full. A thread of its own
//! writes; a line that finds too many waiting is dropped and counted. Service managers put the time before lines.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Lines that may wait for a slow reader.
const WAITING_LINES: usize = 1024;

/// How long the last lines may take when the process ends.
const FAREWELL: Duration = Duration::from_millis(200);

/// Where log lines go; cloning it is cheap.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<String>,
    waiting: Arc<AtomicU64>,
}

impl Log {
    /// Starts the thread that writes.
    pub fn start() -> std::io::Result<Self> {
        let (lines, received) = sync_channel::<String>(WAITING_LINES);
        let waiting = Arc::new(AtomicU64::new(0));
        let written = Arc::clone(&waiting);
        std::thread::Builder::new().name("log".into()).spawn(move || {
            for line in received {
                // Nobody can be told that the log can't be written.
                let _ = writeln!(std::io::stderr(), "evenkeeld: {line}");
                written.fetch_sub(1, Ordering::Release);
            }
        })?;
        Ok(Self { lines, waiting })
    }

    /// Writes a line, later; drops it if too many wait.
    pub fn line(&self, line: &str) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.lines.try_send(line.to_owned()).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
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
