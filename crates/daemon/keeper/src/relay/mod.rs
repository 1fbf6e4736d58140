//! What becomes of a client's bytes and a daemon's packets, of one device: a state machine that reads and writes
//! nothing itself. `F` is a descriptor, which it never looks at.
//!
//! Between a client and a daemon there is one message at a time: what is read of the client is one whole message, and
//! nothing more of it is read before that one was answered and the reply is on its way. So what is held for it is
//! bounded by what the daemon asks to have kept, which has [`Limits`].

mod client;
pub mod save;

use std::time::Duration;

use client_socket::keeping::wire::{Framing, Gone, How, Said, Told};

pub use client::{Client, Limits, Message, Reply, Unanswered};

/// One device.
#[derive(Debug)]
pub struct Relay<F> {
    pub(crate) framing: Framing,
    pub(crate) client: Option<Client<F>>,
    pub(crate) daemon: Option<Daemon>,
    /// What nobody needs any more. Closing it may take for ever.
    discarded: Discarded<F>,
    /// Counts whatever makes it another one.
    changes: u64,
    /// How long there was no daemon before this one. Not saved: it is told at once.
    alone_ms: u64,
}

/// What is to be closed.
#[derive(Debug)]
pub struct Discarded<F> {
    /// A client's socket, and why its connection is over. Another process may have the socket too: shut it down first.
    pub client: Option<(F, Gone)>,
    /// The rest.
    pub fds: Vec<F>,
}

impl<F> Default for Discarded<F> {
    fn default() -> Self {
        Self { client: None, fds: Vec::new() }
    }
}

/// The daemon at the other end of the channel, and what it knows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Daemon {
    /// It said so, and no client came since.
    pub may_come: bool,
    /// How far it knows the client.
    pub knows: Knows,
    /// A client that it knew is gone, which it doesn't know.
    pub gone: Option<(u64, Gone)>,
    /// Another one was sent away, which it doesn't know.
    pub refused: bool,
}

/// How far a daemon knows the client that there is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knows {
    /// Not that there is one.
    #[default]
    Nothing,
    /// It is to be told that there is one.
    IsToHear,
    /// It was told, and of kept messages all below this number.
    KeptBelow(u64),
    /// All but the message that is not answered.
    Client,
    /// That one too.
    Message,
}

/// A daemon said what makes no sense; nothing else that it says is to be believed.
#[derive(Debug, PartialEq, Eq)]
pub struct Nonsense;

/// What a daemon is to be told next.
enum Next {
    Gone(u64, Gone),
    Refused,
    Client,
    Kept(u64),
    Restored,
    Message,
}

impl<F> Relay<F> {
    /// A device that nobody is at.
    pub fn new(framing: Framing) -> Self {
        Self { framing, client: None, daemon: None, discarded: Discarded::default(), changes: 0, alone_ms: 0 }
    }

    /// How often it changed: what was saved before is not what it is now, if that is another number.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// From now on messages end where this says.
    pub fn reframe(&mut self, framing: Framing) {
        self.changes += 1;
        self.framing = framing;
    }

    /// The client's socket, if there is a client.
    pub fn socket(&self) -> Option<&F> {
        self.client.as_ref().map(|client| &client.socket)
    }

    /// A daemon has the other end of a channel now, in place of the one before, and for so long there was none.
    pub fn daemon_came(&mut self, alone: Duration) {
        self.daemon_left();
        self.alone_ms = u64::try_from(alone.as_millis()).unwrap_or(u64::MAX);
        self.daemon = Some(Daemon::default());
    }

    /// No daemon has it any more.
    pub fn daemon_left(&mut self) {
        self.changes += 1;
        self.daemon = None;
    }

    /// Whether a daemon is there.
    pub fn has_daemon(&self) -> bool {
        self.daemon.is_some()
    }

    /// Whether the next client may come.
    pub fn wants_client(&self) -> bool {
        let waits = |daemon: &Daemon| daemon.may_come && daemon.gone.is_none();
        self.client.is_none() && self.daemon.as_ref().is_some_and(waits)
    }

    /// Whether another client is to be sent away, if one comes.
    pub fn refuses_others(&self) -> bool {
        let knows = |daemon: &Daemon| !matches!(daemon.knows, Knows::Nothing | Knows::IsToHear);
        self.client.is_some() && self.daemon.as_ref().is_some_and(knows)
    }

