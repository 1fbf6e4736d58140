//! vfio-user messages against [`Connection`].
//!
//! The harness plays the client, the socket between (bytes come in pieces, descriptors with the first of
//! a message) and the device, which answers wrongly at times.

pub(crate) mod client;
mod device;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use vfio_user::{ClientState, Closed, Connection, ProtocolError, Session};

use crate::descriptors::{Descriptors, Fd};
use client::{Message, Sent};
use device::{Checker, How};

/// Steps of one run at most.
const MAX_STEPS: usize = 256;

/// What may wait for a client: 256 KiB and one message more before it is full.
const MAX_WAITING_BYTES: usize = 256 * 1024 + 64 * 1024 + 32;

#[derive(Debug, Arbitrary)]
enum Step {
    /// The client sends something.
    Send { message: Message, fds: Vec<Fd>, damage: Option<(u16, u8)> },
    /// The client sends anything.
    SendRaw { bytes: Vec<u8>, fds: Vec<Fd> },
    /// The socket delivers, in pieces of at most this many bytes, `times` times.
    Deliver { piece_bytes: u16, times: u8 },
    /// The device's next answer is so.
    Answer { how: How },
    /// The client reads.
    Read { bytes: u16 },
}

struct World {
    connection: Connection,
    device: Checker,
    /// What is in the socket: bytes and the descriptors that travel with the first of them.
    socket: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// What the client said, as an independent reader of the stream sees it.
    sent: Sent,
    closed: Option<Closed<ProtocolError>>,
}

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    let descriptors = Descriptors::new();
    let spec = Arc::new(device::spec());
    let mut device = Checker::new(Arc::clone(&spec));
    let session = Session::alone().expect("an eventfd");
    let connection = Connection::open(ClientState::new(spec), session, &mut device);
    let mut world = World { connection, device, socket: VecDeque::new(), sent: Sent::default(), closed: None };
    // Running out of input ends the program.
    let _ = world.play(&mut Unstructured::new(data), &descriptors);
    world.finish();
    let World { connection, mut device, socket, .. } = world;
    connection.close("it is over", &mut device);
    device.check_end();
    drop((socket, device));
    assert!(descriptors.all_closed(), "a file descriptor leaked");
}

impl World {
    fn play(&mut self, u: &mut Unstructured<'_>, descriptors: &Descriptors) -> Result<()> {
        // Most runs should get past the negotiation.
        if u.ratio(7, 8)? {
            self.send(client::version(), Vec::new());
        }
        for _ in 0..MAX_STEPS {
            if u.is_empty() {
                break;
            }
            match Step::arbitrary(u)? {
                Step::Send { message, fds, damage } => {
                    let mut bytes = message.encode();
                    if let Some((at, value)) = damage {
                        let at = usize::from(at) % bytes.len();
                        bytes[at] = value;
                    }
                    self.send(bytes, descriptors.open(&fds));
                }
                Step::SendRaw { bytes, fds } => self.send(bytes, descriptors.open(&fds)),
                Step::Deliver { piece_bytes, times } => {
                    (0..=times).for_each(|_| self.deliver(usize::from(piece_bytes).max(1)));
                }
                Step::Answer { how } => self.device.answer_next(how),
                Step::Read { bytes } => {
                    self.read(bytes.into());
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>) {
        if !bytes.is_empty() {
            self.socket.push_back((bytes, fds));
        }
    }

    /// One receive, as the connection's contract asks for: no more than wanted, nothing while it is full.
    fn deliver(&mut self, piece_bytes: usize) {
        if self.closed.is_some() || self.connection.is_full() {
            return;
        }
        let Some((bytes, fds)) = self.socket.front_mut() else { return };
        let wanted = self.connection.wanted_bytes();
        assert!(wanted > 0, "a reader would wait for nothing");
        let n = wanted.min(piece_bytes).min(bytes.len());
        let rest = bytes.split_off(n);
        let (piece, fds) = (std::mem::replace(bytes, rest), std::mem::take(fds));
        if self.socket.front().is_some_and(|(bytes, _)| bytes.is_empty()) {
            self.socket.pop_front();
        }
        self.sent.see(&piece);
        if let Err(closed) = self.connection.feed(&piece, fds, &mut self.device) {
            self.close(closed);
        }
    }

    /// Returns how much there was, at most `bytes`.
    fn read(&mut self, bytes: usize) -> usize {
        let mut left = bytes;
        while left > 0
            && let Some((piece, fd)) = self.connection.output()
        {
            assert!(!piece.is_empty(), "an empty output would never be sent");
            let n = piece.len().min(left);
            self.sent.answered(&piece[..n], fd.is_some());
            self.connection.sent(n);
            left -= n;
        }
        bytes - left
    }

    fn close(&mut self, closed: Closed<ProtocolError>) {
        let asked = self.device.asked;
        let again = self.connection.feed(&client::version(), Vec::new(), &mut self.device);
        assert!(again.is_err(), "closed ({closed}), and fed again it goes on");
        assert_eq!(self.device.asked, asked, "closed ({closed}), and it asks the device");
        self.closed = Some(closed);
    }

    /// Delivers all that is left; then every message must have been answered once.
    fn finish(&mut self) {
        let waiting = self.read(usize::MAX);
        assert!(waiting <= MAX_WAITING_BYTES, "{waiting} bytes waited for the client");
        while self.closed.is_none() && !self.socket.is_empty() {
            self.deliver(usize::MAX);
            self.read(usize::MAX);
        }
        if self.closed.is_none() {
            self.sent.check_all_answered();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::seeds::run_seeds;

    #[test]
    fn random_inputs() {
        run_seeds(2000, 3000, super::run);
    }
}
