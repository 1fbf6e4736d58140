//! The maps of a pool, and the pieces that are free.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::bits::{Bits, WORD_BITS};
use crate::file::{Batch, Maps};
use crate::page::{ENTRIES, MapId, PageKey};

/// Bits of a page.
const PAGE_BITS: u32 = WORD_BITS * ENTRIES as u32;
/// Maps that may share a piece.
const USERS_MAX: u16 = u16::MAX;

/// A piece, by its place in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u32);

/// The pieces of a pool, and the maps that have them.
///
/// A piece goes from *clean* to a map, or to several that share it. From there it goes, once no command uses it, to
/// *dirty*, and through the wiper back to *clean*. What is not in the file is dirty after a crash.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    /// Pieces of the drive, by their places in the pool.
    ranges: Vec<Range<u32>>,
    /// Maps that have the piece of each place.
    users: Vec<u16>,
    clean: Bits,
    dirty: Bits,
    maps: BTreeMap<MapId, Map>,
    /// Maps with a reservation.
    reserving: BTreeSet<MapId>,
    /// Where to look for the next clean piece: what is written in turn should lie in turn.
    next: u32,
    changed: BTreeSet<PageKey>,
    added: Vec<MapId>,
    removed: Vec<MapId>,
}

#[derive(Debug, Clone, Default)]
struct Map {
    /// 0: none. Otherwise the place plus one.
    entries: Vec<u32>,
    /// Entries that are not 0.
    pieces: u32,
    /// Pieces that it gets whatever others want.
    reserved: u32,
}

/// What a write gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The map has the piece for itself.
    Own(Place),
    /// The map has it from now on, and it is zero.
    New(Place),
    /// The map gets it once it has the other one's data: see [`Pool::copied`].
    Copy {
        /// A shared piece, which stays as it is.
        from: Place,
        /// Where its data goes.
        to: Place,
    },
}

/// There is no clean piece, or too many maps share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pool is full")]
pub struct NoRoom;

