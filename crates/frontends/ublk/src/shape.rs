//! What one block device is like.

use crate::spec::{MAX_QUEUE_DEPTH, Params, SECTOR_BYTES, attr};

/// The most queues of one device that we serve.
pub const MAX_QUEUES: u16 = 64;

/// Sectors of one discard at most: 1 GiB.
const MAX_DISCARD_SECTORS: u32 = 1 << 21;

/// Sectors of one write zeroes at most: 64 MiB, which a drive may have to write.
const MAX_ZEROES_SECTORS: u32 = 1 << 17;

/// A block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How long it is.
    pub size_bytes: u64,
    /// Block size: 512 or 4096.
    pub block_bytes: u32,
    /// 1 to [`MAX_QUEUES`]; the driver may give fewer.
    pub queues: u16,
    /// Requests of each queue at a time, 1 to [`MAX_QUEUE_DEPTH`].
    pub depth: u16,
    /// Nobody can write.
    pub read_only: bool,
    /// The drive can discard.
    pub discard: bool,
    /// The drive has a volatile write cache.
    pub write_cache: bool,
}

/// Why a device can't be so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a block device has 1 to {MAX_QUEUES} queues of 1 to {MAX_QUEUE_DEPTH} requests, and whole blocks of 512 or 4096"
)]
pub struct BadShape;

impl Shape {
    /// Bytes of a request at most: as much as every policy lets through at once. Each request of a queue has so much
    /// memory for its data.
    pub const MAX_IO_BYTES: u32 = 128 << 10;

    /// Checks every limit that the fields' documentation names.
    ///
    /// # Errors
    /// One is not kept.
    pub fn check(&self) -> Result<(), BadShape> {
        let Self { size_bytes, block_bytes, queues, depth, .. } = *self;
        let is_good = [512, 4096].contains(&block_bytes)
            && size_bytes > 0
            && size_bytes.is_multiple_of(u64::from(block_bytes))
            && (1..=MAX_QUEUES).contains(&queues)
            && (1..=MAX_QUEUE_DEPTH).contains(&depth);
        is_good.then_some(()).ok_or(BadShape)
    }

    /// As the driver wants to hear it.
    pub fn params(&self) -> Params {
        let when = |on: bool, bit| if on { bit } else { 0 };
        let (discard, zeroes) = (self.discard && !self.read_only, !self.read_only);
        let block_shift = self.block_bytes.ilog2() as u8;
        // Pages of 4 KiB are what drives like best.
        let page_shift = 12;
        Params {
            len: Params::LEN_BYTES,
            types: Params::BASIC | when(discard || zeroes, Params::DISCARD),
            attrs: when(self.read_only, attr::READ_ONLY) | when(self.write_cache, attr::VOLATILE_CACHE | attr::FUA),
            logical_bs_shift: block_shift,
            physical_bs_shift: page_shift,
            io_opt_shift: Self::MAX_IO_BYTES.ilog2() as u8,
            io_min_shift: page_shift,
            max_sectors: Self::MAX_IO_BYTES / SECTOR_BYTES as u32,
            dev_sectors: self.size_bytes / SECTOR_BYTES,
            discard_granularity: when(discard || zeroes, self.block_bytes),
            max_discard_sectors: when(discard, MAX_DISCARD_SECTORS),
            max_write_zeroes_sectors: when(zeroes, MAX_ZEROES_SECTORS),
            max_discard_segments: u16::from(discard || zeroes),
            ..Params::default()
        }
    }
}
