//! MSR Cambridge CSV: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! After the README of that set at SNIA: the timestamp is a Windows filetime (100 ns since 1601), the type `Read`
//! or `Write`, offset and size are bytes. The response time is of the traced system and not used.

use super::{Line, Refusal, Request, read_or_write, scaled};
use crate::fields::{Commas, Fields};

pub(super) fn line(line: &[u8]) -> Result<Line<'_>, Refusal<'_>> {
    if line.get(..19).is_some_and(|head| head.eq_ignore_ascii_case(b"timestamp,hostname,")) {
        return Ok(Line::Heading);
    }
    let mut fields = Commas(Some(line));
    let filetime = fields.number("a Windows filetime")?;
    let host = fields.any("a host name")?;
    let disk = fields.any("a disk number")?;
    let op = read_or_write(fields.any("Read or Write")?)?;
    let offset_bytes = fields.number("an offset in bytes")?;
    let len_bytes = fields.number("a size in bytes")?;
    // The response time; some copies of these traces come without.
    fields.next_field();
    if let Some(found) = fields.next_field() {
        return Err(Refusal { expected: "7 fields", found });
    }
    let time_ns = scaled(filetime, 100, line)?;
    Ok(Line::Request(Request { time_ns, op, offset_bytes, len_bytes, device: [host, disk], flush_first: false }))
}
