//! What must come of it, written from the protocol's description alone.

use std::collections::{BTreeMap, VecDeque};

use client_socket::keeping::wire::{Framing, Gone, How, Said, Told};
use keeper::relay::Limits;

use super::Fd;

type Message = (Vec<u8>, Vec<u32>);

#[derive(Default)]
struct Client {
    number: u64,
    socket: u32,
    was_told: bool,
    /// What it sent that did not arrive: bytes, and descriptors before them.
    sent: VecDeque<(u8, Vec<Fd>)>,
    inbound: Message,
    next: u64,
    unanswered: Option<(u64, Message, bool)>,
    kept: BTreeMap<u64, Message>,
    reply: VecDeque<u8>,
    reply_fd: Option<u32>,
    is_closing: bool,
}

#[derive(Default)]
struct Daemon {
    may_come: bool,
    /// It is about to hear of the client.
    is_to_hear: bool,
    knows_client: bool,
    /// Kept ones that it was not told yet; and whether `Restored` is still to come.
    kept: VecDeque<u64>,
    is_restored: bool,
    knows_message: bool,
    gone: Option<(u64, Gone)>,
    refused: bool,
}

pub struct Model {
    framing: Framing,
    client: Option<Client>,
    daemon: Option<Daemon>,
}

impl Model {
    pub fn new(framing: Framing) -> Self {
        Self { framing, client: None, daemon: None }
    }

    pub fn wants_client(&self) -> bool {
        self.client.is_none() && self.daemon.as_ref().is_some_and(|daemon| daemon.may_come && daemon.gone.is_none())
    }

    pub fn came(&mut self, number: u64, socket: u32) {
        assert!(self.wants_client());
        self.client = Some(Client { number, socket, next: 1, ..Client::default() });
        self.introduce();
    }

    fn introduce(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let is_new = !daemon.is_to_hear && !daemon.knows_client;
        if self.client.is_some() && daemon.may_come && daemon.gone.is_none() && is_new {
            (daemon.may_come, daemon.is_to_hear) = (false, true);
        }
    }

    /// The client sends a message whose length may be wrong.
    pub fn send(&mut self, rest: u8, length_is_off_by: u8, fds: Vec<Fd>) {
        let Some(client) = &mut self.client else { return };
        let counted = if self.framing.with_header { rest + 6 } else { rest };
        let length =
            if (1..4).contains(&length_is_off_by) { counted.wrapping_add(length_is_off_by * 31) } else { counted };
        let header = [rest, length, 0, 0, 0, length_is_off_by];
        let mut bytes: VecDeque<(u8, Vec<Fd>)> =
            header.into_iter().chain(0..rest).map(|byte| (byte, Vec::new())).collect();
        // Somewhere within.
        let at = usize::from(length_is_off_by) % bytes.len();
        bytes[at].1 = fds;
        client.sent.append(&mut bytes);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        if let Some(client) = &mut self.client {
            client.sent.extend(bytes.iter().map(|byte| (*byte, Vec::new())));
        }
    }

    pub fn is_on_its_way(&self, fd: u32) -> bool {
        let sent = self.client.iter().flat_map(|client| &client.sent);
        sent.flat_map(|(_, fds)| fds).any(|one| **one == fd)
    }

    pub fn wants_bytes(&self) -> bool {
        let idle = |client: &Client| client.unanswered.is_none() && client.reply.is_empty() && !client.is_closing;
        self.client.as_ref().is_some_and(idle)
    }

    pub fn take_sent(&mut self, most: usize) -> (Vec<u8>, Vec<Fd>) {
        let Some(client) = &mut self.client else { return (Vec::new(), Vec::new()) };
        let taken: Vec<_> = client.sent.drain(..most.min(client.sent.len())).collect();
        let (bytes, fds): (Vec<u8>, Vec<Vec<Fd>>) = taken.into_iter().unzip();
        (bytes, fds.into_iter().flatten().collect())
    }

