//! How a poller falls asleep and who wakes it.
//!
//! A poller that found nothing to do for a while announces that it sleeps, looks once more, and waits on
//! an eventfd. Whoever leaves something for it (mail, a trapped doorbell) stores that first and then asks
//! [`Doorman::wake`]. Both sides put a full fence between their store and their load, so one of them sees
//! the other: no wake-up is lost. Doorbells that guests store into mapped memory wake nobody; for these
//! the sleeper looks by itself every patrol interval.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// One poller's bed and bell.
#[derive(Debug)]
pub struct Doorman {
    sleeping: AtomicBool,
    mail: AtomicBool,
    bell: OwnedFd,
}

impl Doorman {
    /// A poller that is awake.
    pub fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sleeping: AtomicBool::new(false), mail: AtomicBool::new(false), bell })
    }

    /// Wakes the poller if it sleeps. Call after storing what it should find.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::Relaxed) {
            // The counter can't overflow: it is read at each wake-up. A failed write only delays until
            // the next patrol.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Tells the poller that its mailbox is not empty.
    pub fn post(&self) {
        self.mail.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether there is mail; the flag is cleared, so read the mailbox until it is empty.
    #[inline]
    pub fn take_mail(&self) -> bool {
        self.mail.load(Ordering::Relaxed) && self.mail.swap(false, Ordering::Acquire)
    }

    /// The poller: from now on, wake me. Look once more before [`Doorman::sleep`].
    pub fn lie_down(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The poller: I am awake again.
    pub fn get_up(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Whether mail waits, without taking it.
    pub fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Relaxed)
    }

    /// Sleeps until woken, or for `timeout` at most.
    pub fn sleep(&self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut fds = [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        // Interrupted or failed: the caller looks around and sleeps again.
        if poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_post_is_never_lost() {
        let doorman = Arc::new(Doorman::new().unwrap());
        let poster = Arc::clone(&doorman);
        let rounds = 20_000;
        let thread = std::thread::spawn(move || {
            for _ in 0..rounds {
                poster.post();
                while poster.has_mail() {
                    std::thread::yield_now();
                }
            }
        });
        let mut taken = 0;
        while taken < rounds {
            doorman.lie_down();
            if !doorman.has_mail() {
                // Without a timeout: a lost wake-up would hang the test.
                doorman.sleep(None);
            }
            doorman.get_up();
            taken += u32::from(doorman.take_mail());
        }
        thread.join().unwrap();
        assert_eq!(taken, rounds);
    }
}
