//! vhost-user messages against [`Connection`].
//!
//! The harness plays the client and the socket between: bytes come in pieces, descriptors with the first of a
//! message. The device checks all that it is told, and refuses some of it.

pub(crate) mod client;
mod device;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use vhost_user::wire::{HEADER_BYTES, Header};
use vhost_user::{Closed, Connection, FrontEnd, ProtocolError, Session};

use crate::descriptors::{Descriptors, Fd};
use client::Message;
use device::Checker;

/// Steps of one run at most.
const MAX_STEPS: usize = 256;
const REPLY_ACK: u64 = 1 << 3;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_INFLIGHT_FD: u32 = 31;

#[derive(Debug, Arbitrary)]
enum Step {
    /// The client starts a ring as it should.
    Start { ring: u8, size: u8, region: u8 },
    /// The client sends something, with the descriptors that belong to it or with others; mostly it asks for
    /// an acknowledgement.
    Send { message: Message, silence: u8, fds: Option<Vec<Fd>>, damage: Option<(u16, u8)>, piece_bytes: u16 },
    /// The client sends anything.
    SendRaw { bytes: Vec<u8>, fds: Vec<Fd>, piece_bytes: u16 },
}

struct World {
    connection: Connection,
    device: Checker,
    /// The message that is coming in, as an independent reader sees it.
    inbound: Vec<u8>,
    /// The client is owed acknowledgements.
    acknowledges: bool,
}

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    let descriptors = Descriptors::new();
    let mut u = Unstructured::new(data);
    let mut device = Checker::new(u.arbitrary().unwrap_or(0));
    let session = Session::alone().expect("an eventfd");
    let connection = Connection::open(FrontEnd::new(Arc::new(device::spec())), session, &mut device);
    let mut world = World { connection, device, inbound: Vec::new(), acknowledges: false };
    // Running out of input ends the program.
    let played = world.play(&mut u, &descriptors);
    let why = played.ok().flatten().unwrap_or(Closed::Gone);
    let World { connection, mut device, .. } = world;
    connection.close(&why.to_string(), &mut device);
    device.check_end();
    assert!(descriptors.all_closed(), "a file descriptor leaked");
}

impl World {
    fn play(&mut self, u: &mut Unstructured<'_>, descriptors: &Descriptors) -> Result<Option<Closed<ProtocolError>>> {
        // Most runs should get past the negotiation.
        if u.ratio(7, 8)? {
            let closed = self.send_all(&client::negotiation(), descriptors);
            if closed.is_some() {
                return Ok(closed);
            }
        }
        for _ in 0..MAX_STEPS {
            if u.is_empty() {
                break;
            }
            let closed = match Step::arbitrary(u)? {
                Step::Start { ring, size, region } => self.send_all(&client::start(ring, size, region), descriptors),
                Step::Send { message, silence, fds, damage, piece_bytes } => {
                    let mut bytes = message.encode(silence % 16 != 0);
                    if let Some((at, value)) = damage {
                        let at = usize::from(at) % bytes.len();
                        bytes[at] = value;
                    }
                    let fds = descriptors.open(fds.as_deref().unwrap_or(message.fds()));
                    self.send(&bytes, fds, piece_bytes.into())
                }
                Step::SendRaw { bytes, fds, piece_bytes } => {
                    self.send(&bytes, descriptors.open(&fds), piece_bytes.into())
                }
            };
            if closed.is_some() {
                return Ok(closed);
            }
        }
        Ok(None)
    }

    fn send_all(&mut self, messages: &[Message], descriptors: &Descriptors) -> Option<Closed<ProtocolError>> {
        let send = |message: &Message| self.send(&message.encode(true), descriptors.open(message.fds()), 64);
        messages.iter().find_map(send)
    }

    /// Delivers bytes as the connection's contract asks for: no more than wanted, and what it says is read.
    fn send(&mut self, mut bytes: &[u8], mut fds: Vec<OwnedFd>, piece_bytes: usize) -> Option<Closed<ProtocolError>> {
        while !bytes.is_empty() {
            let wanted = self.connection.wanted_bytes();
            assert!(wanted > 0, "a reader would wait for nothing");
            let (piece, rest) = bytes.split_at(wanted.min(piece_bytes.max(1)).min(bytes.len()));
            bytes = rest;
            self.inbound.extend_from_slice(piece);
            let refusal = match self.connection.feed(piece, std::mem::take(&mut fds), &mut self.device) {
                Ok(refusal) => refusal,
                Err(closed) => return Some(closed),
            };
            self.check_answer(refusal);
            if self.connection.take_config_change_due() {
                self.connection.send_config_change();
            }
        }
        None
    }

    /// What the client reads now: the answer to a message that came in whole, if it is to have one.
    fn check_answer(&mut self, line: Option<String>) {
        // Not a refusal: it was done, with a hole in the memory.
        let refusal = line.filter(|line| !line.contains("which can't be mapped"));
        let output = self.connection.output().map(|(bytes, fd)| (bytes.to_vec(), fd.is_some()));
        let header = self.inbound.first_chunk().map(Header::parse);
        let whole = header.filter(|header| self.inbound.len() == HEADER_BYTES + header.payload_bytes as usize);
        let Some(header) = whole else {
            assert!(refusal.is_none() && output.is_none(), "an answer to half a message");
            return;
        };
        self.see(&header, refusal.is_some());
        let has_reply = matches!(header.request, 1 | 11 | 15 | 17 | 24 | 31 | 36);
        let answered = has_reply || (header.need_reply && self.acknowledges);
        assert_eq!(output.is_some(), answered, "answers to request {}", header.request);
        if let Some((bytes, with_fd)) = output {
            let (head, payload) = bytes.split_at(HEADER_BYTES);
            assert_eq!(head[..4], header.request.to_ne_bytes(), "an answer to another request");
            assert_eq!(head[4..8], 5u32.to_ne_bytes(), "version 1, a reply");
            assert_eq!(head[8..], (payload.len() as u32).to_ne_bytes());
            assert_eq!(with_fd, header.request == GET_INFLIGHT_FD);
            if !has_reply {
                assert_eq!(payload, u64::from(refusal.is_some()).to_ne_bytes());
            }
            // In two parts, as a full socket would take it.
            self.connection.sent(1);
            assert_eq!(
                self.connection.output().map(|(rest, fd)| (rest.len(), fd.is_some())),
                Some((bytes.len() - 1, false))
            );
            self.connection.sent(bytes.len() - 1);
        } else {
            assert!(refusal.is_none(), "refused without a word");
        }
        assert!(self.connection.output().is_none() && !self.connection.is_midway());
        self.inbound.clear();
    }

    /// Whether the client is owed acknowledgements from now on.
    fn see(&mut self, header: &Header, refused: bool) {
        if header.request == SET_PROTOCOL_FEATURES && !refused {
            let features = self.inbound[HEADER_BYTES..].try_into().map(u64::from_ne_bytes);
            self.acknowledges = features.expect("its payload was taken") & REPLY_ACK != 0;
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
