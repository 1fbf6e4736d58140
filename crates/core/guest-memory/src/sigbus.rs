//! Survives a peer that shrinks the file behind a mapping.
//!
//! Touching a page that its file does not reach any more raises SIGBUS, which would end the daemon and
//! with it every other tenant. The handler looks the address up in a table of live shared mappings; if
//! it is in one, the *whole* mapping is replaced by private zero pages, the mapping is marked
//! [poisoned](crate::Mapping::is_poisoned), and the access goes on. Whole, because what the client
//! shares is a lie from here on, one signal per mapping bounds its cost, and huge pages can't be
//! replaced in parts. System calls on such pages fail with `EFAULT` and raise nothing.
//!
//! The table is fixed in size and changed by atomics alone: a signal handler may not wait for a lock
//! that the thread it interrupted may hold.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Shared mappings of the whole process. The kernel's default limit (`vm.max_map_count`) is below it.
const SLOTS: usize = 1 << 16;

const FREE: usize = 0;
/// Taken, its fields not written yet. No mapping starts at these two addresses.
const CLAIMED: usize = 1;

struct Slot {
    /// Start address, or [`FREE`], or [`CLAIMED`].
    start: AtomicUsize,
    len_bytes: AtomicUsize,
    poisoned: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot { start: AtomicUsize::new(FREE), len_bytes: AtomicUsize::new(0), poisoned: AtomicBool::new(false) }
}; SLOTS];
/// Where a free slot is likely; only a hint.
static HINT: AtomicUsize = AtomicUsize::new(0);
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Mappings replaced so far, in the whole process.
static POISONINGS: AtomicUsize = AtomicUsize::new(0);

/// A mapping's entry in the table, for as long as the mapping lives.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Enters a mapping. `None`: the table is full.
    pub(crate) fn enter(start: usize, len_bytes: usize) -> Option<Self> {
        let hint = HINT.load(Ordering::Relaxed);
        let at = (hint..SLOTS).chain(0..hint).find(|&at| {
            TABLE[at].start.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        let slot = &TABLE[at];
        slot.len_bytes.store(len_bytes, Ordering::Relaxed);
        slot.poisoned.store(false, Ordering::Relaxed);
        USED.fetch_max(at + 1, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        HINT.store((at + 1) % SLOTS, Ordering::Relaxed);
        Some(Self(at))
    }

    /// Whether the mapping was replaced.
    pub(crate) fn is_poisoned(&self) -> bool {
        TABLE[self.0].poisoned.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        TABLE[self.0].start.store(FREE, Ordering::Release);
        HINT.fetch_min(self.0, Ordering::Relaxed);
    }
}

/// Whether any mapping was ever replaced; one load.
pub(crate) fn any() -> bool {
    POISONINGS.load(Ordering::Relaxed) > 0
}

/// Installs the handler for the process. Call it once, before mapping anything of a peer's.
///
/// A SIGBUS that is not about a shared mapping ends the process as it would without us.
///
/// # Errors
/// The kernel refused the handler.
pub fn install() -> io::Result<()> {
    // SAFETY: a zeroed sigaction is valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    // On the alternate stack, which the standard library gives to every thread, in case that the
    // thread's own is the page that fails.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for and only does what is allowed in
    // one: atomics, mmap, sigaction, raise.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: errno is the thread's own; the interrupted code must find it as it was.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo; si_addr means something when si_code says that the
    // signal is about memory (positive) and was not sent by kill().
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code <= 0 || !replace(address) {
        // SAFETY: both calls are allowed in handlers. The raised signal is delivered when we return.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Replaces the mapping that `address` is in. `false`: there is none, or the kernel refused.
fn replace(address: usize) -> bool {
    for slot in &TABLE[..USED.load(Ordering::Relaxed).min(SLOTS)] {
        let start = slot.start.load(Ordering::Acquire);
        let len_bytes = slot.len_bytes.load(Ordering::Relaxed);
        let inside = start > CLAIMED && address.checked_sub(start).is_some_and(|offset| offset < len_bytes);
        // Read again: the entry may have become another mapping's between the two loads. The entry of
        // the mapping that we look for is stable, because the interrupted access keeps it alive.
        if !inside || slot.start.load(Ordering::Acquire) != start {
            continue;
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: replaces exactly one whole mapping of ours, which only raw pointers and atomics
        // point into, by memory of the same size that can be read and written.
        let replaced = unsafe { libc::mmap(start as *mut libc::c_void, len_bytes, prot, flags, -1, 0) };
        if replaced == libc::MAP_FAILED {
            return false;
        }
        slot.poisoned.store(true, Ordering::Release);
        POISONINGS.fetch_add(1, Ordering::Relaxed);
        return true;
    }
    false
}
