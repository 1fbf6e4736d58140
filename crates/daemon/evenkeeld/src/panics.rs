//! A dead thread is a dead daemon.
//!
//! Half a daemon would be worse than none: a tenant whose poller is gone waits for ever, and nobody takes its disk
//! over. So a panic, in whichever thread, says what and where, and ends the process at once; guests with virtio disks
//! go on with the next daemon.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::PanicHookInfo;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long standard error may take to have room for the last words.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// From now on any panic ends the process, by SIGABRT.
pub fn end_the_process() {
    std::panic::set_hook(Box::new(|info| {
        say(&last_words(info));
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
        BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    format!("evenkeeld: thread {name} panicked{place}: {what}; the daemon ends here, please report it{trace}\n")
}

/// Not through the log, whose thread may be the one that died; and not for ever, if nobody reads.
fn say(text: &str) {
    let stderr = std::io::stderr();
    let mut writable = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut writable, Some(&PATIENCE)) == Ok(1) {
        // Nobody is left to be told.
        let _ = stderr.lock().write_all(text.as_bytes());
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
