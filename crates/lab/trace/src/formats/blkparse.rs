//! `blkparse`'s default text: `major,minor cpu sequence seconds pid action RWBS sector + sectors [process]`.
//!
//! After blkparse(1): of a request's stations only `Q` (queued) is taken, or `D` (issued to the driver) where a
//! trace has no `Q` at all; everything else (`A`, `C`, `G`, `I`, ..., messages) is skipped. So are requests
//! without a place on the disk (packet commands) and zone commands, and the report at the end.
//!
//! RWBS after `blk_fill_rwbs` of Linux: an `F` first asks for a flush before the request; then `R`, `W`, `D`
//! (discard, `DE` secure erase), `WZ` (write zeroes), `FF` (a flush alone), `N` (none) or `Z.` (zone); what
//! follows (FUA, ahead, sync, metadata, ...) does not change what is moved.

use io_model::Op;

use super::{Line, Refusal, Request, scaled};
use crate::BLOCK_BYTES;
use crate::fields::{Fields, Words, decimal, seconds};

/// How the lines of the report, and those about input files, start.
const REPORT: [&[u8]; 9] =
    [b"CPU", b"Total (", b"Read", b"Write", b"PC ", b"IO unplugs:", b"Throughput (", b"Events (", b"Skips:"];

/// What a request's RWBS field asks for.
struct Kind {
    /// `None` for one that moves no data that we could place.
    op: Option<Op>,
    flush_first: bool,
}

pub(super) fn line(line: &[u8]) -> Result<Line<'_>, Refusal<'_>> {
    if REPORT.iter().any(|start| line.starts_with(start)) || line.starts_with(b"Input file ") {
        return Ok(Line::Skipped);
    }
    let mut words = Words(line);
    let device = words.any("a device (major,minor)")?;
    if !is_device(device) {
        return Err(Refusal { expected: "a device (major,minor)", found: device });
    }
    words.number("a CPU number")?;
    words.number("a sequence number")?;
    let time = words.any("a time in seconds")?;
    let time_ns = seconds(time).ok_or(Refusal { expected: "a time in seconds.nanoseconds", found: time })?;
    words.number("a process identifier")?;
    let action = words.any("an action")?;
    if action.len() > 2 || !action.iter().all(u8::is_ascii_alphabetic) {
        return Err(Refusal { expected: "an action of one or two letters", found: action });
    }
    if action != b"Q" && action != b"D" {
        return Ok(Line::Skipped);
    }
    let rwbs = words.any("an RWBS field")?;
    let kind = kind(rwbs).ok_or(Refusal { expected: "an RWBS field", found: rwbs })?;
    let range = range(&mut words)?;
    let (op, sector, sectors) = match (kind.op, range) {
        // An empty write that asks for a flush before it is how Linux sends a flush from above.
        (Some(Op::Flush), _) => (Op::Flush, 0, 0),
        (Some(_), None | Some((_, 0))) if kind.flush_first => (Op::Flush, 0, 0),
        (Some(op), Some((sector, sectors))) => (op, sector, sectors),
        _ => return Ok(Line::Skipped),
    };
    let request = Request {
        time_ns,
        op,
        offset_bytes: scaled(sector, BLOCK_BYTES, line)?,
        len_bytes: scaled(sectors, BLOCK_BYTES, line)?,
        device,
        flush_first: kind.flush_first && op != Op::Flush,
    };
    Ok(if action == b"Q" { Line::Request(request) } else { Line::Issued(request) })
}

/// `major,minor`.
fn is_device(word: &[u8]) -> bool {
    let mut numbers = word.split(|&byte| byte == b',');
    let both = [numbers.next(), numbers.next()];
    both.iter().all(|number| number.and_then(decimal).is_some()) && numbers.next().is_none()
}

/// `sector + sectors`; `None` where a request has no place: `[process]` alone, or a packet command's length.
fn range<'a>(words: &mut Words<'a>) -> Result<Option<(u64, u64)>, Refusal<'a>> {
    let first = words.any("a sector")?;
    if first.starts_with(b"[") {
        return Ok(None);
    }
    let sector = decimal(first).ok_or(Refusal { expected: "a sector", found: first })?;
    match words.any("\"+\" and a number of sectors")? {
        b"+" => Ok(Some((sector, words.number("a number of sectors")?))),
        packet if packet.starts_with(b"(") || packet.starts_with(b"[") => Ok(None),
        found => Err(Refusal { expected: "\"+\" and a number of sectors", found }),
    }
}

/// `None` for a field that is none.
fn kind(rwbs: &[u8]) -> Option<Kind> {
    let (flush_first, rest) = match rwbs {
        [b'F', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (op, flags) = match rest {
        [b'R', flags @ ..] => (Some(Op::Read), flags),
        [b'W', b'Z', flags @ ..] => (Some(Op::WriteZeroes), flags),
        [b'W', flags @ ..] => (Some(Op::Write), flags),
        [b'D', flags @ ..] => (Some(Op::Discard), flags),
        [b'F', flags @ ..] => (Some(Op::Flush), flags),
        // `F`, `FS`, `FN`: the flush is all there is.
        flags if flush_first => (Some(Op::Flush), flags),
        [b'N' | b'Z', flags @ ..] => (None, flags),
        _ => return None,
    };
    flags.iter().all(u8::is_ascii_uppercase).then_some(Kind { op, flush_first })
}
