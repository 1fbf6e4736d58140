//! Log lines on standard error. They are few enough that no client can fill a disk with them, and never block.

use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::now;

/// Lines of one device in a row.
const BURST: u32 = 20;
/// And one more after so long.
const INTERVAL: Duration = Duration::from_secs(5);

/// One at a time, so that what is found to be room is still there.
static ALONE: Mutex<()> = Mutex::new(());

/// Writes a line, if that can be done at once.
pub fn line(text: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stderr = std::io::stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    if matches!(poll(&mut polled, Some(&at_once)), Ok(1)) {
        // In one write, which has room then. Nobody is there to be told that it failed.
        let _ = stderr.write_all(format!("evenkeel-keeper: {text}\n").as_bytes());
    }
}

/// One device's lines.
#[derive(Debug)]
pub struct Log {
    name: String,
    left: u32,
    /// Up to when lines were earned.
    earned_at: Duration,
    is_silent: bool,
}

impl Log {
    /// Of the device of that name.
    pub fn new(name: &str) -> Self {
        Self { name: name.escape_debug().to_string(), left: BURST, earned_at: now(), is_silent: false }
    }

    /// A line about it.
    pub fn line(&mut self, text: &str) {
        if self.may_write(now()) {
            line(&format!("{}: {text}", self.name));
        } else if !self.is_silent {
            self.is_silent = true;
            line(&format!("{}: too many messages; some are left out", self.name));
        }
    }

    fn may_write(&mut self, now: Duration) -> bool {
        let earned = now.saturating_sub(self.earned_at).as_secs() / INTERVAL.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(BURST);
            self.earned_at = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.is_silent &= !may;
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_says_too_much_is_cut_short_for_a_while() {
        let mut log = Log::new("db");
        let start = log.earned_at;
        assert_eq!((0..1000).filter(|_| log.may_write(start)).count(), BURST as usize);
        assert!(log.may_write(start + INTERVAL) && !log.may_write(start + INTERVAL));
        let later = start + INTERVAL * 1000;
        assert_eq!((0..1000).filter(|_| log.may_write(later)).count(), BURST as usize);
    }
}
