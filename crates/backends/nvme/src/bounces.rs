//! Copies of what the drive can't reach where it lies: memory of our own, and pieces that neither PRPs nor SGLs
//! describe.

use nvme_driver::{DmaMemory, Error};
use nvme_spec::PAGE_BYTES;

/// Bytes of a copy: longer commands go through in parts.
pub(crate) const BOUNCE_BYTES: u64 = 128 << 10;
const COUNT: u32 = 15;
/// What a poller's copies take together: whole huge pages, the last place of which is always zeros.
pub(crate) const BOUNCES_BYTES: u64 = (COUNT as u64 + 1) * BOUNCE_BYTES;

/// One copy's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounce(u32);

/// The places of one poller.
pub(crate) struct Bounces {
    memory: DmaMemory,
    free: Vec<Bounce>,
}

impl Bounces {
    /// Over memory of [`BOUNCES_BYTES`].
    pub fn new(memory: DmaMemory) -> Result<Self, Error> {
        if memory.len_bytes() < BOUNCES_BYTES || !memory.iova().is_multiple_of(PAGE_BYTES) {
            return Err(Error::Invalid("too little memory for copies"));
        }
        Ok(Self { memory, free: (0..COUNT).rev().map(Bounce).collect() })
    }

    /// A place, if one is free.
    pub fn take(&mut self) -> Option<Bounce> {
        self.free.pop()
    }

    /// Takes one back.
    pub fn give(&mut self, bounce: Bounce) {
        self.free.push(bounce);
    }

    /// The memory, and where in it the place starts.
    pub fn at(&self, bounce: Bounce) -> (&DmaMemory, u64) {
        (&self.memory, u64::from(bounce.0) * BOUNCE_BYTES)
    }

    /// The drive's address of a place.
    pub fn iova(&self, bounce: Bounce) -> u64 {
        self.memory.iova() + u64::from(bounce.0) * BOUNCE_BYTES
    }

    /// The drive's address of a page of zeros.
    pub fn zeros(&self) -> u64 {
        self.memory.iova() + u64::from(COUNT) * BOUNCE_BYTES
    }

    /// All of it, to be given back.
    pub fn into_memory(self) -> DmaMemory {
        self.memory
    }
}
