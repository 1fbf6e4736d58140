//! What a tenant sees, as the daemon's threads deal with it.
//!
//! A front end has two sides. Its queues are with a poller, or with several: [`FrontEnd`], which the poller's thread
//! drives. Its client is with a thread of its own, which speaks the protocol and gives the pollers orders through
//! [`Port`]s. A third front end is a type that implements [`FrontEnd`], a variant of [`Served`], and an arm of [`fit`].

mod block_device;
mod fit;
mod mover;
mod nvme;
mod nvme_client;
mod reached;
mod reencrypter;
mod ublk;
mod virtio;
mod virtio_client;
mod virtio_lasting;
mod wiper;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use guest_memory::{Budget, MappedU32, MemoryListener};
use io_model::{DeviceError, Extents, Fetch, IoBuf, Nanos, Outcome, QueuePriority, Source, TenantId, Token, Witness};
use nvme_controller::EraseRecord;

pub use self::fit::{Fitted, Making, OnErase, ServedAt, fit};
pub use self::mover::{Mover, Order as Move};
pub use self::nvme::{
    NSID, Order as NvmeOrder, OwnPromise, attach as attach_namespace, for_parts as for_controller_parts,
};
pub use self::reached::Reached;
pub use self::reencrypter::{
    BY_FORMER, BY_NEXT, Job as ReencryptionJob, Order as Reencrypt, RAW, Reencrypter, Wish as ReencrypterWish,
};
pub use self::virtio_lasting::STATE_VERSION as VIRTIO_STATE_VERSION;
pub use self::wiper::{Order as Wipe, Wiper};
use crate::poller_thread::{Message, PollerSender};
use crate::poller_waker::{PollerWaker, Watch};

/// Why a client is cut off.
const LOST: &str = "the client removed memory that it had shared";

/// Another reason to cut a client off.
const HELD_UP: &str = "the client kept an eventfd from being signalled for more than a millisecond";

/// How much memory a tenant's client may have mapped.
fn budget(tenant: &config::Tenant) -> Arc<Budget> {
    Budget::new(tenant.memory.max_memory.0, tenant.memory.max_maps)
}

/// The line that says that the flush for a client that went failed.
fn not_flushed(name: &str, error: DeviceError) -> String {
    format!("{name}: the drive failed the last flush ({error:?}); the guest's last writes may be lost")
}

/// A disk that is longer than before.
#[derive(Debug)]
pub struct Growth {
    /// How long.
    pub size_bytes: u64,
    /// Where all of it lies.
    pub extents: Extents,
}

/// The orders that tell a tenant's parts, each of them.
pub fn grown(frontend: &config::Frontend, growth: Growth, parts: usize) -> Vec<ServedOrder> {
    let shared = |growth: Growth| std::iter::repeat_n(Arc::new(growth), parts);
    match frontend {
        config::Frontend::VfioUser(_) => {
            let order = nvme::Order::Grow(nvme::NSID, growth.size_bytes, growth.extents);
            nvme::for_parts(order, parts).into_iter().map(Into::into).collect()
        }
        config::Frontend::VhostUserBlk(_) => shared(growth).map(|it| virtio::Order::Grow(it).into()).collect(),
        config::Frontend::Ublk(..) => shared(growth).map(|it| ublk::Order::Grow(it).into()).collect(),
    }
}

/// The order that answers [`OnErase`]. `false`: it could not be written.
pub fn recorded(record: EraseRecord, is_durable: bool) -> ServedOrder {
    nvme::Order::Recorded(record, is_durable).into()
}

/// A tenant's queues at one poller, and the life that they have beside [`Source`].
///
/// All calls come from the poller's thread, between its iterations. None may wait: what an order has to wait for is
/// looked at again by [`settle`](Self::settle).
pub trait FrontEnd: Source + Send + 'static {
    /// Requests of the client's thread.
    type Order: Send + 'static;

    /// Executes an order, and answers it unless it has to wait for commands in flight. Orders come in the sequence in
    /// which the client's thread gave them. `memory` is told of what is mapped and unmapped.
    fn order(&mut self, order: Self::Order, memory: &mut dyn MemoryListener);

    /// The tenant leaves this poller: its client counts as gone, whatever its thread does. Nothing is fetched any more
    /// but a flush of what it wrote (VQ 0), and memory is let go of once nothing in flight uses it.
    fn leave(&mut self);

    /// The daemon ends, and nothing of the tenant is in flight. A client that goes on with the next one must find all
    /// as it was; any other is gone, as in [`leave`](Self::leave).
    fn part(&mut self) {
        self.leave();
    }

    /// Drops `witness` once all commands of a thin disk that were fetched before have ended.
    fn drop_when_quiet(&mut self, witness: Witness) {
        drop(witness);
    }

    /// Answers what waited and is over. `true`: something still waits.
    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool;

    /// Whether a client is attached.
    fn has_client(&self) -> bool;

    /// Now and then: disconnects a client that took memory away from under us, and tells
    /// the log what stopped.
    fn check_health(&mut self);

    /// Doorbells that guests store into mapped memory, each with the value that was last acted on: a sleeping poller
    /// has them looked at.
    fn doorbells(&self, _out: &mut Vec<(MappedU32, u32)>) {}

    /// Whether requests may come that nothing at all announces, so that a sleeping poller has to look by itself.
    fn is_polled(&self) -> bool {
        false
    }
}

/// How a client's thread reaches its tenant's queues at one poller; `O` is [`FrontEnd::Order`].
pub struct Port<O> {
    /// Which of the tenant's queues.
    pub queues: Range<u16>,
    give: Box<dyn Fn(O) + Send + Sync>,
    waker: Arc<PollerWaker>,
}

