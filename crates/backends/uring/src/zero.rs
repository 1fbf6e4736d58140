//! Zeroing a range of the drive by system calls that wait.

use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{Errno, pwrite, retry_on_intr};

use crate::drive::UringDrive;
use crate::errno::is_lacking;
use crate::flight::zeroes;

impl UringDrive {
    /// Makes a range of whole blocks read as zeros, in the quickest way that the drive has: a hole, its own command
    /// for it, or writing. Not durable before [`UringDrive::sync`].
    ///
    /// # Errors
    /// The system's; part of the range may be zeroed.
    pub fn zero(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        let file = &self.opened.file;
        for way in [FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE] {
            let flags = way | FallocateFlags::KEEP_SIZE;
            match retry_on_intr(|| fallocate(file, flags, offset_bytes, len_bytes)) {
                Err(errno) if is_lacking(errno) => {}
                ended => return ended,
            }
        }
        let (mut at, end) = (offset_bytes, offset_bytes + len_bytes);
        while at < end {
            let part = &zeroes()[..(end - at).min(zeroes().len() as u64) as usize];
            match retry_on_intr(|| pwrite(file, part, at))? {
                0 => return Err(Errno::IO),
                written => at += written as u64,
            }
        }
        Ok(())
    }

    /// Makes what was zeroed durable.
    ///
    /// # Errors
    /// The system's. Tenants whose writes may be lost too learn of it by their next flush.
    pub fn sync(&self) -> Result<(), Errno> {
        let synced = retry_on_intr(|| fdatasync(&self.opened.file));
        if synced.is_err() {
            self.opened.flushes.failed();
        }
        synced
    }
}
