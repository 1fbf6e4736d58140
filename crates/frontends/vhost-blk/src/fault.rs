//! What a driver or VMM can do wrong, in words for the operator's log.

use crate::config::MAX_RING_SIZE;
use crate::inflight::LogError;

/// What went wrong on a virtqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The available index is further ahead than the ring is long.
    #[error("the available index {avail} is more than {size} entries ahead of {fetched}")]
    AvailIndex {
        /// What the driver wrote.
        avail: u16,
        /// Entries fetched so far, modulo 2^16.
        fetched: u16,
        /// Descriptors in the ring.
        size: u16,
    },
    /// The available ring names a descriptor that does not exist.
    #[error("the available ring names descriptor {head} of {size}")]
    Head {
        /// What the driver wrote.
        head: u16,
        /// Descriptors in the ring.
        size: u16,
    },
    /// The available ring names a request that was not completed yet.
    #[error("the request at descriptor {head} was made available twice")]
    HeadTwice {
        /// Its head.
        head: u16,
    },
    /// A chain comes back to where it was, or is longer than its table.
    #[error("the chain at descriptor {head} is longer than its table of {size}: it loops")]
    Loop {
        /// Its head.
        head: u16,
        /// Descriptors in the table.
        size: u16,
    },
    /// A chain names a descriptor that its table does not have.
    #[error("the chain at descriptor {head} leads to descriptor {next} of {size}")]
    Next {
        /// Its head.
        head: u16,
        /// What the driver wrote.
        next: u16,
        /// Descriptors in the table.
        size: u16,
    },
    /// An indirect table inside of another, in the middle of a chain, or without the feature.
    #[error("the chain at descriptor {head} has an indirect table where none may be")]
    Indirect {
        /// Its head.
        head: u16,
    },
    /// An indirect table is empty, too long, or not whole descriptors.
    #[error("the chain at descriptor {head} has an indirect table of {len_bytes} bytes")]
    TableLength {
        /// Its head.
        head: u16,
        /// What the driver wrote.
        len_bytes: u32,
    },
    /// An indirect table lies outside of guest memory.
    #[error("the chain at descriptor {head} has an indirect table at {address:#x}, which is not guest memory")]
    TableMemory {
        /// Its head.
        head: u16,
        /// What the driver wrote.
        address: u64,
    },
    /// No byte of the chain can be written, so there is nowhere to put a status.
    #[error("the request at descriptor {head} has no room for its status")]
    NoStatus {
        /// Its head.
        head: u16,
    },
    /// The status byte lies outside of guest memory.
    #[error("the request at descriptor {head} wants its status at {address:#x}, which is not guest memory")]
    StatusMemory {
        /// Its head.
        head: u16,
        /// Guest address.
        address: u64,
    },
    /// Guest memory was replaced, and the ring is not in it. It goes on when it is in it again.
    #[error("the ring's memory is gone")]
    RingMemory,
    /// The client took memory away without saying so: what it says is not to be believed any more.
    #[error("the client took away memory that it had shared")]
    MemoryLost,
}

impl FaultKind {
    /// Whether the whole device stops for it.
    pub(crate) fn breaks_device(self) -> bool {
        self != Self::RingMemory
    }
}

/// Why a virtqueue, or the whole device, is served no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("virtqueue {queue}: {kind}")]
pub struct Fault {
    /// Index of the virtqueue.
    pub queue: u16,
    /// What happened.
    pub kind: FaultKind,
}

/// Why a ring was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No such virtqueue here.
    #[error("there is no such virtqueue")]
    NoQueue,
    /// It runs, or commands of an earlier life are still with the drive.
    #[error("the virtqueue is in use, or commands of an earlier client are still with the drive")]
    Busy,
    /// Not a power of two, or too large.
    #[error("a ring of {size} is not a power of two up to {MAX_RING_SIZE}")]
    Size {
        /// What the VMM asked for.
        size: u16,
    },
    /// A part of the ring is not aligned (2.7), or not in one piece of guest memory that allows what it is for.
    #[error("the {part} at {address:#x} is not aligned or not in guest memory")]
    Ring {
        /// Which part.
        part: &'static str,
        /// Guest address.
        address: u64,
    },
    /// The driver's available index contradicts the index to start from.
    #[error("the available index is {avail}, but the ring is to start from {next_avail} of {size}")]
    Avail {
        /// What the driver wrote.
        avail: u16,
        /// What the VMM asked for.
        next_avail: u16,
        /// Descriptors in the ring.
        size: u16,
    },
    /// The log of requests in flight can't be trusted.
    #[error("the log of requests in flight is refused: {0}")]
    Log(#[from] LogError),
}
