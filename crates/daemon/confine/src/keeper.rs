//! A process that is there again when it was killed.

use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, waitpid};

/// Between a kill and the next process: whatever kills it may do so again.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs `work` in a child of this process, and in another one whenever that is killed by a signal. Returns in the
/// parent, once a child ended by itself, and in each child, with what `work` returned: the caller is to end with it. Call
/// it while there is no other thread.
pub fn keep_running(work: impl FnOnce() -> ExitCode) -> ExitCode {
    loop {
        // SAFETY: there is one thread, so no lock is held that the child would wait for.
        let child = unsafe { libc::fork() };
        if child == 0 {
            return work();
        }
        let Some(child) = Pid::from_raw(child).filter(|_| child > 0) else { return ExitCode::FAILURE };
        let status = loop {
            match waitpid(Some(child), WaitOptions::empty()) {
                Ok(Some((_, status))) => break status,
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return ExitCode::FAILURE,
            }
        };
        if !status.signaled() {
            return if status.exit_status() == Some(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        #[allow(clippy::disallowed_methods, reason = "nobody waits for this process")]
        std::thread::sleep(PAUSE);
    }
}
