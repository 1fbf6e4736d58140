//! One device with its listener and, while one is there, its client.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client_socket::{Listener, Log, Received, receive, send};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::connection::{Asked, Closed, Connection};
use crate::device::DeviceSpec;
use crate::request::{DeviceId, Reply, ReplyTo, Session, Ticket};
use crate::server::Handler;
use crate::{dma, wire};

/// Messages taken from one client before the others get their turn.
const BATCH: usize = 64;

/// A device on its socket.
pub struct Served {
    pub id: DeviceId,
    pub spec: Arc<DeviceSpec>,
    pub listener: Listener,
    pub client: Option<Client>,
    pub log: Log,
    /// Clients so far.
    generation: u64,
}

/// The one client of a device.
pub struct Client {
    pub socket: OwnedFd,
    pub session: Session,
    /// What epoll was last told to watch for.
    pub watched: EventFlags,
    connection: Connection,
    /// Since when it owes us the rest of a message.
    midway_since: Option<Instant>,
    /// Since when it could have taken what we owe it.
    unread_since: Option<Instant>,
}

impl Served {
    pub fn new(id: DeviceId, spec: Arc<DeviceSpec>, listener: Listener, log: Log) -> Self {
        Self { id, spec, listener, client: None, log, generation: 0 }
    }

    /// Makes `socket` the device's client.
    pub fn attach(&mut self, socket: OwnedFd, handler: &mut dyn Handler) -> &mut Client {
        self.generation += 1;
        let session = Session { device: self.id, generation: self.generation };
        let peer = rustix::net::sockopt::socket_peercred(&socket);
        let pid = peer.map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        self.log.info(&format!("{}: a client attached (process {pid})", self.spec.name));
        handler.connected(session);
        self.client.insert(Client {
            socket,
            session,
            watched: EventFlags::IN,
            connection: Connection::new(Arc::clone(&self.spec)),
            midway_since: Some(Instant::now()),
            unread_since: None,
        })
    }

    /// Takes what the client sent and sends what waits for it.
    ///
    /// # Errors
    /// The client is to be closed.
    pub fn pump(&mut self, buffer: &mut [u8], handler: &mut dyn Handler) -> Result<(), Closed> {
        let Self { client: Some(client), spec, log, .. } = self else { return Ok(()) };
        client.take_batch(buffer, handler, &spec.name, log)?;
        client.midway_since = client.connection.is_midway().then(Instant::now);
        // The rest of what did not go out before.
        client.flush()
    }

    /// Delivers a late reply, unless its session is over.
    ///
    /// # Errors
    /// The client is to be closed.
    pub fn reply(&mut self, to: &ReplyTo, reply: Reply) -> Result<(), Closed> {
        match &mut self.client {
            Some(client) if client.session == to.session => {
                client.connection.reply(to.ticket, reply)?;
                client.flush()
            }
            _ => Ok(()),
        }
    }

    /// Closes the client, telling it and everybody else why.
    pub fn close(&mut self, why: &Closed, handler: &mut dyn Handler) {
        let Some(mut client) = self.client.take() else { return };
        // The last error reply, if it can go at once; the connection is over either way.
        let _ = client.flush();
        let reason = why.to_string();
        match why {
            Closed::Gone => self.log.info(&format!("{}: {reason}", self.spec.name)),
            _ => self.log.warn(&format!("{}: client disconnected: {reason}", self.spec.name)),
        }
        handler.disconnected(client.session, &reason);
    }
}

impl Client {
    fn take_batch(
        &mut self,
        buffer: &mut [u8],
        handler: &mut dyn Handler,
        name: &str,
        log: &mut Log,
    ) -> Result<(), Closed> {
        for _ in 0..BATCH {
            if self.connection.is_full() {
                break;
            }
            let room = self.connection.wanted_bytes().min(buffer.len());
            let (bytes, fds) = match receive(&self.socket, &mut buffer[..room]) {
                Ok(Received::Bytes(bytes, fds)) => (bytes, fds),
                Ok(Received::Nothing) => break,
                Ok(Received::TooManyFds) => return Err(Closed::TooManyFds),
                Ok(Received::End) | Err(Errno::CONNRESET | Errno::PIPE) => return Err(Closed::Gone),
                Err(errno) => return Err(Closed::Socket(errno)),
            };
            self.connection.feed(&buffer[..bytes], fds)?;
            while let Some((ticket, asked)) = self.connection.next_request() {
                if let Some(reply) = dispatch(self.session, ticket, asked, handler, name, log) {
                    self.connection.reply(ticket, reply)?;
                }
            }
            // Each reply as soon as it is there: only what the client leaves unread piles up and stops us.
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Closed> {
        while let Some((bytes, fd)) = self.connection.output() {
            match send(&self.socket, bytes, fd) {
                Ok(0) => {
                    self.unread_since.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                Ok(sent) => {
                    self.connection.sent(sent);
                    self.unread_since = None;
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Closed::Gone),
                Err(errno) => return Err(Closed::Socket(errno)),
            }
        }
        Ok(())
    }

    /// What epoll should watch for now.
    pub fn wants(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !self.connection.is_full());
        flags.set(EventFlags::OUT, self.connection.output().is_some());
        flags
    }

    /// Why it is to be closed if nothing moved for `limit`: the rest of a message (or its first one) did
    /// not come, or replies were not read.
    pub fn stalled(&self, limit: Duration) -> Option<Closed> {
        let over = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= limit);
        if over(self.unread_since) {
            return Some(Closed::NotReading);
        }
        over(self.midway_since).then_some(Closed::Stalled)
    }

    /// Whether it may come to stall.
    pub fn is_awaited(&self) -> bool {
        self.midway_since.is_some() || self.unread_since.is_some()
    }
}

fn dispatch(
    session: Session,
    ticket: Ticket,
    asked: Asked,
    handler: &mut dyn Handler,
    name: &str,
    log: &mut Log,
) -> Option<Reply> {
    let request = match asked {
        Asked::Request(request) => request,
        Asked::DmaMap(map, fd) => match dma::admit(&map, fd) {
            Ok(request) => request,
            Err((errno, why)) => {
                log.warn(&format!("{name}: refused: {why}"));
                return Some(Reply::Failed(errno));
            }
        },
    };
    if let Err(errno) = dma::admit_eventfds(&request) {
        log.warn(&format!("{name}: refused: an interrupt on something that is not an eventfd"));
        return Some(Reply::Failed(errno));
    }
    handler.request(session, request, ReplyTo { session, ticket })
}

/// Room for the longest piece that one receive takes.
pub const BUFFER_BYTES: usize = wire::MAX_MESSAGE_BYTES;
