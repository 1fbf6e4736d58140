//! Readers of block traces: three text forms in, one compact list of requests out.
//!
//! [`read()`] finds out the [`Format`] by the first lines (or is told it) and gives a [`Trace`] of [`Entry`]s,
//! sorted by time; time counts from the first of them. Each format's module states its columns and source:
//!
//! | [`Format`] | time unit | place | length |
//! |---|---|---|---|
//! | `Evenkeel` (`evenkeel trace`) | ns | 512-byte blocks | bytes |
//! | `FioIolog` (versions 2 and 3) | µs | bytes | bytes |
//! | `Blkparse` (default text output) | ns | 512-byte sectors | 512-byte sectors |
//!
//! These are what can be recorded on a machine of one's own. A published trace of another form becomes version 3 of
//! fio's by a line of awk: a heading, then `microseconds name read|write offset length` for each request.
//!
//! # Imperfect input
//!
//! Every rule that applied is counted in [`Counts`]; nothing is mended silently.
//!
//! - **A malformed line** is an error that names file, line, what was expected and what was found. With
//!   [`Limits::lenient`] it is left out and counted instead.
//! - **A timestamp before the latest one**: by up to [`Limits::reorder_ns`] it is taken as two requests logged in
//!   the wrong order, and the entry gets the latest time. By more, it is a jump back (a clock set back, two
//!   files in one): the entry gets the latest time and time runs on from there.
//! - **Lines in the order in which requests ended** (`Evenkeel`): all are sorted by time; there it does not jump.
//! - **A range that is not made of whole 512-byte blocks** is rounded out to the blocks it touches; **a length of
//!   zero** becomes one block, so that the number of requests stays.
//! - **A read or write longer than [`Limits::max_len_bytes`]** is split into consecutive entries at the same
//!   time. Discards and write zeroes are split only where `len_bytes` would overflow.
//! - **A range past the end of a disk** is the affair of [`Trace::fit`], for a trace does not say how large its
//!   disk was.
//! - **Requests to a second device or file** stay in the trace, laid over the first one's, and are counted.
//! - **Lines of kinds that move no data** (opening a file, completions, a report) are skipped; comments (`#`),
//!   headings and blank lines too. Lines may end in CR LF, the first one may start with a byte order mark.
//!
//! Not implemented: compressed files, blktrace's binary form, blkparse output shaped by `-f`, scaling and looping
//! (replay does that over [`Trace::entries`]).

#![forbid(unsafe_code)]

mod builder;
mod error;
mod fields;
mod format;
mod formats;
mod lines;
mod read;
mod trace;

pub use error::TraceError;
pub use format::{Format, UnknownFormat};
pub use read::{Limits, read, read_file};
pub use trace::{BLOCK_BYTES, Counts, DiskTooSmall, Entry, Summary, Trace};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_without_naming_its_format() {
        let text = "fio version 3 iolog\n100 vm read 4096 4096\n1000100 vm write 512 512\n";
        let trace = read(text.as_bytes(), "vm.log", None, Limits::default()).unwrap();
        assert_eq!(trace.entries()[1].time_ns, 1_000_000_000);
    }
}
