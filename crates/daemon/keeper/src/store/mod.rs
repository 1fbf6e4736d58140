//! What the service manager has of this process (FDSTORE of sd_notify(3)), so that whatever kills it, the next one goes
//! on. Each descriptor is there under a name, and each device has a [`File`] that says how it stands.
//!
//! A descriptor is stored before a device's file mentions it, and removed after none does any more; a file changes as a
//! whole. So at whichever instruction the process dies, each file is right, and all that it mentions is there.
//!
//! What is not there: what was received and not yet in the file, or sent and not yet taken out. That is the time of two
//! system calls, in which a death loses a client's message, or sends it a reply twice.

mod file;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use confine::compare_files;

use crate::clock::now;
use crate::log::line;
use crate::manager::Manager;

pub use file::File;

/// The store.
#[derive(Debug)]
pub struct Store {
    manager: Manager,
    table: Mutex<Table>,
}

/// What is in it.
#[derive(Debug, Default)]
struct Table {
    /// The next name. One that is given never comes again, in no process of ours.
    next: u64,
    names: HashMap<RawFd, u64>,
    /// In the order of `compare_files`: the service manager keeps one of several copies, under the first one's name.
    files: Vec<Stored>,
    has_failed: bool,
}

#[derive(Debug)]
struct Stored {
    name: u64,
    copies: Vec<RawFd>,
}

impl Store {
    /// That manager's.
    pub fn new(manager: Manager) -> Self {
        let next = u64::try_from(now().as_nanos()).unwrap_or(u64::MAX);
        Self { manager, table: Mutex::new(Table { next, ..Table::default() }) }
    }

    /// Another name, of no descriptor.
    pub fn name(&self) -> u64 {
        let mut table = self.lock();
        table.next += 1;
        table.next
    }

    /// Stores something under a word of its own.
    pub fn put(&self, word: &str, fd: BorrowedFd<'_>) {
        if !self.manager.tell(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={word}"), &[fd]) {
            self.fail("the service manager does not take the clients' state");
        }
    }

    /// Removes that.
    pub fn remove(&self, word: &str) {
        self.manager.tell(&format!("FDSTOREREMOVE=1\nFDNAME={word}"), &[]);
    }

    /// A descriptor's name; it is stored, until it is [forgotten](Self::forget), which it must be before it is closed.
    pub fn mention(&self, fd: &OwnedFd) -> u64 {
        let raw = fd.as_raw_fd();
        let mut table = self.lock();
        if let Some(name) = table.names.get(&raw) {
            return *name;
        }
        let place = table.find(raw);
        let name = match place {
            Ok(at) => {
                table.files[at].copies.push(raw);
                table.files[at].name
            }
            Err(at) => {
                table.next += 1;
                let name = table.next;
                table.files.insert(at, Stored { name, copies: vec![raw] });
                name
            }
        };
        table.names.insert(raw, name);
        drop(table);
        if place.is_err() {
            self.put(&word(name), fd.as_fd());
        }
        name
    }

    /// A descriptor that is stored under that name already.
    pub fn adopt(&self, raw: RawFd, name: u64) {
        let mut table = self.lock();
        match table.find(raw) {
            Ok(at) => table.files[at].copies.push(raw),
            Err(at) => table.files.insert(at, Stored { name, copies: vec![raw] }),
        }
        table.names.insert(raw, name);
        table.next = table.next.max(name);
    }

    /// Names of descriptors that are stored, by their numbers.
    pub fn names(&self) -> Vec<(RawFd, u64)> {
        self.lock().names.iter().map(|(raw, name)| (*raw, *name)).collect()
    }

    /// It is mentioned no more.
    pub fn forget(&self, raw: RawFd) {
        let mut table = self.lock();
        let Some(name) = table.names.remove(&raw) else { return };
        let Some(at) = table.files.iter().position(|stored| stored.name == name) else { return };
        table.files[at].copies.retain(|copy| *copy != raw);
        if table.files[at].copies.is_empty() {
            table.files.remove(at);
            drop(table);
            self.remove(&word(name));
        }
    }

    fn fail(&self, why: &str) {
        if !std::mem::replace(&mut self.lock().has_failed, true) {
            line(&format!("{why}; if this process is killed, clients may be lost"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The word under which a descriptor of that name is stored.
pub fn word(name: u64) -> String {
    format!("d{name}")
}

impl Table {
    /// Where a copy of it is, or would be.
    fn find(&self, raw: RawFd) -> Result<usize, usize> {
        self.files.binary_search_by(|stored| {
            let copy = stored.copies.first().copied().unwrap_or(raw);
            // Without the kernel's help each is taken for another one.
            compare_files(copy, raw).unwrap_or(Ordering::Less)
        })
    }
}
