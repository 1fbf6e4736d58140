//! The log of requests in flight (vhost-user protocol, "Inflight I/O tracking", split virtqueues): memory that the
//! VMM keeps while we are dead, so that the next process knows what was fetched and not completed.
//!
//! Each step is one store, in an order that makes every prefix of them recoverable:
//!
//! - *fetch*: the head's counter, then its `inflight` flag. What died before the flag was not fetched.
//! - *publish*, for the requests of a batch: used elements, and each head linked to the one before it by `next`;
//!   `last_batch_head`; the ring's used index; the `inflight` flags; our `used_idx`. What died before the used index
//!   is still in flight and is done again; what died after it shows as a difference between the two indexes, which
//!   says how many heads of the linked batch were published.
//!
//! The index to fetch from next is never stored: it is the used index plus the requests in flight.
//!
//! Behind the entries, in what alignment leaves free, stands whether the driver turned the write cache off: a VMM keeps
//! that to itself, and a driver that turned it off sends no flushes.
//!
//! The VMM can write here too, so nothing is believed that contradicts itself or the ring.

use std::sync::Arc;

use guest_memory::{MappedRange, Mapping};

use crate::kill;

/// Offsets in a virtqueue's region.
const FEATURES: u64 = 0;
const VERSION: u64 = 8;
const DESC_NUM: u64 = 10;
const LAST_BATCH_HEAD: u64 = 12;
const USED_IDX: u64 = 14;
const ENTRIES: u64 = 16;

/// Bytes and offsets of a head's entry.
const ENTRY_BYTES: u64 = 16;
const INFLIGHT: u64 = 0;
const NEXT: u64 = 6;
const COUNTER: u64 = 8;

/// The byte behind the entries, and what it says; 0: nothing yet.
const CACHE_OFF: u8 = 1;
const CACHE_ON: u8 = 2;
const WRITE_CACHE_BYTES: u64 = 1;

/// The only version there is; 0 is a region that nobody used yet.
const VERSION_1: u16 = 1;
/// In memory of our own: a ring is served whose requests in flight are not in it.
const NOT_LOGGED: u16 = u16::MAX;

/// Regions start on cache lines of their own, as their writers are different threads.
const REGION_ALIGN: u64 = 64;

/// Bytes of the log of `queues` virtqueues of `size` descriptors each (VHOST_USER_GET_INFLIGHT_FD's `mmap_size`).
pub fn inflight_bytes(queues: u16, size: u16) -> u64 {
    region_bytes(size) * u64::from(queues)
}

/// Virtqueue `queue`'s part of a log that starts where `mapping` does. `None`: the mapping is too short.
pub fn inflight_region(mapping: &Arc<Mapping>, queue: u16, size: u16) -> Option<MappedRange> {
    MappedRange::new(mapping, region_bytes(size) * u64::from(queue), region_bytes(size))
}

/// Makes a region one that nobody used yet: its ring was stopped, and nothing of it is in flight.
pub fn clear_inflight(region: &MappedRange) {
    // Fails where there is no such region, nor a log.
    let _ = region.store_u16(VERSION, 0);
}

fn region_bytes(size: u16) -> u64 {
    (entry(size) + WRITE_CACHE_BYTES).next_multiple_of(REGION_ALIGN)
}

/// Why a log was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Too short, read-only or not aligned.
    #[error("it is too short, can't be written, or is not aligned to 8 bytes")]
    Memory,
    /// Features or a version that do not exist.
    #[error("version {version} with features {features:#x} is unknown")]
    Version {
        /// As found.
        version: u16,
        /// As found.
        features: u64,
    },
    /// A ring was served without it.
    #[error("what was in flight was not logged")]
    NotLogged,
    /// It is another ring's.
    #[error("it is for {desc_num} descriptors, the ring has {size}")]
    Size {
        /// As found.
        desc_num: u16,
        /// Of the ring.
        size: u16,
    },
    /// The used index of the ring is behind the log's, or too far ahead.
    #[error("the ring's used index is {ring}, the log's is {log}: it ran backwards or too far")]
    UsedIndex {
        /// Of the ring.
        ring: u16,
        /// Of the log.
        log: u16,
    },
    /// The last batch names heads that do not exist, or one of them twice.
    #[error("its last batch of {batch} does not lead through {batch} different descriptors")]
    Batch {
        /// Requests in it.
        batch: u16,
    },
    /// A flag that is neither 0 nor 1.
    #[error("descriptor {head} has an inflight flag of {flag}")]
    Flag {
        /// Which.
        head: u16,
        /// As found.
        flag: u8,
    },
    /// Neither on nor off.
    #[error("it says {found} of the write cache")]
    WriteCache {
        /// As found.
        found: u8,
    },
    /// Two requests in flight have one counter, or a counter that can't be followed by another.
    #[error("the counter {counter} of a request in flight is used twice or is the last")]
    Counter {
        /// As found.
        counter: u64,
    },
    /// More requests are in flight than the driver made available.
    #[error("it has {inflight} requests in flight, the driver made {available} available")]
    Avail {
        /// Requests in flight.
        inflight: u16,
        /// Between the ring's available and used indexes.
        available: u16,
    },
    /// A fresh log for a ring that was not fetched up to its used index: it can't be described.
    #[error("it is new, but the ring is to go on from {next_avail} and its used index is {used}")]
    NotAtUsed {
        /// Where the VMM wants us to go on.
        next_avail: u16,
        /// Of the ring.
        used: u16,
    },
}

