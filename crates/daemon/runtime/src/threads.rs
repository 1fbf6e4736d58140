//! What each of the daemon's threads does first.

use std::io;
use std::thread::{Builder, JoinHandle};

use confine::ThreadKind;

/// Starts a thread of that name, which confines itself before it runs.
///
/// # Errors
/// The kernel has no thread left.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    kind: ThreadKind,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let confined = move || {
        enter(kind);
        run()
    };
    Builder::new().name(name.into()).spawn(confined)
}

/// Confines the thread to the system calls that it needs.
pub fn enter(kind: ThreadKind) {
    confine::enter(kind);
    drill();
}

/// As [`enter`], for a thread that only takes idle CPU time.
pub fn enter_lowest(kind: ThreadKind) {
    const NICE: i32 = 19;
    // On Linux it counts for the calling thread alone. Refused: the thread is one like others.
    let _ = rustix::process::setpriority_process(None, NICE);
    enter(kind);
}

/// For the test of the filters: in debug builds, a thread whose name begins with what EVENKEELD_FORBIDDEN_IN says makes
/// a call that no thread may make.
pub fn drill() {
    #[cfg(debug_assertions)]
    if let Ok(wanted) = std::env::var("EVENKEELD_FORBIDDEN_IN")
        && std::thread::current().name().is_some_and(|name| name.starts_with(&wanted))
    {
        let _ = rustix::process::set_parent_process_death_signal(None);
    }
}
