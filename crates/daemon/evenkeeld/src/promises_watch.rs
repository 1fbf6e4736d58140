//! Tells the log when a promise starts to fail, and whose fault it is, and when it is kept again.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use api::TenantRow;
use io_model::Nanos;
use poller::Board;
use vfio_user::{Level, Sink};

use crate::clock::Clock;
use crate::foresight::Foresight;
use crate::snapshot::Mark;

/// How often promises are looked at.
const PERIOD: Duration = Duration::from_secs(5);

/// After a line about a tenant there is no other for so long: a promise on the edge must not fill the log.
const SILENCE: Nanos = Nanos(60_000_000_000);

/// Periods in a row without fault after which a promise counts as kept again.
const GOOD_PERIODS: u32 = 3;

/// Fewer commands than this have no 99th percentile worth a line.
const COMMANDS_MIN: f64 = 100.0;

/// The thread; ends when this is dropped.
pub struct PromiseWatch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PromiseWatch {
    /// Starts looking.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(board: Arc<Board>, foresight: Arc<Foresight>, clock: Clock, sink: Sink) -> std::io::Result<Self> {
        let (end, ended) = channel();
        let thread = std::thread::Builder::new().name("promises".into()).spawn(move || {
            let mut told = vec![Told::default(); foresight.names().len()];
            let mut mark = Mark::now(&board, clock.now());
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let now = clock.now();
                let (rows, measured) = mark.measure(now, &foresight);
                for (index, (row, told)) in rows.iter().zip(&mut told).enumerate() {
                    match told.turn(is_kept(row, PERIOD), now) {
                        Some(Turn::Fails) => {
                            let why =
                                foresight.blame(&measured, mark.starved(now), index).map(|blame| blame.in_words());
                            sink(Level::Warn, &fails(row, &why.unwrap_or_else(|| "nobody to blame".into())));
                        }
                        Some(Turn::IsKept) => sink(Level::Info, &format!("{}: its promise is kept again", row.name)),
                        None => {}
                    }
                }
                mark = Mark::now(&board, now);
            }
        })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for PromiseWatch {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Whatever became of it, nobody is served by it.
            let _ = thread.join();
        }
    }
}

fn fails(row: &TenantRow, why: &str) -> String {
    let target = row.latency_target_us.unwrap_or_default();
    format!(
        "{}: its promise fails: 99 of 100 commands took up to {:.0} µs, not {target:.0} µs; {why}",
        row.name, row.p99_us
    )
}

/// `None` where too little was asked to tell.
fn is_kept(row: &TenantRow, span: Duration) -> Option<bool> {
    row.kept.filter(|_| row.iops * span.as_secs_f64() >= COMMANDS_MIN)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Fails,
    IsKept,
}

/// What the log knows of a promise.
#[derive(Debug, Clone, Default)]
struct Told {
    fails: bool,
    good_periods: u32,
    silent_until: Nanos,
}

impl Told {
    /// Whether a period's outcome is worth a line.
    fn turn(&mut self, kept: Option<bool>, now: Nanos) -> Option<Turn> {
        self.good_periods = if kept? { self.good_periods.saturating_add(1) } else { 0 };
        let fails = self.good_periods < if self.fails { GOOD_PERIODS } else { 1 };
        if fails == self.fails || now < self.silent_until {
            return None;
        }
        self.fails = fails;
        self.silent_until = now + SILENCE;
        Some(if fails { Turn::Fails } else { Turn::IsKept })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_told_once_and_not_too_often() {
        let mut told = Told::default();
        let second = |s: u64| Nanos(s * 1_000_000_000);
        let mut turn = |kept, s| told.turn(kept, second(s));
        assert_eq!(turn(Some(true), 5), None);
        assert_eq!(turn(None, 10), None);
        assert_eq!(turn(Some(false), 15), Some(Turn::Fails));
        assert_eq!(turn(Some(false), 20), None, "told already");
        // Kept for three periods, but a line was written less than a minute ago.
        assert_eq!((turn(Some(true), 25), turn(Some(true), 30), turn(Some(true), 35)), (None, None, None));
        assert_eq!(turn(None, 80), None, "nothing was asked");
        assert_eq!(turn(Some(true), 85), Some(Turn::IsKept));
        assert_eq!(turn(Some(false), 90), None);
        assert_eq!(turn(Some(false), 145), Some(Turn::Fails));
        // A good period between bad ones is no end.
        assert_eq!((turn(Some(true), 300), turn(Some(false), 305), turn(Some(true), 310)), (None, None, None));
    }
}
