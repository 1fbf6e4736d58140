//! How far it is: a bar that is rewritten on a terminal, a line for each stage elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

const WIDTH: usize = 24;

/// Says something on a line of its own, over a bar that is there.
pub fn say(text: &str) {
    let mut err = std::io::stderr().lock();
    let clear = if err.is_terminal() { "\r\x1b[K" } else { "" };
    // If standard error can't be written, go on without it.
    let _ = writeln!(err, "{clear}{text}");
}

/// Where a calibration stands.
pub struct Progress {
    stages: usize,
    started: Instant,
    is_terminal: bool,
    is_wanted: bool,
}

impl Progress {
    /// Nothing is shown where it is not `wanted` and nobody watches.
    pub fn new(stages: usize, wanted: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { stages, started: Instant::now(), is_terminal, is_wanted: wanted || is_terminal }
    }

    /// A stage begins; `done` are over.
    pub fn show(&mut self, done: usize, stage: &str) {
        if !self.is_wanted {
            return;
        }
        let (stages, seconds) = (self.stages, self.started.elapsed().as_secs());
        let mut err = std::io::stderr().lock();
        // A terminal that is gone shows nothing; the profile still comes.
        let _ = if self.is_terminal {
            let filled = WIDTH * done / stages.max(1);
            let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH - filled));
            write!(err, "\r\x1b[K[{bar}] {}/{stages} {stage}  {seconds} s", done + 1).and_then(|()| err.flush())
        } else {
            writeln!(err, "{}/{stages} {stage} ({seconds} s)", done + 1)
        };
    }

    /// It is over, one way or the other.
    pub fn end(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
