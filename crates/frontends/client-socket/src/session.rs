//! What other threads can ask of a client's connection.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::waker::Waker;

/// One client's stay at one device: a handle for any thread, which never waits. What is asked of a session that
/// is over has no effect, above all not on the client that came after.
#[derive(Debug, Clone)]
pub struct Session(Arc<Orders>);

#[derive(Debug)]
struct Orders {
    waker: Arc<Waker>,
    disconnect: OnceLock<String>,
    /// What it did is not to be done again at once.
    is_cut_off: AtomicBool,
    config_changed: AtomicBool,
    is_held: bool,
}

impl Session {
    /// A session that no server looks after: for a [`Connection`](crate::Connection) of a test.
    ///
    /// # Errors
    /// The kernel refused an eventfd.
    pub fn alone() -> io::Result<Self> {
        Ok(Self::new(Arc::new(Waker::new()?), false))
    }

    pub(crate) fn new(waker: Arc<Waker>, is_held: bool) -> Self {
        Self(Arc::new(Orders {
            waker,
            disconnect: OnceLock::new(),
            is_cut_off: AtomicBool::new(false),
            config_changed: AtomicBool::new(false),
            is_held,
        }))
    }

    /// Whether another process served this client before, whose state is to be gone on with.
    pub fn is_held(&self) -> bool {
        self.0.is_held
    }

    /// Disconnects the client once the device has done what it is doing for it; `reason` goes to the log, the
    /// first one if it is said more than once.
    pub fn disconnect(&self, reason: &str) {
        if self.0.disconnect.set(reason.to_owned()).is_ok() {
            self.0.waker.wake();
        }
    }

    /// As [`Session::disconnect`], for what a client did to others: the device's next one is served a second later, so
    /// that nobody can do it again and again.
    pub fn cut_off(&self, reason: &str) {
        self.0.is_cut_off.store(true, Ordering::Release);
        self.disconnect(reason);
    }

    /// Whether it was.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.0.is_cut_off.load(Ordering::Acquire)
    }

    /// Tells the client to read the device's configuration again, once it has been silent for a moment. No effect
    /// on a client that gave no way to tell it, or whose protocol has none.
    pub fn config_changed(&self) {
        if !self.0.config_changed.swap(true, Ordering::Release) {
            self.0.waker.wake();
        }
    }

    /// Why the client is to be disconnected, if it is.
    pub(crate) fn is_to_end(&self) -> Option<&str> {
        self.0.disconnect.get().map(String::as_str)
    }

    /// Whether the client is to be told of a change; asking forgets it.
    pub(crate) fn take_config_changed(&self) -> bool {
        self.0.config_changed.load(Ordering::Relaxed) && self.0.config_changed.swap(false, Ordering::Acquire)
    }
}
