//! The ring of files: their names and their header.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"EKHISTRY";

/// The version of everything in a file.
pub(crate) const VERSION: u32 = 1;

/// Magic, version, zeros, time.
pub(crate) const HEADER_BYTES: usize = 24;

/// No file of ours is longer: 65,535 tenants for ten minutes.
const MOST_BYTES: u64 = 700 << 20;

const SUFFIX: &str = ".summaries";

/// The greatest number of a file, reached after 40,000 years. Files with greater numbers are not ours.
const LAST: u32 = i32::MAX as u32;

/// Where the file of that number is.
pub(crate) fn path_of(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("{number:08x}{SUFFIX}"))
}

/// The numbers of all files, rising.
pub(crate) fn numbers(directory: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        let number = digits.filter(|digits| digits.len() == 8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        numbers.extend(number.filter(|number| *number < LAST));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A new file's first bytes.
pub(crate) fn header(at_unix_ms: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..].copy_from_slice(&at_unix_ms.to_le_bytes());
    header
}

/// What a file's first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// It is ours, and its first interval began then.
    Ours { at_unix_ms: u64 },
    /// Another version wrote it.
    Version(u32),
    /// It is cut off before anything was in it.
    Cut,
    /// Something else.
    Foreign,
}

impl Header {
    /// Of a file's first bytes.
    fn of(bytes: &[u8]) -> Self {
        let ours = MAGIC.len().min(bytes.len());
        if bytes[..ours] != MAGIC[..ours] {
            return Self::Foreign;
        }
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Self::Cut };
        let [.., v0, v1, v2, v3, _, _, _, _, t0, t1, t2, t3, t4, t5, t6, t7] = *header;
        match u32::from_le_bytes([v0, v1, v2, v3]) {
            VERSION => Self::Ours { at_unix_ms: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]) },
            version => Self::Version(version),
        }
    }

    /// Of a file.
    pub(crate) fn read(file: &mut File) -> io::Result<Self> {
        if !file.metadata()?.is_file() {
            return Ok(Self::Foreign);
        }
        let mut bytes = Vec::new();
        file.take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(Self::of(&bytes))
    }
}

/// What follows a file's header, which was read; at most up to the file's length `most_bytes`.
pub(crate) fn content(file: &mut File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most_bytes.min(MOST_BYTES).saturating_sub(HEADER_BYTES as u64)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_whose_file_it_is() {
        let header = header(1_700_000_000_123);
        assert_eq!(Header::of(&header), Header::Ours { at_unix_ms: 1_700_000_000_123 });
        assert_eq!(Header::of(&header[..HEADER_BYTES - 1]), Header::Cut);
        assert_eq!(Header::of(b""), Header::Cut);
        assert_eq!(Header::of(b"[[tenant]]\n"), Header::Foreign);
        let mut other = header;
        other[8] = 9;
        assert_eq!(Header::of(&other), Header::Version(9));
    }
}
