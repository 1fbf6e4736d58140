//! A poller's part of a tenant's virtio-blk disk, and the orders that its client's thread gives.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use client_socket::Log;
use guest_memory::{GuestMemory, MemoryListener, Refused};
use io_model::{Fetch, IoBuf, Nanos, Outcome, Placed, QueuePriority, Source, Token, Witness};
use vhost_blk::{Queues, RingSetup, StartError, Started};
use vhost_user::Session;

use super::{FrontEnd, Growth};

/// What a client's thread tells the pollers that serve its disk. An order with a `Sender` is answered when it is
/// done; the answer does not come if the daemon ends first. The thread waits for it before it takes the next message:
/// so a client that floods its socket never has more than one order with a poller.
pub enum Order {
    /// A client attached.
    Connected(Session),
    /// The guest's memory from now on; answered when nothing uses the former any more.
    Memory(GuestMemory, Sender<Result<(), Refused>>),
    /// Serve a ring. `bool`: poll it, since the guest does not kick it.
    Start(u16, Box<RingSetup>, bool, Sender<Result<Started, StartError>>),
    /// Fetch from a ring, or don't.
    Enable(u16, bool, Sender<()>),
    /// Where to interrupt a ring's driver.
    Call(u16, Option<OwnedFd>, Sender<()>),
    /// Where to tell of a ring's failure.
    Err(u16, Option<OwnedFd>, Sender<()>),
    /// The guest turned the write cache on or off: note it where it outlives the daemon.
    WriteCache(Sender<()>),
    /// Stop a ring; answered when nothing of it is in flight.
    Stop(u16, Sender<Stopped>),
    /// The client has repeated its messages to an earlier process, after this time without one. Its rings are served
    /// from now on.
    Restored(Nanos, Sender<()>),
    /// This process ends, and the client goes on with the next one; answered when nothing of it is in flight here.
    Left(Sender<()>),
    /// The client is gone; answered when nothing of it is in flight or in the drive's cache.
    Gone(Sender<()>),
    /// The disk is longer, once all pollers know where. The last one to hear of it tells the guest.
    Grow(Arc<Growth>),
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
enum Waiting {
    /// See [`Order::Memory`].
    Memory(Sender<Result<(), Refused>>),
    /// See [`Order::Stop`].
    Stop(u16, Sender<Stopped>),
    /// See [`Order::Left`].
    Left(Sender<()>),
    /// See [`Order::Gone`].
    Gone(Option<Sender<()>>),
}

/// Some virtqueues of a tenant's disk, owned by one poller.
pub struct VirtioQueues {
    name: Arc<str>,
    queues: Placed<Queues>,
    session: Option<Session>,
    /// Rings without kicks, one bit each.
    polled: u64,
    waiting: Vec<Waiting>,
    /// Its clients go on with the next process.
    is_kept: bool,
    /// Nothing is fetched: not all that the client said is known yet, or the next process goes on with it.
    is_paused: bool,
    /// How long the client that was taken over was not served, until the poller has heard of it.
    alone: Nanos,
    log: Log,
}

impl VirtioQueues {
    /// The virtqueues of the tenant `name`, none of them started.
    pub fn new(name: Arc<str>, queues: Placed<Queues>, is_kept: bool, log: Log) -> Self {
        Self {
            name,
            queues,
            session: None,
            polled: 0,
            waiting: Vec::new(),
            is_kept,
            is_paused: false,
            alone: Nanos(0),
            log,
        }
    }

    /// The client is gone, or counts as gone.
    fn client_gone(&mut self, done: Option<Sender<()>>) {
        self.session = None;
        if std::mem::take(&mut self.is_paused) {
            // Nothing of it is to be fetched now either.
            self.queues.client_gone();
        }
        self.queues.range().for_each(|ring| self.queues.stop(ring));
        self.waiting.push(Waiting::Gone(done));
    }

    /// Whether an order's wait is over; then it is answered.
    fn is_over(&mut self, waiting: &Waiting, memory: &mut dyn MemoryListener) -> bool {
        match waiting {
            Waiting::Memory(done) => {
                let quiet = self.queues.unmaps_pending() == 0;
                if quiet {
                    answer(done, Ok(()));
                }
                quiet
            }
            Waiting::Stop(ring, done) => {
                let quiet = self.queues.is_quiet(*ring);
                if quiet {
                    self.polled &= !(1 << ring);
                    let next_avail = self.queues.next_avail(*ring).unwrap_or_default();
                    let used_idx = self.queues.used_idx(*ring).unwrap_or_default();
                    answer(done, Stopped { next_avail, used_idx });
                }
                quiet
            }
            Waiting::Left(done) => {
                let idle = self.queues.is_idle();
                if idle {
                    self.lay_down();
                    answer(done, ());
                }
                idle
            }
            Waiting::Gone(done) => {
                let flushed = self.queues.is_flushed();
                if flushed {
                    self.let_go(memory);
                    done.iter().for_each(|done| answer(done, ()));
                }
                flushed
            }
        }
    }

    /// Nothing of its rings is in flight here any more. What was completed is published.
    fn lay_down(&mut self) {
        self.notify();
        for ring in self.queues.range() {
            if let Some(used_idx) = self.queues.used_idx(ring) {
                self.log.info(&stopped_line(&self.name, ring, used_idx));
            }
        }
    }

