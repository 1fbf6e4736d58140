//! One client, and what is held of it.

use std::collections::BTreeMap;

use client_socket::keeping::wire::{Framing, Gone, How, Told};

use super::Discarded;

/// What a client can have kept at most, whatever a daemon asks for.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Messages.
    pub messages: usize,
    /// All their bytes.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { messages: 4096, bytes: 8 << 20 }
    }
}

/// A client's message, whole or in part.
#[derive(Debug)]
pub struct Message<F> {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What came along.
    pub fds: Vec<F>,
}

impl<F> Default for Message<F> {
    fn default() -> Self {
        Self { bytes: Vec::new(), fds: Vec::new() }
    }
}

impl<F> Message<F> {
    pub(super) fn told(&self, client: u64, number: u64, how: How) -> (Told, Vec<&F>) {
        (Told::Message { client, number, how, bytes: self.bytes.clone() }, self.fds.iter().collect())
    }
}

/// The message that was not answered.
#[derive(Debug)]
pub struct Unanswered<F> {
    /// Its number.
    pub number: u64,
    /// All of it.
    pub message: Message<F>,
    /// Whether a daemon was told.
    pub was_told: bool,
}

/// A reply on its way.
#[derive(Debug)]
pub struct Reply<F> {
    /// All of it.
    pub bytes: Vec<u8>,
    /// What of it went.
    pub sent_bytes: usize,
    /// Goes with the first byte.
    pub fd: Option<F>,
}

/// A client.
#[derive(Debug)]
pub struct Client<F> {
    /// Its number.
    pub number: u64,
    /// Its socket.
    pub socket: F,
    /// Whether a daemon was told of it.
    pub was_told: bool,
    /// The number of its next message.
    pub next_number: u64,
    /// What is kept for another daemon.
    pub kept: BTreeMap<u64, Message<F>>,
    /// What is not answered.
    pub unanswered: Option<Unanswered<F>>,
    /// What came of a message that is not whole.
    pub inbound: Message<F>,
    /// What it is being answered.
    pub reply: Option<Reply<F>>,
    /// It is to be sent away once it has its reply.
    pub is_closing: bool,
    /// Sums over what is kept.
    kept_bytes: usize,
    kept_fds: usize,
}

impl<F> Client<F> {
    /// A client that has said nothing yet.
    pub fn new(number: u64, socket: F) -> Self {
        Self {
            number,
            socket,
            was_told: false,
            next_number: 1,
            kept: BTreeMap::new(),
            unanswered: None,
            inbound: Message::default(),
            reply: None,
            is_closing: false,
            kept_bytes: 0,
            kept_fds: 0,
        }
    }

    /// Keeps a message for another daemon.
    pub fn keep(&mut self, number: u64, message: Message<F>) {
        self.kept_bytes += message.bytes.len();
        self.kept_fds += message.fds.len();
        self.kept.insert(number, message);
    }

    pub(super) fn forget(&mut self, number: u64, discarded: &mut Discarded<F>) {
        let Some(message) = self.kept.remove(&number) else { return };
        self.kept_bytes -= message.bytes.len();
        self.kept_fds -= message.fds.len();
        discarded.fds.extend(message.fds);
    }

    pub(super) fn exceeds(&self, limits: &Limits) -> bool {
        self.kept.len() > limits.messages || self.kept_bytes > limits.bytes
    }

    /// Descriptors that came with its messages and are still held.
    pub(super) fn fds(&self) -> usize {
        let unanswered = self.unanswered.as_ref().map_or(0, |unanswered| unanswered.message.fds.len());
        self.kept_fds + unanswered + self.inbound.fds.len()
    }

    /// How much its message lacks, as far as can be told: first the header, then the rest.
    pub(super) fn missing_bytes(&self, framing: &Framing) -> usize {
        let has = self.inbound.bytes.len();
        let header = framing.header_bytes as usize;
        let wanted = if has < header { header } else { framing.message_bytes(&self.inbound.bytes).unwrap_or(header) };
        wanted.saturating_sub(has)
    }

    /// Makes what came a message, once it is one.
    pub(super) fn complete(&mut self, framing: &Framing) -> Result<(), Gone> {
        if self.inbound.fds.len() > framing.max_fds as usize {
            return Err(Gone::TooManyFds);
        }
        let has = self.inbound.bytes.len();
        if has < framing.header_bytes as usize {
            return Ok(());
        }
        let total = framing.message_bytes(&self.inbound.bytes).ok_or(Gone::BadLength)?;
        if has > total {
            return Err(Gone::BadLength);
        }
        if has == total {
            let number = self.next_number;
            self.next_number += 1;
            let message = std::mem::take(&mut self.inbound);
            self.unanswered = Some(Unanswered { number, message, was_told: false });
        }
        Ok(())
    }

    pub(super) fn take_unanswered(&mut self, number: u64) -> Option<Message<F>> {
        self.unanswered.take_if(|unanswered| unanswered.number == number).map(|unanswered| unanswered.message)
    }

    pub(super) fn discard(self, why: Gone, discarded: &mut Discarded<F>) {
        let Self { socket, kept, unanswered, inbound, reply, .. } = self;
        let before = discarded.client.replace((socket, why));
        discarded.fds.extend(before.map(|(socket, _)| socket));
        discarded.fds.extend(kept.into_values().flat_map(|message| message.fds));
        discarded.fds.extend(unanswered.into_iter().flat_map(|unanswered| unanswered.message.fds));
        discarded.fds.extend(inbound.fds);
        discarded.fds.extend(reply.and_then(|reply| reply.fd));
    }
}
