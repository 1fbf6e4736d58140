//! Zeroing a range of the drive, and finding what reads as zeros, by system calls that wait.

use std::ops::Range;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, seek};
use rustix::io::{Errno, pwrite, retry_on_intr};

use crate::drive::UringDrive;
use crate::errno::is_lacking;
use crate::flight::zeroes;

/// Pieces of data that are looked for in a range. Finding this many takes a tenth of a second.
const MOST_PIECES: usize = 1 << 16;

/// What is data is whole blocks of this size, or of the drive's: file systems have no smaller ones.
const DATA_BLOCK_BYTES: u64 = 4096;

impl UringDrive {
    /// Where a range of whole blocks may hold data, in order. All else is a hole of a file, which reads as zeros and
    /// has no blocks. Of a block device, and where a file system can't tell, all is data.
    ///
    /// Nobody may write into the range meanwhile.
    pub fn data(&self, offset_bytes: u64, len_bytes: u64) -> Vec<Range<u64>> {
        let (end, block_bytes) = (offset_bytes + len_bytes, self.opened.block_bytes.max(DATA_BLOCK_BYTES));
        let find = |from| retry_on_intr(|| seek(self.opened.files.first(), from));
        let mut pieces: Vec<Range<u64>> = Vec::new();
        let mut at = offset_bytes;
        while at < end {
            let start = match find(SeekFrom::Data(at)) {
                Ok(start) if start >= end => break,
                Err(Errno::NXIO) => break,
                found => found.unwrap_or(at).max(at),
            };
            let hole = find(SeekFrom::Hole(start)).ok().filter(|hole| *hole > start && pieces.len() < MOST_PIECES);
            let start = (start - start % block_bytes).max(offset_bytes);
            at = hole.and_then(|hole| hole.checked_next_multiple_of(block_bytes)).map_or(end, |hole| hole.min(end));
            match pieces.last_mut().filter(|last| last.end >= start) {
                Some(last) => last.end = at,
                None => pieces.push(start..at),
            }
        }
        pieces
    }

    /// Makes a range of whole blocks read as zeros, in the quickest way that the drive has: a hole, its own command
    /// for it, or writing. Not durable before [`UringDrive::sync`].
    ///
    /// # Errors
    /// The system's; part of the range may be zeroed.
    pub fn zero(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        let file = self.opened.files.first();
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
        let synced = retry_on_intr(|| fdatasync(self.opened.files.first()));
        if synced.is_err() {
            self.opened.files.flushes(0).failed();
        }
        synced
    }
}