    /// Forgets the client.
    fn let_go(&mut self, memory: &mut dyn MemoryListener) {
        self.lay_down();
        self.polled = 0;
        self.queues.client_gone();
        self.release_memory(memory);
    }

    fn grow(&mut self, growth: Arc<Growth>) {
        self.queues.set_disk(0, growth.extents.clone());
        let Some(Growth { size_bytes, .. }) = Arc::into_inner(growth) else { return };
        match self.queues.disk().grow(size_bytes) {
            Ok(()) => self.session.iter().for_each(Session::config_changed),
            Err(error) => self.log.warn(&format!("{}: it can't grow: {error}", self.name)),
        }
    }

    /// Lets go of memory that was taken away and that nothing uses any more.
    fn release_memory(&mut self, memory: &mut dyn MemoryListener) {
        while self.queues.take_unmapped(memory).is_some() {}
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

impl FrontEnd for VirtioQueues {
    type Order = Order;

    fn order(&mut self, order: Order, memory: &mut dyn MemoryListener) {
        match order {
            Order::Connected(session) => {
                self.is_paused = session.is_held();
                self.session = Some(session);
            }
            Order::Memory(table, done) => match self.queues.set_memory(table, memory) {
                Ok(()) => {
                    self.notify();
                    self.waiting.push(Waiting::Memory(done));
                }
                Err(refused) => answer(&done, Err(refused)),
            },
            Order::Start(ring, setup, polled, done) => {
                let started = self.queues.start(ring, *setup);
                if started.is_ok() && polled {
                    self.polled |= 1 << ring;
                }
                answer(&done, started);
            }
            Order::Enable(ring, enabled, done) => {
                self.queues.enable(ring, enabled);
                answer(&done, ());
            }
            Order::Call(ring, call, done) => {
                self.queues.set_call(ring, call);
                answer(&done, ());
            }
            Order::Err(ring, err, done) => {
                self.queues.set_err(ring, err);
                answer(&done, ());
            }
            Order::WriteCache(done) => {
                self.queues.note_write_cache();
                answer(&done, ());
            }
            Order::Stop(ring, done) => {
                self.queues.stop(ring);
                self.waiting.push(Waiting::Stop(ring, done));
            }
            Order::Restored(alone, done) => {
                self.is_paused = false;
                // Where nothing could be waiting, nothing did.
                self.alone = if self.queues.live_vqs() == 0 { Nanos(0) } else { alone };
                answer(&done, ());
            }
            Order::Left(done) => {
                self.is_paused = true;
                self.waiting.push(Waiting::Left(done));
            }
            Order::Gone(done) => self.client_gone(Some(done)),
            Order::Grow(growth) => self.grow(growth),
        }
    }

    fn leave(&mut self) {
        self.client_gone(None);
    }

    fn part(&mut self) {
        if !self.is_kept || self.session.is_none() {
            return self.leave();
        }
        if !std::mem::replace(&mut self.is_paused, true) {
            self.lay_down();
        }
    }

    fn drop_when_quiet(&mut self, witness: Witness) {
        self.queues.drop_when_quiet(witness);
    }

    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
        self.release_memory(memory);
        let waiting = std::mem::take(&mut self.waiting);
        let over = |waiting: &Waiting| !self.is_over(waiting, memory);
        self.waiting = waiting.into_iter().filter(over).collect();
        self.queues.settle() || !self.waiting.is_empty()
    }

    fn has_client(&self) -> bool {
        self.session.is_some()
    }

    /// Also says once what stopped a ring. Its driver has to reset the device.
    fn check_health(&mut self) {
        if let Some(session) = self.session.as_ref().filter(|_| self.queues.memory_is_lost()) {
            session.cut_off(super::LOST);
        }
        if let Some(session) = self.session.as_ref().filter(|_| self.queues.is_held_up()) {
            session.cut_off(super::HELD_UP);
        }
        if let Some(fault) = self.queues.take_fault() {
            self.log.warn(&format!("{}: {fault}; the disk is stopped until the guest's driver resets it", self.name));
        }
    }

    fn is_polled(&self) -> bool {
        self.polled != 0 || self.queues.waits()
    }
}

impl Source for VirtioQueues {
    #[inline]
    fn live_vqs(&self) -> u128 {
        if self.is_paused { 0 } else { self.queues.live_vqs() }
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        self.queues.priority(vq)
    }

    #[inline]
    fn rung(&mut self) -> u128 {
        self.queues.rung()
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        self.queues.backlog(vq)
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        self.queues.fetch(vq)
    }

    fn take_waited_before(&mut self) -> Nanos {
        std::mem::take(&mut self.alone)
    }

    #[inline]
    fn take_work(&mut self) -> u32 {
        self.queues.take_work()
    }

    #[inline]
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        self.queues.complete(token, outcome, buf);
    }

    fn notify(&mut self) {
        self.queues.notify();
        if let Some(error) = self.queues.take_flush_error() {
            self.log.warn(&super::not_flushed(&self.name, error));
        }
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.queues.set_wakeup(wanted);
    }
}
