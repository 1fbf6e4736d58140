//! Every store that another process can see asks here first, so that a test can end the device after any one of
//! them, as SIGKILL does. Without the feature (and outside of our own tests) it costs nothing.

#[cfg(any(test, feature = "kill-points"))]
mod countdown {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    /// This thread's next `stores` stores reach memory, those after them don't.
    pub fn arm(stores: u64) {
        LEFT.set(stores);
    }

    /// All stores reach memory again. Returns the stores that were left; 0: the device died.
    pub fn disarm() -> u64 {
        LEFT.replace(u64::MAX)
    }

    pub(crate) fn is_alive() -> bool {
        LEFT.with(|left| {
            let now = left.get();
            left.set(now.saturating_sub(1));
            now > 0
        })
    }
}

#[cfg(any(test, feature = "kill-points"))]
pub(crate) use countdown::is_alive;
#[cfg(any(test, feature = "kill-points"))]
#[allow(unused_imports, reason = "tests take what they need")]
pub use countdown::{arm, disarm};

/// Whether the next store reaches memory.
#[cfg(not(any(test, feature = "kill-points")))]
#[inline(always)]
pub(crate) fn is_alive() -> bool {
    true
}