impl<O: 'static> Port<O> {
    /// To a tenant at that poller.
    pub fn new<S>(queues: Range<u16>, poller: PollerSender<S>, tenant: TenantId) -> Self
    where
        S: FrontEnd,
        S::Order: From<O>,
    {
        let waker = Arc::clone(poller.waker());
        Self { queues, give: Box::new(move |order| poller.send(Message::Order(tenant, order.into()))), waker }
    }

    /// Gives an order. If the poller has ended, it is dropped, and with it what it would be answered by.
    pub fn order(&self, order: O) {
        (self.give)(order);
    }

    /// Wakes the poller: a doorbell was stored for it.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Lets writes to a client's eventfd wake the poller, until the [`Watch`] is dropped.
    ///
    /// # Errors
    /// Not an eventfd, or see [`PollerWaker::watch`].
    pub fn watch(&self, fd: OwnedFd) -> std::io::Result<Watch> {
        eventfd::admit(&fd)?;
        self.waker.watch(fd)
    }
}

/// One of several front ends, chosen when the tenant is made: a match instead of a virtual call for each doorbell and
/// command, so that the compiler sees through it.
macro_rules! front_ends {
    ($(#[$doc:meta])* $name:ident, $orders:ident { $($(#[$its_doc:meta])* $variant:ident($front_end:ty)),+ $(,)? }) => {
        $(#[$doc])*
        pub enum $name {
            $($(#[$its_doc])* $variant(Box<$front_end>)),+
        }

        #[doc = concat!("An order to one of [`", stringify!($name), "`].")]
        pub enum $orders {
            $($(#[$its_doc])* $variant(<$front_end as FrontEnd>::Order)),+
        }

        $(impl From<$front_end> for $name {
            fn from(front_end: $front_end) -> Self {
                Self::$variant(Box::new(front_end))
            }
        })+

        $(impl From<<$front_end as FrontEnd>::Order> for $orders {
            fn from(order: <$front_end as FrontEnd>::Order) -> Self {
                Self::$variant(order)
            }
        })+

        impl Source for $name {
            #[inline]
            fn live_vqs(&self) -> u128 {
                match self { $(Self::$variant(it) => it.live_vqs()),+ }
            }

            fn priority(&self, vq: u16) -> QueuePriority {
                match self { $(Self::$variant(it) => it.priority(vq)),+ }
            }

            #[inline]
            fn service(&mut self) -> u32 {
                match self { $(Self::$variant(it) => it.service()),+ }
            }

            #[inline]
            fn rung(&mut self) -> u128 {
                match self { $(Self::$variant(it) => it.rung()),+ }
            }

            #[inline]
            fn backlog(&mut self, vq: u16) -> u32 {
                match self { $(Self::$variant(it) => it.backlog(vq)),+ }
            }

            #[inline]
            fn fetch(&mut self, vq: u16) -> Fetch {
                match self { $(Self::$variant(it) => it.fetch(vq)),+ }
            }

            fn take_waited_before(&mut self) -> Nanos {
                match self { $(Self::$variant(it) => it.take_waited_before()),+ }
            }

            #[inline]
            fn take_work(&mut self) -> u32 {
                match self { $(Self::$variant(it) => it.take_work()),+ }
            }

            #[inline]
            fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
                match self { $(Self::$variant(it) => it.complete(token, outcome, buf)),+ }
            }

            fn notify(&mut self) {
                match self { $(Self::$variant(it) => it.notify()),+ }
            }

            fn set_wakeup(&mut self, wanted: bool) {
                match self { $(Self::$variant(it) => it.set_wakeup(wanted)),+ }
            }
        }

        impl FrontEnd for $name {
            type Order = $orders;

            fn order(&mut self, order: $orders, memory: &mut dyn MemoryListener) {
                match (self, order) {
                    $((Self::$variant(it), $orders::$variant(order)) => it.order(order, memory),)+
                    // A port gives its own front end's orders alone.
                    _ => {}
                }
            }

            fn leave(&mut self) {
                match self { $(Self::$variant(it) => it.leave()),+ }
            }

            fn part(&mut self) {
                match self { $(Self::$variant(it) => it.part()),+ }
            }

            fn drop_when_quiet(&mut self, witness: Witness) {
                match self { $(Self::$variant(it) => it.drop_when_quiet(witness)),+ }
            }

            fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
                match self { $(Self::$variant(it) => it.settle(memory)),+ }
            }

            fn has_client(&self) -> bool {
                match self { $(Self::$variant(it) => it.has_client()),+ }
            }

            fn check_health(&mut self) {
                match self { $(Self::$variant(it) => it.check_health()),+ }
            }

            fn doorbells(&self, out: &mut Vec<(MappedU32, u32)>) {
                match self { $(Self::$variant(it) => it.doorbells(out)),+ }
            }

            fn is_polled(&self) -> bool {
                match self { $(Self::$variant(it) => it.is_polled()),+ }
            }
        }
    };
}

front_ends! {
    /// A tenant at one poller, behind any of the front ends.
    Served, ServedOrder {
        /// An NVMe controller over vfio-user.
        Nvme(nvme::NvmeDevice),
        /// Virtqueues over vhost-user.
        Virtio(virtio::VirtioQueues),
        /// A block device of this host's.
        Ublk(ublk::UblkQueues),
        /// The daemon's own, for what deleted disks left.
        Wiper(wiper::Wiper),
        /// The daemon's own, for a disk that gets another key.
        Reencrypter(reencrypter::Reencrypter),
        /// The daemon's own, for pieces of thin disks.
        Mover(mover::Mover),
    }
}

// Behind the macro that it uses.
#[cfg(test)]
mod third;
