//! What must outlive this process of a virtio-blk disk whose clients are kept, beside what they said and the logs that
//! they gave: a log for each ring of a client that gave none, where rings were stopped, and the write cache.
//!
//! A ring's log is in use only while the ring runs: so one that is in use is gone on with, also where the process died
//! before the client heard that the ring had been started.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, Result};
use client_socket::Listener;
use guest_memory::{MappedRange, Mapping};
use vhost_blk::{MAX_QUEUES, MAX_RING_SIZE, clear_inflight, inflight_bytes, inflight_region};

/// Changes with the layout below, that of logs, and which messages are kept.
pub const STATE_VERSION: u64 = 1;

/// Where that stands.
const VERSION: u64 = 0;
/// The write cache, 1 byte; 0: as it was at first.
const CACHE: u64 = 8;
const CACHE_OFF: u8 = 1;
const CACHE_ON: u8 = 2;
/// For each ring, 8 bytes: where it was stopped, if it was.
const STOPPED: u64 = 64;
const WAS_STOPPED: u64 = 1 << 16;
/// Where logs begin.
const LOGS: u64 = 4096;

/// The memory.
pub struct Lasting {
    state: MappedRange,
    logs: Arc<Mapping>,
    queues: u16,
    /// A client is held, and what an earlier process had for it is not there.
    is_lost: bool,
}

impl Lasting {
    /// The memory of a listener's clients with this many queues. It is as an earlier process left it if a client of
    /// that process is held. `None`: clients are not kept.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn with(listener: &mut Listener, queues: u16) -> Result<Option<Self>> {
        let Some((has_client, memory)) = listener.held() else { return Ok(None) };
        if let (true, [memory]) = (has_client, memory)
            && let Some(earlier) = Self::of(memory, queues)
            && earlier.state.load_u64(VERSION) == Some(STATE_VERSION)
        {
            return Ok(Some(earlier));
        }
        let len = usize::try_from(LOGS + logs_bytes())?;
        let (_, memory) = Mapping::memfd("evenkeel-rings", len).context("can't make a disk's state")?;
        let new = Self::of(&memory, queues).context("can't map a disk's state")?;
        new.state.store_u64(VERSION, STATE_VERSION);
        listener.keep_memory(vec![memory]);
        Ok(Some(Self { is_lost: has_client, ..new }))
    }

    /// What is in a file. `None`: it is another front end's.
    fn of(file: &OwnedFd, queues: u16) -> Option<Self> {
        let state = Mapping::shared(file.as_fd(), 0, LOGS, true).ok()?;
        let logs = Mapping::shared(file.as_fd(), LOGS, logs_bytes(), true).ok()?;
        Some(Self { state: MappedRange::new(&state, 0, LOGS)?, logs, queues, is_lost: false })
    }

    /// Whether there is nothing to go on with for a client that is held.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// As for a client that said nothing yet.
    pub fn reset(&self) {
        for ring in 0..self.queues {
            self.state.store_u64(stopped(ring), 0);
            self.clear_log(ring);
        }
        self.state.store_u8(CACHE, 0);
    }

    /// A ring's log.
    pub fn log(&self, ring: u16) -> Option<MappedRange> {
        inflight_region(&self.logs, ring, MAX_RING_SIZE)
    }

    /// The ring does not run.
    pub fn clear_log(&self, ring: u16) {
        self.log(ring).iter().for_each(clear_inflight);
    }

    /// The ring was stopped.
    pub fn note_stopped(&self, ring: u16, next_avail: u16) {
        // First: one whose log is empty goes on from there.
        self.state.store_u64(stopped(ring), WAS_STOPPED | u64::from(next_avail));
        self.clear_log(ring);
    }

    /// Where it was.
    pub fn stopped_at(&self, ring: u16) -> Option<u16> {
        let noted = self.state.load_u64(stopped(ring))?;
        (noted & WAS_STOPPED != 0).then_some(noted as u16)
    }

    /// Whether the driver turned the write cache on or off.
    pub fn note_write_cache(&self, on: bool) {
        self.state.store_u8(CACHE, if on { CACHE_ON } else { CACHE_OFF });
    }

    /// What it made of it, if it did.
    pub fn write_cache(&self) -> Option<bool> {
        match self.state.load_u8(CACHE)? {
            CACHE_OFF => Some(false),
            CACHE_ON => Some(true),
            _ => None,
        }
    }
}

const fn stopped(ring: u16) -> u64 {
    STOPPED + 8 * ring as u64
}

const _: () = assert!(stopped(MAX_QUEUES) <= LOGS);

fn logs_bytes() -> u64 {
    inflight_bytes(MAX_QUEUES, MAX_RING_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a ring's log is unused.
    fn is_clear(lasting: &Lasting, ring: u16) -> bool {
        lasting.log(ring).unwrap().load_u16(8) == Some(0)
    }

    #[test]
    fn another_process_finds_where_rings_were_stopped_and_the_write_cache() {
        let (_, file) = Mapping::memfd("rings", (LOGS + logs_bytes()) as usize).unwrap();
        let lasting = Lasting::of(&file, 4).unwrap();
        assert_eq!((lasting.write_cache(), lasting.stopped_at(0)), (None, None));
        lasting.note_stopped(0, 0);
        lasting.note_stopped(3, u16::MAX);
        lasting.note_write_cache(false);
        // A queue that runs: the version that its log begins with.
        lasting.log(1).unwrap().store_u16(8, 1).unwrap();
        let next = Lasting::of(&file, 4).unwrap();
        assert_eq!([0, 1, 2, 3].map(|ring| next.stopped_at(ring)), [Some(0), None, None, Some(u16::MAX)]);
        assert_eq!(next.write_cache(), Some(false));
        assert!(!is_clear(&next, 1) && is_clear(&next, 0));
        next.note_stopped(1, 7);
        assert!(is_clear(&lasting, 1));
        lasting.log(2).unwrap().store_u16(8, 1).unwrap();
        lasting.reset();
        assert_eq!([0, 1, 2, 3].map(|ring| next.stopped_at(ring)), [None; 4]);
        assert!(next.write_cache().is_none() && is_clear(&next, 2));
        // Each ring's log is its own.
        assert!(next.log(MAX_QUEUES - 1).is_some() && next.log(MAX_QUEUES).is_none());
    }

    #[test]
    fn a_file_of_another_length_is_another_front_ends() {
        let (_, file) = Mapping::memfd("journal", 8192).unwrap();
        assert!(Lasting::of(&file, 4).is_none());
    }
}
