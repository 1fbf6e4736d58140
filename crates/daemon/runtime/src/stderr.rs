//! Messages on standard error that never block.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long each piece of a message may wait for room on standard error.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A pipe with room takes this many bytes without blocking (PIPE_BUF of pipe(7)).
const PIECE_BYTES: usize = 4096;

/// Says it, or leaves it if nobody reads. Past the standard library's lock, which another thread may hold while it
/// waits for that same reader.
pub fn say(text: &str) {
    let stderr = std::io::stderr();
    for piece in text.as_bytes().chunks(PIECE_BYTES) {
        let mut writable = [PollFd::new(&stderr, PollFlags::OUT)];
        if poll(&mut writable, Some(&PATIENCE)) != Ok(1) {
            return;
        }
        // Nobody is left to be told of an error.
        if rustix::io::write(stderr.as_fd(), piece) != Ok(piece.len()) {
            return;
        }
    }
}
