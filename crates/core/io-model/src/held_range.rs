//! A range of a disk that nobody may use for a moment.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Keeps commands away from a range that moves through a disk, so that its data can be rewritten. All pollers share it.
///
/// Commands that touch the range wait in their guest's queue, and count for no policy. To move on: [`hold`](Self::hold)
/// more, wait until the range [is quiet](Self::is_quiet), rewrite it, and [`release`](Self::release) what is done.
///
/// Commands in flight are counted by the epoch in which they began. `hold` begins an epoch: once no command of the one
/// before is in flight, none is in flight to the range. A disk that has one costs each command a short
/// search.
#[derive(Debug, Default)]
pub struct HeldRange {
    is_active: AtomicBool,
    /// In bytes from the disk's start.
    start_bytes: AtomicU64,
    end_bytes: AtomicU64,
    /// Nobody rewrites any more: commands fail instead of waiting.
    has_failed: AtomicBool,
    epoch: AtomicU64,
    /// Commands in flight that began in even epochs, and in odd ones.
    in_flight: [AtomicU64; 2],
}

/// Why a command can't begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Its range is being rewritten.
    Waits,
    /// Its range was being rewritten when the drive failed.
    Failed,
}

/// A command in flight, until it is dropped.
#[derive(Debug)]
pub struct Passage {
    held: Arc<HeldRange>,
    parity: usize,
}

impl HeldRange {
    /// Counts commands from now on, and keeps them away from `range`. Commands that are in flight by then are not
    /// counted.
    pub fn begin(&self, range: Range<u64>) {
        self.start_bytes.store(range.start, SeqCst);
        self.end_bytes.store(range.end, SeqCst);
        self.has_failed.store(false, SeqCst);
        self.is_active.store(true, SeqCst);
    }

    /// Commands go everywhere, and are not counted any more.
    pub fn end(&self) {
        self.give_up();
        self.is_active.store(false, SeqCst);
    }

    /// Whether it is between [`begin`](Self::begin) and [`end`](Self::end).
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(SeqCst)
    }

    /// The range, in bytes from the disk's start.
    pub fn range(&self) -> Range<u64> {
        self.start_bytes.load(SeqCst)..self.end_bytes.load(SeqCst)
    }

    /// Commands up to `end_bytes` wait from now on. Call it only while the range [is quiet](Self::is_quiet).
    pub fn hold(&self, end_bytes: u64) {
        self.end_bytes.store(end_bytes, SeqCst);
        self.epoch.fetch_add(1, SeqCst);
    }

    /// Whether all commands that began before the last [`hold`](Self::hold) have ended.
    pub fn is_quiet(&self) -> bool {
        let former = self.epoch.load(SeqCst).wrapping_add(1) & 1;
        self.in_flight[former as usize].load(SeqCst) == 0
    }

    /// Commands before `start_bytes` go on. Not before the range [is quiet](Self::is_quiet).
    pub fn release(&self, start_bytes: u64) {
        self.start_bytes.store(start_bytes, SeqCst);
    }

    /// All commands go on. The range stays where it starts, and is empty.
    pub fn give_up(&self) {
        self.end_bytes.store(self.start_bytes.load(SeqCst), SeqCst);
    }

    /// Commands to the range fail from now on.
    pub fn fail(&self) {
        self.has_failed.store(true, SeqCst);
    }

    /// Whether a command to that range would wait now.
    pub fn delays(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.touches(offset_bytes, len_bytes) && !self.has_failed.load(SeqCst)
    }

    fn touches(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let Range { start, end } = self.range();
        start < end && offset_bytes < end && offset_bytes.saturating_add(len_bytes) > start
    }

    /// Counts a command as in flight.
    ///
    /// # Errors
    /// It has to wait, or fails.
    pub fn enter(self: &Arc<Self>, offset_bytes: u64, len_bytes: u64) -> Result<Passage, Held> {
        let parity = loop {
            let epoch = self.epoch.load(SeqCst);
            let parity = (epoch & 1) as usize;
            self.in_flight[parity].fetch_add(1, SeqCst);
            // A `hold` in between might not have seen it.
            if self.epoch.load(SeqCst) == epoch {
                break parity;
            }
            self.in_flight[parity].fetch_sub(1, SeqCst);
        };
        let passage = Passage { held: Arc::clone(self), parity };
        match self.has_failed.load(SeqCst) {
            _ if !self.touches(offset_bytes, len_bytes) => Ok(passage),
            true => Err(Held::Failed),
            false => Err(Held::Waits),
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.held.in_flight[self.parity].fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(range: Range<u64>) -> Arc<HeldRange> {
        let held = Arc::<HeldRange>::default();
        held.begin(range);
        held
    }

    /// A rewrite that begins while a command is still in flight.
    #[test]
    fn a_hold_waits_for_commands_that_began_before_it() {
        let held = held(0..0);
        let before = held.enter(8192, 4096).ok();
        held.hold(16384);
        let elsewhere = held.enter(16384, 4096).ok();
        assert!(!held.is_quiet() && before.is_some() && elsewhere.is_some());
        drop(before);
        assert!(held.is_quiet(), "commands that began since are elsewhere");
        held.release(8192);
        let may_begin = |at| held.enter(at, 8192).map(drop);
        let waits = Err(Held::Waits);
        assert_eq!([0, 4096, 12288, 16384].map(may_begin), [Ok(()), waits, waits, Ok(())]);
        held.hold(32768);
        assert!(!held.is_quiet(), "one of the epoch before");
        drop(elsewhere);
        assert!(held.is_quiet());
    }

    #[test]
    fn a_range_that_is_given_up_is_free_and_one_that_failed_is_not() {
        let (one, other) = (held(4096..8192), held(4096..8192));
        one.give_up();
        assert!(one.enter(0, 16384).is_ok() && one.range() == (4096..4096));
        other.fail();
        assert_eq!([0, 8192].map(|at| other.enter(at, 8192).map(drop)), [Err(Held::Failed), Ok(())]);
    }
}
