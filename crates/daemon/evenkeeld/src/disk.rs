//! A poller's part of a tenant's virtio-blk disk, and the orders that its client's thread gives.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use client_socket::Log;
use guest_memory::GuestMemory;
use io_model::{Fetch, IoBuf, Outcome, Source, Token};
use vhost_blk::{Queues, RingSetup, StartError, Started};
use vhost_user::Session;

/// What a client's thread tells the pollers that serve its disk. An order with a `Sender` is answered when it is
/// done; the answer does not come if the daemon ends first.
pub enum Order {
    /// A client attached.
    Connected(Session),
    /// The guest's memory from now on.
    Memory(GuestMemory, Sender<()>),
    /// Serve a ring. `bool`: nobody kicks it, it is to be polled.
    Start(u16, Box<RingSetup>, bool, Sender<Result<Started, StartError>>),
    /// Fetch from a ring, or don't.
    Enable(u16, bool),
    /// Where to interrupt a ring's driver.
    Call(u16, Option<OwnedFd>),
    /// Where to tell of a ring's failure.
    Err(u16, Option<OwnedFd>),
    /// The guest turned the write cache on or off: note it where it outlives the daemon.
    WriteCache,
    /// Stop a ring; answered when nothing of it is in flight.
    Stop(u16, Sender<Stopped>),
    /// The client is gone; answered when nothing of it is in flight.
    Gone(Sender<()>),
}

/// Where a ring stopped; both modulo 2^16.
#[derive(Debug, Clone, Copy)]
pub struct Stopped {
    /// The next entry of the available ring.
    pub next_avail: u16,
    /// The used index.
    pub used_idx: u16,
}

/// An order that waits for commands in flight.
pub enum Pending {
    /// See [`Order::Stop`].
    Stop(u16, Sender<Stopped>),
    /// See [`Order::Gone`].
    Gone(Sender<()>),
}

/// Some virtqueues of a tenant's disk, owned by one poller.
pub struct DiskQueues {
    name: Arc<str>,
    queues: Queues,
    session: Option<Session>,
    /// Rings that nobody kicks, one bit each.
    polled: u64,
    log: Log,
}

impl DiskQueues {
    /// The virtqueues of the tenant `name`, none of them started.
    pub fn new(name: Arc<str>, queues: Queues, log: Log) -> Self {
        Self { name, queues, session: None, polled: 0, log }
    }

    /// Does what needs no waiting; gives back what does.
    pub fn order(&mut self, order: Order) -> Option<Pending> {
        match order {
            Order::Connected(session) => self.session = Some(session),
            Order::Memory(memory, done) => {
                self.queues.set_memory(memory);
                self.notify();
                answer(&done, ());
            }
            Order::Start(ring, setup, polled, done) => {
                let started = self.queues.start(ring, *setup);
                if started.is_ok() && polled {
                    self.polled |= 1 << ring;
                }
                answer(&done, started);
            }
            Order::Enable(ring, enabled) => self.queues.enable(ring, enabled),
            Order::Call(ring, call) => self.queues.set_call(ring, call),
            Order::Err(ring, err) => self.queues.set_err(ring, err),
            Order::WriteCache => self.queues.note_write_cache(),
            Order::Stop(ring, done) => {
                self.queues.stop(ring);
                return Some(Pending::Stop(ring, done));
            }
            Order::Gone(done) => {
                self.session = None;
                self.queues.range().for_each(|ring| self.queues.stop(ring));
                return Some(Pending::Gone(done));
            }
        }
        None
    }

    /// Whether an order's wait is over; then it is answered.
    pub fn settle(&mut self, pending: &Pending) -> bool {
        match pending {
            Pending::Stop(ring, done) => {
                let quiet = self.queues.is_quiet(*ring);
                if quiet {
                    self.polled &= !(1 << ring);
                    let next_avail = self.queues.next_avail(*ring).unwrap_or_default();
                    let used_idx = self.queues.used_idx(*ring).unwrap_or_default();
                    answer(done, Stopped { next_avail, used_idx });
                }
                quiet
            }
            Pending::Gone(done) => {
                let idle = self.queues.is_idle();
                if idle {
                    self.let_go();
                    answer(done, ());
                }
                idle
            }
        }
    }

    /// Forgets the client. What was completed is published first.
    pub fn let_go(&mut self) {
        self.notify();
        for ring in self.queues.range() {
            if let Some(used_idx) = self.queues.used_idx(ring) {
                self.log.info(&stopped_line(&self.name, ring, used_idx));
            }
        }
        self.polled = 0;
        self.session = None;
        self.queues.client_gone();
    }

    /// Whether a client is attached.
    pub fn has_client(&self) -> bool {
        self.session.is_some()
    }

    /// Whether a ring must be looked at now and then, since nobody kicks.
    pub fn is_polled(&self) -> bool {
        self.polled != 0
    }

    /// Says once what stopped a ring. Its driver has to reset the device.
    pub fn report_fault(&mut self) {
        if let Some(fault) = self.queues.take_fault() {
            self.log.warn(&format!("{}: {fault}; the disk is stopped until the guest's driver resets it", self.name));
        }
    }

    /// Disconnects a client that took memory away from under us.
    pub fn cut_off_poisoned(&self, why: &str) {
        if let Some(session) = self.session.as_ref().filter(|_| self.queues.any_poisoned()) {
            session.disconnect(why);
        }
    }
}

/// The line that says where a ring stopped.
pub fn stopped_line(name: &str, ring: u16, used_idx: u16) -> String {
    format!("{name}: queue {ring} stopped at used index {used_idx}")
}

fn answer<T>(to: &Sender<T>, answer: T) {
    // A client's thread that no longer waits needs no answer.
    let _ = to.send(answer);
}

impl Source for DiskQueues {
    #[inline]
    fn live_vqs(&self) -> u128 {
        self.queues.live_vqs()
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        self.queues.backlog(vq)
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        self.queues.fetch(vq)
    }

    #[inline]
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        self.queues.complete(token, outcome, buf);
    }

    fn notify(&mut self) {
        self.queues.notify();
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.queues.set_wakeup(wanted);
    }
}