/// Maps that contradict each other, or the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pool's maps are damaged: {0}")]
pub struct Damaged(&'static str);

impl Pool {
    /// The pool that has `ranges` of the drive's pieces, in the order in which they came to it. `counts`: how many
    /// pieces each map may have. Maps without a count are removed.
    ///
    /// # Errors
    /// A map has what is not the pool's, or more than it may have.
    pub fn new(ranges: Vec<Range<u32>>, content: Maps, counts: &BTreeMap<MapId, u32>) -> Result<Self, Damaged> {
        let mut pool = Self::default();
        ranges.into_iter().for_each(|range| pool.extend(range));
        let size = pool.size();
        let clean = content.get(&MapId::CLEAN).cloned().unwrap_or_default();
        for (id, pages) in content.into_iter().filter(|(id, _)| *id != MapId::CLEAN) {
            let Some(count) = counts.get(&id) else {
                pool.removed.push(id);
                continue;
            };
            let mut map = Map { entries: vec![0; *count as usize], ..Map::default() };
            for (number, page) in pages {
                for (at, entry) in page.iter().enumerate().filter(|(_, entry)| **entry != 0) {
                    let into = map.entries.get_mut(number as usize * ENTRIES + at);
                    *into.ok_or(Damaged("a disk has more pieces than its size allows"))? = *entry;
                    let users = pool.users.get_mut(*entry as usize - 1).ok_or(Damaged("a piece is beyond the pool"))?;
                    *users = users.checked_add(1).ok_or(Damaged("too many maps share a piece"))?;
                    map.pieces += 1;
                }
            }
            pool.maps.insert(id, map);
        }
        for place in (0..size).filter(|place| pool.users[*place as usize] == 0) {
            let word = clean.get(&(place / PAGE_BITS)).map_or(0, |page| page[(place % PAGE_BITS / WORD_BITS) as usize]);
            let is_clean = word >> (place % WORD_BITS) & 1 != 0;
            if is_clean { &mut pool.clean } else { &mut pool.dirty }.set(place, true);
        }
        Ok(pool)
    }

    /// Gives the pool more pieces of the drive. They are neither clean nor dirty yet: see [`release`](Self::release)
    /// and [`wiped`](Self::wiped).
    pub fn extend(&mut self, range: Range<u32>) {
        let size = self.size() + range.len() as u32;
        self.ranges.push(range);
        self.users.resize(size as usize, 0);
        self.clean.grow(size);
        self.dirty.grow(size);
    }

    /// A piece of the drive is known to be zero. Nothing changes if a map has it.
    pub fn is_zero(&mut self, on_drive: u32) {
        if let Some(Place(place)) = self.place_of(on_drive)
            && self.dirty.set(place, false)
        {
            self.set_clean(place, true);
        }
    }

    /// Pieces in all.
    pub fn size(&self) -> u32 {
        self.users.len() as u32
    }

    /// Pieces that can be given out, now or once they are wiped.
    pub fn free(&self) -> u32 {
        self.clean.count() + self.dirty.count()
    }

    /// Where on the drive a piece lies, in pieces.
    pub fn on_drive(&self, Place(mut place): Place) -> Option<u32> {
        for range in &self.ranges {
            if place < range.len() as u32 {
                return Some(range.start + place);
            }
            place -= range.len() as u32;
        }
        None
    }

    /// The place in the pool of a piece of the drive.
    pub fn place_of(&self, on_drive: u32) -> Option<Place> {
        let mut first = 0;
        for range in &self.ranges {
            if range.contains(&on_drive) {
                return Some(Place(first + on_drive - range.start));
            }
            first += range.len() as u32;
        }
        None
    }

    /// Whether there is such a map.
    pub fn has(&self, id: MapId) -> bool {
        self.maps.contains_key(&id)
    }

    /// All maps, each with the number of its pieces.
    pub fn maps(&self) -> impl Iterator<Item = (MapId, u32)> {
        self.maps.iter().map(|(id, map)| (*id, map.pieces))
    }

    /// A new map without pieces, for up to `count`.
    pub fn add(&mut self, id: MapId, count: u32) {
        self.maps.insert(id, Map { entries: vec![0; count as usize], ..Map::default() });
        self.added.push(id);
    }

    /// A map may have more pieces.
    pub fn grow(&mut self, id: MapId, count: u32) {
        if let Some(map) = self.maps.get_mut(&id) {
            map.entries.resize(map.entries.len().max(count as usize), 0);
        }
    }

    /// Reserves pieces for a map, in place of an earlier reservation. They include the pieces that it has.
    ///
    /// # Errors
    /// Fewer are free or its own.
    pub fn reserve(&mut self, id: MapId, pieces: u32) -> Result<(), NoRoom> {
        let (Some(map), reserved) = (self.maps.get(&id), self.reserved_by_others(id)) else { return Ok(()) };
        if pieces.saturating_sub(map.pieces) > self.free().saturating_sub(reserved) {
            return Err(NoRoom);
        }
        self.maps.entry(id).and_modify(|map| map.reserved = pieces);
        if pieces > 0 {
            self.reserving.insert(id)
        } else {
            self.reserving.remove(&id)
        };
        Ok(())
    }

    /// Pieces that other maps have reserved and don't have yet.
    pub fn reserved_by_others(&self, id: MapId) -> u32 {
        let others = self.reserving.iter().filter(|other| **other != id).filter_map(|other| self.maps.get(other));
        others.map(|map| map.reserved.saturating_sub(map.pieces)).sum()
    }

    /// Pieces that a map has, shared ones included.
    pub fn pieces(&self, id: MapId) -> u32 {
        self.maps.get(&id).map_or(0, |map| map.pieces)
    }

    /// The piece of a map, and whether other maps have it too.
    pub fn piece(&self, id: MapId, index: u32) -> Option<(Place, bool)> {
        let entry = *self.maps.get(&id)?.entries.get(index as usize)?;
        let place = entry.checked_sub(1)?;
        Some((Place(place), self.users[place as usize] > 1))
    }

    /// A map needs a piece of its own. A shared one is copied even where all of it is to be written: a command that is
    /// cut short leaves old data or new data, never zeros.
    ///
    /// # Errors
    /// There is no room. Nothing has changed.
    pub fn write(&mut self, id: MapId, index: u32) -> Result<Grant, NoRoom> {
        match self.piece(id, index) {
            Some((place, false)) => Ok(Grant::Own(place)),
            Some((from, true)) => self.take_clean(id).map(|to| Grant::Copy { from, to }),
            None => {
                let place = self.take_clean(id)?;
                // There was none.
                let _ = self.put(id, index, place);
                Ok(Grant::New(place))
            }
        }
    }

    /// The data of a shared piece was copied, durably. The map has the copy, unless it has let go of the shared piece
    /// meanwhile. Returns what nobody has any more.
    pub fn copied(&mut self, id: MapId, index: u32, from: Place, to: Place) -> Option<Place> {
        if self.piece(id, index).is_none_or(|(place, _)| place != from) {
            return self.leave(to.0 + 1);
        }
        self.put(id, index, to)
    }

    /// The data of a shared piece was not copied. Nobody has the copy.
    pub fn not_copied(&mut self, to: Place) {
        // The map still has the shared one.
        let _ = self.leave(to.0 + 1);
    }

    /// A clean piece, which has one user from now on.
    fn take_clean(&mut self, id: MapId) -> Result<Place, NoRoom> {
        let reserved = self.reserved_by_others(id);
        let found = self.clean.next(self.next).filter(|_| self.clean.count() > reserved);
        let place = found.ok_or(NoRoom)?;
        self.set_clean(place, false);
        self.users[place as usize] = 1;
        self.next = place + 1;
        Ok(Place(place))
    }

    fn set_clean(&mut self, place: u32, is_clean: bool) {
        if self.clean.set(place, is_clean) {
            self.changed.insert(PageKey { map: MapId::CLEAN, number: place / PAGE_BITS });
        }
    }

    /// Replaces a map's piece by one that counts it as a user already. Returns what nobody has any more.
    fn put(&mut self, id: MapId, index: u32, place: Place) -> Option<Place> {
        let map = self.maps.get_mut(&id)?;
        let entry = map.entries.get_mut(index as usize)?;
        let former = std::mem::replace(entry, place.0 + 1);
        map.pieces += u32::from(former == 0);
        self.changed.insert(PageKey { map: id, number: index / ENTRIES as u32 });
        self.leave(former)
    }

    /// One user less of what an entry names. Returns what nobody has any more.
    fn leave(&mut self, entry: u32) -> Option<Place> {
        let place = entry.checked_sub(1)?;
        let users = &mut self.users[place as usize];
        *users -= 1;
        (*users == 0).then_some(Place(place))
    }

    /// A map gives a piece back. Returns what nobody has any more.
    pub fn discard(&mut self, id: MapId, index: u32) -> Option<Place> {
        let map = self.maps.get_mut(&id)?;
        let former = std::mem::take(map.entries.get_mut(index as usize)?);
        map.pieces -= u32::from(former != 0);
        self.changed.insert(PageKey { map: id, number: index / ENTRIES as u32 });
        self.leave(former)
    }

    /// A new map that shares all pieces of another one.
    ///
    /// # Errors
    /// Too many share a piece. Nothing has changed.
    pub fn share(&mut self, of: MapId, into: MapId) -> Result<(), NoRoom> {
        let Some(map) = self.maps.get(&of) else { return Ok(()) };
        let places = || map.entries.iter().filter_map(|entry| entry.checked_sub(1)).map(|place| place as usize);
        if places().any(|place| self.users[place] == USERS_MAX) {
            return Err(NoRoom);
        }
        places().for_each(|place| self.users[place] += 1);
        let copy = Map { reserved: 0, ..map.clone() };
        self.changed.extend(pages_with(&copy.entries).map(|number| PageKey { map: into, number }));
        self.maps.insert(into, copy);
        self.added.push(into);
        Ok(())
    }

    /// A map goes. Returns what nobody has any more.
    pub fn remove(&mut self, id: MapId) -> Vec<Place> {
        let Some(map) = self.maps.remove(&id) else { return Vec::new() };
        self.changed.retain(|key| key.map != id);
        self.reserving.remove(&id);
        match self.added.iter().position(|added| *added == id) {
            Some(at) => drop(self.added.remove(at)),
            None => self.removed.push(id),
        }
        map.entries.into_iter().filter_map(|entry| self.leave(entry)).collect()
    }

    /// A map becomes as another one is. Returns what nobody has any more.
    ///
    /// # Errors
    /// Too many share a piece. Nothing has changed.
    pub fn roll_back(&mut self, id: MapId, to: MapId) -> Result<Vec<Place>, NoRoom> {
        let Some(target) = self.maps.get(&to).cloned() else { return Ok(Vec::new()) };
        let places = || target.entries.iter().filter_map(|entry| entry.checked_sub(1)).map(|place| place as usize);
        if places().any(|place| self.users[place] == USERS_MAX) {
            return Err(NoRoom);
        }
        let Some(map) = self.maps.get_mut(&id) else { return Ok(Vec::new()) };
        places().for_each(|place| self.users[place] += 1);
        let mut entries = target.entries;
        entries.resize(map.entries.len(), 0);
        let former = std::mem::replace(&mut map.entries, entries);
        map.pieces = target.pieces;
        let changed = pages_with(&former).chain(pages_with(&map.entries));
        self.changed.extend(changed.map(|number| PageKey { map: id, number }));
        Ok(former.into_iter().filter_map(|entry| self.leave(entry)).collect())
    }

    /// No command uses a piece any more that nobody has.
    pub fn release(&mut self, Place(place): Place) {
        self.dirty.set(place, true);
    }

    /// A piece to wipe. It is neither dirty nor clean until it is [`wiped`](Self::wiped) or
    /// [`released`](Self::release).
    pub fn take_dirty(&mut self) -> Option<Place> {
        let place = self.dirty.next(0)?;
        self.dirty.set(place, false);
        Some(Place(place))
    }

    /// A piece is zero, durably.
    pub fn wiped(&mut self, Place(place): Place) {
        self.set_clean(place, true);
    }

    /// What has changed since the last call. It has to be durable before any command relies on it.
    pub fn take_batch(&mut self) -> Batch {
        let changed = std::mem::take(&mut self.changed);
        let pages = changed.into_iter().map(|key| (key, self.page(key))).collect();
        Batch { pages, added: std::mem::take(&mut self.added), removed: std::mem::take(&mut self.removed) }
    }

    fn page(&self, PageKey { map, number }: PageKey) -> Box<[u32; ENTRIES]> {
        let first = number as usize * ENTRIES;
        if map == MapId::CLEAN {
            return Box::new(std::array::from_fn(|at| self.clean.word(first + at)));
        }
        let entries = self.maps.get(&map).map(|map| &map.entries[..]).unwrap_or_default();
        Box::new(std::array::from_fn(|at| entries.get(first + at).copied().unwrap_or(0)))
    }
}

/// The pages of a map that have an entry.
fn pages_with(entries: &[u32]) -> impl Iterator<Item = u32> {
    let pages = entries.chunks(ENTRIES).zip(0..);
    pages.filter(|(page, _)| page.iter().any(|entry| *entry != 0)).map(|(_, number)| number)
}

#[cfg(test)]
mod tests;
