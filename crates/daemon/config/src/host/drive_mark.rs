//! A mark of ours in the block behind all disks, by which a block device is known that has no identity of its own.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use layout::DeviceIdentity;

use super::image_id::read_mark;
use crate::RANGE_STEP_BYTES;

/// What such an identity begins with.
pub(super) const PREFIX: &str = DeviceIdentity::MARK;
/// What the block begins with; the mark's digits follow, then zeros.
const MAGIC: &[u8] = b"Evenkeel's mark of this drive: ";

/// Bytes that a mark takes.
pub(crate) const MARK_BYTES: u64 = RANGE_STEP_BYTES;

/// Aligned as a drive wants it that is open for direct I/O.
#[repr(align(4096))]
struct Block([u8; MARK_BYTES as usize]);

/// Has the mark at `at_bytes`, durably.
pub(crate) fn keep(drive: &File, at_bytes: u64, id: &str) -> io::Result<()> {
    if read(drive, at_bytes).as_deref() == Some(id) {
        return Ok(());
    }
    let mut block = Block([0; MARK_BYTES as usize]);
    let digits = id.strip_prefix(PREFIX).unwrap_or(id).as_bytes();
    for (to, from) in block.0.iter_mut().zip(MAGIC.iter().chain(digits)) {
        *to = *from;
    }
    drive.write_all_at(&block.0, at_bytes)?;
    drive.sync_all()
}

/// The mark at `at_bytes`, if there is one.
pub(super) fn read(drive: &File, at_bytes: u64) -> Option<String> {
    let mut block = Block([0; MARK_BYTES as usize]);
    drive.read_exact_at(&mut block.0, at_bytes).ok()?;
    mark_in(&block.0)
}

/// The mark that is all of a block.
pub(super) fn mark_in(block: &[u8]) -> Option<String> {
    let rest = block.strip_prefix(MAGIC)?;
    let digits = rest.split(|byte| *byte == 0).next()?;
    let is_rest_empty = rest.iter().skip(digits.len()).all(|byte| *byte == 0);
    Some(PREFIX.to_owned() + &read_mark(digits)?).filter(|_| is_rest_empty)
}