    pub fn arrived(&mut self, bytes: &[u8], fds: &[Fd]) {
        let Some(client) = &mut self.client else { return };
        client.inbound.0.extend(bytes);
        client.inbound.1.extend(fds.iter().map(|fd| **fd));
        if client.inbound.1.len() > self.framing.max_fds as usize {
            return self.lose(Gone::TooManyFds);
        }
        let has = &client.inbound.0;
        if has.len() < 6 {
            return;
        }
        let length = u64::from(u32::from_le_bytes([has[1], has[2], has[3], has[4]]));
        let total = if self.framing.with_header { length } else { length + 6 };
        if !(6..=u64::from(self.framing.max_bytes)).contains(&total) {
            return self.lose(Gone::BadLength);
        }
        assert!(has.len() as u64 <= total, "bytes of the next message");
        if has.len() as u64 == total {
            client.unanswered = Some((client.next, std::mem::take(&mut client.inbound), false));
            client.next += 1;
        }
    }

    pub fn lose(&mut self, why: Gone) {
        let Some(client) = self.client.take() else { return };
        let Some(daemon) = &mut self.daemon else { return };
        let before = std::mem::take(daemon);
        *daemon = Daemon { may_come: before.may_come | before.is_to_hear, gone: before.gone, ..Daemon::default() };
        daemon.refused = before.refused;
        if before.knows_client {
            daemon.gone = Some((client.number, why));
        }
    }

    pub fn refused(&mut self) {
        let daemon = self.daemon.as_mut().expect("who hears of it");
        assert!(daemon.knows_client && self.client.is_some());
        daemon.refused = true;
    }

    pub fn daemon(&mut self, is_there: bool) {
        self.daemon = is_there.then(Daemon::default);
    }

    pub fn unanswered(&self) -> Option<(u64, u64)> {
        let client = self.client.as_ref()?;
        client.unanswered.as_ref().map(|(number, ..)| (client.number, *number))
    }

    /// The client reads this.
    pub fn read(&mut self, bytes: &[u8], fd: Option<u32>) {
        let client = self.client.as_mut().expect("a client that reads");
        assert_eq!(fd, client.reply_fd.take(), "the reply's descriptor");
        assert!(client.reply.len() >= bytes.len() && client.reply.iter().zip(bytes).all(|(a, b)| a == b), "a reply");
        client.reply.drain(..bytes.len());
        if client.reply.is_empty() && client.is_closing {
            self.lose(Gone::Left);
        }
    }

    pub fn has_no_reply(&self) {
        assert!(self.client.as_ref().is_none_or(|client| client.reply.is_empty()), "a reply is lost");
    }

    /// The daemon is told this.
    pub fn told(&mut self, told: &Told, fds: &[u32]) {
        let daemon = self.daemon.as_mut().expect("a daemon that is told");
        let mut own_fds = Vec::new();
        match (told, &mut self.client) {
            (Told::Gone { client, why }, _) => {
                assert_eq!(daemon.gone.take(), Some((*client, *why)));
                self.introduce();
            }
            (Told::Refused, _) => assert!(std::mem::take(&mut daemon.refused)),
            (Told::Client { client: number, is_held }, Some(client)) => {
                assert!(daemon.is_to_hear && daemon.gone.is_none());
                assert_eq!((*number, *is_held), (client.number, client.was_told));
                own_fds.push(client.socket);
                (daemon.is_to_hear, daemon.knows_client, daemon.is_restored) = (false, true, !is_held);
                daemon.kept = if *is_held { client.kept.keys().copied().collect() } else { VecDeque::new() };
                client.was_told = true;
            }
            (Told::Message { client: whose, number, how: How::Kept, bytes }, Some(client)) => {
                assert_eq!((*whose, Some(*number)), (client.number, daemon.kept.pop_front()));
                assert!(daemon.knows_client && !daemon.is_restored);
                let kept = &client.kept[number];
                assert_eq!(*bytes, kept.0);
                own_fds.clone_from(&kept.1);
            }
            (Told::Restored { client: whose, .. }, Some(client)) => {
                assert_eq!(*whose, client.number);
                assert!(daemon.knows_client && daemon.kept.is_empty() && !daemon.is_restored);
                daemon.is_restored = true;
            }
            (Told::Message { client: whose, number, how, bytes }, Some(client)) => {
                let (wanted, message, was_told) = client.unanswered.as_mut().expect("a message");
                assert!(daemon.knows_client && daemon.is_restored && !daemon.knows_message);
                let wanted_how = if *was_told { How::Again } else { How::New };
                assert_eq!((*whose, *number, *how), (client.number, *wanted, wanted_how));
                assert_eq!(*bytes, message.0);
                own_fds.clone_from(&message.1);
                (*was_told, daemon.knows_message) = (true, true);
            }
            (told, None) => panic!("{told:?} of nobody"),
        }
        assert_eq!(fds, own_fds, "descriptors of {told:?}");
    }

