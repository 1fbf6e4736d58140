//! Reading a trace.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use crate::builder::{Builder, Rejected};
use crate::error::printable;
use crate::formats::{Line, Parser, Refusal, Request};
use crate::lines::{self, Lines, Next};
use crate::{Format, Trace, TraceError};

/// How many lines are looked at to find out a format.
const HEAD_LINES: usize = 32;

/// Bounds on what a trace may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most entries, of 24 bytes each; more is an error.
    pub max_entries: usize,
    /// Longer reads and writes are split. Rounded down to whole blocks of 512 bytes, at least one.
    pub max_len_bytes: u32,
    /// The most bytes per line, without its end; a longer line is malformed.
    pub max_line_bytes: usize,
    /// Timestamps that go back further than this are a jump of the trace's clock.
    pub reorder_ns: u64,
    /// Leave malformed lines out and count them.
    pub lenient: bool,
}

impl Default for Limits {
    /// 20 million entries (480 MB), requests of 1 MiB, lines of 4096 bytes, a second of reordering, strict.
    fn default() -> Self {
        Self {
            max_entries: 20_000_000,
            max_len_bytes: 1 << 20,
            max_line_bytes: 4096,
            reorder_ns: 1_000_000_000,
            lenient: false,
        }
    }
}

/// Reads the trace at `path`; see [`read()`].
///
/// # Errors
///
/// Those of [`read()`], and a file that cannot be opened.
pub fn read_file(path: &Path, format: Option<Format>, limits: Limits) -> Result<Trace, TraceError> {
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => read(BufReader::with_capacity(1 << 18, file), &name, format, limits),
        Err(source) => Err(TraceError::Io { file: name, line: 1, source }),
    }
}

/// Reads a trace, after the rules of the crate's documentation. `name` is what errors call it. Without a `format`
/// the first lines tell it.
///
/// # Errors
///
/// Every [`TraceError`]: the source fails, no format fits, a line is malformed (unless lenient), there are more
/// entries than allowed, or none.
pub fn read(mut source: impl BufRead, name: &str, format: Option<Format>, limits: Limits) -> Result<Trace, TraceError> {
    if let Some(format) = format {
        return read_as(source, name, format, limits);
    }
    let mut head = Vec::new();
    for line in 1..=HEAD_LINES as u64 {
        lines::bounded_line(&mut source, limits.max_line_bytes, &mut head).map_err(|source| TraceError::Io {
            file: name.to_owned(),
            line,
            source,
        })?;
    }
    let format = Format::detect(&head).ok_or_else(|| unknown_format(name, &head))?;
    read_as(Cursor::new(head).chain(source), name, format, limits)
}

fn unknown_format(name: &str, head: &[u8]) -> TraceError {
    let remedy = if head.starts_with(b"\x1f\x8b") {
        "unpack it first (it is compressed by gzip)"
    } else {
        "name the format to see what is wrong with its lines"
    };
    let found = lines::of(head).next().map_or_else(|| "no line to tell by".to_owned(), printable);
    TraceError::UnknownFormat { file: name.to_owned(), found, remedy }
}

fn read_as(source: impl BufRead, name: &str, format: Format, limits: Limits) -> Result<Trace, TraceError> {
    let builder = Builder::new(limits, format.is_by_end());
    let mut reading = Reading { parser: Parser::new(format), builder, station: Station::None };
    reading.builder.counts.cut_off = (format == Format::Evenkeel).into();
    let mut lines = Lines::new(source, limits.max_line_bytes);
    loop {
        let next = lines.advance().map_err(|source| TraceError::Io {
            file: name.to_owned(),
            line: lines.number + 1,
            source,
        })?;
        let taken = match next {
            Next::End => break,
            Next::Line => reading.take(lines.line()),
            Next::TooLong => Err(Stop::TooLong),
        };
        reading.builder.counts.lines += 1;
        match taken {
            Ok(()) => {}
            Err(Stop::Refused(_) | Stop::TooLong) if limits.lenient => reading.builder.counts.malformed += 1,
            Err(Stop::Refused(Refusal { expected, found })) => {
                return Err(TraceError::malformed(name, lines.number, format, expected, found));
            }
            Err(Stop::TooLong) => {
                let expected = format!("a line of at most {} bytes", limits.max_line_bytes);
                return Err(TraceError::malformed(name, lines.number, format, &expected, lines.line()));
            }
            Err(Stop::Full) => {
                let (file, line) = (name.to_owned(), lines.number);
                return Err(TraceError::TooManyEntries { file, line, max_entries: limits.max_entries });
            }
        }
    }
    let (entries, counts) = reading.builder.finish();
    if entries.is_empty() {
        return Err(TraceError::NoEntries { file: name.to_owned(), lines: counts.lines, format });
    }
    Ok(Trace::new(entries, counts, format))
}

/// Where the entries so far were logged.
enum Station {
    None,
    /// Where a driver sent them to the drive. `Issued` has the number of lines that they came from.
    Issued(u64),
    /// Where their initiator sent them.
    Queued,
}

/// Why a line was not taken.
enum Stop<'a> {
    Refused(Refusal<'a>),
    TooLong,
    Full,
}

struct Reading {
    parser: Parser,
    builder: Builder,
    station: Station,
}

impl Reading {
    fn take<'a>(&mut self, line: &'a [u8]) -> Result<(), Stop<'a>> {
        let counts = &mut self.builder.counts;
        if line.is_empty() {
            counts.blank += 1;
            return Ok(());
        }
        if lines::is_comment(line) {
            counts.comments += 1;
            if let Some(lost) = self.parser.lost_at_end(line) {
                (counts.lost, counts.cut_off) = (lost, 0);
            }
            return Ok(());
        }
        match self.parser.line(line).map_err(Stop::Refused)? {
            Line::Heading => counts.comments += 1,
            Line::Skipped => counts.skipped += 1,
            Line::Request(request) => {
                // A request is logged at both stations, so what was read so far at the other one is dropped.
                if let Station::Issued(lines) = self.station {
                    self.builder.start_over(lines);
                }
                self.station = Station::Queued;
                self.push(&request, line)?;
            }
            Line::Issued(request) => match &self.station {
                Station::Queued => counts.skipped += 1,
                &Station::Issued(lines) => {
                    self.push(&request, line)?;
                    self.station = Station::Issued(lines + 1);
                }
                Station::None => {
                    self.push(&request, line)?;
                    self.station = Station::Issued(1);
                }
            },
        }
        Ok(())
    }

    fn push<'a>(&mut self, request: &Request<'a>, line: &'a [u8]) -> Result<(), Stop<'a>> {
        self.builder.push(request).map_err(|rejected| match rejected {
            Rejected::Impossible(expected) => Stop::Refused(Refusal { expected, found: line }),
            Rejected::Full => Stop::Full,
        })
    }
}
