//! A device whose clients are kept: what its thread does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::say;
use super::wire::{Framing, Gone, How, MAX_PACKET_BYTES, Said, Told};
use crate::connection::{Closed, Connection, Protocol};
use crate::gate::HeldSockets;
use crate::message::{Received, receive};
use crate::server::{SILENCE, Served, wait};
use crate::session::Session;

/// The daemon's end of a device's channel.
pub struct Channel {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Channel {
    pub fn new(socket: OwnedFd, framing: &Framing) -> Self {
        let most = MAX_PACKET_BYTES.min(framing.max_bytes as usize + 64);
        Self { socket, buffer: vec![0; most] }
    }

    fn say(&self, said: &Said, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        say(&self.socket, &said.encode(), fd.as_slice())
    }

    /// What the keeper told, if it did.
    fn hear(&mut self) -> Result<Option<(Told, Vec<OwnedFd>)>, Errno> {
        match receive(&self.socket, &mut self.buffer, RecvFlags::DONTWAIT)? {
            Received::Nothing => Ok(None),
            Received::Bytes(bytes, fds) => {
                Told::decode(&self.buffer[..bytes]).map(|told| Some((told, fds))).ok_or(Errno::PROTO)
            }
            Received::End => Err(Errno::PIPE),
            Received::TooManyFds(_) => Err(Errno::MFILE),
        }
    }
}

/// The one client of a device.
struct KeptClient<P: Protocol> {
    number: u64,
    session: Session,
    connection: Connection<P>,
    heard_at: Instant,
    /// It is to be told of a configuration change.
    config_changed: bool,
    /// Last, so that all that has them is gone before.
    sockets: HeldSockets,
}

/// How a client's time with this process ends.
enum Over<E> {
    /// For good.
    Closed(Closed<E>),
    /// This process ends before it does.
    Left,
}

impl<E> From<Closed<E>> for Over<E> {
    fn from(closed: Closed<E>) -> Self {
        Self::Closed(closed)
    }
}

impl<P: Protocol, F: Fn() -> P> Served<P, F> {
    /// Serves one client after the other until the device is taken off its socket, or the keeper is gone.
    pub fn run_kept(&mut self, mut channel: Channel) {
        while !self.control.is_stopping() {
            let next = channel.say(&Said::Accept, None).and_then(|()| self.wait_for_kept(&mut channel));
            match next {
                Ok(Some((number, is_held, socket))) => self.serve_kept(number, is_held, socket, &mut channel),
                Ok(None) => {}
                // It was told to forget the device, which ends the channel too.
                Err(_) if self.control.is_stopping() => return,
                Err(errno) => {
                    self.log.warn(&format!(
                        "{}: the keeper is gone ({errno}); until there is one again, clients lose their disk when the \
                         daemon ends",
                        self.name
                    ));
                    self.control.listener.lost_keeper();
                    return;
                }
            }
        }
    }

    /// Where there is a keeper again, it has the client that waits, and all that come.
    pub fn keep_again(&self) -> Option<Channel> {
        // If the keeper is not there, or refuses, it is asked again for the next client.
        self.control.listener.begin_to_keep(P::FRAMING?).ok().flatten()
    }

    /// The next client, unless the device is taken off its socket before one comes.
    fn wait_for_kept(&mut self, channel: &mut Channel) -> Result<Option<(u64, bool, OwnedFd)>, Errno> {
        while !self.control.is_stopping() {
            let waker = &self.control.waker;
            let [is_ready, woken] =
                wait([(channel.socket.as_fd(), PollFlags::IN), (waker.as_fd(), PollFlags::IN)], None)?;
            if woken {
                waker.drain();
            }
            if !is_ready {
                continue;
            }
            match channel.hear()? {
                Some((Told::Client { client, is_held }, fds)) => {
                    let socket = fds.into_iter().next().ok_or(Errno::PROTO)?;
                    return Ok(Some((client, is_held, socket)));
                }
                // Of a client that was sent away meanwhile.
                Some((_, fds)) => HeldSockets::let_go(fds, self.control.listener.door()),
                None => {}
            }
        }
        Ok(None)
    }

    fn serve_kept(&mut self, number: u64, is_held: bool, socket: OwnedFd, channel: &mut Channel) {
        let is_admitted = self.admit(&socket, if is_held { "goes on" } else { "attached" });
        // The keeper has it too, but may close it any moment, and the last to do so can be made to wait.
        self.control.listener.dispose(socket);
        if !is_admitted {
            send_away(number, channel);
            return;
        }
        let session = Session::new(Arc::clone(&self.control.waker), is_held);
        let connection = Connection::open((self.protocol)(), session.clone(), &mut self.device);
        let (heard_at, sockets) = (Instant::now(), HeldSockets::default());
        let mut client = KeptClient { number, session, connection, heard_at, config_changed: false, sockets };
        let over = loop {
            if let Err(over) = self.turn_of_kept(&mut client, channel) {
                break over;
            }
        };
        match over {
            Over::Left => P::left(&mut self.device),
            Over::Closed(why) => self.part(&why, client.connection, &client.session, ()),
        }
    }

