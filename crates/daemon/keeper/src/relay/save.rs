//! A relay as bytes, for the program that takes over. Descriptors are numbers there.

use std::collections::BTreeMap;

use client_socket::keeping::wire::{Framing, Gone};

use super::{Client, Daemon, Discarded, Knows, Message, Relay, Reply, Unanswered};
use crate::bytes::{Reader, Writer};

impl<F> Relay<F> {
    /// Writes it, but for what is discarded. `number` of a descriptor is what it is found again by.
    pub fn save<'a>(&'a self, to: &mut Writer, number: &mut dyn FnMut(&'a F) -> u64) {
        save_framing(&self.framing, to);
        to.maybe(self.daemon.as_ref(), |to, daemon| daemon.save(to));
        to.maybe(self.client.as_ref(), |to, client| client.save(to, number));
    }

    /// Reads it. `None`: it is none, or one of its descriptors is not there.
    pub fn restore(from: &mut Reader<'_>, fd: &mut dyn FnMut(u64) -> Option<F>) -> Option<Self> {
        let framing = restore_framing(from)?;
        let daemon = from.maybe(Daemon::restore)?;
        let client = from.maybe(|from| Client::restore(from, fd))?;
        Some(Self { framing, client, daemon, discarded: Discarded::default(), changes: 0, alone_ms: 0 })
    }
}

/// Where messages end.
pub fn save_framing(framing: &Framing, to: &mut Writer) {
    let Framing { header_bytes, length_at, with_header, max_bytes, max_fds } = *framing;
    [header_bytes, length_at, max_bytes, max_fds].into_iter().for_each(|number| to.u64(number.into()));
    to.flag(with_header);
}

/// Restores a framing.
pub fn restore_framing(from: &mut Reader<'_>) -> Option<Framing> {
    let (header_bytes, length_at, max_bytes, max_fds) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
    let framing = Framing { header_bytes, length_at, with_header: from.flag()?, max_bytes, max_fds };
    framing.is_sane().then_some(framing)
}

impl Daemon {
    fn save(&self, to: &mut Writer) {
        to.flag(self.may_come);
        to.flag(self.refused);
        let (what, number) = match self.knows {
            Knows::Nothing => (0, 0),
            Knows::IsToHear => (1, 0),
            Knows::KeptBelow(number) => (2, number),
            Knows::Client => (3, 0),
            Knows::Message => (4, 0),
        };
        to.u64(what);
        to.u64(number);
        to.maybe(self.gone, |to, (client, why)| {
            let (code, errno) = why.code();
            [client, code.into(), errno.into()].into_iter().for_each(|number| to.u64(number));
        });
    }

    fn restore(from: &mut Reader<'_>) -> Option<Self> {
        let (may_come, refused) = (from.flag()?, from.flag()?);
        let knows = match (from.u64()?, from.u64()?) {
            (0, _) => Knows::Nothing,
            (1, _) => Knows::IsToHear,
            (2, number) => Knows::KeptBelow(number),
            (3, _) => Knows::Client,
            (4, _) => Knows::Message,
            _ => return None,
        };
        let gone = from.maybe(|from| Some((from.u64()?, Gone::of(from.u32()?, from.u32()?)?)))?;
        Some(Self { may_come, knows, gone, refused })
    }
}

impl<F> Message<F> {
    fn save<'a>(&'a self, to: &mut Writer, number: &mut dyn FnMut(&'a F) -> u64) {
        to.bytes(&self.bytes);
        to.u64(self.fds.len() as u64);
        self.fds.iter().for_each(|fd| to.u64(number(fd)));
    }

    fn restore(from: &mut Reader<'_>, fd: &mut dyn FnMut(u64) -> Option<F>) -> Option<Self> {
        Some(Self { bytes: from.bytes()?.to_vec(), fds: from.several(|from| fd(from.u64()?))? })
    }
}

impl<F> Client<F> {
    fn save<'a>(&'a self, to: &mut Writer, number: &mut dyn FnMut(&'a F) -> u64) {
        to.u64(self.number);
        to.u64(number(&self.socket));
        to.flag(self.was_told);
        to.u64(self.next_number);
        to.flag(self.is_closing);
        to.u64(self.kept.len() as u64);
        for (which, message) in &self.kept {
            to.u64(*which);
            message.save(to, number);
        }
        to.maybe(self.unanswered.as_ref(), |to, unanswered| {
            to.u64(unanswered.number);
            to.flag(unanswered.was_told);
            unanswered.message.save(to, number);
        });
        self.inbound.save(to, number);
        to.maybe(self.reply.as_ref(), |to, reply| {
            to.bytes(&reply.bytes);
            to.u64(reply.sent_bytes as u64);
            to.maybe(reply.fd.as_ref(), |to, fd| to.u64(number(fd)));
        });
    }

    fn restore(from: &mut Reader<'_>, fd: &mut dyn FnMut(u64) -> Option<F>) -> Option<Self> {
        let (number, socket) = (from.u64()?, fd(from.u64()?)?);
        let mut client = Self::new(number, socket);
        client.was_told = from.flag()?;
        client.next_number = from.u64()?;
        client.is_closing = from.flag()?;
        let kept: BTreeMap<_, _> =
            from.several(|from| Some((from.u64()?, Message::restore(from, fd)?)))?.into_iter().collect();
        kept.into_iter().for_each(|(number, message)| client.keep(number, message));
        client.unanswered = from.maybe(|from| {
            let (number, was_told) = (from.u64()?, from.flag()?);
            Some(Unanswered { number, was_told, message: Message::restore(from, fd)? })
        })?;
        client.inbound = Message::restore(from, fd)?;
        client.reply = from.maybe(|from| {
            let bytes = from.bytes()?.to_vec();
            let sent_bytes = usize::try_from(from.u64()?).ok().filter(|sent| *sent < bytes.len())?;
            Some(Reply { bytes, sent_bytes, fd: from.maybe(|from| fd(from.u64()?))? })
        })?;
        Some(client)
    }
}
