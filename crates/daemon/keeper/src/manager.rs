//! The service manager, which is told by the protocol of sd_notify(3).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use client_socket::{notify_socket, send_whole};
use confine::take_inherited;

/// Number of the first descriptor that it passes on (sd_listen_fds(3)).
const FIRST: u32 = 3;

/// A service manager that wants to be told.
#[derive(Debug, Clone)]
pub struct Manager(Arc<UnixDatagram>);

impl Manager {
    /// The one that started this process, by its environment.
    ///
    /// # Errors
    /// It can't be reached.
    pub fn find() -> std::io::Result<Option<Self>> {
        Ok(notify_socket()?.map(|socket| Self(Arc::new(socket))))
    }

    /// Tells it something; `false`: it does not hear.
    pub fn tell(&self, what: &str, fds: &[BorrowedFd<'_>]) -> bool {
        send_whole(self.0.as_fd(), what.as_bytes(), fds).is_ok()
    }
}

/// How many descriptors it keeps for the next process; 0: none.
pub fn room() -> usize {
    std::env::var("FDSTORE").ok().and_then(|room| room.parse().ok()).unwrap_or(0)
}

/// What it kept of the process before this one, with the words that they were stored under. Once, and first thing.
pub fn stored() -> Vec<(String, OwnedFd)> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let words = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let numbers = FIRST..FIRST.saturating_add(number("LISTEN_FDS").unwrap_or(0));
    let one = |(number, word): (u32, &str)| Some((word.to_owned(), take_inherited([number]).pop()?));
    numbers.zip(words.split(':')).filter_map(one).collect()
}
