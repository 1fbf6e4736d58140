//! The proof that a fetched command will be completed.

use std::sync::atomic::{AtomicU64, Ordering};

static LOST: AtomicU64 = AtomicU64::new(0);

/// Tokens dropped without completion since the process started. Anything but 0 is a bug.
pub fn lost_tokens() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Stands for one fetched command. It must be [spent](Token::spend) exactly once, by the source that
/// made it; dropping it instead loses a guest's command: that is counted, and panics in debug builds.
#[derive(Debug)]
#[must_use = "a fetched command must be completed"]
pub struct Token {
    vq: u16,
    generation: u16,
    id: u32,
}

// What `Placed` notes in `vq`.
/// The token is of a part of a command.
const PART: u16 = 1 << 15;
/// The command is counted.
const COUNTED: u16 = 1 << 14;
/// It was fetched in an odd epoch.
const ODD: u16 = 1 << 13;

impl Token {
    /// A token of VQ `vq`, which is below 2^13. `generation` and `id` are the source's own.
    pub fn new(vq: u16, generation: u16, id: u32) -> Self {
        debug_assert!(vq < ODD, "no VQ: {vq}");
        Self { vq, generation, id }
    }

    /// A token of a part of a command of VQ `vq`.
    pub(crate) fn of_part(vq: u16, at: u32) -> Self {
        Self { vq: vq | PART, generation: 0, id: at }
    }

    /// Notes that the command is counted in an epoch, 0 or 1.
    #[inline]
    pub(crate) fn count(&mut self, epoch: usize) {
        self.vq |= if epoch == 0 { COUNTED } else { COUNTED | ODD };
    }

    /// Whether the command is a part, or counted.
    #[inline]
    pub(crate) fn has_notes(&self) -> bool {
        self.vq >= ODD
    }

    /// Forgets the notes: whether it is a part, and the epoch in which it was counted.
    #[inline]
    pub(crate) fn take_notes(&mut self) -> (bool, Option<usize>) {
        let epoch = usize::from(self.vq & ODD != 0);
        let notes = (self.vq & PART != 0, (self.vq & COUNTED != 0).then_some(epoch));
        self.vq = self.vq();
        notes
    }
    /// The VQ that the command came from.
    pub fn vq(&self) -> u16 {
        self.vq & (ODD - 1)
    }

    /// Consumes the token: `(vq, generation, id)`.
    pub fn spend(self) -> (u16, u16, u32) {
        let parts = (self.vq, self.generation, self.id);
        std::mem::forget(self);
        parts
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        LOST.fetch_add(1, Ordering::Relaxed);
        debug_assert!(std::thread::panicking(), "a fetched command was dropped: {self:?}");
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a fetched command was dropped")]
    fn a_dropped_token_is_seen() {
        drop(Token::new(1, 0, 1));
    }

    #[test]
    fn a_spent_token_is_not_lost() {
        assert_eq!(Token::new(3, 2, 1).spend(), (3, 2, 1));
    }
}
