//! What one disk is to look like.

use io_model::Place;

use crate::lanes::MAX_QUEUES_BY_PRIORITY;

/// The most virtqueues of one disk.
pub const MAX_QUEUES: u16 = 64;

/// The largest ring, in descriptors; also the largest indirect table.
pub const MAX_RING_SIZE: u16 = 1024;

/// Data segments of one request at most (`seg_max`): a ring of 128 holds it with header and status.
pub(crate) const SEG_MAX: u32 = 126;

/// Bytes of one segment at most (`size_max`). Both bind only drivers that negotiated them (5.2.5.2).
pub(crate) const SIZE_MAX: u32 = 128 << 10;

/// Data of one request at most, in bytes: with its status, no longer than a chain may be (2.7.5).
pub(crate) const MAX_REQUEST_BYTES: u64 = u32::MAX as u64 - 1;

/// Ranges of one discard or write zeroes at most.
pub(crate) const MAX_RANGES: usize = 32;

/// Sectors of one range to discard at most: 1 GiB.
pub(crate) const MAX_DISCARD_SECTORS: u32 = 1 << 21;

/// Sectors of one range to zero at most: 64 MiB, which a drive may have to write.
pub(crate) const MAX_ZEROES_SECTORS: u32 = 1 << 17;

/// Room for the serial number (`VIRTIO_BLK_T_GET_ID`), in bytes.
pub(crate) const SERIAL_BYTES: usize = 20;

/// One tenant's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// The tenant that it belongs to, and where it starts on the device.
    pub place: Place,
    /// How long it is at first; see [`Disk::grow`](crate::Disk::grow).
    pub size_bytes: u64,
    /// Block size: 512 or 4096. Requests must be whole blocks.
    pub block_bytes: u32,
    /// Serial number: at most 20 printable ASCII characters.
    pub serial: String,
    /// Virtqueues: 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Writes fail.
    pub read_only: bool,
    /// The device can discard: DISCARD is offered.
    pub discard: bool,
    /// The device has a volatile write cache, so that FLUSH and `writeback` mean something.
    pub write_cache: bool,
    /// Requests wait by the priority that each carries: a virtqueue is three VQs, and there are at most
    /// [`MAX_QUEUES_BY_PRIORITY`] of it.
    pub by_priority: bool,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The serial number is too long or not printable.
    #[error("serial must be at most {SERIAL_BYTES} printable ASCII characters")]
    Serial,
    /// Neither 512 nor 4096.
    #[error("block_bytes must be 512 or 4096")]
    BlockBytes,
    /// None or too many.
    #[error("queues must be 1 to {most}")]
    Queues {
        /// How many there may be.
        most: u16,
    },
    /// Empty, wrapping around, or not whole blocks.
    #[error("the disk must be at least one block, and start and end on a block")]
    Place,
}

impl DiskConfig {
    /// Checks every limit that the fields' documentation names.
    ///
    /// # Errors
    /// The first limit that is not kept.
    pub fn check(&self) -> Result<(), ConfigError> {
        let printable = self.serial.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if self.serial.len() > SERIAL_BYTES || !printable {
            return Err(ConfigError::Serial);
        }
        if ![512, 4096].contains(&self.block_bytes) {
            return Err(ConfigError::BlockBytes);
        }
        let most = if self.by_priority { MAX_QUEUES_BY_PRIORITY } else { MAX_QUEUES };
        if !(1..=most).contains(&self.queues) {
            return Err(ConfigError::Queues { most });
        }
        self.check_size(self.size_bytes)
    }

    /// Whether the disk may be so long.
    pub(crate) fn check_size(&self, size_bytes: u64) -> Result<(), ConfigError> {
        let whole = |bytes: u64| bytes.is_multiple_of(u64::from(self.block_bytes));
        let base_bytes = self.place.base_bytes;
        let fits = base_bytes.checked_add(size_bytes).is_some();
        if size_bytes == 0 || !fits || !whole(base_bytes) || !whole(size_bytes) {
            return Err(ConfigError::Place);
        }
        Ok(())
    }
}
