//! FIU text: `timestamp pid process lba size op major minor md5`.
//!
//! After the README of the I/O Deduplication set at SNIA: the timestamp is in ns, `lba` and size are 512-byte
//! blocks, `op` is `R` or `W`, the MD5 is of the content and not used (and may be missing).

use super::{Line, Refusal, Request, read_or_write, scaled};
use crate::BLOCK_BYTES;
use crate::fields::{Fields, Words, decimal};

const SHAPE: &str = "timestamp pid process lba size op major minor [md5]";

/// The hexadecimal digits of a digest: more than any number has.
const MD5_DIGITS: usize = 32;

/// Process names of more words than fit here are refused.
const MAX_WORDS: usize = 24;

pub(super) fn line(line: &[u8]) -> Result<Line<'_>, Refusal<'_>> {
    let mut rest = Words(line);
    let time_ns = rest.number("a timestamp in nanoseconds")?;
    rest.number("a process identifier")?;

    let mut words: [&[u8]; MAX_WORDS] = [b""; MAX_WORDS];
    let mut count = 0;
    while let Some(word) = rest.next_field() {
        *words.get_mut(count).ok_or(Refusal { expected: SHAPE, found: line })? = word;
        count += 1;
    }
    // A process's name may have blanks in it, so the fields behind it are counted from the end, where there is
    // one digest, several (one per block), or none.
    let end = words.iter().take(count).rposition(|word| word.len() != MD5_DIGITS).map_or(0, |last| last + 1);
    let words = words.get(..end).unwrap_or_default();
    let [_process, .., lba, size, op, major, minor] = words else {
        return Err(Refusal { expected: SHAPE, found: line });
    };
    for number in [major, minor] {
        decimal(number).ok_or(Refusal { expected: "a device number", found: number })?;
    }
    let lba = decimal(lba).ok_or(Refusal { expected: "an address in 512-byte blocks", found: lba })?;
    let blocks = decimal(size).ok_or(Refusal { expected: "a size in 512-byte blocks", found: size })?;
    Ok(Line::Request(Request {
        time_ns,
        op: read_or_write(op)?,
        offset_bytes: scaled(lba, BLOCK_BYTES, line)?,
        len_bytes: scaled(blocks, BLOCK_BYTES, line)?,
        device: [major, minor],
        flush_first: false,
    }))
}
