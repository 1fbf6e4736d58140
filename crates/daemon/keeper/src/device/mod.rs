//! One device that is kept: what its thread has, and what the main thread has of it.

mod hold;
mod thread;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use client_socket::keeping::wire::Framing;
use client_socket::{Gate, Waker};

use crate::clock::now;
use crate::relay::Relay;
use crate::room::Room;
use crate::store::{File, Store};

pub use hold::Held;

/// A device's thread needs no more: its buffer is elsewhere.
const STACK_BYTES: usize = 256 << 10;

/// What is the same for all devices.
#[derive(Debug)]
pub struct Common {
    /// Number of the next client.
    pub next_client: AtomicU64,
    /// Receives from clients, and closes their sockets.
    pub gate: Arc<Gate>,
    /// Descriptors that clients can have kept.
    pub room: Room,
    /// How long a client may leave a message unfinished, or replies unread.
    pub stall_limit: Duration,
    /// How long a client is held while there is no daemon. `None`: for ever.
    pub give_up_after: Option<Duration>,
    /// What a thread does first.
    pub begin: fn(),
    /// The service manager's.
    pub store: Option<Arc<Store>>,
}

/// What a device's thread has.
#[derive(Debug)]
pub struct State {
    relay: Relay<OwnedFd>,
    /// To the daemon, if there is one.
    channel: Option<OwnedFd>,
    listener: Arc<OwnedFd>,
    memory: Vec<Arc<OwnedFd>>,
    /// Where the service manager has all this for the next process, if it does.
    file: Option<File>,
    /// Since when there is no daemon.
    alone_since: Option<Duration>,
    /// Since when the client owes the rest of a message.
    midway_since: Option<Duration>,
    /// Since when the client could have read more of its reply.
    unread_since: Option<Duration>,
}

/// What the main thread and a device's thread share.
#[derive(Debug)]
struct Shared {
    waker: Waker,
    slot: Mutex<Slot>,
    changed: Condvar,
    has_client: AtomicBool,
}

/// What the main thread wants of a device's, and what it gets.
#[derive(Debug, Default)]
struct Slot {
    order: Option<Order>,
    is_to_end: bool,
    has_ended: bool,
    /// The service manager has what was ordered last.
    is_written: bool,
    /// To be closed by the device's thread.
    leftovers: Vec<Arc<OwnedFd>>,
    /// What the thread has, while it does nothing with it.
    parked: Option<Box<State>>,
    /// It closes what can take for ever.
    is_closing: bool,
    /// It is to do nothing else with what it has, and not to take it back.
    is_held: bool,
}

impl Slot {
    /// Whether the thread is to put aside what it has, now that it knows all that the main thread wants.
    fn is_to_park(&self) -> bool {
        self.is_held && self.order.is_none() && self.leftovers.is_empty() && !self.is_to_end
    }
}

/// Another daemon's end of things.
#[derive(Debug)]
struct Order {
    channel: OwnedFd,
    listener: Arc<OwnedFd>,
    memory: Vec<Arc<OwnedFd>>,
    framing: Framing,
}

/// What a daemon gives to be kept.
#[derive(Debug)]
pub struct Given {
    /// Where messages end.
    pub framing: Framing,
    /// The listening socket.
    pub listener: OwnedFd,
    /// What belongs to the device.
    pub memory: Vec<OwnedFd>,
    /// Our end of the channel to that daemon.
    pub channel: OwnedFd,
}

/// A device, as the main thread has it.
#[derive(Debug)]
pub struct Device {
    shared: Arc<Shared>,
    listener: Arc<OwnedFd>,
    memory: Vec<Arc<OwnedFd>>,
    /// The daemon that is there asked for it to be kept.
    pub is_wanted: bool,
}

impl Device {
    /// Starts the thread of a device that nobody is at.
    ///
    /// # Errors
    /// There is no thread or descriptor left.
    pub fn start(name: &str, given: Given, common: Arc<Common>) -> std::io::Result<Self> {
        let Given { framing, listener, memory, channel } = given;
        let (listener, memory) = (Arc::new(listener), memory.into_iter().map(Arc::new).collect());
        let mut state = State::new(Relay::new(framing), listener, memory);
        state.channel = Some(channel);
        state.daemon_came();
        state.file = common.store.as_ref().map(File::new).transpose()?;
        Self::go_on(name, state, common)
    }

