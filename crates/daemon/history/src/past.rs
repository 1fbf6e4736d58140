//! Reads the files.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::files::{self, HEADER_BYTES, Header, VERSION};
use crate::frame::{Frame, Frames};
use crate::store::open;
use crate::{Interval, PastEvent, Written};

/// What is stamped later than this after now was written while the clock was wrong.
const FUTURE_MS: u64 = 60_000;

/// What was found of a span of time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Past {
    /// Those that overlap the span, in order.
    pub intervals: Vec<Interval>,
    /// Those within the span, in order.
    pub events: Vec<PastEvent>,
    /// What is wrong with the files, as far as it may matter.
    pub flaws: Vec<Flaw>,
}

/// Something wrong with a file. What it leaves out is never guessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// It ends amid something, or something in it is not what was written.
    Damaged {
        /// Its name.
        file: String,
        /// Bytes that are good.
        good_bytes: u64,
    },
    /// Another version of the daemon wrote it.
    Version {
        /// Its name.
        file: String,
        /// Which.
        version: u32,
    },
    /// No daemon wrote it.
    Foreign {
        /// Its name.
        file: String,
    },
    /// It can't be read.
    Unreadable {
        /// Its name.
        file: String,
        /// Why.
        why: String,
    },
    /// Intervals that are stamped later than now.
    Future {
        /// How many.
        intervals: usize,
    },
    /// Intervals of a time that came once more, because the clock was set back.
    SetBack {
        /// How many.
        intervals: usize,
    },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { file, good_bytes } => {
                write!(f, "{file} is cut off or damaged after {good_bytes} bytes: what follows there is not used")
            }
            Self::Version { file, version } => {
                write!(f, "{file} is of version {version}, this daemon reads version {VERSION}: it is not used")
            }
            Self::Foreign { file } => write!(f, "{file} holds no summaries: it is not used; remove it"),
            Self::Unreadable { file, why } => write!(f, "{file} can't be read ({why}): it is not used"),
            Self::Future { intervals } => {
                write!(f, "{intervals} summaries are stamped later than now: the clock was ahead; they are not used")
            }
            Self::SetBack { intervals } => {
                let why = "the clock was set back, so their time repeats";
                write!(f, "{intervals} summaries are not used: {why}")
            }
        }
    }
}

/// A file, as its header says.
struct Found {
    number: u32,
    at_unix_ms: u64,
}

/// Reads what is kept of `span`, in ms since 1970: nothing where there is no directory yet. `now_unix_ms` is when that
/// is asked. `written`: how far a daemon that runs has written, so that what it is about to append is no damage.
///
/// # Errors
/// The directory can't be read.
pub fn read(directory: &Path, span: Range<u64>, now_unix_ms: u64, written: Option<Written>) -> io::Result<Past> {
    let mut past = Past::default();
    let found = match files_of_ours(directory, &mut past.flaws) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(past),
        found => found?,
    };
    let (mut future, mut set_back) = (0, 0);
    for (at, file) in found.iter().enumerate() {
        let later = &found[at + 1..];
        // When the clock was set back, a later file begins earlier.
        let again = later.iter().map(|it| it.at_unix_ms).min().unwrap_or(u64::MAX);
        let next = later.first().map_or(u64::MAX, |it| it.at_unix_ms);
        let ends_before = next > file.at_unix_ms && next <= span.start;
        if ends_before || file.at_unix_ms >= span.end && file.at_unix_ms <= now_unix_ms {
            continue;
        }
        let most_bytes = written.filter(|it| it.number == file.number).map_or(u64::MAX, |it| it.len_bytes);
        let bytes = match content(directory, file.number, most_bytes) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                past.flaws.push(Flaw::Unreadable { file: name(file.number), why: error.to_string() });
                continue;
            }
        };
        let mut frames = Frames::of(&bytes);
        for frame in frames.by_ref() {
            match frame {
                Frame::Interval(it) if it.at_unix_ms > now_unix_ms.saturating_add(FUTURE_MS) => future += 1,
                Frame::Interval(it) if it.at_unix_ms >= again => set_back += usize::from(overlaps(&it, &span)),
                Frame::Interval(it) if overlaps(&it, &span) => past.intervals.push(it),
                Frame::Event(it) if span.contains(&it.at_unix_ms) && it.at_unix_ms < again => past.events.push(it),
                Frame::Interval(_) | Frame::Event(_) => {}
            }
        }
        if frames.rest_bytes() > 0 {
            let good_bytes = (HEADER_BYTES + bytes.len() - frames.rest_bytes()) as u64;
            past.flaws.push(Flaw::Damaged { file: name(file.number), good_bytes });
        }
    }
    past.flaws.extend((future > 0).then_some(Flaw::Future { intervals: future }));
    past.flaws.extend((set_back > 0).then_some(Flaw::SetBack { intervals: set_back }));
    past.intervals.sort_by_key(|it| it.at_unix_ms);
    past.events.sort_by_key(|it| it.at_unix_ms);
    Ok(past)
}

/// Those that this version can read, in order. One that holds nothing yet says nothing of the clock either.
fn files_of_ours(directory: &Path, flaws: &mut Vec<Flaw>) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for number in files::numbers(directory)? {
        match header(directory, number) {
            Ok((Header::Ours { .. }, len_bytes)) if len_bytes <= HEADER_BYTES as u64 => {}
            Ok((Header::Ours { at_unix_ms }, _)) => found.push(Found { number, at_unix_ms }),
            Ok((Header::Version(version), _)) => flaws.push(Flaw::Version { file: name(number), version }),
            Ok((Header::Foreign, _)) => flaws.push(Flaw::Foreign { file: name(number) }),
            Ok((Header::Cut, _)) => flaws.push(Flaw::Damaged { file: name(number), good_bytes: 0 }),
            // The writer took it away meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => flaws.push(Flaw::Unreadable { file: name(number), why: error.to_string() }),
        }
    }
    Ok(found)
}

fn overlaps(interval: &Interval, span: &Range<u64>) -> bool {
    let end = interval.at_unix_ms.saturating_add(interval.span_ms.into());
    interval.at_unix_ms < span.end && end > span.start
}

fn name(number: u32) -> String {
    let path = files::path_of(Path::new(""), number);
    path.display().to_string()
}

/// What a file's header says, and the file's length in bytes.
fn header(directory: &Path, number: u32) -> io::Result<(Header, u64)> {
    let mut file = open(&files::path_of(directory, number))?;
    Ok((Header::read(&mut file)?, file.metadata()?.len()))
}

fn content(directory: &Path, number: u32, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = open(&files::path_of(directory, number))?;
    Header::read(&mut file)?;
    files::content(&mut file, most_bytes)
}
