//! A thread that looks every millisecond, while anybody writes to eventfds, whether one of them stays in its write.

use std::cell::OnceCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use rustix::io::Errno;

/// How long a write may take.
const LIMIT: Duration = Duration::from_millis(1);

/// Looks that found no writes, before the watchdog waits to be woken: writes that come often wake nobody.
const IDLE_LOOKS: u32 = 4;

/// Ends the wait in a system call, and nothing else. Processes without a handler ignore it.
const SIGNAL: libc::c_int = libc::SIGURG;

/// A thread that writes.
#[derive(Debug)]
struct Writer {
    thread: libc::pid_t,
    /// Number of the write that it is in; 0: of none.
    writing: AtomicU32,
    /// The last number given.
    last: AtomicU32,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Watchdog {
    thread: Thread,
    /// It waits to be woken.
    is_parked: AtomicBool,
    writers: Mutex<Vec<Arc<Writer>>>,
}

static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();

/// What a thread that ends leaves behind: nothing to watch.
struct Own(Arc<Writer>);

impl Drop for Own {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
    }
}

thread_local! {
    static OWN: OnceCell<Own> = const { OnceCell::new() };
}

/// Has the calling thread's writes watched from now on, once the watchdog was [started](start_watchdog).
pub fn watch() {
    let Some(watchdog) = WATCHDOG.get() else { return };
    OWN.with(|own| {
        own.get_or_init(|| {
            // SAFETY: no arguments, no failure.
            let thread = unsafe { libc::gettid() };
            let (writing, last, has_ended) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
            let writer = Arc::new(Writer { thread, writing, last, has_ended });
            writers(watchdog).push(Arc::clone(&writer));
            Own(writer)
        });
    });
}

/// Does what may be held up. A thread that is not watched just does it.
#[inline]
pub(crate) fn during<T>(write: impl FnOnce() -> T) -> T {
    OWN.with(|own| {
        let (Some(Own(writer)), Some(watchdog)) = (own.get(), WATCHDOG.get()) else { return write() };
        // One writer of these two: the thread itself. 0 is left out.
        let number = writer.last.load(Ordering::Relaxed).wrapping_add(1).max(1);
        writer.last.store(number, Ordering::Relaxed);
        // Before we look whether it is parked, as it looks for writes after it said that it is: one of us sees the
        // other.
        writer.writing.swap(number, Ordering::SeqCst);
        if watchdog.is_parked.load(Ordering::SeqCst) && watchdog.is_parked.swap(false, Ordering::Relaxed) {
            watchdog.thread.unpark();
        }
        let done = write();
        writer.writing.store(0, Ordering::Relaxed);
        done
    })
}

fn writers(watchdog: &Watchdog) -> std::sync::MutexGuard<'_, Vec<Arc<Writer>>> {
    watchdog.writers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the watchdog, once for the process, and installs the handler for SIGURG that it needs. Its thread calls
/// `begin` first.
///
/// # Errors
/// The kernel refused the thread or the handler.
pub fn start_watchdog(begin: fn()) -> io::Result<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if WATCHDOG.get().is_some() {
        return Ok(());
    }
    install()?;
    let handle = std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        begin();
        run();
    })?;
    let thread = handle.thread().clone();
    WATCHDOG.get_or_init(|| Watchdog { thread, is_parked: AtomicBool::new(false), writers: Mutex::new(Vec::new()) });
    Ok(())
}

fn install() -> io::Result<()> {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: a zeroed sigaction is valid: an empty mask and no flags, above all not SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler has the signature that no flags ask for, and does nothing.
    if unsafe { libc::sigaction(SIGNAL, &action, std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn run() {
    let watchdog = WATCHDOG.wait();
    // For each thread: the write that it was in at the last look, and the last one that it began.
    let mut seen: Vec<(u32, u32)> = Vec::new();
    let mut idle = 0;
    loop {
        let mut any = false;
        {
            // Nobody waits for this lock but a thread that begins to be watched; nothing here waits.
            let mut writers = writers(watchdog);
            if writers.iter().any(|writer| writer.has_ended.load(Ordering::Acquire)) {
                writers.retain(|writer| !writer.has_ended.load(Ordering::Acquire));
                seen.clear();
            }
            seen.resize(writers.len(), (0, 0));
            for (writer, seen) in writers.iter().zip(&mut seen) {
                let (writing, last) = (writer.writing.load(Ordering::SeqCst), writer.last.load(Ordering::Relaxed));
                if writing != 0 && writing == seen.0 {
                    interrupt(writer.thread);
                }
                any |= writing != 0 || last != seen.1;
                *seen = (writing, last);
            }
        }
        idle = if any { 0 } else { idle + 1 };
        if idle < IDLE_LOOKS {
            std::thread::sleep(LIMIT);
        } else if idle == IDLE_LOOKS {
            watchdog.is_parked.store(true, Ordering::SeqCst);
        } else if watchdog.is_parked.load(Ordering::Relaxed) {
            // Looked once more since it said so, and found nothing.
            std::thread::park();
            idle = 0;
        } else {
            idle = 0;
        }
    }
}

/// Interrupts the thread if it waits in a system call. One that is just out of it is interrupted for nothing.
fn interrupt(thread: libc::pid_t) {
    // SAFETY: sends a signal that has a handler to a thread of this process; to nobody if it has ended.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
    debug_assert!(sent == 0 || Errno::from_io_error(&io::Error::last_os_error()) == Some(Errno::SRCH));
}
