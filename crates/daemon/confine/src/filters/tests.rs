//! Filters end processes: each trial is a process of its own, this test's binary once more.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use super::*;

/// What the trial's process finds in its environment: the kind of thread, and what it is to do.
const KIND: &str = "CONFINE_TEST_KIND";
const CALL: &str = "CONFINE_TEST_CALL";

type Trial = (&'static str, fn());

fn raw(number: libc::c_long, arguments: [libc::c_long; 3]) {
    // SAFETY: calls without pointers, or with null ones, which the kernel refuses if the filter does not.
    unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) };
}

/// What no thread of the daemon may do.
const FORBIDDEN: [Trial; 9] = [
    ("trace", || raw(libc::SYS_ptrace, [libc::PTRACE_TRACEME as _, 0, 0])),
    ("signal others", || raw(libc::SYS_kill, [0, 0, 0])),
    ("become another user", || raw(libc::SYS_setresuid, [0, 0, 0])),
    ("mount", || raw(libc::SYS_mount, [0; 3])),
    ("a program for the kernel", || raw(libc::SYS_bpf, [0; 3])),
    ("a socket to the network", || raw(libc::SYS_socket, [libc::AF_INET as _, libc::SOCK_STREAM as _, 0])),
    ("a socket to the kernel", || raw(libc::SYS_socket, [libc::AF_NETLINK as _, libc::SOCK_RAW as _, 0])),
    ("code", || raw(libc::SYS_mprotect, [0, 4096, (libc::PROT_READ | libc::PROT_EXEC) as _])),
    ("dumpable", || raw(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as _, 1, 0])),
];

/// What no program should do.
const FAULT: Trial = ("a fault", || {
    // SAFETY: nobody has that page, so the process ends here.
    unsafe { std::ptr::without_provenance::<u8>(64).read_volatile() };
});

/// What only some may do, and who.
const FOR_SOME: [(Trial, &[ThreadKind]); 11] = [
    (("execute", || raw(libc::SYS_execve, [0; 3])), &[ThreadKind::Keeper]),
    (("a handler of signals", || raw(libc::SYS_rt_sigaction, [libc::SIGSYS as _, 0, 0])), &[ThreadKind::Keeper]),
    (("a process", || raw(libc::SYS_clone, [libc::SIGCHLD as _, 0, 0])), &[ThreadKind::Keeper]),
    (
        ("see how full a file system is", || raw(libc::SYS_fstatfs, [-1, 0, 0])),
        &[ThreadKind::Owner, ThreadKind::Client, ThreadKind::Metrics],
    ),
    (("read a drive's mark", || raw(libc::SYS_fgetxattr, [-1, 0, 0])), &[ThreadKind::Owner]),
    (("lock a drive", || raw(libc::SYS_flock, [-1, libc::LOCK_EX as _, 0])), &[ThreadKind::Owner, ThreadKind::History]),
    (
        ("open a file", || drop(std::fs::File::open("/proc/self/stat"))),
        &[
            ThreadKind::Owner,
            ThreadKind::Metrics,
            ThreadKind::OwnFile,
            ThreadKind::History,
            ThreadKind::Why,
            ThreadKind::Ublk,
            ThreadKind::Keeper,
        ],
    ),
    (("a ring", || raw(libc::SYS_io_uring_setup, [0; 3])), &[ThreadKind::Owner, ThreadKind::Ublk]),
    (
        ("enter a ring", || raw(libc::SYS_io_uring_enter, [-1, 0, 0])),
        &[ThreadKind::Owner, ThreadKind::Poller, ThreadKind::Ublk],
    ),
    (
        ("take descriptors", || raw(libc::SYS_recvmsg, [-1, 0, 0])),
        &[
            // Threads that receive from the keeper and close clients' sockets.
            ThreadKind::Main,
            ThreadKind::Closing,
            ThreadKind::Owner,
            ThreadKind::Client,
            ThreadKind::Gate,
            ThreadKind::Api,
            ThreadKind::Ublk,
            ThreadKind::Keeper,
            ThreadKind::Kept,
        ],
    ),
    (("write to a drive in memory", || raw(libc::SYS_pwritev2, [-1, 0, 0])), &[ThreadKind::Poller, ThreadKind::Owner]),
];

/// What every thread does.
const ALLOWED: [Trial; 3] = [
    ("memory", || drop(vec![1_u8; 64 << 20])),
    ("give way", std::thread::yield_now),
    ("standard error", || drop(std::io::Write::write_all(&mut std::io::stderr(), b"words\n"))),
];

