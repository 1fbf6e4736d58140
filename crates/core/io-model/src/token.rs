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

/// Marks the tokens of [`Placed`](crate::Placed) in `id`.
const PART: u32 = 1 << 31;

impl Token {
    /// A token of VQ `vq`. `generation` and `id` are the source's own; `id` is below 2^31.
    pub fn new(vq: u16, generation: u16, id: u32) -> Self {
        debug_assert!(id < PART, "an identifier that stands for a part: {id}");
        Self { vq, generation, id }
    }

    /// A token of a part of a command of VQ `vq`; `at` is below 2^31.
    pub(crate) fn of_part(vq: u16, at: u32) -> Self {
        Self { vq, generation: 0, id: at | PART }
    }

    #[inline]
    pub(crate) fn is_of_part(&self) -> bool {
        self.id & PART != 0
    }

    /// Consumes the token of a part: what [`of_part`](Self::of_part) was given.
    pub(crate) fn spend_part(self) -> u32 {
        self.spend().2 & !PART
    }

    /// The VQ that the command came from.
    pub fn vq(&self) -> u16 {
        self.vq
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