    /// Waits for something to do, and does it.
    fn turn_of_kept(&mut self, client: &mut KeptClient<P>, channel: &mut Channel) -> Result<(), Over<P::Error>> {
        if self.is_left() {
            return Err(Over::Left);
        }
        if let Some(why) = self.asked_to_end(&client.session) {
            send_away(client.number, channel);
            return Err(why.into());
        }
        client.config_changed |= client.session.take_config_changed() | client.connection.take_config_change_due();
        let waker = &self.control.waker;
        let fds = [(channel.socket.as_fd(), PollFlags::IN), (waker.as_fd(), PollFlags::IN)];
        let [is_ready, woken] = wait(fds, client.patience()).map_err(Closed::Socket)?;
        if woken {
            // Before the orders are looked at: one that comes meanwhile wakes us again.
            waker.drain();
        }
        if is_ready {
            return self.hear_of(client, channel);
        }
        if client.config_changed && client.heard_at.elapsed() >= SILENCE {
            client.config_changed = false;
            client.connection.send_config_change();
        }
        Ok(())
    }

    fn hear_of(&mut self, client: &mut KeptClient<P>, channel: &mut Channel) -> Result<(), Over<P::Error>> {
        let Some((told, fds)) = channel.hear().map_err(|_| Closed::KeeperGone)? else { return Ok(()) };
        let has_few = client.sockets.add(self.control.listener.door(), &fds);
        match told {
            Told::Message { client: whose, .. } if whose == client.number && !has_few => {
                self.fail(client.number, Closed::TooManySockets, channel)
            }
            Told::Message { client: whose, number, how, bytes } if whose == client.number => {
                client.heard_at = Instant::now();
                self.message(client, channel, (number, how), &bytes, fds)
            }
            Told::Restored { client: whose, alone_ms } if whose == client.number => {
                let restored = client.connection.restored(&mut self.device, Duration::from_millis(alone_ms));
                restored.or_else(|closed| self.fail(client.number, closed, channel))
            }
            Told::Gone { client: whose, why } if whose == client.number => Err(closed(why).into()),
            Told::Refused => {
                self.tell_of_another();
                Ok(())
            }
            // There is one at a time.
            Told::Client { .. } => Err(Closed::KeeperGone.into()),
            // Of one that was sent away meanwhile.
            Told::Message { .. } | Told::Restored { .. } | Told::Gone { .. } => Ok(()),
        }
    }

    fn message(
        &mut self,
        client: &mut KeptClient<P>,
        channel: &Channel,
        (number, how): (u64, How),
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Over<P::Error>> {
        let (header, payload) = bytes.split_at_checked(P::HEADER_BYTES).ok_or(Closed::KeeperGone)?;
        let mut fed = client.connection.feed(header, fds, &mut self.device);
        if fed.is_ok() && !payload.is_empty() {
            fed = client.connection.feed(payload, Vec::new(), &mut self.device);
        }
        if fed.is_ok() && client.connection.has_part() {
            return Err(Closed::KeeperGone.into());
        }
        if self.is_left() && !matches!(fed, Ok(None)) {
            // What refused it may be our end, which the client is not to hear of: the next process is told again.
            return Err(Over::Left);
        }
        let (bytes, fd) = client.connection.take_output();
        let keeping = client.connection.keeping(number);
        if how != How::Kept {
            let keep = keeping.keep && fed.is_ok();
            let said = Said::Answer { client: client.number, number, keep, forget: keeping.forget, bytes };
            channel.say(&said, fd.as_deref().map(AsFd::as_fd)).map_err(|_| Closed::KeeperGone)?;
        }
        match fed {
            Ok(refusal) => refusal.iter().for_each(|why| self.log.warn(&format!("{}: {why}", self.name))),
            Err(closed) => return self.fail(client.number, closed, channel),
        }
        Ok(())
    }

    /// A client's time is over, unless what failed it may be our end.
    fn fail(&self, client: u64, why: Closed<P::Error>, channel: &Channel) -> Result<(), Over<P::Error>> {
        if self.is_left() {
            return Err(Over::Left);
        }
        send_away(client, channel);
        Err(why.into())
    }

    /// Whether this process ends, and clients go on with the next one.
    fn is_left(&self) -> bool {
        self.control.is_stopping() && self.control.listener.is_left()
    }
}

impl<P: Protocol> KeptClient<P> {
    fn patience(&self) -> Option<Duration> {
        self.config_changed.then(|| SILENCE.saturating_sub(self.heard_at.elapsed()))
    }
}

/// Has the keeper close a client's socket. If it is gone, or has let go of the device, the client is gone too.
fn send_away(client: u64, channel: &Channel) {
    let _ = channel.say(&Said::Close { client }, None);
}

fn closed<E>(why: Gone) -> Closed<E> {
    match why {
        Gone::Left => Closed::Gone,
        Gone::TooManyFds => Closed::TooManyFds,
        Gone::ForeignFd => Closed::ForeignFd,
        Gone::Stalled => Closed::Stalled,
        Gone::NotReading => Closed::NotReading,
        Gone::BadLength => Closed::BadLength,
        Gone::Socket(errno) => Closed::Socket(Errno::from_raw_os_error(errno)),
    }
}
