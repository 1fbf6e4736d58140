//! What can be wrong with a trace, said so that an operator can find the place and mend it.

use std::io;

use crate::Format;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line is not what its format asks for.
    #[error("{file}:{line}: expected {expected}, found {found}; {remedy}")]
    Malformed {
        /// The name that the reader was given.
        file: String,
        /// The line, from 1.
        line: u64,
        /// What should have been there.
        expected: String,
        /// What was there, shortened, in printable characters.
        found: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// None of the first lines fits any format.
    #[error("{file}: expected a block trace ({}), found {found}; {remedy}", Format::NAMES.join(", "))]
    UnknownFormat {
        /// The name that the reader was given.
        file: String,
        /// Its first line that is neither blank nor a comment, shortened.
        found: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// There are more requests than [`crate::Limits::max_entries`].
    #[error("{file}:{line}: expected at most {max_entries} requests, found more; cut the trace, or raise the limit")]
    TooManyEntries {
        /// The name that the reader was given.
        file: String,
        /// The line that went over the limit.
        line: u64,
        /// The limit.
        max_entries: usize,
    },
    /// There is nothing to replay.
    #[error("{file}: expected at least one request in {lines} lines of {format}, found none; check file and format")]
    NoEntries {
        /// The name that the reader was given.
        file: String,
        /// How many lines were read.
        lines: u64,
        /// What they were read as.
        format: Format,
    },
    /// The file could not be opened or read.
    #[error("{file}: expected to read line {line}: {source}; check that the file exists and may be read")]
    Io {
        /// The name that the reader was given.
        file: String,
        /// The line that was due.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl TraceError {
    pub(crate) fn malformed(file: &str, line: u64, format: Format, expected: &str, found: &[u8]) -> Self {
        let found = if found.is_empty() { "nothing".to_owned() } else { printable(found) };
        Self::Malformed {
            file: file.to_owned(),
            line,
            expected: format!("{expected} ({format})"),
            found,
            remedy: "mend or remove the line, or name the trace's format if it is another one",
        }
    }
}

/// The longest piece of a file that a message repeats, in bytes.
const SHOWN_BYTES: usize = 40;

/// A quoted piece of the file that is safe to print: hostile bytes must not reach a terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    match bytes.get(..SHOWN_BYTES) {
        Some(head) if bytes.len() > SHOWN_BYTES => format!("\"{}...\"", head.escape_ascii()),
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}