    /// Nothing is left to be told.
    pub fn is_told_all(&self) {
        let Some(daemon) = &self.daemon else { return };
        assert!(daemon.gone.is_none() && !daemon.refused && !daemon.is_to_hear);
        let Some(client) = &self.client else { return };
        assert!(!daemon.may_come || daemon.knows_client, "the client is not told");
        if daemon.knows_client {
            assert!(daemon.kept.is_empty() && daemon.is_restored);
            assert!(client.unanswered.is_none() || daemon.knows_message, "the message is not told");
        }
    }

    /// The daemon says this; whether it makes sense.
    pub fn said(&mut self, said: &Said, fds: &[Fd], limits: &Limits) -> bool {
        let daemon = self.daemon.as_mut().expect("a daemon that speaks");
        match said {
            Said::Answer { bytes, .. } if fds.len() <= usize::from(!bytes.is_empty()) => {
                self.answered(said, fds.first(), limits);
            }
            _ if !fds.is_empty() => return false,
            Said::Accept => {
                daemon.may_come = true;
                self.introduce();
            }
            Said::Close { client: number } => {
                let is_known = daemon.is_to_hear || daemon.knows_client;
                let Some(client) = self.client.as_mut().filter(|client| client.number == *number && is_known) else {
                    return true;
                };
                client.is_closing = true;
                if client.reply.is_empty() {
                    self.lose(Gone::Left);
                }
            }
            Said::Answer { .. } => {}
        }
        true
    }

    fn answered(&mut self, said: &Said, fd: Option<&Fd>, limits: &Limits) {
        let (Said::Answer { client: whose, number, keep, forget, bytes }, Some(client), Some(daemon)) =
            (said, &mut self.client, &mut self.daemon)
        else {
            return;
        };
        let is_it = |(wanted, ..): &mut (u64, Message, bool)| wanted == number;
        if client.number != *whose || !daemon.knows_message {
            return;
        }
        let Some((_, message, _)) = client.unanswered.take_if(is_it) else { return };
        daemon.knows_message = false;
        forget.iter().for_each(|number| drop(client.kept.remove(number)));
        if *keep {
            client.kept.insert(*number, message);
        }
        client.reply.extend(bytes);
        client.reply_fd = fd.map(|fd| **fd);
        let bytes: usize = client.kept.values().map(|message| message.0.len()).sum();
        if client.kept.len() > limits.messages || bytes > limits.bytes {
            self.lose(Gone::Socket(105));
        }
    }

    /// How many descriptors there is reason to hold.
    pub fn held_fds(&self) -> usize {
        let of_client = self.client.as_ref().map_or(0, |client| 1 + usize::from(client.reply_fd.is_some()));
        of_client + self.message_fds()
    }

    /// How many of them came with messages.
    pub fn message_fds(&self) -> usize {
        let Some(client) = &self.client else { return 0 };
        let messages = client.kept.values().chain(client.unanswered.iter().map(|(_, message, _)| message));
        messages.chain([&client.inbound]).map(|message| message.1.len()).sum()
    }

    /// Whether all that was sent arrived, and all of it was answered and read.
    pub fn is_idle(&self) -> bool {
        let Some(client) = &self.client else { return true };
        client.sent.is_empty() && client.unanswered.is_none() && client.reply.is_empty()
    }
}
