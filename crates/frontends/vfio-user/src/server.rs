//! The control thread: one epoll over the listeners and clients of all devices.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use client_socket::{BindError, Level, Listener, Log, Sink, has_hung_up};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::connection::Closed;
use crate::device::DeviceSpec;
use crate::request::{DeviceId, Reply, ReplyTo, Request, Session};
use crate::served::{BUFFER_BYTES, Served};

const WAKER: u64 = u64::MAX;
/// Events taken from the kernel at a time.
const EVENTS: usize = 64;
/// How long a client may leave a message, or its VERSION, unfinished, or replies unread.
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// What the server calls, on the thread that runs it. No call may block: all tenants wait meanwhile.
pub trait Handler {
    /// A client attached; its requests follow.
    fn connected(&mut self, session: Session);

    /// A request. Return the reply, or `None` and answer later through [`ServerHandle::reply`].
    /// Requests of a session come in the order in which the client sent them, without waiting for
    /// replies to the ones before.
    fn request(&mut self, session: Session, request: Request, reply: ReplyTo) -> Option<Reply>;

    /// The client is gone. Its memory is to be let go and its eventfds closed; the rest of the device's
    /// state stays (specification, "Client Disconnection"). The next client may follow at once.
    fn disconnected(&mut self, session: Session, reason: &str);
}

enum Order {
    Add(DeviceId, Arc<DeviceSpec>, Listener),
    Remove(DeviceId),
    Disconnect(Session, String),
    Reply(ReplyTo, Reply),
}

/// Talks to a running server from any thread.
#[derive(Clone)]
pub struct ServerHandle {
    orders: Sender<Order>,
    waker: Arc<OwnedFd>,
    next_id: Arc<AtomicU32>,
}

impl ServerHandle {
    /// Answers a request. A reply whose session is over is dropped.
    pub fn reply(&self, to: ReplyTo, reply: Reply) {
        self.order(Order::Reply(to, reply));
    }

    /// Disconnects a client; `reason` goes to the log. No effect if the session is over.
    pub fn disconnect(&self, session: Session, reason: &str) {
        self.order(Order::Disconnect(session, reason.to_owned()));
    }

    /// Puts a device on its socket. Clients can connect as soon as this returns; they are served once
    /// the server runs.
    ///
    /// # Errors
    /// The socket is in use or can't be created, or the description is inconsistent.
    pub fn add_device(&self, spec: DeviceSpec) -> Result<DeviceId, BindError> {
        spec.check().map_err(|why| BindError::BadDevice { name: spec.name.clone(), why })?;
        let listener = Listener::bind(&spec.socket)?;
        let id = DeviceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.order(Order::Add(id, Arc::new(spec), listener));
        Ok(id)
    }

    /// Takes a device off its socket; its client is disconnected first.
    pub fn remove_device(&self, id: DeviceId) {
        self.order(Order::Remove(id));
    }

    /// Makes [`Server::run_once`] return soon.
    pub fn wake(&self) {
        // Fails only when the counter is full, and then the server wakes anyway.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    fn order(&self, order: Order) {
        // Fails only when the server is gone, and with it everybody who could be told.
        if self.orders.send(order).is_ok() {
            self.wake();
        }
    }
}

/// Serves any number of devices on one thread.
pub struct Server {
    epoll: OwnedFd,
    handle: ServerHandle,
    orders: Receiver<Order>,
    devices: BTreeMap<DeviceId, Served>,
    sink: Sink,
    buffer: Vec<u8>,
    stall_limit: Duration,
}

impl Server {
    /// A server without devices.
    ///
    /// # Errors
    /// The kernel refused an epoll or eventfd descriptor.
    pub fn new(sink: Sink) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
        let (sender, orders) = channel();
        Ok(Self {
            epoll,
            handle: ServerHandle { orders: sender, waker, next_id: Arc::new(AtomicU32::new(0)) },
            orders,
            devices: BTreeMap::new(),
            sink,
            buffer: vec![0; BUFFER_BYTES],
            stall_limit: STALL_LIMIT,
        })
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Sets how long a client may leave a message, or its VERSION, unfinished, or replies unread (5 s).
    pub fn set_stall_limit(&mut self, limit: Duration) {
        self.stall_limit = limit;
    }

