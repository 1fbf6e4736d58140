//! Which image a file is: a mark in an extended attribute of it, which moves and is renamed with it. By that a layout
//! is never applied to another image. A second one changes with each start, so that a layout is never applied to an
//! older copy either. Where the file system has no such attributes, nobody knows.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, getxattr};
use rustix::rand::{GetRandomFlags, getrandom};

const ID: &str = "user.evenkeel.id";
const START: &str = "user.evenkeel.start";

/// Hexadecimal digits of a mark.
const DIGITS: usize = 32;

/// The marks of an image.
#[derive(Debug, Default)]
pub(super) struct ImageMarks {
    /// Which one it is.
    pub id: Option<String>,
    /// It was made up now, and nothing has it yet.
    pub is_new: bool,
    /// Which start served it last.
    pub start: Option<String>,
}

/// Those of the file of a path.
pub(super) fn at(path: &Path) -> ImageMarks {
    let mark = |name| read(|found| getxattr(path, name, found));
    ImageMarks { id: mark(ID), is_new: false, start: mark(START) }
}

/// Those of a file.
pub(super) fn of(file: &File) -> ImageMarks {
    let mark = |name| read(|found| fgetxattr(file, name, found));
    ImageMarks { id: mark(ID), is_new: false, start: mark(START) }
}

/// ImageMarks an image that has no mark yet. Returns the one that it has; `None`: it can't have one.
pub fn mark_image(file: &File) -> Option<String> {
    // An existing mark stays.
    let _ = fsetxattr(file, ID, new_mark()?.as_bytes(), XattrFlags::CREATE);
    of(file).id
}

/// Gives an image the mark of a start, durably.
pub(crate) fn mark_start(file: &File, start: &str) -> io::Result<()> {
    fsetxattr(file, START, start.as_bytes(), XattrFlags::empty())?;
    file.sync_all()
}

/// A mark that no image has.
pub(crate) fn new_mark() -> Option<String> {
    let mut random = [0; DIGITS / 2];
    getrandom(&mut random[..], GetRandomFlags::empty()).ok().filter(|bytes| *bytes == random.len())?;
    Some(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn read(from: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> Option<String> {
    let mut found = [0; DIGITS];
    let digits = from(&mut found).ok()?;
    read_mark(found.get(..digits)?)
}

/// The mark that these are the digits of.
pub(super) fn read_mark(found: &[u8]) -> Option<String> {
    let is_mark = found.len() == DIGITS && found.iter().all(u8::is_ascii_hexdigit);
    is_mark.then(|| String::from_utf8_lossy(found).into_owned())
}
