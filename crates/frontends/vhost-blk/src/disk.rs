//! What all threads of one tenant share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::config::{
    ConfigError, DiskConfig, MAX_DISCARD_SECTORS, MAX_RANGES, MAX_ZEROES_SECTORS, SEG_MAX, SERIAL_BYTES, SIZE_MAX,
};
use crate::spec::{SECTOR_BYTES, feature};

/// Bytes of the configuration space, up to the fields for write zeroes (5.2.4).
pub const CONFIG_BYTES: usize = 60;

/// Offset of `writeback` in it.
const WRITEBACK: usize = 32;

/// A driver or VMM wrote to a field of the configuration space that can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the configuration space can't be written at {offset}, {len_bytes} bytes")]
pub struct ReadOnlyField {
    /// Offset in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub len_bytes: usize,
}

/// A virtio-blk disk, without its queues.
#[derive(Debug)]
pub struct Disk {
    config: DiskConfig,
    /// How long it is now.
    size_bytes: AtomicU64,
    /// `writeback` of the configuration space.
    writeback: AtomicBool,
    /// Rings that run, in all [`Queues`](crate::Queues).
    running: AtomicU32,
    /// A ring's driver broke the rules: none is served until all have been stopped.
    broken: AtomicBool,
}

impl Disk {
    /// A disk that nobody uses yet.
    ///
    /// # Errors
    /// The configuration breaks one of its limits.
    pub fn new(config: DiskConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let writeback = AtomicBool::new(config.write_cache);
        let size_bytes = AtomicU64::new(config.size_bytes);
        Ok(Self { config, size_bytes, writeback, running: AtomicU32::new(0), broken: AtomicBool::new(false) })
    }

    /// What it was made from.
    pub fn config(&self) -> &DiskConfig {
        &self.config
    }

    /// How long it is, in bytes.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// The disk is longer from now on, also for commands that wait; it never shrinks. The driver hears of it by the
    /// configuration interrupt (5.2.5.2), which is the wiring's to send.
    ///
    /// # Errors
    /// It would not end on a block, or wrap around.
    pub fn grow(&self, size_bytes: u64) -> Result<(), ConfigError> {
        self.config.check_size(size_bytes)?;
        self.size_bytes.fetch_max(size_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Where `len_bytes` from `sector` lie in the disk: offset and length in bytes. `None`: not whole blocks, or not
    /// all inside of it.
    #[inline]
    pub(crate) fn range(&self, sector: u64, len_bytes: u64) -> Option<(u64, u64)> {
        let start_bytes = sector.checked_mul(SECTOR_BYTES)?;
        let end_bytes = start_bytes.checked_add(len_bytes)?;
        // block_bytes is a power of two.
        let mask = u64::from(self.config.block_bytes) - 1;
        if (start_bytes | len_bytes) & mask != 0 || end_bytes > self.size_bytes() {
            return None;
        }
        Some((start_bytes, len_bytes))
    }

    /// The device and ring features that it offers (5.2.3 and 6).
    pub fn features(&self) -> u64 {
        let always = feature::VERSION_1
            | feature::EVENT_IDX
            | feature::INDIRECT_DESC
            | feature::MQ
            | feature::SEG_MAX
            | feature::SIZE_MAX
            | feature::BLK_SIZE
            | feature::TOPOLOGY
            | feature::FLUSH
            | feature::CONFIG_WCE;
        let when = |on, bit| if on { bit } else { 0 };
        let writable = !self.config.read_only;
        always
            | when(!writable, feature::RO)
            | when(writable && self.config.discard, feature::DISCARD)
            | when(writable, feature::WRITE_ZEROES)
    }

    /// The configuration space, little-endian (5.2.4). What lies behind it reads as zeros.
    pub fn config_space(&self) -> [u8; CONFIG_BYTES] {
        let DiskConfig { block_bytes, queues, discard, .. } = self.config;
        let mut space = [0; CONFIG_BYTES];
        let mut put = |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.size_bytes() / SECTOR_BYTES).to_le_bytes());
        put(8, &SIZE_MAX.to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        put(20, &block_bytes.to_le_bytes());
        // Topology: pages of 4 KiB are what drives and guests like best.
        let blocks_per_page = 4096 / block_bytes;
        put(24, &[blocks_per_page.ilog2() as u8, 0]);
        put(26, &(blocks_per_page as u16).to_le_bytes());
        put(WRITEBACK, &[u8::from(self.writeback())]);
        put(34, &queues.to_le_bytes());
        if discard {
            put(36, &MAX_DISCARD_SECTORS.to_le_bytes());
            put(40, &(MAX_RANGES as u32).to_le_bytes());
            put(44, &(block_bytes / SECTOR_BYTES as u32).to_le_bytes());
        }
        put(48, &MAX_ZEROES_SECTORS.to_le_bytes());
        put(52, &(MAX_RANGES as u32).to_le_bytes());
        put(56, &[u8::from(discard)]);
        space
    }

    /// Writes to the configuration space on behalf of a driver that acknowledged `features`: `writeback` alone can be
    /// written, if CONFIG_WCE is among them. Returns whether it changed.
    ///
    /// # Errors
    /// Anything else is refused, and changes nothing.
    pub fn write_config(&self, offset: usize, bytes: &[u8], features: u64) -> Result<bool, ReadOnlyField> {
        match bytes {
            [value @ 0..=1] if offset == WRITEBACK && features & feature::CONFIG_WCE != 0 => {
                let value = *value == 1;
                Ok(self.writeback.swap(value, Ordering::Relaxed) != value)
            }
            _ => Err(ReadOnlyField { offset, len_bytes: bytes.len() }),
        }
    }

    /// Whether completed writes may wait in the drive's cache for a flush (`writeback`).
    #[inline]
    pub fn writeback(&self) -> bool {
        self.writeback.load(Ordering::Relaxed)
    }

    /// What a driver changed is as it was at first: another client is here.
    pub fn reset(&self) {
        self.writeback.store(self.config.write_cache, Ordering::Relaxed);
    }

    /// The driver has it so, as is known of an earlier process.
    pub fn set_writeback(&self, on: bool) {
        self.writeback.store(on, Ordering::Relaxed);
    }

    /// Whether a driver broke the rules so that no ring of the disk is served; over when all rings were stopped.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn ring_started(&self) {
        // A stopped ring may break the device once more, with requests that it fetched in an earlier life.
        if self.running.fetch_add(1, Ordering::Relaxed) == 0 {
            self.broken.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn ring_stopped(&self) {
        if self.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.broken.store(false, Ordering::Relaxed);
        }
    }

    /// The serial number, padded with zeros.
    pub(crate) fn serial(&self) -> [u8; SERIAL_BYTES] {
        let mut serial = [0; SERIAL_BYTES];
        serial.iter_mut().zip(self.config.serial.bytes()).for_each(|(to, from)| *to = from);
        serial
    }
}
