//! The files behind a drive: one, or several in windows of its addresses.

use std::fs::File;
use std::iter;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use crate::flushes::Flushes;

/// Addresses of a drive with several files are split into windows of this many bytes. Each file begins with one.
pub const WINDOW_BYTES: u64 = 1 << 44;

/// The only file has all addresses.
const ONE_SHIFT: u32 = 63;

/// Each file has the number of its window.
#[derive(Debug)]
pub(crate) struct Files {
    first: Behind,
    /// From number 1 on.
    more: Vec<Option<Behind>>,
    shift: u32,
}

#[derive(Debug)]
struct Behind {
    file: File,
    flushes: Arc<Flushes>,
}

impl Behind {
    fn new(file: File) -> Self {
        Self { file, flushes: Arc::default() }
    }
}

impl Files {
    pub fn one(file: File) -> Self {
        Self { first: Behind::new(file), more: Vec::new(), shift: ONE_SHIFT }
    }

    /// This file in the first window, and others in the following ones.
    pub fn with_windows(self, more: Vec<Option<Self>>) -> Self {
        let more = more.into_iter().map(|files| files.map(|files| files.first)).collect();
        Self { more, shift: WINDOW_BYTES.trailing_zeros(), ..self }
    }

    /// The only file, or the first one.
    pub fn first(&self) -> &File {
        &self.first.file
    }

    /// Where an address is: the file's number, and the byte in it.
    pub fn locate(&self, offset_bytes: u64) -> (u32, u64) {
        ((offset_bytes >> self.shift) as u32, offset_bytes & ((1 << self.shift) - 1))
    }

    fn behind(&self, number: u32) -> Option<&Behind> {
        match number.checked_sub(1) {
            None => Some(&self.first),
            Some(later) => self.more.get(later as usize)?.as_ref(),
        }
    }

    /// A file's descriptor. `None`: there is no such file.
    pub fn descriptor(&self, number: u32) -> Option<RawFd> {
        self.behind(number).map(|behind| behind.file.as_raw_fd())
    }

    /// Of all, by their numbers; -1 where there is none, as the kernel wants it.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let more = self.more.iter().map(|it| it.as_ref().map_or(-1, |behind| behind.file.as_raw_fd()));
        iter::once(self.first.file.as_raw_fd()).chain(more)
    }

    /// Remembers failed flushes together with another drive, as if both were one.
    #[cfg(test)]
    pub fn share_flushes(&mut self, other: &Self) {
        self.first.flushes = Arc::clone(&other.first.flushes);
    }

    /// Failed flushes of the file that has an address.
    pub fn flushes(&self, offset_bytes: u64) -> &Flushes {
        &self.behind(self.locate(offset_bytes).0).unwrap_or(&self.first).flushes
    }
}
