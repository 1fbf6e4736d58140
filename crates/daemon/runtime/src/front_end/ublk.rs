//! A poller's part of a block device of the host's, and the orders that the owner gives.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use client_socket::Log;
use guest_memory::{MemoryListener, Refused};
use io_model::{Fetch, IoBuf, Outcome, Placed, Source, Token, Witness};
use ublk::{Queue, Queues, Ring};

use super::{FrontEnd, Growth};

/// What the owner tells the pollers that serve a device.
pub enum Order {
    /// Serve these queues from now on. The driver takes answers from the thread that wanted the first requests: from
    /// then on they can't go to another poller.
    Start(Starting),
    /// The disk is longer.
    Grow(Arc<Growth>),
}

/// See [`Order::Start`].
pub struct Starting {
    /// In the order of the part's range; fewer where the driver gave fewer.
    pub queues: Vec<Queue<Ring>>,
    /// An earlier daemon served the device.
    pub is_recovered: bool,
    /// Answered once the kernel has what it needs for the device to be started.
    pub done: Sender<Result<(), Refused>>,
}

/// Some queues of a tenant's device, owned by one poller.
pub struct UblkQueues {
    name: Arc<str>,
    queues: Placed<Queues<Ring>>,
    is_leaving: bool,
    was_gone: bool,
    log: Log,
}

impl UblkQueues {
    /// The queues of the tenant `name`, none of them started.
    pub fn new(name: Arc<str>, queues: Placed<Queues<Ring>>, log: Log) -> Self {
        Self { name, queues, is_leaving: false, was_gone: false, log }
    }
}

impl FrontEnd for UblkQueues {
    type Order = Order;

    fn order(&mut self, order: Order, memory: &mut dyn MemoryListener) {
        match order {
            Order::Start(Starting { queues, is_recovered, done }) => {
                // A thread that no longer waits needs no answer.
                let _ = done.send(self.queues.start(queues, is_recovered, memory));
            }
            Order::Grow(growth) => {
                self.queues.set_disk(0, growth.extents.clone());
                if Arc::into_inner(growth).is_some() {
                    let line = "its block device keeps its size until it is created again: unmount it, and start the \
                                daemon again";
                    self.log.info(&format!("{}: {line}", self.name));
                }
            }
        }
    }

    fn leave(&mut self) {
        self.is_leaving = true;
        self.queues.stop();
    }

    fn drop_when_quiet(&mut self, witness: Witness) {
        self.queues.drop_when_quiet(witness);
    }

    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
        if !self.is_leaving {
            return self.queues.settle();
        }
        let is_flushed = self.queues.is_flushed();
        if is_flushed {
            self.queues.let_go(memory);
        }
        !is_flushed
    }

    fn is_polled(&self) -> bool {
        self.queues.waits()
    }

    fn has_client(&self) -> bool {
        self.queues.is_started() && !self.was_gone
    }

    fn check_health(&mut self) {
        if let Some(fault) = self.queues.take_fault() {
            self.log.warn(&format!("{}: {fault}", self.name));
        }
        if !self.was_gone && !self.is_leaving && self.queues.is_gone() {
            self.was_gone = true;
            let line = "its block device was deleted; start the daemon again to restore it";
            self.log.warn(&format!("{}: {line}", self.name));
        }
    }
}

impl Source for UblkQueues {
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
        if let Some(error) = self.queues.take_flush_error() {
            self.log.warn(&super::not_flushed(&self.name, error));
        }
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.queues.set_wakeup(wanted);
    }
}
