//! fio's iolog, versions 2 and 3 (fio's HOWTO, "Trace file format").
//!
//! Version 2: `filename action [offset length]`. It has no timestamps; `wait` moves time on by `offset` µs, so a
//! log without any is one burst. fio leaves out waits below 100 µs because it cannot sleep that precisely; here
//! they count. Version 3: `timestamp filename action [offset length]`, timestamp in µs from the start, no `wait`.

use io_model::Op;

use super::{Line, Refusal, Request, scaled};
use crate::fields::{Fields, Words};

/// What earlier lines said.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// From the first line; `None` before it.
    version: Option<Version>,
    /// Version 2 only: the sum of the waits.
    waited_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Two,
    Three,
}

impl State {
    pub(super) fn line<'a>(&mut self, line: &'a [u8]) -> Result<Line<'a>, Refusal<'a>> {
        let heading = match line {
            b"fio version 2 iolog" => Some(Version::Two),
            b"fio version 3 iolog" => Some(Version::Three),
            _ => None,
        };
        if heading.is_some() {
            self.version = heading;
            return Ok(Line::Heading);
        }
        let version = self
            .version
            .ok_or(Refusal { expected: "\"fio version 2 iolog\" or \"fio version 3 iolog\" first", found: line })?;

        let mut words = Words(line);
        let time_ns = match version {
            Version::Two => self.waited_ns,
            Version::Three => scaled(words.number("a timestamp in microseconds")?, 1_000, line)?,
        };
        let file = words.any("a file name")?;
        let action = words.any("an action")?;
        let op = match action {
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"trim" => Op::Discard,
            b"sync" | b"datasync" => Op::Flush,
            b"add" | b"open" | b"close" => return Ok(Line::Skipped),
            b"wait" if version == Version::Two => {
                let wait_ns = scaled(words.number("a time to wait in microseconds")?, 1_000, line)?;
                self.waited_ns = self.waited_ns.saturating_add(wait_ns);
                return Ok(Line::Skipped);
            }
            b"wait" => return Err(Refusal { expected: "timestamps instead of waits in version 3", found: action }),
            _ => return Err(Refusal { expected: "an action of fio's (read, write, trim, sync, ...)", found: action }),
        };
        let (offset_bytes, len_bytes) = match op {
            Op::Flush => (0, 0),
            _ => (words.number("an offset in bytes")?, words.number("a length in bytes")?),
        };
        Ok(Line::Request(Request { time_ns, op, offset_bytes, len_bytes, device: file, flush_first: false }))
    }
}
