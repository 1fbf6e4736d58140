//! CloudPhysics CSV: `version,time,op,size,lbn`.
//!
//! Time in whole seconds (the public sample of one VM spans 7200 of them, which are its two hours), the
//! operation code of the SCSI command in hexadecimal (SBC-4, SPC-5), size in bytes, `lbn` in 512-byte blocks.

use io_model::Op;

use super::{Line, Refusal, Request, scaled};
use crate::BLOCK_BYTES;
use crate::fields::{Commas, Fields, hex_byte};

/// What an operation code does, or `None` for one that moves no data or whose ranges are not in the trace
/// (UNMAP has them in its parameter list).
fn scsi_op(code: u8) -> Option<Op> {
    match code {
        // READ(6), (10), (16), (12).
        0x08 | 0x28 | 0x88 | 0xa8 => Some(Op::Read),
        // WRITE(6), (10), (16), (12), then WRITE AND VERIFY(10), (16), (12).
        0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e | 0xae => Some(Op::Write),
        // SYNCHRONIZE CACHE(10), (16).
        0x35 | 0x91 => Some(Op::Flush),
        _ => None,
    }
}

pub(super) fn line(line: &[u8]) -> Result<Line<'_>, Refusal<'_>> {
    if line.eq_ignore_ascii_case(b"version,time,op,size,lbn") {
        return Ok(Line::Heading);
    }
    let mut fields = Commas(Some(line));
    let version = fields.any("version 1")?;
    if version != b"1" {
        return Err(Refusal { expected: "version 1", found: version });
    }
    let time_s = fields.number("a time in whole seconds")?;
    let code = fields.any("a SCSI operation code")?;
    let code = hex_byte(code).ok_or(Refusal { expected: "a SCSI operation code in hexadecimal", found: code })?;
    let len_bytes = fields.number("a size in bytes")?;
    let block = fields.number("a logical block number")?;
    if let Some(found) = fields.next_field() {
        return Err(Refusal { expected: "5 fields", found });
    }
    let Some(op) = scsi_op(code) else { return Ok(Line::Skipped) };
    Ok(Line::Request(Request {
        time_ns: scaled(time_s, 1_000_000_000, line)?,
        op,
        offset_bytes: scaled(block, BLOCK_BYTES, line)?,
        len_bytes,
        device: [b"", b""],
        flush_first: false,
    }))
}
