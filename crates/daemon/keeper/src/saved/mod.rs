//! All that a keeper has, as bytes and numbers of descriptors: for the program that takes its place.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::bytes::{Reader, VERSION, Writer};
use crate::device::{Common, Device};

/// What is to be gone on with.
#[derive(Debug)]
pub struct Saved {
    /// The socket where daemons connect.
    pub listener: OwnedFd,
    /// The daemon that is there, and whether it said hello.
    pub daemon: Option<(OwnedFd, bool)>,
    /// Each device by its name.
    pub devices: Vec<(String, Device)>,
    /// The main thread has its filter, which stays.
    pub is_confined: bool,
}

/// Descriptors that are to be there for the next program, by their numbers.
#[derive(Debug, Default)]
pub struct Carried<'a>(pub Vec<BorrowedFd<'a>>);

impl<'a> Carried<'a> {
    /// Takes one along.
    pub fn number(&mut self, fd: BorrowedFd<'a>) -> u64 {
        self.0.push(fd);
        fd.as_raw_fd().unsigned_abs().into()
    }
}

/// Descriptors by their numbers, each once.
#[derive(Debug)]
pub struct Found(HashMap<u64, OwnedFd>);

impl Found {
    /// These.
    pub fn new(fds: impl IntoIterator<Item = OwnedFd>) -> Self {
        Self(fds.into_iter().map(|fd| (fd.as_raw_fd().unsigned_abs().into(), fd)).collect())
    }

    /// The one of that number.
    pub fn take(&mut self, number: u64) -> Option<OwnedFd> {
        self.0.remove(&number)
    }
}

/// Numbers of the descriptors that belong to what is saved. `None`: it is of another version, or none.
pub fn numbers(saved: &[u8]) -> Option<Vec<u32>> {
    let mut from = Reader(saved);
    (from.u64()? == VERSION).then_some(())?;
    from.several(Reader::u32)
}

impl Saved {
    /// Reads what was saved. `None`: it is of another version, or something is missing.
    pub fn restore(saved: &[u8], fds: &mut Found, common: &Arc<Common>) -> Option<Self> {
        let mut from = Reader(saved);
        (from.u64()? == VERSION).then_some(())?;
        from.several(Reader::u32)?;
        common.next_client.store(from.u64()?, std::sync::atomic::Ordering::Relaxed);
        let is_confined = from.flag()?;
        let names = from.several(|from| Some((from.u32()?, from.u64()?)))?;
        for (number, name) in names {
            if let (Some(store), Ok(number)) = (&common.store, number.try_into()) {
                store.adopt(number, name);
            }
        }
        let listener = fds.take(from.u64()?)?;
        let daemon = from.maybe(|from| Some((fds.take(from.u64()?)?, from.flag()?)))?;
        let devices = from.several(|from| {
            let name = String::from_utf8(from.bytes()?.to_vec()).ok()?;
            let device = Device::restore(&name, from, fds, common)?;
            Some((name, device))
        })?;
        Some(Self { listener, daemon, devices, is_confined })
    }
}

/// Puts the version and the numbers of descriptors before the rest.
pub fn finish(carried: &Carried<'_>, rest: Writer) -> Vec<u8> {
    let mut whole = Writer::default();
    whole.u64(VERSION);
    whole.u64(carried.0.len() as u64);
    carried.0.iter().for_each(|fd| whole.u64(fd.as_raw_fd().unsigned_abs().into()));
    [whole.finish(), rest.finish()].concat()
}