    /// Serves until `stop` is set and [`ServerHandle::wake`] called.
    ///
    /// # Errors
    /// Waiting for events failed; nothing a client does leads to it.
    pub fn run(&mut self, handler: &mut dyn Handler, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Acquire) {
            self.run_once(handler, None)?;
        }
        Ok(())
    }

    /// Waits for something to do, at most `timeout`, and does it.
    ///
    /// # Errors
    /// As [`Server::run`].
    pub fn run_once(&mut self, handler: &mut dyn Handler, timeout: Option<Duration>) -> io::Result<()> {
        let awaited = self.devices.values().any(|served| served.client.as_ref().is_some_and(|c| c.is_awaited()));
        let patience = awaited.then_some(self.stall_limit);
        let timeout = [timeout, patience].into_iter().flatten().min().and_then(|limit| Timespec::try_from(limit).ok());
        let mut space = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let events: &[Event] = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(errno) => return Err(errno.into()),
        };
        // Before the orders are taken: a wake-up for one that comes while they are must not be lost.
        if events.iter().any(|event| matches!(Token::from({ event.data }.u64()), Token::Waker)) {
            drain(&self.handle.waker);
        }
        // Orders first: a reply that is ready makes room before the client's next message is taken.
        while let Ok(order) = self.orders.try_recv() {
            self.obey(order, handler);
        }
        for event in events {
            // Fields of a packed struct are copied out.
            let (data, flags) = (event.data, event.flags);
            match Token::from(data.u64()) {
                Token::Waker => {}
                Token::Listener(id) => self.accept(id, handler),
                Token::Client(id) => self.serve(id, flags, handler),
            }
        }
        if awaited {
            self.close_stalled(handler);
        }
        Ok(())
    }

    fn obey(&mut self, order: Order, handler: &mut dyn Handler) {
        match order {
            Order::Add(id, spec, listener) => {
                let token = Token::Listener(id).data();
                if let Err(errno) = epoll::add(&self.epoll, &listener, token, EventFlags::IN) {
                    (self.sink)(Level::Warn, &format!("{}: can't be served: {errno}", spec.name));
                    return;
                }
                let mut served = Served::new(id, spec, listener, Log::new(Arc::clone(&self.sink)));
                served.log.info(&format!("{}: listening on {}", served.spec.name, served.listener.path().display()));
                self.devices.insert(id, served);
            }
            Order::Remove(id) => {
                self.close(id, &Closed::Refused("the device was removed".into()), handler);
                self.devices.remove(&id);
            }
            Order::Disconnect(session, reason) => {
                let client = self.devices.get(&session.device).and_then(|served| served.client.as_ref());
                if client.is_some_and(|client| client.session == session) {
                    self.close(session.device, &Closed::Refused(reason), handler);
                }
            }
            Order::Reply(to, reply) => {
                let Some(served) = self.devices.get_mut(&to.session.device) else { return };
                let outcome = served.reply(&to, reply);
                self.settle(to.session.device, outcome, handler);
            }
        }
    }

    fn serve(&mut self, id: DeviceId, flags: EventFlags, handler: &mut dyn Handler) {
        let Some(served) = self.devices.get_mut(&id) else { return };
        let Some(client) = &served.client else { return };
        let hung_up = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let outcome = if hung_up && !client.watched.contains(EventFlags::IN) {
            // Nothing is read while replies are owed, and nobody is left to owe them to.
            Err(Closed::Gone)
        } else {
            served.pump(&mut self.buffer, handler)
        };
        self.settle(id, outcome, handler);
    }

    /// Closes the client after an error, else tells epoll what to watch for now.
    fn settle(&mut self, id: DeviceId, outcome: Result<(), Closed>, handler: &mut dyn Handler) {
        if let Err(why) = outcome {
            return self.close(id, &why, handler);
        }
        let Some(client) = self.devices.get_mut(&id).and_then(|served| served.client.as_mut()) else { return };
        let wants = client.wants();
        if wants != client.watched {
            match epoll::modify(&self.epoll, &client.socket, Token::Client(id).data(), wants) {
                Ok(()) => client.watched = wants,
                Err(errno) => self.close(id, &Closed::Socket(errno), handler),
            }
        }
    }

    fn close(&mut self, id: DeviceId, why: &Closed, handler: &mut dyn Handler) {
        // Closing the descriptor takes it off the epoll: nobody else has a copy of it.
        if let Some(served) = self.devices.get_mut(&id) {
            served.close(why, handler);
        }
    }

    fn accept(&mut self, id: DeviceId, handler: &mut dyn Handler) {
        let Some(served) = self.devices.get_mut(&id) else { return };
        let socket = match served.listener.accept() {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE) => {
                served
                    .log
                    .warn(&format!("{}: client refused: too many open files; raise LimitNOFILE", served.spec.name));
                return;
            }
            // The client changed its mind, or another error of its own.
            Err(_) => return,
        };
        if let Some(client) = &served.client {
            if !has_hung_up(&client.socket) {
                served.log.warn(&format!("{}: client refused: another one is attached", served.spec.name));
                return;
            }
            // Its end and its successor arrived together.
            served.close(&Closed::Gone, handler);
        }
        let client = served.attach(socket, handler);
        if let Err(errno) = epoll::add(&self.epoll, &client.socket, Token::Client(id).data(), client.watched) {
            served.close(&Closed::Socket(errno), handler);
        }
    }

    fn close_stalled(&mut self, handler: &mut dyn Handler) {
        for served in self.devices.values_mut() {
            if let Some(why) = served.client.as_ref().and_then(|client| client.stalled(self.stall_limit)) {
                served.close(&why, handler);
            }
        }
    }
}

/// What an epoll event is about, as the number that epoll keeps for us.
enum Token {
    Waker,
    Listener(DeviceId),
    Client(DeviceId),
}

impl Token {
    fn data(&self) -> EventData {
        EventData::new_u64(match self {
            Self::Waker => WAKER,
            Self::Listener(id) => u64::from(id.0) << 1,
            Self::Client(id) => u64::from(id.0) << 1 | 1,
        })
    }
}

impl From<u64> for Token {
    fn from(number: u64) -> Self {
        let id = DeviceId((number >> 1) as u32);
        match number {
            WAKER => Self::Waker,
            _ if number & 1 == 0 => Self::Listener(id),
            _ => Self::Client(id),
        }
    }
}

fn drain(waker: impl AsFd) {
    // Non-blocking; one read takes the whole counter.
    let _ = rustix::io::read(waker, &mut [0u8; 8]);
}
