//! The file of a pool: batches of pages that are there as a whole or not at all.
//!
//! ```text
//! header | header | slot | slot | slot …      each of 4096 bytes
//! ```
//!
//! A page is never overwritten: its next version goes into another slot, which is free. A batch is its pages and one
//! header, with one `fdatasync` for all of them. The headers are written by turns, and slots that a batch makes free
//! are used by later batches only: a batch of which a part is missing after a power failure leaves the one before. A
//! header has a sum over all valid pages, which tells that. After the last, empty batch of a clean end it tells a page
//! that is damaged from a batch that was cut short.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use crate::page::{ENTRIES, MapId, PAGE_BYTES, Page, PageKey};

const MAGIC: &[u8; 8] = b"EKPOOL01";
const HEADERS: u64 = 2;
/// Slots that the file gets more at a time.
const STEP_SLOTS: u64 = 64;
/// Largest file that is read: maps of 256 TiB in pieces of 1 MiB, with as much that is free.
const SLOTS_MAX: u64 = 1 << 20;

/// Which pool a file is of, and which start of the daemon wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolId(pub u64);

/// Where a [`PieceFile`] is kept.
pub trait Storage {
    /// Bytes of it.
    ///
    /// # Errors
    /// The system's.
    fn len_bytes(&self) -> io::Result<u64>;
    /// Makes it longer by zeros.
    ///
    /// # Errors
    /// The system's, such as that there is no room.
    fn grow(&mut self, len_bytes: u64) -> io::Result<()>;
    /// Reads.
    ///
    /// # Errors
    /// The system's, or it is shorter.
    fn read_at(&self, out: &mut [u8], at_bytes: u64) -> io::Result<()>;
    /// Writes.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&mut self, bytes: &[u8], at_bytes: u64) -> io::Result<()>;
    /// Makes all writes durable.
    ///
    /// # Errors
    /// The system's. What was written may be durable or not.
    fn sync(&mut self) -> io::Result<()>;
}

impl Storage for File {
    fn len_bytes(&self) -> io::Result<u64> {
        // The thread that gives pieces is confined: it may seek, but not ask for metadata.
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }

    fn grow(&mut self, len_bytes: u64) -> io::Result<()> {
        let from_bytes = self.len_bytes()?;
        // Written, so that the room is there.
        let zeros = vec![0; len_bytes.saturating_sub(from_bytes) as usize];
        self.write_all_at(&zeros, from_bytes)?;
        self.sync_data()
    }

    fn read_at(&self, out: &mut [u8], at_bytes: u64) -> io::Result<()> {
        self.read_exact_at(out, at_bytes)
    }

    fn write_at(&mut self, bytes: &[u8], at_bytes: u64) -> io::Result<()> {
        self.write_all_at(bytes, at_bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Why the file of a pool can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no such file, cut short, or changed.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// It belongs to another pool, or to an earlier start.
    #[error("it is an older copy, or of another drive")]
    Other,
}

/// What changes at once.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Pages, with all their entries.
    pub pages: Vec<(PageKey, Box<[u32; ENTRIES]>)>,
    /// Maps that come. They have the pages of this batch.
    pub added: Vec<MapId>,
    /// Maps that go, with all their pages.
    pub removed: Vec<MapId>,
}

impl Batch {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.added.is_empty() && self.removed.is_empty()
    }
}

/// The maps of a file, each with its pages.
pub type Maps = BTreeMap<MapId, BTreeMap<u32, Box<[u32; ENTRIES]>>>;

/// A page that is valid.
#[derive(Debug, Clone, Copy)]
struct Live {
    slot: u32,
    weight: u64,
}

/// The file of a pool.
#[derive(Debug)]
pub struct PieceFile<S> {
    pub(crate) storage: S,
    id: PoolId,
    batch: u64,
    slots: u64,
    live: HashMap<PageKey, Live>,
    /// Of all live pages' weights.
    sum: u64,
    maps: BTreeSet<MapId>,
    free: Vec<u32>,
    /// A batch failed: nobody knows whether it is there, so no other one may be written.
    has_failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    id: PoolId,
    batch: u64,
    slots: u64,
    pages: u64,
    sum: u64,
}

impl Header {
    fn to_bytes(self) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        let numbers = [self.id.0, self.batch, self.slots, self.pages, self.sum].map(u64::to_le_bytes);
        bytes[..48].copy_from_slice(&[&MAGIC[..], numbers.as_flattened()].concat());
        let digest = crc32fast::hash(&bytes[..48]);
        bytes[48..52].copy_from_slice(&digest.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; PAGE_BYTES]) -> Option<Self> {
        let digest = crc32fast::hash(&bytes[..48]).to_le_bytes();
        let (numbers, _) = bytes[8..48].as_chunks();
        let [id, batch, slots, pages, sum] = [0, 1, 2, 3, 4].map(|at: usize| u64::from_le_bytes(numbers[at]));
        let is_whole = &bytes[..8] == MAGIC && bytes[48..52] == digest;
        is_whole.then_some(Self { id: PoolId(id), batch, slots, pages, sum })
    }
}

