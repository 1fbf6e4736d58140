//! Which image a file is: a mark in an extended attribute of it, which moves and is renamed with it. By that a layout
//! is never applied to another image. Where the file system has no such attributes, nobody knows.

use std::fs::File;
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, getxattr};
use rustix::rand::{GetRandomFlags, getrandom};

const NAME: &str = "user.evenkeel.id";

/// Hexadecimal digits of a mark.
const DIGITS: usize = 32;

/// That of the file of a path.
pub(super) fn at(path: &Path) -> Option<String> {
    let mut found = [0; DIGITS];
    let digits = getxattr(path, NAME, &mut found[..]).ok()?;
    read(found.get(..digits)?)
}

/// That of a file.
pub(super) fn of(file: &File) -> Option<String> {
    let mut found = [0; DIGITS];
    let digits = fgetxattr(file, NAME, &mut found[..]).ok()?;
    read(found.get(..digits)?)
}

/// Marks an image that has no mark yet. Returns the one that it has; `None`: it can't have one.
pub fn mark_image(file: &File) -> Option<String> {
    let mut random = [0; DIGITS / 2];
    getrandom(&mut random[..], GetRandomFlags::empty()).ok().filter(|bytes| *bytes == random.len())?;
    let mark: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    // One that is there stays.
    let _ = fsetxattr(file, NAME, mark.as_bytes(), XattrFlags::CREATE);
    of(file)
}

fn read(found: &[u8]) -> Option<String> {
    let is_mark = found.len() == DIGITS && found.iter().all(u8::is_ascii_hexdigit);
    is_mark.then(|| String::from_utf8_lossy(found).into_owned())
}
