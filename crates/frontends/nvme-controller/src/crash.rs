//! Where a test has the process die: between two stores that outlive it.

use std::cell::Cell;

thread_local! {
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    static SWAPPED: Cell<Option<Swap>> = const { Cell::new(None) };
}

/// Two stores that a test has done in the wrong order, to see that it would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// A place of a queue's table says what is in it before that is there.
    WordBeforeEntry,
    /// A command counts as completed before its completion is posted.
    DoneBeforePosted,
    /// Admin commands' completions are posted before what they say is recorded.
    PostedBeforeRecorded,
}

/// Swaps two stores of this thread's, in builds with debug assertions.
pub fn swap(what: Option<Swap>) {
    SWAPPED.set(what);
}

#[inline]
pub(crate) fn is_swapped(what: Swap) -> bool {
    cfg!(debug_assertions) && SWAPPED.get() == Some(what)
}

/// What a thread unwinds with that dies in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash;

/// Lets this thread die, in builds with debug assertions, when it passes its `points`-th point from now on, counted
/// from 1: it unwinds with [`Crash`], once. `None`: at none. Returns how many points were left.
pub fn crash_at(points: Option<u64>) -> Option<u64> {
    LEFT.replace(points)
}

/// Passes a point.
#[inline]
pub(crate) fn point() {
    #[cfg(debug_assertions)]
    LEFT.with(|left| match left.get() {
        None => {}
        Some(1) => {
            left.set(None);
            // Without the words that a panic has.
            std::panic::resume_unwind(Box::new(Crash));
        }
        Some(more) => left.set(Some(more - 1)),
    });
}
