//! Image files of disks. They come from anyone, so nothing in them is trusted.
//!
//! | module | what |
//! | --- | --- |
//! | `format` | formats, and how their first bytes tell them apart |
//! | `opened` | files, opened so that nothing hangs, and watched for changes |
//! | `qcow2` | tables of a qcow2 image, checked before anything follows them |
//! | `counts` | reference counts of a qcow2 image, checked and mended before it is written to |
//! | `disk` | a qcow2 image that is a disk |
//! | `source` | an image to read |
//! | `sink` | a new image |
//!
//! The formats themselves are read and written by the crate `imago`. It reads zeros where a file has ended, takes
//! encrypted data for plain data, and panics on one malformed header. `qcow2` refuses all of that beforehand.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "an image that a killed daemon had may be released a little later")]

mod counts;
mod disk;
mod format;
mod opened;
mod qcow2;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use disk::{Cluster, DiskImage};
pub use format::ImageFormat;
pub use opened::is_in_use;
pub use sink::Sink;
pub use source::Source;

/// What is wrong with an image file, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{title}; {remedy}")]
pub struct ImageError {
    /// What is wrong, with the file's name.
    pub title: String,
    /// What to do about it.
    pub remedy: String,
}

/// What is wrong with a file, whatever its name.
#[derive(Debug)]
struct Fault {
    what: String,
    remedy: &'static str,
}

/// For files that a QEMU left unfinished, or that lost a part.
const CHECK: &str = "see what `qemu-img check` says, fetch the file again, or mend it by `qemu-img check -r all`";

/// For files that QEMU can read.
const CONVERT: &str = "rewrite it by `qemu-img convert -O qcow2 IMAGE NEW`, and take the new file";

/// For files that are not what was meant.
const PATH: &str = "check the path, and whether this user may read it";

impl Fault {
    fn new(what: impl Into<String>, remedy: &'static str) -> Self {
        Self { what: what.into(), remedy }
    }

    fn of(self, path: &Path) -> ImageError {
        let title = format!("can't use the image {}: {}", path.display(), self.what);
        ImageError { title, remedy: self.remedy.to_owned() }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string(), PATH)
    }
}