    /// The next client came. Its number is above that of all others.
    pub fn client_came(&mut self, number: u64, socket: F) {
        self.changes += 1;
        self.lose(Gone::Left);
        self.client = Some(Client::new(number, socket));
        self.introduce();
    }

    /// Another client was sent away.
    pub fn another_was_refused(&mut self) {
        self.changes += 1;
        if let Some(daemon) = &mut self.daemon {
            daemon.refused = true;
        }
    }

    /// The client is gone, for that reason.
    pub fn lose(&mut self, why: Gone) {
        self.changes += 1;
        let Some(client) = self.client.take() else { return };
        if let Some(daemon) = &mut self.daemon {
            match std::mem::take(&mut daemon.knows) {
                Knows::Nothing => {}
                // It never heard of this one, and waits for another.
                Knows::IsToHear => daemon.may_come = true,
                _ => daemon.gone = Some((client.number, why)),
            }
        }
        client.discard(why, &mut self.discarded);
    }

    /// How many descriptors the client has here, beside its socket.
    pub fn client_fds(&self) -> usize {
        self.client.as_ref().map_or(0, Client::fds)
    }

    /// How many bytes of the client's are wanted now, at most. `None`: none, not even that there are no more.
    pub fn wanted_bytes(&self) -> Option<usize> {
        let client = self.client.as_ref()?;
        let is_busy = client.unanswered.is_some() || client.reply.is_some() || client.is_closing;
        if is_busy { None } else { Some(client.missing_bytes(&self.framing)) }
    }

    /// Whether the client owes the rest of a message.
    pub fn is_midway(&self) -> bool {
        self.client.as_ref().is_some_and(|client| !client.inbound.bytes.is_empty())
    }

    /// The client sent this, [no more](Self::wanted_bytes) than wanted. It is gone if it may not.
    pub fn receive(&mut self, bytes: &[u8], fds: Vec<F>) {
        self.changes += 1;
        let Some(client) = &mut self.client else { return self.discarded.fds.extend(fds) };
        client.inbound.bytes.extend_from_slice(bytes);
        client.inbound.fds.extend(fds);
        if let Err(why) = client.complete(&self.framing) {
            self.lose(why);
        }
    }

    /// What the client is to be sent next, and the descriptor that goes along.
    pub fn to_client(&self) -> Option<(&[u8], Option<&F>)> {
        let reply = self.client.as_ref()?.reply.as_ref()?;
        Some((reply.bytes.get(reply.sent_bytes..)?, reply.fd.as_ref()))
    }

    /// So much of that went.
    pub fn sent_to_client(&mut self, bytes: usize) {
        self.changes += 1;
        let Some(client) = &mut self.client else { return };
        let Some(reply) = &mut client.reply else { return };
        reply.sent_bytes += bytes;
        self.discarded.fds.extend(reply.fd.take());
        if reply.sent_bytes >= reply.bytes.len() {
            client.reply = None;
            if client.is_closing {
                self.lose(Gone::Left);
            }
        }
    }

    /// What the daemon is to be told next, with which descriptors.
    pub fn to_daemon(&self) -> Option<(Told, Vec<&F>)> {
        let next = self.next()?;
        let told = match (next, &self.client) {
            (Next::Gone(client, why), _) => Told::Gone { client, why },
            (Next::Refused, _) => Told::Refused,
            (Next::Client, Some(client)) => {
                let told = Told::Client { client: client.number, is_held: client.was_told };
                return Some((told, vec![&client.socket]));
            }
            (Next::Restored, Some(client)) => Told::Restored { client: client.number, alone_ms: self.alone_ms },
            (Next::Kept(number), Some(client)) => {
                return Some(client.kept.get(&number)?.told(client.number, number, How::Kept));
            }
            (Next::Message, Some(client)) => {
                let Unanswered { number, message, was_told } = client.unanswered.as_ref()?;
                return Some(message.told(client.number, *number, if *was_told { How::Again } else { How::New }));
            }
            _ => return None,
        };
        Some((told, Vec::new()))
    }

