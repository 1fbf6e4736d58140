//! What `evenkeel trace` writes: CSV, a line for each command, in the order in which they ended.
//!
//! `time_ns` is when the command's doorbell was first seen, from the start of the trace; `disk` which of the tenant's
//! disks; `op` is read, write, flush, zeroes or discard; `lba` in blocks of 512 bytes from the start of that disk,
//! `len_bytes` in bytes; `waited_ns` the time in the tenant's queue, `served_ns` the time with the drive; `status` is
//! ok or failed. The last line is a comment that says how many commands there are, and how many could not be recorded.
//! A replay takes the time at which a command arrived, and finds out by itself how long it takes.

use io_model::Op;

use super::{Line, Refusal, Request, scaled};
use crate::BLOCK_BYTES;
use crate::fields::{Commas, Fields};

const COLUMNS: &[u8] = b"time_ns,disk,op,lba,len_bytes,waited_ns,served_ns,status";

pub(super) fn line(line: &[u8]) -> Result<Line<'_>, Refusal<'_>> {
    if line == COLUMNS {
        return Ok(Line::Heading);
    }
    let mut fields = Commas(Some(line));
    let time_ns = fields.number("a time in nanoseconds")?;
    let disk = fields.any("the number of a disk")?;
    let op = match fields.any("read, write, flush, zeroes or discard")? {
        b"read" => Op::Read,
        b"write" => Op::Write,
        b"flush" => Op::Flush,
        b"zeroes" => Op::WriteZeroes,
        b"discard" => Op::Discard,
        found => return Err(Refusal { expected: "read, write, flush, zeroes or discard", found }),
    };
    let block = fields.number("a block of 512 bytes")?;
    let len_bytes = fields.number("a length in bytes")?;
    fields.number("a time waited in nanoseconds")?;
    fields.number("a time served in nanoseconds")?;
    match fields.any("ok or failed")? {
        b"ok" | b"failed" => {}
        found => return Err(Refusal { expected: "ok or failed", found }),
    }
    if let Some(found) = fields.next_field() {
        return Err(Refusal { expected: "8 fields", found });
    }
    let offset_bytes = scaled(block, BLOCK_BYTES, line)?;
    Ok(Line::Request(Request { time_ns, op, offset_bytes, len_bytes, device: disk, flush_first: false }))
}

/// Where a comment is the last line: how many commands could not be recorded.
pub(super) fn lost_at_end(comment: &[u8]) -> Option<u64> {
    let told = str::from_utf8(comment).ok()?.strip_prefix("# end: ")?;
    let (commands, lost) = told.split_once(" commands, ")?;
    commands.parse::<u64>().ok()?;
    lost.strip_suffix(" lost")?.parse().ok()
}
