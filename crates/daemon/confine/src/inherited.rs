//! Descriptors that were open before this program began.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes descriptors, by their numbers, that were left open for this program when it was executed. No program that this
/// one executes inherits them. Numbers that are not open are left out, and so are the standard ones.
///
/// Call it once for each, and first thing in `main`: nothing else in the process may have opened any of them.
pub fn take_inherited(numbers: impl IntoIterator<Item = u32>) -> Vec<OwnedFd> {
    let take = |number: u32| {
        let number = i32::try_from(number).ok().filter(|number| *number > 2)?;
        // SAFETY: borrowed for two calls that the kernel refuses if it is not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_getfd(borrowed).ok()?;
        fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok()?;
        // SAFETY: it is open, and nothing in this process has it: it was there before `main`, and is taken once.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    };
    numbers.into_iter().filter_map(take).collect()
}
