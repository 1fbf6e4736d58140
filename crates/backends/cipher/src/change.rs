//! A disk on its way from one key to another.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::key::DataKey;

/// The state of a disk that is re-encrypted, from its start to its end. All pollers share it.
///
/// What lies before the *held* range has the next key, what lies behind it the former one. Commands that touch the held
/// range wait, so its data may be rewritten. To move on: [`hold`](Self::hold) more, wait until the change
/// [is quiet](Self::is_quiet), rewrite, make the position durable, and [`release`](Self::release) what is done.
///
/// Commands in flight are counted by the epoch in which they began. `hold` begins an epoch: once no command of the one
/// before is in flight, none can be using the former key in the held range.
pub struct KeyChange {
    pub(crate) former: Arc<DataKey>,
    pub(crate) next: Arc<DataKey>,
    /// Of the held range, in bytes from the disk's start.
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
pub(crate) enum Held {
    /// Its range is being rewritten.
    Waits,
    /// Its range was being rewritten when the drive failed.
    Failed,
}

/// A command in flight, until it is dropped.
pub(crate) struct Passage {
    change: Arc<KeyChange>,
    parity: usize,
    /// The command's data before it has the next key.
    pub boundary_bytes: u64,
}

impl KeyChange {
    /// `held`, in bytes: as it was left before, or empty at the disk's start.
    pub fn new(former: Arc<DataKey>, next: Arc<DataKey>, held: Range<u64>) -> Arc<Self> {
        Arc::new(Self {
            former,
            next,
            start_bytes: AtomicU64::new(held.start),
            end_bytes: AtomicU64::new(held.end),
            has_failed: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            in_flight: Default::default(),
        })
    }

    /// The key that is replaced.
    pub fn former(&self) -> &Arc<DataKey> {
        &self.former
    }

    /// The key that replaces it.
    pub fn next(&self) -> &Arc<DataKey> {
        &self.next
    }

    /// The range in which commands wait. All before it has the next key.
    pub fn held(&self) -> Range<u64> {
        self.start_bytes.load(SeqCst)..self.end_bytes.load(SeqCst)
    }

    /// Commands up to `end_bytes` wait from now on. Call it only while the change [is quiet](Self::is_quiet).
    pub fn hold(&self, end_bytes: u64) {
        self.end_bytes.store(end_bytes, SeqCst);
        self.epoch.fetch_add(1, SeqCst);
    }

    /// Whether all commands that began before the last [`hold`](Self::hold) have ended.
    pub fn is_quiet(&self) -> bool {
        let former = self.epoch.load(SeqCst).wrapping_add(1) & 1;
        self.in_flight[former as usize].load(SeqCst) == 0
    }

    /// All before `start_bytes` has the next key, durably, and commands there go on. Not before the change
    /// [is quiet](Self::is_quiet).
    pub fn release(&self, start_bytes: u64) {
        self.start_bytes.store(start_bytes, SeqCst);
    }

    /// Nothing of the held range was rewritten: it has the former key still, and commands there go on.
    pub fn give_up(&self) {
        self.end_bytes.store(self.start_bytes.load(SeqCst), SeqCst);
    }

    /// The held range can't be rewritten to its end: commands there fail from now on.
    pub fn fail(&self) {
        self.has_failed.store(true, SeqCst);
    }

    /// Counts a command as in flight, unless it has to wait.
    pub(crate) fn enter(self: &Arc<Self>, offset_bytes: u64, len_bytes: u64) -> Result<Passage, Held> {
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
        let held = self.held();
        let passage = Passage { change: Arc::clone(self), parity, boundary_bytes: held.start };
        let touches = !held.is_empty() && offset_bytes < held.end && offset_bytes + len_bytes > held.start;
        match self.has_failed.load(SeqCst) {
            _ if !touches => Ok(passage),
            true => Err(Held::Failed),
            false => Err(Held::Waits),
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.change.in_flight[self.parity].fetch_sub(1, SeqCst);
    }
}

impl fmt::Debug for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyChange").field("held", &self.held()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    fn change(held: Range<u64>) -> Arc<KeyChange> {
        let key = |fill: u8| {
            let mut bytes = Zeroizing::new([fill; DataKey::BYTES]);
            bytes[0] ^= 0xff;
            Arc::new(DataKey::new(bytes, 4096).expect("a key"))
        };
        KeyChange::new(key(1), key(2), held)
    }

    /// Where the next key's data ends in a command of two sectors.
    fn boundary(change: &Arc<KeyChange>, offset_bytes: u64) -> Result<u64, Held> {
        change.enter(offset_bytes, 8192).map(|passage| passage.boundary_bytes)
    }

    /// A rewrite that begins while a command still writes by the former key.
    #[test]
    fn a_hold_waits_for_commands_that_began_before_it() {
        let change = change(0..0);
        let before = change.enter(8192, 4096).ok();
        change.hold(16384);
        let elsewhere = change.enter(16384, 4096).ok();
        assert!(!change.is_quiet() && before.is_some() && elsewhere.is_some());
        drop(before);
        assert!(change.is_quiet(), "commands that began since use no key of the held range");
        change.release(8192);
        let (goes, waits) = (Ok(8192), Err(Held::Waits));
        assert_eq!([0, 4096, 12288, 16384].map(|at| boundary(&change, at)), [goes, waits, waits, goes]);
        change.hold(32768);
        assert!(!change.is_quiet(), "one of the epoch before");
        drop(elsewhere);
        assert!(change.is_quiet());
    }

    #[test]
    fn a_range_that_is_given_up_has_the_former_key_and_one_that_failed_none() {
        let one = change(4096..8192);
        one.give_up();
        assert_eq!([0, 4096].map(|at| boundary(&one, at)), [Ok(4096); 2], "across the boundary, too");
        let other = change(4096..8192);
        other.fail();
        assert_eq!([0, 8192].map(|at| boundary(&other, at)), [Err(Held::Failed), Ok(4096)]);
    }
}
