//! The types that front ends, back ends, pollers and policies share.
//!
//! A [`Source`] is a tenant's virtual queues (VQs): the poller *pulls* commands out of it. A [`Backend`] is a drive's
//! hardware queues (HWQs): the poller submits to it and reaps from it. Neither knows the other, nor the policy. Every
//! back end must pass the suite of the crate `conformance`.
//!
//! Times are [`Nanos`] on a clock that the caller chooses; sizes are bytes. [`units`] parses and prints them for
//! people.

#![forbid(unsafe_code)]

mod backend;
mod cache;
mod command;
mod extents;
mod held_range;
mod piece_map;
mod placed;
mod token;
pub mod units;

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

pub use backend::{Backend, Done, Io};
pub use cache::CacheDebt;
pub use command::{Command, DeviceError, Op, Outcome, Place};
pub use extents::Extents;
pub use guest_memory::{IoBuf, Mapping, Refused};
pub use held_range::{Held, HeldRange, Passage};
pub use piece_map::{Ask, Awaited, Piece, PieceMap, Wish};
pub use placed::{Placed, Witness};
pub use token::{Token, lost_tokens};

/// A point in time or a span, in nanoseconds. Arithmetic saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The end of time: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// A span of microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// A span of milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// As fractional microseconds, for people.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

impl From<Duration> for Nanos {
    #[inline]
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// One consumer with its own virtual disk. Given once and never again in a drive's life, so it grows without bound: a
/// name to compare and to look up, never an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// A tenant's virtual queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VqId {
    /// The tenant.
    pub tenant: TenantId,
    /// Which of the tenant's: the NVMe SQ identifier, or the virtqueue index plus one. 0 is the front
    /// end's own (erasing a namespace, flushing for a guest that left).
    pub index: u16,
}

/// A device queue that we submit to; an index within one poller's [`Backend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HwqId(pub u16);

/// What a queue counts for where weighted round robin with urgent priority class decides which one is fetched from
/// (NVMe base specification, "Command Arbitration"; QPRIO of Create I/O Submission Queue): an HWQ at the drive, a VQ
/// among all tenants' or among its tenant's. The order is the specification's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueuePriority {
    /// Before all weighted classes, without limit.
    Urgent,
    /// Weighted by [`WrrWeights::high`].
    High,
    /// Weighted by [`WrrWeights::medium`].
    Medium,
    /// Weighted by [`WrrWeights::low`].
    Low,
}

impl QueuePriority {
    /// Every one, in the specification's order.
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Medium, Self::Low];

    /// As files and command lines spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// Commands that the drive fetches from each weighted class in one round: 1 to 256 (NVMe stores 0 to 255).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WrrWeights {
    /// Of [`QueuePriority::High`].
    pub high: u16,
    /// Of [`QueuePriority::Medium`].
    pub medium: u16,
    /// Of [`QueuePriority::Low`].
    pub low: u16,
}

/// What [`Source::fetch`] found.
#[derive(Debug)]
#[must_use]
pub enum Fetch {
    /// A command for the device. The token must come back through [`Source::complete`], exactly once.
    Command(Command, IoBuf, Token),
    /// A command was consumed without device work (rejected, or answered at once).
    Handled,
    /// Nothing to fetch now: empty, halted, or no completion slot is free.
    Empty,
}

/// Descriptors of a command that are included in its price: more than drivers need for most.
pub const PLAIN_DESCRIPTORS: u32 = 32;

/// A front end's view of one tenant: up to 128 VQs that the poller pulls commands from.
///
/// The source validates everything that a guest wrote; the poller only sees checked commands. It
/// reserves a completion slot before it fetches, so `complete` can't fail. A command stays in the
/// guest's own queue until `fetch` takes it.
pub trait Source {
    /// Bit `i` is set while VQ `i` may be fetched from. Cheap: asked at every look. A VQ that
    /// leaves may still have commands in flight; their tokens stay valid.
    fn live_vqs(&self) -> u128;

    /// What the client asked for when it created the VQ. Asked when the VQ appears.
    fn priority(&self, _vq: u16) -> QueuePriority {
        QueuePriority::Medium
    }

    /// How long what waits in VQs that appear has waited before anybody looked: for this process to go on where another
    /// one ended. Asked once for all that appear at a time.
    fn take_waited_before(&mut self) -> Nanos {
        Nanos(0)
    }

    /// Does a little of the work that needs no device (an NVMe admin queue's): so much that a flood of it costs the
    /// poller's other tenants a few microseconds of each look. Returns how many steps; 0 once nothing is left to do.
    /// The policy has no say: a tenant that it holds back must still be able to bring its driver up.
    fn service(&mut self) -> u32 {
        0
    }

    /// VQs whose [`backlog`](Self::backlog) may have changed since it was last read, as a bit set.
    ///
    /// Their doorbells (read anew at each call) moved, or they waited for something other than a doorbell. The poller
    /// asks no other idle VQs. Exceptions are VQs that appear, VQs that it fetched from, and all VQs after the poller
    /// let another one have the source. One call covers all VQs of a tenant, and it is all that an idle tenant costs.
    /// A bit too many costs time; with one too few, the VQ's commands wait for ever.
    fn rung(&mut self) -> u128 {
        u128::MAX
    }

    /// Commands waiting in a VQ, as far as its doorbell (read anew at each call) tells.
    fn backlog(&mut self, vq: u16) -> u32;

    /// Takes the next command. One guest command may yield several device commands, one per call.
    fn fetch(&mut self, vq: u16) -> Fetch;

    /// What fetches since the last call cost beyond a command's usual price: descriptors that were walked, each above
    /// the first [`PLAIN_DESCRIPTORS`] of its command. Asked after each fetch, also of what was rejected,
    /// once the command is with the device.
    fn take_work(&mut self) -> u32 {
        0
    }

    /// Ends a command. `buf` comes back for reuse and to release its pins.
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf);

    /// Once per poll iteration after completions: publish what was batched, raise interrupts.
    fn notify(&mut self);

    /// Asks the guest to notify from now on (`true`: before the poller sleeps) or that it need not
    /// (`false`: the poller is awake). Only trapped doorbells with event indexes care.
    fn set_wakeup(&mut self, wanted: bool);
}
