//! What a front end owes its drive's volatile write cache.

use crate::{Op, Outcome};

/// Whether writes of a tenant may still sit in the drive's cache, and the flush that a front end sends by itself when
/// its guest ends without one: at a shutdown, or because the client or the daemon goes.
#[derive(Debug)]
pub struct CacheDebt {
    has_cache: bool,
    unflushed: bool,
    parting: Parting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parting {
    No,
    Wanted,
    InFlight,
}

impl CacheDebt {
    /// Nothing was written yet.
    pub fn new(has_cache: bool) -> Self {
        Self { has_cache, unflushed: false, parting: Parting::No }
    }

    /// A command goes to the drive. `is_alone`: nothing else of the tenant is there; a flush covers only what ended
    /// before it began. Also durable writes count: a flush too many costs less than a mark on each command.
    #[inline]
    pub fn sent(&mut self, op: Op, is_alone: impl FnOnce() -> bool) {
        match op {
            Op::Write | Op::WriteZeroes => self.unflushed = true,
            Op::Flush if is_alone() => self.unflushed = false,
            Op::Flush | Op::Read | Op::Discard => {}
        }
    }

    /// It came back. It may have been the flush that covered what was written.
    #[inline]
    pub fn came_back(&mut self, outcome: Outcome) {
        if outcome.is_err() {
            self.assume_unflushed();
        }
    }

    /// An earlier process may have written.
    pub fn assume_unflushed(&mut self) {
        self.unflushed = true;
    }

    /// The guest ends, and nothing of it is in flight: whether it has to wait for a flush, which is wanted from now on.
    pub fn must_flush(&mut self) -> bool {
        if self.has_cache && self.unflushed && self.parting == Parting::No {
            self.parting = Parting::Wanted;
        }
        self.is_parting()
    }

    /// Whether a flush is wanted or with the drive.
    pub fn is_parting(&self) -> bool {
        self.parting != Parting::No
    }

    /// Whether a flush is to be fetched.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.parting == Parting::Wanted
    }

    /// Fetches the flush that is wanted.
    pub fn take(&mut self) -> bool {
        let is_wanted = self.is_wanted();
        if is_wanted {
            self.parting = Parting::InFlight;
            self.unflushed = false;
        }
        is_wanted
    }

    /// The flush that was fetched came back. One that failed is not tried again: nobody is left who could wait for it.
    pub fn parted(&mut self) {
        self.parting = Parting::No;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceError;

    #[test]
    fn a_flush_is_owed_for_what_was_written_since_the_last_one() {
        let mut cache = CacheDebt::new(true);
        cache.sent(Op::Read, || true);
        assert!(!cache.must_flush(), "nothing was written");
        cache.sent(Op::Write, || true);
        cache.sent(Op::Flush, || false);
        assert!(cache.must_flush() && cache.is_wanted(), "the write may have ended after the flush began");
        assert!(cache.take() && !cache.take() && cache.is_parting());
        cache.parted();
        assert!(!cache.must_flush(), "it was flushed");
        cache.sent(Op::WriteZeroes, || true);
        cache.sent(Op::Flush, || true);
        cache.came_back(Ok(()));
        assert!(!cache.must_flush(), "the guest's own flush covers it");
        cache.sent(Op::Flush, || true);
        cache.came_back(Err(DeviceError::Medium));
        assert!(cache.must_flush(), "a flush that failed covers nothing");
    }

    #[test]
    fn a_drive_without_a_cache_is_owed_nothing() {
        let mut cache = CacheDebt::new(false);
        cache.sent(Op::Write, || true);
        assert!(!cache.must_flush() && !cache.take());
    }
}
