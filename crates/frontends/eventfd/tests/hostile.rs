//! A client that keeps its eventfd full.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]
#![allow(clippy::disallowed_methods, reason = "an attacker is a thread")]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use eventfd::{EventFd, admit, start_watchdog, watch};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};

/// The client's end and ours.
fn pair() -> (OwnedFd, EventFd) {
    let theirs = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let ours = theirs.try_clone().unwrap();
    admit(&ours).unwrap();
    (theirs, EventFd::new(ours))
}

fn count(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    read(fd, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

fn block(fd: &OwnedFd) {
    fcntl_setfl(fd, fcntl_getfl(fd).unwrap() - OFlags::NONBLOCK).unwrap();
}

const FULL: [u8; 8] = (u64::MAX - 1).to_ne_bytes();

#[test]
fn signals_are_counted_and_a_full_counter_is_a_signal() {
    start_watchdog(|| {}).unwrap();
    watch();
    let (theirs, ours) = pair();
    assert!(ours.raise() && ours.raise());
    assert_eq!(count(&theirs), 2);
    write(&theirs, &FULL).unwrap();
    assert!(ours.raise(), "pending already");
    assert_eq!(count(&theirs), u64::MAX - 1);
}

#[test]
fn a_write_that_is_held_up_ends_and_is_the_last() {
    start_watchdog(|| {}).unwrap();
    watch();
    let (theirs, ours) = pair();
    write(&theirs, &FULL).unwrap();
    block(&theirs);
    // Without the watchdog this would be the end of the test.
    assert!(!ours.raise());
    assert_eq!(count(&theirs), u64::MAX - 1);
    assert!(!ours.raise(), "not once more");
    fcntl_setfl(&theirs, OFlags::NONBLOCK).unwrap();
    assert_eq!(read(&theirs, &mut [0; 8]), Err(Errno::AGAIN), "nothing was signalled");
}

#[test]
fn whoever_fills_it_at_the_wrong_moment_holds_nobody_up() {
    start_watchdog(|| {}).unwrap();
    watch();
    let stop = AtomicBool::new(false);
    let mut held_up = 0;
    for _ in 0..20 {
        let (theirs, ours) = pair();
        std::thread::scope(|scope| {
            // The flag is everybody's: it takes it back before it writes, so as not to hold itself up.
            let attack = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    fcntl_setfl(&theirs, OFlags::NONBLOCK).unwrap();
                    let _ = read(&theirs, &mut [0; 8]);
                    let _ = write(&theirs, &FULL);
                    block(&theirs);
                }
            });
            held_up += u32::from((0..10_000).any(|_| !ours.raise()));
            stop.store(true, Ordering::Relaxed);
            attack.join().unwrap();
        });
        stop.store(false, Ordering::Relaxed);
    }
    println!("held up {held_up} times of 20");
}

#[test]
fn only_eventfds_are_admitted() {
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    for fd in [pipe, zero.into()] {
        assert_eq!(admit(&fd), Err(Errno::INVAL));
    }
}
