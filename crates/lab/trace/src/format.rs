//! The formats' names, and finding out a trace's by its first lines.

use std::fmt;
use std::str::FromStr;

use crate::formats::Parser;
use crate::lines;

/// A form of block trace. [`crate::read()`]'s documentation has a table of their units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// What `evenkeel trace` writes.
    Evenkeel,
    /// What fio's `write_iolog` writes, version 2 or 3.
    FioIolog,
    /// What `blkparse` prints unless told otherwise.
    Blkparse,
}

/// A name that is none of [`Format::NAMES`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a trace format ({names}), found {0:?}", names = Format::NAMES.join(", "))]
pub struct UnknownFormat(pub String);

impl Format {
    /// Each format, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Evenkeel, Self::FioIolog, Self::Blkparse];

    /// Their names, in the same order.
    pub const NAMES: [&str; 3] = ["evenkeel", "fio", "blkparse"];

    /// The format's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::FioIolog => "fio",
            Self::Blkparse => "blkparse",
            Self::Evenkeel => "evenkeel",
        }
    }

    /// Whether its lines are in the order in which requests ended, and not in that in which they were sent.
    pub(crate) fn is_by_end(self) -> bool {
        self == Self::Evenkeel
    }

    /// The format that the first line that fits any of them fits.
    pub(crate) fn detect(head: &[u8]) -> Option<Self> {
        lines::of(head).find_map(|line| Self::ALL.into_iter().find(|&format| Parser::new(format).line(line).is_ok()))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}
