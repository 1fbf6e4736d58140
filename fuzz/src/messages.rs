//! vfio-user messages against [`Connection`].
//!
//! The harness plays the client, the socket between (bytes come in pieces, descriptors with the first of
//! a message) and the device, which answers late, out of order and sometimes wrongly.

mod client;
mod device;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use vfio_user::{Asked, Closed, Connection, DeviceSpec, Errno, Reply, Ticket};

use crate::descriptors::{Descriptors, Fd};
use client::{Message, Sent};

/// Steps of one run at most.
const MAX_STEPS: usize = 256;

/// Requests that the device may be asked at a time.
const MAX_ASKED: usize = 64;

/// What may wait for a client: 256 KiB and one message more before it is full, and the replies to all
/// requests that were asked until then.
const MAX_WAITING_BYTES: usize = 256 * 1024 + (MAX_ASKED + 1) * (64 * 1024 + 32);

#[derive(Debug, Arbitrary)]
enum Step {
    /// The client sends something.
    Send { message: Message, fds: Vec<Fd>, damage: Option<(u16, u8)> },
    /// The client sends anything.
    SendRaw { bytes: Vec<u8>, fds: Vec<Fd> },
    /// The socket delivers: at most so many bytes at a time, so many times.
    Deliver { piece_bytes: u16, times: u8 },
    /// The device answers one of its requests.
    Answer { which: u8, how: How },
    /// The client reads.
    Read { bytes: u16 },
}

#[derive(Debug, Arbitrary)]
enum How {
    Properly,
    WrongKind,
    Failed,
    Twice,
    Fatal,
}

struct World {
    connection: Connection,
    spec: Arc<DeviceSpec>,
    /// What is in the socket: bytes and the descriptors that travel with the first of them.
    socket: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    asked: Vec<(Ticket, Option<Reply>)>,
    /// What the client said, as an independent reader of the stream sees it.
    sent: Sent,
    closed: Option<Closed>,
}

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    let descriptors = Descriptors::new();
    let spec = Arc::new(device::spec());
    let mut world = World {
        connection: Connection::new(Arc::clone(&spec)),
        spec,
        socket: VecDeque::new(),
        asked: Vec::new(),
        sent: Sent::default(),
        closed: None,
    };
    // Running out of input ends the program.
    let _ = world.play(&mut Unstructured::new(data), &descriptors);
    world.finish();
    drop(world);
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
                Step::Answer { which, how } => self.answer(usize::from(which), &how),
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
        if let Err(closed) = self.connection.feed(&piece, fds) {
            self.close(closed);
        }
        self.take_requests();
    }

    fn take_requests(&mut self) {
        while let Some((ticket, asked)) = self.connection.next_request() {
            assert!(self.closed.is_none(), "a closed connection yields requests");
            let proper = match &asked {
                Asked::Request(request) => device::judge(&self.spec, request),
                Asked::DmaMap(..) => Reply::Done,
            };
            assert!(self.asked.iter().all(|(other, _)| *other != ticket), "a ticket was used twice");
            self.asked.push((ticket, Some(proper)));
        }
        assert!(self.asked.len() <= MAX_ASKED, "{} requests at a time", self.asked.len());
    }

    fn answer(&mut self, which: usize, how: &How) {
        if self.asked.is_empty() || self.closed.is_some() {
            return;
        }
        let (ticket, proper) = self.asked.swap_remove(which % self.asked.len());
        let proper = proper.unwrap_or(Reply::Done);
        let reply = match how {
            How::Properly | How::Twice => proper,
            How::WrongKind if proper == Reply::Done => Reply::Data(vec![1, 2, 3]),
            How::WrongKind => Reply::Done,
            How::Failed => Reply::Failed(Errno::NOENT),
            How::Fatal => Reply::Fatal(Errno::IO, "the device gave up".into()),
        };
        let result = self.connection.reply(ticket, reply);
        if matches!(how, How::Twice) {
            assert_eq!(self.connection.reply(ticket, Reply::Done), Ok(()), "a ticket that is not waiting");
        }
        if let Err(closed) = result {
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

    fn close(&mut self, closed: Closed) {
        self.asked.clear();
        let again = self.connection.feed(&client::version(), Vec::new());
        assert!(again.is_err(), "closed ({closed}), and fed again it goes on");
        assert!(self.connection.next_request().is_none(), "closed ({closed}), and it asks the device");
        self.closed = Some(closed);
    }

    /// Delivers and answers all that is left; then every message must have been answered once.
    fn finish(&mut self) {
        let waiting = self.read(usize::MAX);
        assert!(waiting <= MAX_WAITING_BYTES, "{waiting} bytes waited for the client");
        while self.closed.is_none() && !self.socket.is_empty() {
            self.deliver(usize::MAX);
            while !self.asked.is_empty() && self.closed.is_none() {
                self.answer(0, &How::Properly);
            }
            self.read(usize::MAX);
        }
        while self.closed.is_none() && !self.asked.is_empty() {
            self.answer(0, &How::Properly);
        }
        self.read(usize::MAX);
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
