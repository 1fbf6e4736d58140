//! A dead thread is a dead daemon.
//!
//! Half a daemon would be worse than none: a tenant whose poller is gone waits for ever, and nobody takes its disk
//! over. So a panic, in whichever thread, says what and where, and ends the process at once; guests with virtio disks
//! go on with the next daemon.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo};

use crate::stderr;

/// From now on any panic ends the process, by SIGABRT. A command of an NVMe guest that the thread handles is known by
/// that to the next process, as it is after a system call that the thread's filter forbids.
pub fn end_the_process() {
    confine::before_the_end(nvme_controller::strike);
    std::panic::set_hook(Box::new(|info| {
        if CONTAINED.get() {
            return;
        }
        // First: the words may wait.
        nvme_controller::strike();
        // Not through the log, whose thread may be the one that died.
        stderr::say(&last_words(info));
        std::process::abort();
    }));
}

thread_local! {
    /// A panic of this thread ends what it does now, and not the process.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of others on data of others. `None`: it panicked, and what it worked on must not be used any more.
pub fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    CONTAINED.set(true);
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(false);
    done.ok()
}

fn last_words(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
    let what = info.payload_as_str().unwrap_or("no message");
    let backtrace = Backtrace::capture();
    let trace = match backtrace.status() {
        // It takes opening files.
        _ if confine::is_armed() => String::new(),
        BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    format!("evenkeeld: thread {name} panicked{place}: {what}; the daemon ends here, please report it{trace}\n")
}

/// For the test of the watchdog: in debug builds, threads whose name begins with what EVENKEELD_HANG_IN says get no
/// further than here.
pub fn hang_drill() {
    #[cfg(debug_assertions)]
    if let Ok(wanted) = std::env::var("EVENKEELD_HANG_IN")
        && std::thread::current().name().is_some_and(|name| name.starts_with(&wanted))
    {
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }
}

/// For the test of the above: in debug builds, panics in threads whose name begins with what EVENKEELD_PANIC_IN says.
#[track_caller]
pub fn drill() {
    #[cfg(debug_assertions)]
    if let Ok(wanted) = std::env::var("EVENKEELD_PANIC_IN") {
        let thread = std::thread::current();
        let is_meant = thread.name().is_some_and(|name| name.starts_with(&wanted));
        assert!(!is_meant, "as EVENKEELD_PANIC_IN asked");
    }
}

/// For the test of commands that end the daemon: in debug builds, panics at a command that begins at the byte of its
/// disk that EVENKEELD_PANIC_AT_BYTE says.
pub fn command_drill(fetched: &io_model::Fetch) {
    #[cfg(debug_assertions)]
    {
        static AT_BYTE: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();
        let at_byte = AT_BYTE.get_or_init(|| std::env::var("EVENKEELD_PANIC_AT_BYTE").ok()?.parse().ok());
        let begins_at = match fetched {
            io_model::Fetch::Command(command, ..) => Some(command.tenant_offset_bytes),
            _ => None,
        };
        assert!(begins_at.is_none() || begins_at != *at_byte, "as EVENKEELD_PANIC_AT_BYTE asked");
    }
    #[cfg(not(debug_assertions))]
    let _ = fetched;
}
