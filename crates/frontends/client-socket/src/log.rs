//! Log lines, few enough that no client can fill a disk with them.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something happened as it should.
    Info,
    /// Somebody did something wrong.
    Warn,
}

/// Where log lines go. Called on the thread that serves the client.
pub type Sink = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// Lines per device and period; a client that reconnects in a loop would write without end.
const LINES: u32 = 30;
const PERIOD: Duration = Duration::from_secs(10);

/// One device's log: at most 30 lines in 10 s.
pub struct Log {
    sink: Sink,
    period_start: Instant,
    lines: u32,
}

impl Log {
    /// A log that writes to `sink`.
    pub fn new(sink: Sink) -> Self {
        Self { sink, period_start: Instant::now(), lines: 0 }
    }

    /// Something happened as it should.
    pub fn info(&mut self, line: &str) {
        self.write(Level::Info, line);
    }

    /// Somebody did something wrong.
    pub fn warn(&mut self, line: &str) {
        self.write(Level::Warn, line);
    }

    fn write(&mut self, level: Level, line: &str) {
        if self.period_start.elapsed() >= PERIOD {
            self.period_start = Instant::now();
            self.lines = 0;
        }
        self.lines = self.lines.saturating_add(1);
        match self.lines {
            ..LINES => (self.sink)(level, line),
            LINES => (self.sink)(level, &format!("{line} (more such lines are left out for {PERIOD:?})")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_flood_is_cut_off() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let mut log = Log::new(Arc::new(move |_, line: &str| kept.lock().unwrap().push(line.to_owned())));
        (0..1000).for_each(|line| log.warn(&line.to_string()));
        let lines = lines.lock().unwrap();
        // More than one period's lines only if a thousand lines took longer than a period.
        assert!((30..=60).contains(&lines.len()), "{} lines", lines.len());
        assert_eq!(lines[0], "0");
        assert!(lines[29].contains("left out"));
    }
}