fn trials() -> impl Iterator<Item = Trial> {
    FORBIDDEN.into_iter().chain([FAULT]).chain(FOR_SOME.map(|(trial, _)| trial)).chain(ALLOWED)
}

/// The trial's side: not a test of its own.
#[test]
fn trial() {
    let (Ok(kind), Ok(call)) = (std::env::var(KIND), std::env::var(CALL)) else { return };
    arm().expect("filters");
    let kind = ThreadKind::ALL.into_iter().find(|one| one.name() == kind).expect("a kind");
    let (_, run) = trials().find(|(name, _)| *name == call).expect("a trial");
    enter(kind);
    run();
    // Without the test harness's farewell, which is no thread of the daemon.
    raw(libc::SYS_exit_group, [42, 0, 0]);
}

fn try_one(kind: ThreadKind, call: &str) -> Output {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "filters::tests::trial", "--nocapture"])
        .envs([(KIND, kind.name()), (CALL, call)])
        .output()
        .expect("a process")
}

fn assert_forbidden(kind: ThreadKind, call: &str) {
    let output = try_one(kind, call);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{kind:?}, {call}: {}; {told}", output.status);
    let words = format!("{}: the thread {} made the system call ", kind.program(), kind.name());
    assert!(told.contains(&words) && told.contains("which its filter forbids"), "{kind:?}, {call}: {told}");
}

fn assert_allowed(kind: ThreadKind, call: &str) {
    let output = try_one(kind, call);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(42), "{kind:?}, {call}: {}; {told}", output.status);
}

/// All but the one that may not even say why it ends.
fn kinds() -> impl Iterator<Item = ThreadKind> {
    ThreadKind::ALL.into_iter().filter(|kind| *kind != ThreadKind::Survivor)
}

#[test]
fn a_survivor_may_do_nothing_that_others_may() {
    for (call, _) in trials() {
        let output = try_one(ThreadKind::Survivor, call);
        assert!(output.status.signal().is_some(), "{call}: {}", output.status);
    }
}

#[test]
fn a_forbidden_call_ends_the_process_whichever_thread_makes_it() {
    for kind in kinds() {
        let starts_threads =
            matches!(kind, ThreadKind::Owner | ThreadKind::Gate | ThreadKind::Ublk | ThreadKind::Keeper);
        for (call, _) in FORBIDDEN {
            assert_forbidden(kind, call);
        }
        assert!(starts_threads == kind.tables().iter().copied().flatten().any(|(call, _)| *call == libc::SYS_clone3));
    }
}

/// A fault that is told as a system call, since the handler of it makes one.
#[test]
fn a_fault_is_told_as_what_it_is() {
    let output = try_one(ThreadKind::Poller, FAULT.0);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("evenkeeld: the thread poller got the signal SIGSEGV, as"), "{}: {told}", output.status);
}

#[test]
fn each_kind_of_thread_may_do_what_it_is_there_for() {
    for kind in kinds() {
        for ((call, _), kinds) in FOR_SOME {
            if kinds.contains(&kind) { assert_allowed(kind, call) } else { assert_forbidden(kind, call) }
        }
        for (call, _) in ALLOWED {
            assert_allowed(kind, call);
        }
    }
}

/// The trial's side of the next test: more threads than the allocator has arenas for without a look at the machine,
/// each of which gives back memory; and one that gives back more than what the allocator learned to keep when the
/// process freed a large piece before it was confined.
#[test]
fn allocating_trial() {
    if std::env::var(CALL).as_deref() != Ok("allocate in many threads") {
        return;
    }
    drop(std::hint::black_box(vec![1_u8; 8 << 20]));
    arm().expect("filters");
    let all = std::sync::Barrier::new(32);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                enter(ThreadKind::Client);
                all.wait();
                let kept = vec![1_u8; 1000];
                // Each has its arena while the others ask for theirs.
                all.wait();
                drop(kept);
                give_back_memory();
            });
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            enter(ThreadKind::Client);
            allocate_and_free(24 << 20);
        });
    });
    raw(libc::SYS_exit_group, [42, 0, 0]);
}

#[test]
fn many_threads_can_allocate() {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "filters::tests::allocating_trial", "--nocapture"])
        .env(CALL, "allocate in many threads")
        .output()
        .expect("a process");
    assert_eq!(output.status.code(), Some(42), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn numbers_are_written_out() {
    for number in [0, 7, 59, 4_294_967_295] {
        assert_eq!(decimal(number, &mut [0; 10]), number.to_string().as_bytes());
    }
}