    /// It was told that.
    pub fn told(&mut self) {
        self.changes += 1;
        let next = self.next();
        let (Some(next), Some(daemon)) = (next, &mut self.daemon) else { return };
        match (next, &mut self.client) {
            (Next::Gone(..), _) => {
                daemon.gone = None;
                self.introduce();
            }
            (Next::Refused, _) => daemon.refused = false,
            (Next::Client, Some(client)) => {
                // A client that no daemon was told of has nothing to restore.
                daemon.knows = if client.was_told { Knows::KeptBelow(0) } else { Knows::Client };
                client.was_told = true;
            }
            (Next::Kept(number), _) => daemon.knows = Knows::KeptBelow(number + 1),
            (Next::Restored, _) => daemon.knows = Knows::Client,
            (Next::Message, Some(Client { unanswered: Some(unanswered), .. })) => {
                unanswered.was_told = true;
                daemon.knows = Knows::Message;
            }
            _ => {}
        }
    }

    /// The daemon said this.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn said(&mut self, said: Said, mut fds: Vec<F>, limits: &Limits) -> Result<(), Nonsense> {
        self.changes += 1;
        let has_too_many = fds.len() > usize::from(matches!(&said, Said::Answer { bytes, .. } if !bytes.is_empty()));
        if has_too_many {
            self.discarded.fds.append(&mut fds);
            return Err(Nonsense);
        }
        let Some(daemon) = &mut self.daemon else { return Err(Nonsense) };
        match said {
            Said::Accept => {
                daemon.may_come = true;
                self.introduce();
            }
            Said::Answer { client, number, keep, forget, bytes } => {
                let is_for = |there: &&mut Client<F>| there.number == client && daemon.knows == Knows::Message;
                let Some(there) = self.client.as_mut().filter(is_for) else {
                    self.discarded.fds.append(&mut fds);
                    return Ok(());
                };
                let Some(message) = there.take_unanswered(number) else {
                    self.discarded.fds.append(&mut fds);
                    return Ok(());
                };
                daemon.knows = Knows::Client;
                forget.iter().for_each(|number| there.forget(*number, &mut self.discarded));
                if keep {
                    there.keep(number, message);
                } else {
                    self.discarded.fds.extend(message.fds);
                }
                if !bytes.is_empty() {
                    there.reply = Some(Reply { bytes, sent_bytes: 0, fd: fds.pop() });
                }
                if there.exceeds(limits) {
                    self.lose(Gone::Socket(rustix::io::Errno::NOBUFS.raw_os_error()));
                }
            }
            Said::Close { client } => self.close(client),
        }
        Ok(())
    }

    /// What is to be closed; where something was, nothing is left of it here.
    pub fn take_discarded(&mut self) -> Option<Discarded<F>> {
        let is_empty = self.discarded.client.is_none() && self.discarded.fds.is_empty();
        (!is_empty).then(|| std::mem::take(&mut self.discarded))
    }

    /// This is to be closed too.
    pub fn discard(&mut self, fds: impl IntoIterator<Item = F>) {
        self.discarded.fds.extend(fds);
    }

    fn close(&mut self, number: u64) {
        let Some(client) = self.client.as_mut().filter(|client| client.number == number) else { return };
        let is_known = self.daemon.as_ref().is_some_and(|daemon| daemon.knows != Knows::Nothing);
        if !is_known {
            return;
        }
        client.is_closing = true;
        if client.reply.is_none() {
            self.lose(Gone::Left);
        }
    }

    /// Lets the daemon hear of the client, if it waits for one.
    fn introduce(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        if self.client.is_some() && daemon.may_come && daemon.gone.is_none() && daemon.knows == Knows::Nothing {
            daemon.may_come = false;
            daemon.knows = Knows::IsToHear;
        }
    }

    fn next(&self) -> Option<Next> {
        let daemon = self.daemon.as_ref()?;
        if let Some((client, why)) = daemon.gone {
            return Some(Next::Gone(client, why));
        }
        if daemon.refused {
            return Some(Next::Refused);
        }
        let client = self.client.as_ref()?;
        match daemon.knows {
            Knows::Nothing | Knows::Message => None,
            Knows::IsToHear => Some(Next::Client),
            Knows::KeptBelow(number) => {
                Some(client.kept.range(number..).next().map_or(Next::Restored, |(number, _)| Next::Kept(*number)))
            }
            Knows::Client => client.unanswered.is_some().then_some(Next::Message),
        }
    }
}