    /// A device in this state.
    fn go_on(name: &str, state: State, common: Arc<Common>) -> std::io::Result<Self> {
        let (listener, memory) = (Arc::clone(&state.listener), state.memory.clone());
        Ok(Self { shared: spawn(name, state, common)?, listener, memory, is_wanted: true })
    }

    /// From now on these are kept in place of what was. The client stays.
    pub fn keep(&mut self, given: Given) {
        let Given { framing, listener, memory, channel } = given;
        let listener = Arc::new(listener);
        let memory: Vec<_> = memory.into_iter().map(Arc::new).collect();
        let before = std::mem::replace(&mut self.listener, Arc::clone(&listener));
        let memory_before = std::mem::replace(&mut self.memory, memory.clone());
        let mut slot = self.shared.lock();
        slot.leftovers.push(before);
        slot.leftovers.extend(memory_before);
        // An order that the thread has not looked at yet is replaced.
        slot.order = Some(Order { channel, listener, memory, framing });
        slot.is_written = false;
        drop(slot);
        self.is_wanted = true;
        self.shared.waker.wake();
    }

    /// Waits that long, at most, until the service manager has what was ordered, if it is to.
    pub fn wait_until_written(&self, patience: Duration) {
        let slot = self.shared.lock();
        let _ = self.shared.changed.wait_timeout_while(slot, patience, |slot| !slot.is_written && !slot.has_ended);
    }

    /// Its listening socket and its memory.
    pub fn fds(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        std::iter::once(&self.listener).chain(&self.memory)
    }

    /// Whether it has a client.
    pub fn has_client(&self) -> bool {
        self.shared.has_client.load(Ordering::Acquire)
    }

    /// Whether its thread ended, which it does by itself only where it is broken.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().has_ended
    }

    /// Has its thread send its client away, close what it has, and end.
    pub fn end(self) -> Ending {
        let Self { shared, listener, memory, .. } = self;
        let mut slot = shared.lock();
        slot.is_to_end = true;
        slot.leftovers.push(listener);
        slot.leftovers.extend(memory);
        drop(slot);
        shared.waker.wake();
        Ending(shared)
    }
}

/// A device that is let go of.
#[derive(Debug)]
pub struct Ending(Arc<Shared>);

impl Ending {
    /// Waits that long for it, at most; `false`: its thread is still closing something.
    pub fn wait(&self, patience: Duration) -> bool {
        let slot = self.0.lock();
        let waited = self.0.changed.wait_timeout_while(slot, patience, |slot| !slot.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }
}

impl State {
    fn new(relay: Relay<OwnedFd>, listener: Arc<OwnedFd>, memory: Vec<Arc<OwnedFd>>) -> Self {
        let (alone_since, midway_since, unread_since) = (None, None, None);
        Self { relay, channel: None, listener, memory, file: None, alone_since, midway_since, unread_since }
    }

    /// There is a daemon from now on.
    fn daemon_came(&mut self) {
        let alone = self.alone_since.take().map(|since| now().saturating_sub(since));
        self.relay.daemon_came(alone.unwrap_or_default());
    }
}

fn spawn(name: &str, state: State, common: Arc<Common>) -> std::io::Result<Arc<Shared>> {
    let shared = Arc::new(Shared {
        waker: Waker::new()?,
        slot: Mutex::default(),
        changed: Condvar::new(),
        has_client: AtomicBool::new(state.relay.socket().is_some()),
    });
    let thread = thread::Thread::new(name, Arc::clone(&shared), common);
    let builder = Builder::new().name("device".into()).stack_size(STACK_BYTES);
    builder.spawn(move || thread.run(Box::new(state)))?;
    Ok(shared)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, slot: MutexGuard<'a, Slot>) -> MutexGuard<'a, Slot> {
        self.changed.wait(slot).unwrap_or_else(PoisonError::into_inner)
    }
}