impl<S: Storage> PieceFile<S> {
    /// A file without maps, in an empty storage.
    ///
    /// # Errors
    /// It can't be written.
    pub fn create(mut storage: S, id: PoolId) -> io::Result<Self> {
        storage.grow((HEADERS + STEP_SLOTS) * PAGE_BYTES as u64)?;
        let (live, maps) = (HashMap::new(), BTreeSet::new());
        let free = (0..STEP_SLOTS as u32).rev().collect();
        let mut file = Self { storage, id, batch: 0, slots: STEP_SLOTS, live, sum: 0, maps, free, has_failed: false };
        file.write_header()?;
        file.storage.sync()?;
        Ok(file)
    }

    /// Reads a file. `ids`: one of these it must have. What is left of a batch that was cut short is erased.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(mut storage: S, ids: &[PoolId]) -> Result<(Self, Maps), FileError> {
        let mut headers = read_headers(&storage)?;
        headers.sort_by_key(|header| std::cmp::Reverse(header.batch));
        let Some(Header { id, .. }) = headers.first() else { return Err(FileError::Damaged("it has no header")) };
        if !ids.contains(id) {
            return Err(FileError::Other);
        }
        let len_bytes = storage.len_bytes()?;
        let is_there = |header: &Header| header.slots <= SLOTS_MAX && slot_at(header.slots as u32) <= len_bytes;
        if !headers.iter().any(is_there) {
            return Err(FileError::Damaged("it is cut short"));
        }
        for header in headers.into_iter().filter(is_there) {
            let (valid, cut_short) = read_pages(&storage, &header)?;
            // The power failed amid the batch: the one before is whole.
            let Some(Valid { live, maps, content }) = valid else { continue };
            // Later batches would bring them to life.
            for slot in &cut_short {
                storage.write_at(&[0; PAGE_BYTES], slot_at(*slot))?;
            }
            if !cut_short.is_empty() {
                storage.sync()?;
            }
            let used: BTreeSet<u32> = live.values().map(|page| page.slot).collect();
            let Header { id, batch, slots, sum, .. } = header;
            let free = (0..slots as u32).rev().filter(|slot| !used.contains(slot)).collect();
            return Ok((Self { storage, id, batch, slots, live, sum, maps, free, has_failed: false }, content));
        }
        Err(FileError::Damaged("some of its pages are missing, or older than others"))
    }

    /// Where it was kept.
    pub fn into_storage(self) -> S {
        self.storage
    }

    /// Its identity.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Gives it another identity from the next batch on.
    pub fn set_id(&mut self, id: PoolId) {
        self.id = id;
    }

    /// Makes a batch durable, as a whole or not at all.
    ///
    /// # Errors
    /// It can't be written. If nobody knows whether it is there, all later batches fail, too.
    pub fn commit(&mut self, batch: Batch) -> io::Result<()> {
        if self.has_failed {
            return Err(io::Error::other("an earlier write to it failed; start the daemon again to have it read anew"));
        }
        let Batch { mut pages, added, removed } = batch;
        let mut maps = self.maps.clone();
        maps.extend(&added);
        maps.retain(|map| !removed.contains(map));
        if maps != self.maps {
            pages.extend(self.directory(&maps));
        }
        self.make_room(pages.len())?;
        self.has_failed = true;
        self.batch += 1;
        let is_removed = |key: &PageKey, _: &mut Live| removed.contains(&key.map);
        let mut freed: Vec<Live> = self.live.extract_if(is_removed).map(|(_, page)| page).collect();
        for (key, entries) in pages {
            let Some(slot) = self.free.pop() else { return Err(io::Error::other("it has no slot")) };
            let page = Page { key, batch: self.batch, entries };
            let bytes = page.to_bytes();
            self.storage.write_at(&bytes, slot_at(slot))?;
            let weight = Page::weight(&bytes);
            self.sum = self.sum.wrapping_add(weight);
            freed.extend(self.live.insert(key, Live { slot, weight }));
        }
        self.sum = freed.iter().fold(self.sum, |sum, page| sum.wrapping_sub(page.weight));
        self.write_header()?;
        self.storage.sync()?;
        (self.maps, self.has_failed) = (maps, false);
        self.free.extend(freed.iter().map(|page| page.slot));
        Ok(())
    }

    fn write_header(&mut self) -> io::Result<()> {
        let Self { id, batch, slots, sum, .. } = *self;
        let header = Header { id, batch, slots, pages: self.live.len() as u64, sum };
        self.storage.write_at(&header.to_bytes(), batch % HEADERS * PAGE_BYTES as u64)
    }

    /// Pages of the directory that differ from the present ones.
    fn directory(&self, maps: &BTreeSet<MapId>) -> Vec<(PageKey, Box<[u32; ENTRIES]>)> {
        let pages_of = |maps: &BTreeSet<MapId>| -> Vec<Box<[u32; ENTRIES]>> {
            let ids: Vec<u32> = maps.iter().map(|map| map.0).collect();
            let page = |ids: &[u32]| Box::new(std::array::from_fn(|at| ids.get(at).copied().unwrap_or(0)));
            ids.chunks(ENTRIES).map(page).collect()
        };
        let (before, mut after) = (pages_of(&self.maps), pages_of(maps));
        after.resize_with(after.len().max(before.len()), || Box::new([0; ENTRIES]));
        let key = |number: usize| PageKey { map: MapId::DIRECTORY, number: number as u32 };
        let changed = after.into_iter().enumerate().filter(|(at, page)| before.get(*at) != Some(page));
        changed.map(|(at, page)| (key(at), page)).collect()
    }

    /// Has at least that number of slots free.
    fn make_room(&mut self, slots: usize) -> io::Result<()> {
        let missing = slots.saturating_sub(self.free.len()) as u64;
        if missing == 0 {
            return Ok(());
        }
        let more = missing.next_multiple_of(STEP_SLOTS);
        if self.slots + more > SLOTS_MAX {
            return Err(io::Error::other("it can't grow any more; delete snapshots or disks"));
        }
        self.storage.grow((HEADERS + self.slots + more) * PAGE_BYTES as u64)?;
        self.free.splice(..0, (self.slots..self.slots + more).rev().map(|slot| slot as u32));
        self.slots += more;
        Ok(())
    }
}

