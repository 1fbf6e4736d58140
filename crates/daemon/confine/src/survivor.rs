//! A process that shares this one's memory, and ends after it.
//!
//! When a process ends, the kernel first takes its memory apart, page by page, and then closes its files. With guests'
//! memory mapped that takes some 130 ms for each GiB that was touched, and for so long the drive's lock is held and the
//! next daemon waits. The last process of those that share memory takes it apart: that is the survivor, when everything
//! else is done.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use seccompiler::{BpfProgram, apply_filter};

use crate::calls::ThreadKind;
use crate::filters::filter_of;

/// How long it may take to begin: it waits for nobody.
const BEGIN_LIMIT: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 64 << 10;
/// As `ps` and `top` show it.
const NAME: &std::ffi::CStr = c"evenkeeld-end";

/// What the survivor is told.
struct Orders {
    /// Read end of a pipe: at the end there is nobody to write any more.
    end: libc::c_int,
    filter: Option<&'static BpfProgram>,
    has_begun: AtomicBool,
}

/// Starts a survivor, which does nothing, has nothing open, and is confined if this process is. It ends once what is
/// returned is closed, by whatever end of this process.
///
/// Call it while there is no other thread.
///
/// # Errors
/// The kernel has no process or descriptor left, or refuses the filter.
#[allow(clippy::disallowed_methods, reason = "no other thread waits for this one")]
pub fn leave_memory_to_a_survivor() -> io::Result<OwnedFd> {
    let (end, kept_open) = pipe_with(PipeFlags::CLOEXEC)?;
    // Both are leaked: they are the other process's for as long as that lives.
    let orders: &'static Orders = Box::leak(Box::new(Orders {
        end: end.as_raw_fd(),
        filter: filter_of(ThreadKind::Survivor),
        has_begun: AtomicBool::new(false),
    }));
    let stack: &'static mut [u8] = Box::leak(vec![0; STACK_BYTES].into_boxed_slice());
    // Of the 16 bytes that the ABI wants a stack to be aligned to.
    let top = stack.as_mut_ptr().wrapping_add(STACK_BYTES - 16).map_addr(|top| top & !15);
    let before = block_signals();
    let argument = std::ptr::from_ref(orders).cast_mut().cast::<c_void>();
    // SAFETY: the stack and the orders are leaked, so they stay. What runs there calls the kernel alone. It shares this
    // thread's thread-local storage, so this thread waits until it calls nothing that may fail.
    let child = unsafe { libc::clone(outlive, top.cast(), libc::CLONE_VM, argument) };
    let error = io::Error::last_os_error();
    let begun = Instant::now();
    while child > 0 && !orders.has_begun.load(Ordering::Acquire) && begun.elapsed() < BEGIN_LIMIT {
        std::thread::yield_now();
    }
    restore_signals(&before);
    if child < 0 {
        return Err(error);
    }
    if !orders.has_begun.load(Ordering::Acquire) {
        // SAFETY: it is our child, whose number is not given to another as long as we don't wait for it.
        unsafe { libc::kill(child, libc::SIGKILL) };
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    Ok(kept_open)
}

/// No handler of this process's may run in the survivor, which would change this process's memory.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both are there to be written.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: it was read before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// What the survivor does.
extern "C" fn outlive(orders: *mut c_void) -> libc::c_int {
    // SAFETY: these are the orders, which were leaked.
    let Orders { end, filter, has_begun } = unsafe { &*orders.cast::<Orders>() };
    let numbers = end.unsigned_abs();
    // SAFETY: nothing of these is used here; the drive's lock above all must not be.
    unsafe {
        if numbers > 0 {
            libc::syscall(libc::SYS_close_range, 0, numbers - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, numbers + 1, u32::MAX, 0);
        libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, NAME.as_ptr(), 0, 0, 0);
    }
    if filter.is_some_and(|filter| apply_filter(filter).is_err()) {
        return 1;
    }
    has_begun.store(true, Ordering::Release);
    let mut byte = 0_u8;
    // SAFETY: there is room for a byte. No signal interrupts it, and nobody writes.
    while unsafe { libc::read(*end, (&raw mut byte).cast(), 1) } > 0 {}
    0
}
