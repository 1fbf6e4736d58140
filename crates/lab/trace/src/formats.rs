//! One parser per format: a line in, what it says out.

mod blkparse;
mod evenkeel;
mod fio;

use io_model::Op;

use crate::Format;

/// What a line of a trace says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A request, where its initiator sent it.
    Request(Request<'a>),
    /// A request, where a driver sent it to the drive: stands in where a trace has none of the other kind.
    Issued(Request<'a>),
    /// The names of the columns, or the format's first line.
    Heading,
    /// A line of a kind that moves no data.
    Skipped,
}

/// A request as the trace has it: not rounded, split or sorted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// On the trace's own clock.
    pub time_ns: u64,
    pub op: Op,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    /// What names the device or file: to count requests to others than the first.
    pub device: &'a [u8],
    /// The request asks for a flush before it.
    pub flush_first: bool,
}

/// What is wrong with a line. `found` is empty where the line is too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal<'a> {
    pub expected: &'static str,
    pub found: &'a [u8],
}

/// A format's parser, with what it remembers from line to line.
pub(crate) enum Parser {
    FioIolog(fio::State),
    Blkparse,
    Evenkeel,
}

impl Parser {
    pub(crate) fn new(format: Format) -> Self {
        match format {
            Format::FioIolog => Self::FioIolog(fio::State::default()),
            Format::Blkparse => Self::Blkparse,
            Format::Evenkeel => Self::Evenkeel,
        }
    }

    /// What `line` says: no blanks around it, not empty, no comment.
    pub(crate) fn line<'a>(&mut self, line: &'a [u8]) -> Result<Line<'a>, Refusal<'a>> {
        match self {
            Self::FioIolog(state) => state.line(line),
            Self::Blkparse => blkparse::line(line),
            Self::Evenkeel => evenkeel::line(line),
        }
    }

    /// Where a comment is the trace's last line: the requests that its recorder could not keep.
    pub(crate) fn lost_at_end(&self, comment: &[u8]) -> Option<u64> {
        match self {
            Self::Evenkeel => evenkeel::lost_at_end(comment),
            _ => None,
        }
    }
}

/// `value` in units of `unit`, refused where it does not fit 64 bits.
fn scaled<'a>(value: u64, unit: u64, line: &'a [u8]) -> Result<u64, Refusal<'a>> {
    value.checked_mul(unit).ok_or(Refusal { expected: "times and places that fit 64 bits", found: line })
}