fn slot_at(slot: u32) -> u64 {
    (HEADERS + u64::from(slot)) * PAGE_BYTES as u64
}

fn read_headers(storage: &impl Storage) -> io::Result<Vec<Header>> {
    let mut bytes = [0; PAGE_BYTES];
    let mut headers = Vec::new();
    for at in 0..HEADERS {
        if storage.len_bytes()? >= (at + 1) * PAGE_BYTES as u64 {
            storage.read_at(&mut bytes, at * PAGE_BYTES as u64)?;
            headers.extend(Header::from_bytes(&bytes));
        }
    }
    Ok(headers)
}

/// What a header says is valid.
struct Valid {
    live: HashMap<PageKey, Live>,
    maps: BTreeSet<MapId>,
    content: Maps,
}

/// The pages as of the header's batch, if all of them are there; and the slots of later ones.
fn read_pages(storage: &impl Storage, header: &Header) -> io::Result<(Option<Valid>, Vec<u32>)> {
    let (mut latest, mut later) = (HashMap::<PageKey, (Live, Page)>::new(), Vec::new());
    let mut bytes = [0; PAGE_BYTES];
    for slot in 0..header.slots as u32 {
        storage.read_at(&mut bytes, slot_at(slot))?;
        // A torn page never became valid.
        let Some(page) = Page::from_bytes(&bytes) else { continue };
        if page.batch > header.batch {
            later.push(slot);
        } else if latest.get(&page.key).is_none_or(|(_, other)| other.batch < page.batch) {
            latest.insert(page.key, (Live { slot, weight: Page::weight(&bytes) }, page));
        }
    }
    let listed = latest.iter().filter(|(key, _)| key.map == MapId::DIRECTORY).flat_map(|(_, (_, page))| *page.entries);
    let maps: BTreeSet<MapId> = listed.filter(|entry| *entry != 0).map(MapId).collect();
    let mut valid = Valid { live: HashMap::new(), content: Maps::new(), maps };
    valid.maps.iter().for_each(|map| drop(valid.content.insert(*map, BTreeMap::new())));
    for (key, (live, page)) in latest {
        if key.map < MapId::FIRST || valid.maps.contains(&key.map) {
            valid.live.insert(key, live);
            valid.content.entry(key.map).or_default().insert(key.number, page.entries);
        }
    }
    valid.content.remove(&MapId::DIRECTORY);
    let sum = valid.live.values().fold(0, |sum: u64, page| sum.wrapping_add(page.weight));
    let is_whole = (valid.live.len() as u64, sum) == (header.pages, header.sum);
    Ok((is_whole.then_some(valid), later))
}

#[cfg(test)]
mod tests;
