//! What a job needs of a disk: queues that take reads, writes and trims, whatever protocol carries them.

use std::fmt;

use io_model::QueuePriority;
use nvme_driver::{DmaMemory, Status};

use crate::Error;
use crate::stats::Direction;

/// Size and limits of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a logical block, a power of two.
    pub block_bytes: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The most bytes that one command moves.
    pub max_transfer_bytes: u64,
    /// The most bytes that one trim covers; 0: the disk can't trim.
    pub max_trim_bytes: u64,
    /// The most commands in flight on a queue.
    pub max_depth: u16,
}

/// A queue, as a job wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueShape {
    /// Commands in flight, 1 to [`Geometry::max_depth`].
    pub depth: u16,
    /// Bytes of each command's buffer, a multiple of 4096.
    pub buffer_bytes: u64,
    /// What it counts for among the client's queues. `None`: what follows from the calling thread's I/O priority.
    pub priority: Option<QueuePriority>,
}

/// A disk that can be driven.
pub trait Disk {
    /// Its queues; each may go to a thread of its own.
    type Queue: DiskQueue;

    /// Size and limits.
    fn geometry(&self) -> Geometry;

    /// Makes all the queues of a run, in the order of `shapes`. Called once: not every protocol can add
    /// queues to a running device.
    fn open_queues(&mut self, shapes: &[QueueShape]) -> Result<Vec<Self::Queue>, Error>;

    /// Gives a queue back with nothing in flight.
    fn close_queue(&mut self, queue: Self::Queue) -> Result<(), Error>;

    /// Asks whether the device is still there and well. For when completions stay away.
    fn check(&mut self) -> Result<(), Error>;
}

/// A queue of a [`Disk`] with one buffer per command. Sending and polling neither allocate nor lock.
///
/// Commands are told apart by tags below [`QueueShape::depth`]; a command's data is in its tag's buffer.
pub trait DiskQueue: Send {
    /// The most commands in flight.
    fn depth(&self) -> u16;

    /// Commands in flight.
    fn in_flight(&self) -> u16;

    /// The tag that the next command will get, for preparing its buffer. `None`: the queue is full.
    fn next_tag(&self) -> Option<u16>;

    /// What it counts for among the client's queues, where that means anything.
    fn priority(&self) -> Option<QueuePriority> {
        None
    }

    /// The commands' buffers.
    fn buffers(&self) -> Buffers;

    /// Takes a command under [`DiskQueue::next_tag`]. The device hears of it at [`DiskQueue::ring`].
    fn send(&mut self, request: Request) -> Result<(), Error>;

    /// Tells the device about everything sent since the last time. Once per batch.
    fn ring(&mut self) -> Result<(), Error>;

    /// Hands over what completed; returns how many there were.
    fn poll(&mut self, done: &mut impl FnMut(Done)) -> Result<u32, Error>;
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub direction: Direction,
    /// Its first byte on the disk, a multiple of the block size.
    pub offset_bytes: u64,
    /// Its length, a multiple of the block size and inside of the limits.
    pub len_bytes: u64,
    /// A write that is durable when it completes.
    pub durable: bool,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Which one.
    pub tag: u16,
    /// Its outcome.
    pub outcome: Result<(), Failure>,
}

/// How a command failed, in its protocol's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// NVMe's status field.
    Nvme(Status),
    /// The name of virtio-blk's status byte (virtio 1.2, 5.2.6).
    Virtio(&'static str),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvme(status) => status.fmt(f),
            Self::Virtio(name) => f.write_str(name),
        }
    }
}

/// A queue's buffers, one for each tag. The device writes them too, so they are only copied from and to.
#[derive(Debug, Clone)]
pub struct Buffers {
    memory: DmaMemory,
    each_bytes: u64,
}

impl Buffers {
    /// As many buffers of `each_bytes` as fit in `memory`.
    pub(crate) fn new(memory: DmaMemory, each_bytes: u64) -> Self {
        Self { memory, each_bytes }
    }

    /// The device's address of a tag's buffer.
    #[inline]
    pub(crate) fn iova(&self, tag: u16) -> u64 {
        self.memory.iova() + self.at(tag)
    }

    #[inline]
    fn at(&self, tag: u16) -> u64 {
        u64::from(tag) * self.each_bytes
    }

    /// Copies `data` to the start of a tag's buffer. `None`: it does not fit.
    #[inline]
    pub fn write(&self, tag: u16, data: &[u8]) -> Option<()> {
        self.memory.write(self.at(tag), data)
    }

    /// Copies the start of a tag's buffer out. `None`: there is not that much.
    #[inline]
    pub fn read(&self, tag: u16, out: &mut [u8]) -> Option<()> {
        self.memory.read(self.at(tag), out)
    }
}
