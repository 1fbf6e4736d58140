//! Every store that another process can see asks here first, so that a test can end the device after any one of
//! them, as SIGKILL does. Outside of our own tests it costs nothing.

#[cfg(test)]
pub(crate) use countdown::{arm, disarm, is_alive};

/// Whether the next store reaches memory.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_alive() -> bool {
    true
}

#[cfg(test)]
mod countdown {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    /// This thread's next `stores` stores reach memory, those after them don't.
    pub(crate) fn arm(stores: u64) {
        LEFT.set(stores);
    }

    /// All stores reach memory again. Returns the stores that were left; 0: the device died.
    pub(crate) fn disarm() -> u64 {
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
