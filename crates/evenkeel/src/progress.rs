//! How far things are, on a line of the terminal.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use api::{Disk, Operation, Rest};
use io_model::units::Size;

/// How often the progress of a slow operation is checked.
pub(crate) const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// A progress line on a terminal, nothing elsewhere.
pub(crate) struct Progress {
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal() }
    }

    pub(crate) fn show(&mut self, what: &str) {
        if self.is_terminal {
            // If standard error is gone, there is nobody to show it to.
            let _ = write!(std::io::stderr(), "\r\x1b[K{what}");
        }
    }

    pub(crate) fn end(&mut self) {
        self.show("");
    }
}

/// Shows how far a new disk is zeroed, and looks at it again a moment later.
pub(crate) fn show_zeroing(daemon: &Rest, disk: Disk) -> Result<Disk> {
    let mut progress = Progress::new();
    let its = daemon.operations()?.into_iter().find(|it| it.disk == disk.name);
    its.iter().for_each(|operation| progress.show(&far(operation)));
    std::thread::sleep(PROGRESS_PERIOD);
    progress.end();
    daemon.disk(&disk.name)
}

/// Bytes per second, such as `73.0 MB/s`.
pub(crate) fn mb_s(bytes_per_second: u64) -> String {
    format!("{:.1} MB/s", bytes_per_second as f64 / 1e6)
}

/// An operation's progress, in words.
pub(crate) fn far(operation: &Operation) -> String {
    let Operation { kind, disk, state, done_bytes, total_bytes, bytes_per_second, seconds_left, .. } = operation;
    let percent = done_bytes * 100 / (*total_bytes).max(1);
    let rate = bytes_per_second.map(|rate| format!(", {}", mb_s(rate))).unwrap_or_default();
    let left = seconds_left.map(|seconds| format!(", {seconds} s left")).unwrap_or_default();
    let state = state.name();
    format!("{kind} {disk}: {state}, {percent} % of {}{rate}{left}", Size(*total_bytes))
}
