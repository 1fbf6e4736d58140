//! What other threads can ask of a client's connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// One client's stay at one device: a handle for any thread. What is asked of a session that is over has
/// no effect, above all not on the client that came after.
#[derive(Debug, Clone)]
pub struct Session {
    desk: Arc<Desk>,
    /// Counts the device's clients, from 1.
    generation: u64,
}

impl Session {
    /// A session that no server looks after: for a [`Connection`](crate::Connection) of a test.
    ///
    /// # Errors
    /// The kernel refused an eventfd.
    pub fn alone() -> io::Result<Self> {
        Ok(Self::new(&Arc::new(Desk::new()?), 1))
    }

    pub(crate) fn new(desk: &Arc<Desk>, generation: u64) -> Self {
        Self { desk: Arc::clone(desk), generation }
    }

    /// Disconnects the client; `reason` goes to the log.
    pub fn disconnect(&self, reason: &str) {
        self.desk.lock().disconnect = Some((self.generation, reason.to_owned()));
        self.desk.wake();
    }

    /// Tells the client to read the configuration space again, once it has been silent for a moment; a client
    /// that gave no back-end channel is not told.
    pub fn config_changed(&self) {
        self.desk.lock().config_changed = Some(self.generation);
        self.desk.wake();
    }

    /// What was asked of this session since the last time.
    pub(crate) fn take_orders(&self) -> Orders {
        self.desk.drain();
        let mut pending = self.desk.lock();
        let disconnect = pending.disconnect.take().filter(|(generation, _)| *generation == self.generation);
        let config_changed = pending.config_changed.take() == Some(self.generation);
        Orders { stop: pending.stop, disconnect: disconnect.map(|(_, reason)| reason), config_changed }
    }
}

/// What was asked of a session.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// The device is taken off its socket.
    pub stop: bool,
    pub disconnect: Option<String>,
    pub config_changed: bool,
}

#[derive(Debug, Default)]
struct Pending {
    stop: bool,
    disconnect: Option<(u64, String)>,
    config_changed: Option<u64>,
}

/// Where orders for a device's thread are left.
#[derive(Debug)]
pub(crate) struct Desk {
    waker: OwnedFd,
    pending: Mutex<Pending>,
}

impl Desk {
    pub fn new() -> io::Result<Self> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { waker, pending: Mutex::default() })
    }

    /// Ends the device's thread; stays in force.
    pub fn stop(&self) {
        self.lock().stop = true;
        self.wake();
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().stop
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        // Nothing that can panic happens under the lock.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Forgets that it was woken; look at the orders after it.
    pub fn drain(&self) {
        // Non-blocking; one read takes the whole counter.
        let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
    }
}

impl AsFd for Desk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
