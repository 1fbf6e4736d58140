//! How one device stands, in memory that outlives the process.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};

use super::Store;
use crate::bytes::VERSION;

/// Two copies, of which one is in force: first the version and which one, then their places. What is never written
/// takes no memory.
const COPY_AT: u64 = 4096;
/// More than the limits allow for.
const COPY_BYTES: u64 = 64 << 20;

/// What one begins with that was never written.
const EMPTY: [u8; 16] = {
    let (mut bytes, version, mut at) = ([0; 16], VERSION.to_le_bytes(), 0);
    while at < version.len() {
        bytes[at] = version[at];
        at += 1;
    }
    bytes
};

/// A device's file.
#[derive(Debug)]
pub struct File {
    store: Arc<Store>,
    file: std::fs::File,
    word: String,
    /// How often it was written.
    turn: u64,
    /// What it mentions.
    mentioned: HashSet<RawFd>,
    /// It is not stored any more.
    is_broken: bool,
}

impl File {
    /// An empty one, which is stored.
    ///
    /// # Errors
    /// There is no memory or descriptor left.
    pub fn new(store: &Arc<Store>) -> std::io::Result<Self> {
        let file = std::fs::File::from(memfd_create("kept", MemfdFlags::CLOEXEC)?);
        let this = Self::over(store, file, format!("s{}", store.name()));
        this.file.write_all_at(&EMPTY, 0)?;
        store.put(&this.word, this.file.as_fd());
        Ok(this)
    }

    /// Does all that an empty one takes, but for storing it.
    ///
    /// # Errors
    /// As of one that is stored.
    pub fn try_out(store: &Arc<Store>) -> std::io::Result<()> {
        let file = std::fs::File::from(memfd_create("kept", MemfdFlags::CLOEXEC)?);
        file.write_all_at(&EMPTY, 0)?;
        let adopted = Self::adopt(store, file.into(), "").ok_or_else(|| std::io::Error::other("no memory"))?;
        adopted.read().map_or(Ok(()), |_| Err(std::io::Error::other("something in an empty file")))
    }

    fn over(store: &Arc<Store>, file: std::fs::File, word: String) -> Self {
        Self { store: Arc::clone(store), file, word, turn: 0, mentioned: HashSet::new(), is_broken: false }
    }

    /// Adopts a file that was written before, under that word.
    pub fn adopt(store: &Arc<Store>, file: OwnedFd, word: &str) -> Option<Self> {
        let mut this = Self::over(store, file.into(), word.to_owned());
        (number(&this.file, 0)? == VERSION).then_some(())?;
        this.turn = number(&this.file, 8)?;
        Some(this)
    }

    /// It, and its word.
    pub fn parts(&self) -> (&std::fs::File, &str) {
        (&self.file, &self.word)
    }

    /// What is in force.
    pub fn read(&self) -> Option<Vec<u8>> {
        let at = place(self.turn);
        let len = number(&self.file, at).filter(|len| self.turn > 0 && *len < COPY_BYTES)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.file.read_exact_at(&mut bytes, at + 8).ok()?;
        Some(bytes)
    }

    /// Has something be in force, in which `write` mentions descriptors by the names that it is given for them.
    pub fn write(&mut self, write: impl FnOnce(&mut dyn FnMut(&OwnedFd) -> u64) -> Vec<u8>) {
        if self.is_broken {
            return;
        }
        let mut mentioned = HashSet::new();
        let bytes = write(&mut |fd| {
            mentioned.insert(fd.as_raw_fd());
            self.store.mention(fd)
        });
        let at = place(self.turn + 1);
        let written = self
            .file
            .write_all_at(&[&(bytes.len() as u64).to_le_bytes()[..], &bytes].concat(), at)
            .and_then(|()| self.file.write_all_at(&(self.turn + 1).to_le_bytes(), 8));
        if written.is_err() {
            self.store.fail("no memory is left for the clients' state");
            // What it does not mention may be closed, and others have those numbers then.
            self.mentioned.extend(mentioned);
            return self.remove();
        }
        self.turn += 1;
        for raw in self.mentioned.difference(&mentioned) {
            self.store.forget(*raw);
        }
        self.mentioned = mentioned;
    }

    /// It mentions these.
    pub fn mentions(&mut self, fds: impl IntoIterator<Item = RawFd>) {
        self.mentioned.extend(fds);
    }

    /// It was to mention these, which are closed.
    pub fn forget(&self, closed: &[RawFd]) {
        closed.iter().for_each(|raw| self.store.forget(*raw));
    }

    /// Nothing of the device is to be gone on with.
    pub fn remove(&mut self) {
        self.is_broken = true;
        self.store.remove(&self.word);
        self.mentioned.drain().for_each(|raw| self.store.forget(raw));
    }
}

fn place(turn: u64) -> u64 {
    COPY_AT + turn % 2 * COPY_BYTES
}

fn number(file: &std::fs::File, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(u64::from_le_bytes(bytes))
}
