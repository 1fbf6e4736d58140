//! A process that is there again when it was killed.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, set_parent_process_death_signal, waitpid,
};

use crate::calls::ThreadKind;
use crate::filters::{arm_alone, enter};
use crate::landlock::fence;
use crate::privileges::hide_memory;

/// Between a kill and the next process, the first time; twice as long each time after that, up to the latter: whatever
/// kills it may do so again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));

/// How long the rest of a process may take to end after its first thread.
const END_LIMIT: Duration = Duration::from_secs(1);

/// A process that lived so long is not one that dies again and again.
const LONG: Duration = Duration::from_secs(60);

/// How far the process that keeps descriptors from others is to be confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walls {
    /// For debugging.
    None,
    /// System calls alone: its parent's filter forbids all others already.
    Inner,
    /// System calls, and no file.
    All,
}

/// As [`keep_running`], with `walls`: for a process that needs what `kind` does, and no file. `work` is told whether it
/// follows a killed one. Nobody hears why it fails: its parent finds that it does not answer.
pub fn keep_running_within(
    walls: Walls,
    kind: ThreadKind,
    work: impl FnOnce(bool) -> ExitCode,
    is_wanted: impl Fn() -> bool,
) -> ExitCode {
    let follows = Cell::new(false);
    let outer = || hide_memory().and_then(|()| if walls == Walls::All { fence(&[], None).map(drop) } else { Ok(()) });
    if walls != Walls::None && outer().is_err() {
        return ExitCode::FAILURE;
    }
    let work = || {
        if walls != Walls::None && arm_alone().is_err() {
            return ExitCode::FAILURE;
        }
        enter(kind);
        work(follows.get())
    };
    keep_running(work, || {
        follows.set(true);
        is_wanted()
    })
}

/// How a child ended. `None`: its first thread is gone, as its sentinel says, and another one stays where no signal
/// reaches it: in a call that waits for a file system.
#[allow(clippy::disallowed_methods, reason = "nobody waits for this process")]
fn wait_for(child: Pid, sentinel: &OwnedFd) -> Option<WaitStatus> {
    let mut byte = [0; 1];
    let mut hear = || loop {
        match read(sentinel, &mut byte) {
            Err(Errno::INTR) => {}
            heard => return heard,
        }
    };
    // Without a sentinel this waits for all threads.
    let is_gone = hear() == Ok(1) && hear() == Ok(0);
    let deadline = Instant::now() + END_LIMIT;
    loop {
        let how = if is_gone { WaitOptions::NOHANG } else { WaitOptions::empty() };
        match waitpid(Some(child), how) {
            Ok(Some((_, status))) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSES.0),
            Err(Errno::INTR) => {}
            _ => return None,
        }
    }
}

/// Starts a process that dies with this process's first thread, and has `held` open until then. The kernel tells of a
/// process's end when its last thread has ended, which may be never. Call it while there is no other thread.
#[allow(clippy::disallowed_methods, reason = "nobody waits for it")]
fn start_sentinel(held: &OwnedFd) {
    let parent = getpid();
    // SAFETY: there is one thread, so no lock is held that the child would wait for.
    if unsafe { libc::fork() } != 0 {
        return;
    }
    // SAFETY: standard input is used nowhere in this process. It is the socket whose end others wait for.
    unsafe { libc::close(0) };
    let is_bound = set_parent_process_death_signal(Some(Signal::KILL)).is_ok() && getppid() == Some(parent);
    if is_bound && write(held, &[1]).is_ok() {
        loop {
            std::thread::sleep(LONG);
        }
    }
    // SAFETY: it ends the process, without what the parent has registered for its own end.
    unsafe { libc::_exit(1) };
}

/// Runs `work` in a child of this process, and in another one when that is killed by a signal, as long as it
/// `is_wanted`. Returns in the parent, once a child ended by itself, and in each child, with what `work` returned: the
/// caller is to end with it. Call it while there is no other thread.
#[allow(clippy::disallowed_methods, reason = "nobody waits for this process")]
pub fn keep_running(work: impl FnOnce() -> ExitCode, is_wanted: impl Fn() -> bool) -> ExitCode {
    let mut pause = PAUSES.0;
    loop {
        let begun = Instant::now();
        let Ok((sentinel, held)) = pipe_with(PipeFlags::CLOEXEC) else { return ExitCode::FAILURE };
        // SAFETY: there is one thread, so no lock is held that the child would wait for.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(sentinel);
            start_sentinel(&held);
            drop(held);
            return work();
        }
        drop(held);
        let Some(child) = Pid::from_raw(child).filter(|_| child > 0) else { return ExitCode::FAILURE };
        match wait_for(child, &sentinel) {
            Some(status) if !status.signaled() => {
                return if status.exit_status() == Some(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            }
            _ => {}
        }
        if begun.elapsed() > LONG {
            pause = PAUSES.0;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
        if !is_wanted() {
            return ExitCode::SUCCESS;
        }
    }
}
