//! Writes the files.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::files::{self, HEADER_BYTES, Header};
use crate::frame::{self, Frame, Frames};
use crate::{FILES, INTERVALS_PER_FILE, Interval, MOST_EVENT_BYTES_PER_FILE, PastEvent};

/// How far a clock may seem to go back before it counts as set back.
const JITTER_MS: u64 = 1_000;

/// How much of the newest file is written, for who reads while more comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The file's number.
    pub(crate) number: u32,
    /// Its length in whole frames.
    pub(crate) len_bytes: u64,
}

/// The writing end. Dropped, it lets another daemon have the directory.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    _lock: File,
    /// The number of the next file.
    next: u32,
    newest: Option<Newest>,
    /// One frame after the other, before they are written at once.
    buffer: Vec<u8>,
    left_out: u64,
}

/// The file that is written to.
#[derive(Debug)]
struct Newest {
    file: File,
    number: u32,
    len_bytes: u64,
    event_bytes: u64,
    /// Times at which something was appended.
    intervals: u32,
    /// The latest.
    at_unix_ms: u64,
}

impl Store {
    /// Takes a directory, which is made if it is not there (its parent must be), and goes on where the last daemon
    /// ended. What is cut off at the end of the newest file is taken away.
    ///
    /// # Errors
    /// It can't be made or written to, or another daemon has it.
    pub fn open(directory: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let lock = writable(&directory.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => io::Error::other("another daemon keeps its summaries there; use another state_dir"),
            errno => errno.into(),
        })?;
        let last = files::numbers(directory)?.last().copied();
        let mut store = Self {
            directory: directory.to_owned(),
            _lock: lock,
            next: last.map_or(1, |last| last.saturating_add(1)),
            newest: None,
            buffer: Vec::new(),
            left_out: 0,
        };
        store.newest = last.and_then(|number| Newest::resume(directory, number).ok().flatten());
        Ok(store)
    }

    /// Appends what all drives' tenants got in one interval, and what happened meanwhile: all of it or nothing.
    ///
    /// # Errors
    /// It can't be written: the file system is full, say. The next attempt may succeed; what this one had is lost.
    pub fn append(&mut self, intervals: &[Interval], events: &[PastEvent]) -> io::Result<()> {
        let began = intervals.iter().map(|it| it.at_unix_ms).min();
        let Some(at_unix_ms) = began.or_else(|| events.first().map(|it| it.at_unix_ms)) else { return Ok(()) };
        let goes_on = |it: &Newest| {
            it.intervals < INTERVALS_PER_FILE
                && at_unix_ms.saturating_add(JITTER_MS) >= it.at_unix_ms
                && it.is_still_there()
        };
        if !self.newest.as_ref().is_some_and(goes_on) {
            self.newest = None;
            self.newest = Some(self.begin(at_unix_ms)?);
        }
        let Some(newest) = &mut self.newest else { return Ok(()) };
        let buffer = &mut self.buffer;
        buffer.clear();
        intervals.iter().for_each(|it| frame::put_interval(it, buffer));
        let mut event_bytes = newest.event_bytes;
        for event in events {
            let before = buffer.len();
            frame::put_event(event, buffer);
            let bytes = (buffer.len() - before) as u64;
            if event_bytes + bytes > MOST_EVENT_BYTES_PER_FILE {
                buffer.truncate(before);
                self.left_out += 1;
            } else {
                event_bytes += bytes;
            }
        }
        if let Err(error) = newest.file.write_all(buffer) {
            // Part of it may be there. If even that can't be taken away, readers find that it is cut off.
            let _ = newest.file.set_len(newest.len_bytes);
            return Err(error);
        }
        newest.len_bytes += buffer.len() as u64;
        newest.event_bytes = event_bytes;
        newest.intervals += 1;
        newest.at_unix_ms = intervals.iter().map(|it| it.at_unix_ms).max().unwrap_or(at_unix_ms);
        Ok(())
    }

    /// How much of the newest file is written.
    pub fn written(&self) -> Option<Written> {
        self.newest.as_ref().map(|it| Written { number: it.number, len_bytes: it.len_bytes })
    }

    /// Events that found no room since the start.
    pub fn events_left_out(&self) -> u64 {
        self.left_out
    }

    /// Begins another file, after the oldest made room for it.
    fn begin(&mut self, at_unix_ms: u64) -> io::Result<Newest> {
        let numbers = files::numbers(&self.directory)?;
        let too_many = (numbers.len() + 1).saturating_sub(FILES);
        for number in &numbers[..too_many] {
            std::fs::remove_file(files::path_of(&self.directory, *number))?;
        }
        let path = files::path_of(&self.directory, self.next);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut file = new_file(&path).map_err(named)?;
        if let Err(error) = file.write_all(&files::header(at_unix_ms)) {
            // Another one is tried each time: none may be left behind.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        let number = self.next;
        self.next = number.saturating_add(1);
        Ok(Newest { file, number, len_bytes: HEADER_BYTES as u64, event_bytes: 0, intervals: 0, at_unix_ms })
    }
}

impl Newest {
    /// Nobody removed it.
    fn is_still_there(&self) -> bool {
        self.file.metadata().is_ok_and(|it| it.nlink() > 0)
    }

    /// The file of that number, to go on with. `None`: it is not ours to go on with.
    fn resume(directory: &Path, number: u32) -> io::Result<Option<Self>> {
        let path = files::path_of(directory, number);
        let mut reader = open(&path)?;
        let Header::Ours { mut at_unix_ms } = Header::read(&mut reader)? else { return Ok(None) };
        let bytes = files::content(&mut reader, u64::MAX)?;
        let mut frames = Frames::of(&bytes);
        let (mut intervals, mut last, mut event_bytes) = (0, None, 0);
        let mut before = frames.rest_bytes();
        while let Some(frame) = frames.next() {
            match frame {
                // One for each drive, at the same time.
                Frame::Interval(it) => {
                    intervals += u32::from(last != Some(it.at_unix_ms));
                    last = Some(it.at_unix_ms);
                    at_unix_ms = at_unix_ms.max(it.at_unix_ms);
                }
                Frame::Event(_) => event_bytes += (before - frames.rest_bytes()) as u64,
            }
            before = frames.rest_bytes();
        }
        let len_bytes = (HEADER_BYTES + bytes.len() - frames.rest_bytes()) as u64;
        let file = OpenOptions::new().append(true).open(&path)?;
        file.set_len(len_bytes)?;
        Ok(Some(Self { file, number, len_bytes, event_bytes, intervals, at_unix_ms }))
    }
}

/// Opens a file for reading; one that is something else (a pipe, say) is not waited for.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
}

fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}