/// A ring's indexes when the log is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indexes {
    pub avail: u16,
    pub used: u16,
    /// Where the VMM says to go on.
    pub next_avail: u16,
}

/// A log in use.
#[derive(Debug)]
pub(crate) struct Log {
    range: MappedRange,
    size: u16,
    counter: u64,
    last_batch_head: u16,
}

/// What a log told.
#[derive(Debug)]
pub(crate) struct Opened {
    pub log: Log,
    /// Heads of requests that were fetched but not completed; the first to be fetched comes last.
    pub inflight: Vec<u16>,
    /// Whether the log was in use before.
    pub resumed: bool,
}

impl Log {
    /// Checks a log against its ring, ends a batch that was published in part, and finds what is in flight.
    pub fn open(range: MappedRange, size: u16, ring: Indexes) -> Result<Opened, LogError> {
        if range.len_bytes() < entry(size) + WRITE_CACHE_BYTES {
            return Err(LogError::Memory);
        }
        let read_u16 = |offset| range.load_u16(offset).ok_or(LogError::Memory);
        let features = range.load_u64(FEATURES).ok_or(LogError::Memory)?;
        match (read_u16(VERSION)?, features) {
            (0, 0) => return Self::init(range, size, ring),
            (VERSION_1, 0) => {}
            (NOT_LOGGED, 0) => return Err(LogError::NotLogged),
            (version, features) => return Err(LogError::Version { version, features }),
        }
        let desc_num = read_u16(DESC_NUM)?;
        if desc_num != size {
            return Err(LogError::Size { desc_num, size });
        }
        let used_idx = read_u16(USED_IDX)?;
        let batch = ring.used.wrapping_sub(used_idx);
        if batch > size {
            return Err(LogError::UsedIndex { ring: ring.used, log: used_idx });
        }
        let last_batch_head = read_u16(LAST_BATCH_HEAD)?;
        let published = Self::last_batch(&range, size, batch, last_batch_head)?;
        let (inflight, counter) = Self::in_flight(&range, size, &published, ring)?;
        let found = range.load_u8(entry(size)).ok_or(LogError::Memory)?;
        if found > CACHE_ON {
            return Err(LogError::WriteCache { found });
        }
        let log = Self { range, size, counter, last_batch_head };
        for head in published {
            log.clear(head);
        }
        log.put_u16(USED_IDX, ring.used)?;
        Ok(Opened { log, inflight, resumed: true })
    }

