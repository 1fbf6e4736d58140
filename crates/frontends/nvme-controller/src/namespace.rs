//! The tenant's disk: block addresses to a range of bytes in it.

use nvme_spec::Status;

use crate::NamespaceConfig;

/// NSID of the only namespace.
pub(crate) const NSID: u32 = 1;

#[derive(Debug)]
pub(crate) struct Namespace {
    pub config: NamespaceConfig,
    pub lba_shift: u32,
    /// Volatile write cache enabled (feature 06h).
    pub write_cache: bool,
}

impl Namespace {
    pub fn new(config: NamespaceConfig) -> Self {
        let lba_shift = config.lba_bytes.trailing_zeros();
        Self { write_cache: config.volatile_write_cache, config, lba_shift }
    }

    pub fn set_lba_bytes(&mut self, lba_bytes: u32) {
        self.config.lba_bytes = lba_bytes;
        self.lba_shift = lba_bytes.trailing_zeros();
    }

    pub fn blocks(&self) -> u64 {
        self.config.size_bytes >> self.lba_shift
    }

    /// Index of the current LBA format in the list that Identify Namespace reports.
    pub fn format_index(&self) -> u8 {
        let sizes = &self.config.lba_sizes;
        sizes.iter().position(|size| *size == self.config.lba_bytes).unwrap_or(0) as u8
    }

    /// Where `blocks` from `slba` lie in the disk: offset and length in bytes.
    #[inline]
    pub fn range(&self, slba: u64, blocks: u64) -> Result<(u64, u64), Status> {
        match slba.checked_add(blocks) {
            // No shift overflows: the end is inside of a namespace that was checked.
            Some(end) if end <= self.blocks() => Ok((slba << self.lba_shift, blocks << self.lba_shift)),
            _ => Err(Status::LBA_OUT_OF_RANGE),
        }
    }
}
