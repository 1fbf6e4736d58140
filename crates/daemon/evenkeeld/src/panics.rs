//! A dead thread is a dead daemon.
//!
//! Half a daemon would be worse than none: a tenant whose poller is gone waits for ever, and nobody takes its disk
//! over. So a panic, in whichever thread, says what and where, and ends the process at once; guests with virtio disks
//! go on with the next daemon.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

use crate::stderr;

/// From now on any panic ends the process, by SIGABRT.
pub fn end_the_process() {
    std::panic::set_hook(Box::new(|info| {
        // Not through the log, whose thread may be the one that died.
        stderr::say(&last_words(info));
        std::process::abort();
    }));
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