    /// As [`Log::open`], in memory of our own. `None`: it can't describe the ring, and says so to who comes after us.
    pub fn open_own(range: MappedRange, size: u16, ring: Indexes) -> Result<Option<Opened>, LogError> {
        let region = range.clone();
        match Self::open(range, size, ring) {
            Err(LogError::NotAtUsed { .. }) => {
                region.store_u16(VERSION, NOT_LOGGED).ok_or(LogError::Memory)?;
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    /// A region that nobody used yet: the version comes last, so that a region with one is whole.
    fn init(range: MappedRange, size: u16, ring: Indexes) -> Result<Opened, LogError> {
        if ring.next_avail != ring.used {
            return Err(LogError::NotAtUsed { next_avail: ring.next_avail, used: ring.used });
        }
        let log = Self { range, size, counter: 0, last_batch_head: 0 };
        (0..size).for_each(|head| log.clear(head));
        log.put_u8(entry(size), 0);
        log.put_u16(DESC_NUM, size)?;
        log.put_u16(LAST_BATCH_HEAD, 0)?;
        log.put_u16(USED_IDX, ring.used)?;
        log.put_u16(VERSION, VERSION_1)?;
        Ok(Opened { log, inflight: Vec::new(), resumed: false })
    }

    /// The heads of the last `batch` requests that were published.
    fn last_batch(range: &MappedRange, size: u16, batch: u16, last: u16) -> Result<Vec<u16>, LogError> {
        let mut heads = Vec::with_capacity(usize::from(batch));
        let mut seen = vec![false; usize::from(size)];
        let mut at = last;
        for _ in 0..batch {
            match seen.get_mut(usize::from(at)) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(LogError::Batch { batch }),
            }
            heads.push(at);
            at = range.load_u16(entry(at) + NEXT).ok_or(LogError::Memory)?;
        }
        Ok(heads)
    }

    /// The heads in flight, the first to be fetched last, and the counter that the next request gets.
    fn in_flight(
        range: &MappedRange,
        size: u16,
        published: &[u16],
        ring: Indexes,
    ) -> Result<(Vec<u16>, u64), LogError> {
        let mut found = Vec::new();
        for head in 0..size {
            match range.load_u8(entry(head) + INFLIGHT).ok_or(LogError::Memory)? {
                0 => {}
                1 => found.push((range.load_u64(entry(head) + COUNTER).ok_or(LogError::Memory)?, head)),
                flag => return Err(LogError::Flag { head, flag }),
            }
        }
        found.retain(|(_, head)| !published.contains(head));
        found.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(twice) = found.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(LogError::Counter { counter: twice[0].0 });
        }
        let last = found.first().map_or(0, |(counter, _)| *counter);
        let counter = last.checked_add(1).ok_or(LogError::Counter { counter: last })?;
        let (inflight, available) = (found.len() as u16, ring.avail.wrapping_sub(ring.used));
        if inflight > available || available > size {
            return Err(LogError::Avail { inflight, available });
        }
        Ok((found.into_iter().map(|(_, head)| head).collect(), counter))
    }

    /// A request is fetched.
    #[inline]
    pub fn fetched(&mut self, head: u16) {
        if kill::is_alive() {
            self.range.store_u64(entry(head) + COUNTER, self.counter);
        }
        // 2^64 requests take longer than the machine lives.
        self.counter = self.counter.wrapping_add(1);
        if kill::is_alive() {
            self.range.store_u8(entry(head) + INFLIGHT, 1);
        }
    }

    /// A request joins the batch that is published next; its used element is written.
    #[inline]
    pub fn join_batch(&mut self, head: u16) {
        if kill::is_alive() {
            self.range.store_u16(entry(head) + NEXT, self.last_batch_head);
        }
        self.last_batch_head = head;
    }

    /// The batch is complete; the ring's used index comes next.
    #[inline]
    pub fn close_batch(&self) {
        if kill::is_alive() {
            self.range.store_u16(LAST_BATCH_HEAD, self.last_batch_head);
        }
    }

    /// A request was published.
    #[inline]
    pub fn clear(&self, head: u16) {
        if kill::is_alive() {
            self.range.store_u8(entry(head) + INFLIGHT, 0);
        }
    }

    /// All requests of the batch are cleared.
    #[inline]
    pub fn end_batch(&self, used: u16) {
        if kill::is_alive() {
            self.range.store_u16(USED_IDX, used);
        }
    }

    /// Whether the driver had the write cache on, if that was noted.
    pub fn write_cache(&self) -> Option<bool> {
        match self.range.load_u8(entry(self.size))? {
            CACHE_OFF => Some(false),
            CACHE_ON => Some(true),
            _ => None,
        }
    }

    /// Notes whether the driver has the write cache on.
    pub fn note_write_cache(&self, on: bool) {
        self.put_u8(entry(self.size), if on { CACHE_ON } else { CACHE_OFF });
    }

    fn put_u8(&self, offset: u64, value: u8) {
        if kill::is_alive() {
            self.range.store_u8(offset, value);
        }
    }

    fn put_u16(&self, offset: u64, value: u16) -> Result<(), LogError> {
        if kill::is_alive() { self.range.store_u16(offset, value).ok_or(LogError::Memory) } else { Ok(()) }
    }
}

#[inline]
fn entry(head: u16) -> u64 {
    ENTRIES + ENTRY_BYTES * u64::from(head)
}
