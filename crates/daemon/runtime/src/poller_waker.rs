//! How a poller sleeps and is woken.
//!
//! A poller that found nothing to do announces that it sleeps, looks once more, and waits on an epoll. A thread that
//! leaves something for it (a message, a trapped doorbell) stores that first and then calls [`PollerWaker::wake`],
//! which writes to an eventfd. Both sides put a full fence between their store and their load, so one of them sees the
//! other: no wake-up is lost. Virtqueues' kicks and the drive's completions come as eventfds of their own:
//! [`PollerWaker::watch`]. A guest's stores to mapped doorbells wake no thread; the doorbell scanner finds them.
//!
//! Every eventfd is watched edge-triggered: each write to it wakes the sleeper once, and none of them is ever read.
//! That saves a system call per wake-up; and a descriptor that a hostile client keeps readable wakes nobody, it has to
//! be written to each time, as with honest kicks. What was signalled while the poller was awake ends its next sleep at
//! once, for nothing.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use client_socket::Waker;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// Wake-ups taken in at once. Further ones end the next sleep.
const EVENTS: usize = 64;

/// What one poller sleeps on, and what wakes it.
#[derive(Debug)]
pub struct PollerWaker {
    sleeping: AtomicBool,
    messages: AtomicBool,
    waker: Waker,
    epoll: OwnedFd,
}

/// An eventfd whose writers wake the poller. Dropping it ends that, and then closes it.
#[derive(Debug)]
pub struct Watch {
    waker: Arc<PollerWaker>,
    fd: OwnedFd,
}

impl PollerWaker {
    /// A poller that is awake.
    pub fn new() -> std::io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let (sleeping, messages) = (AtomicBool::new(false), AtomicBool::new(false));
        let new = Self { sleeping, messages, waker: Waker::new()?, epoll };
        new.add(&new.waker)?;
        Ok(new)
    }

    fn add(&self, fd: impl AsFd) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?)
    }

    /// Lets writes to `fd`, from any thread, wake the poller too. It must be an eventfd, ours or an
    /// [admitted](eventfd::admit) one: other files may block a thread that waits for them (FUSE asks its server).
    ///
    /// # Errors
    /// The system has no memory left.
    pub fn watch(self: &Arc<Self>, fd: OwnedFd) -> std::io::Result<Watch> {
        self.add(&fd)?;
        Ok(Watch { waker: Arc::clone(self), fd })
    }

    /// Wakes the poller if it sleeps. Call after storing what it should find.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::Relaxed) {
            // Nobody drains it: its counter is full after 2^64 wake-ups.
            self.waker.wake();
        }
    }

    /// Tells the poller that a message waits.
    pub fn notify(&self) {
        self.messages.store(true, Ordering::Release);
        self.wake();
    }

    /// For the poller: not all messages were read.
    pub fn leave_messages(&self) {
        self.messages.store(true, Ordering::Relaxed);
    }

    /// Whether messages wait; the flag is cleared, so read until there is none.
    #[inline]
    pub fn take_messages(&self) -> bool {
        self.messages.load(Ordering::Relaxed) && self.messages.swap(false, Ordering::Acquire)
    }

    /// For the poller: wake it from now on. Look once more before [`PollerWaker::sleep`].
    pub fn prepare_to_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// For the poller: it is awake again.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Whether messages wait, without taking the flag.
    pub fn has_messages(&self) -> bool {
        self.messages.load(Ordering::Relaxed)
    }

    /// Sleeps until woken, or for `timeout` at most. Returns whether it was woken.
    pub fn sleep(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        // Interrupted or failed: the caller looks around and sleeps again. Who woke it does not matter: it looks
        // everywhere.
        epoll::wait(&self.epoll, &mut events, timeout.as_ref()).is_ok_and(|(woken, _)| !woken.is_empty())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Before it is closed: a client that kept a copy of it could go on waking the poller.
        let _ = epoll::delete(&self.waker.epoll, &self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn a_notice_is_never_lost() {
        let waker = Arc::new(PollerWaker::new().unwrap());
        let sender = Arc::clone(&waker);
        let rounds = 20_000;
        let thread = std::thread::spawn(move || {
            for _ in 0..rounds {
                sender.notify();
                while sender.has_messages() {
                    std::thread::yield_now();
                }
            }
        });
        let mut taken = 0;
        while taken < rounds {
            waker.prepare_to_sleep();
            if !waker.has_messages() {
                // Without a timeout: a lost wake-up would hang the test.
                waker.sleep(None);
            }
            waker.awake();
            taken += u32::from(waker.take_messages());
        }
        thread.join().unwrap();
        assert_eq!(taken, rounds);
    }

    fn kick() -> (OwnedFd, OwnedFd) {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        (fd.try_clone().unwrap(), fd)
    }

    fn write(fd: &OwnedFd) {
        rustix::io::write(fd, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Whether something ends a sleep at once.
    fn is_woken(waker: &PollerWaker) -> bool {
        waker.sleep(Some(Duration::ZERO))
    }

    #[test]
    fn every_kick_wakes_once_and_none_is_read() {
        let waker = Arc::new(PollerWaker::new().unwrap());
        let (guest, ours) = kick();
        write(&guest);
        let watch = waker.watch(ours).unwrap();
        assert!(is_woken(&waker), "a kick from before it was watched");
        for _ in 0..3 {
            assert!(!is_woken(&waker), "readable all the time, but nobody kicked");
            write(&guest);
            // Without a timeout: a lost kick would hang the test.
            waker.sleep(None);
        }
        drop(watch);
        write(&guest);
        assert!(!is_woken(&waker), "watched after its queue stopped");
    }

    #[test]
    fn kicks_race_with_falling_asleep_and_none_is_lost() {
        let waker = Arc::new(PollerWaker::new().unwrap());
        let (guest, ours) = kick();
        let _watch = waker.watch(ours).unwrap();
        let (rung, seen) = (AtomicBool::new(false), AtomicBool::new(true));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    while !seen.swap(false, Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    rung.store(true, Ordering::Release);
                    write(&guest);
                }
            });
            for _ in 0..20_000 {
                while !rung.swap(false, Ordering::Acquire) {
                    waker.sleep(None);
                }
                seen.store(true, Ordering::Release);
            }
        });
    }
}
