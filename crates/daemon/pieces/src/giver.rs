//! Decides which disk gets which piece.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use io_model::{Ask, Piece, PieceMap, Wish};

use crate::file::Batch;
use crate::page::MapId;
use crate::pool::{Grant, NoRoom, Place, Pool};

/// Pieces that are wiped at a time.
const WIPES: usize = 4;
/// Room is low if less than one piece of this number is free.
const LOW_PART: u32 = 10;

/// A piece of the drive to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The start of the piece that it becomes a copy of; it is zero before. `None`: it becomes zero.
    pub from_bytes: Option<u64>,
    /// Its start.
    pub to_bytes: u64,
}

/// Jobs, by how soon they are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Jobs {
    /// Copies for which commands of guaranteed tenants wait.
    pub promised: Vec<Job>,
    /// Other copies, and pieces to wipe.
    pub others: Vec<Job>,
}

/// How much of a pool is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoomState {
    /// Enough.
    #[default]
    Enough,
    /// Less than a tenth is free.
    Low,
    /// A write was refused, or would be.
    Full,
}

/// What a pool has, and its maps.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Pieces in all.
    pub size: u32,
    /// Pieces that can be given out, now or once they are wiped.
    pub free: u32,
    /// How much that is.
    pub room: RoomState,
    /// Pieces of each map, shared ones included.
    pub maps: BTreeMap<MapId, u32>,
}

/// An ask that waits for copies.
struct Waiting {
    map: MapId,
    ask: Ask,
    /// Copies that it waits for.
    copies: BTreeSet<Place>,
}

/// A shared piece that is being copied.
#[derive(Debug, Clone, Copy)]
struct Copying {
    map: MapId,
    index: u32,
    from: Place,
}

/// Gives pieces to maps. Nothing of what it decides may reach a poller before the batch is durable.
pub struct Giver {
    pool: Pool,
    piece_bytes: u64,
    /// Tables that pollers read, with tables that some pollers may still read after a disk grew.
    live: BTreeMap<MapId, Vec<Arc<PieceMap>>>,
    /// Asks that may be answered once the batch is durable.
    granted: Vec<Ask>,
    /// Entries that change once the batch is durable.
    changed: BTreeSet<(MapId, u32)>,
    /// Pieces that nobody has once the batch is durable.
    freed: Vec<Place>,
    waiting: Vec<Waiting>,
    /// Asks for which pieces are being wiped, or whose map is frozen.
    postponed: Vec<(MapId, Ask)>,
    copying: HashMap<Place, Copying>,
    wiping: BTreeSet<Place>,
    /// Pieces that nobody has, and that commands may still use.
    leaving: u32,
    /// Maps of which a snapshot is about to be made: asks wait.
    frozen: BTreeSet<MapId>,
    /// Maps of guaranteed tenants.
    promised: BTreeSet<MapId>,
    was_refused: bool,
}

impl Giver {
    /// Gives pieces of that pool, which have `piece_bytes`.
    pub fn new(pool: Pool, piece_bytes: u64) -> Self {
        Self {
            pool,
            piece_bytes,
            live: BTreeMap::new(),
            granted: Vec::new(),
            changed: BTreeSet::new(),
            freed: Vec::new(),
            waiting: Vec::new(),
            postponed: Vec::new(),
            copying: HashMap::new(),
            wiping: BTreeSet::new(),
            leaving: 0,
            frozen: BTreeSet::new(),
            promised: BTreeSet::new(),
            was_refused: false,
        }
    }

    /// Pollers read this table of a map from now on. Those that were given before stay as true.
    pub fn show(&mut self, map: MapId, table: Arc<PieceMap>) {
        for index in 0..table.count() {
            table.set(index, self.piece(map, index));
        }
        let tables = self.live.entry(map).or_default();
        tables.retain(|table| Arc::strong_count(table) > 1);
        tables.push(table);
    }

    /// What a table says of a piece.
    fn piece(&self, map: MapId, index: u32) -> Piece {
        match self.pool.piece(map, index).and_then(|(place, is_shared)| Some((self.pool.on_drive(place)?, is_shared))) {
            None => Piece::None,
            Some((number, true)) => Piece::Shared(number),
            Some((number, false)) if self.frozen.contains(&map) => Piece::Shared(number),
            Some((number, false)) => Piece::Own(number),
        }
    }

    /// A map comes, without pieces unless it is there already.
    pub fn add(&mut self, map: MapId, count: u32) {
        if self.pool.has(map) { self.pool.grow(map, count) } else { self.pool.add(map, count) }
    }

    /// Keeps pieces for a map, those that it has included.
    ///
    /// # Errors
    /// Fewer are free.
    pub fn reserve(&mut self, map: MapId, pieces: u32) -> Result<(), NoRoom> {
        self.pool.reserve(map, pieces)
    }

    /// Whether a map is of a guaranteed tenant, whose copies come first.
    pub fn set_promised(&mut self, map: MapId, is_promised: bool) {
        let _ = if is_promised { self.promised.insert(map) } else { self.promised.remove(&map) };
    }

    /// Maps go. No command uses them any more.
    pub fn remove(&mut self, maps: &[MapId]) {
        for map in maps {
            self.live.remove(map);
            self.promised.remove(map);
            self.freed.extend(self.pool.remove(*map));
            // Dropped: they have failed.
            self.waiting.retain(|waiting| waiting.map != *map);
            self.postponed.retain(|(of, _)| of != map);
        }
    }

    /// From now on no command writes to a piece that these maps have.
    pub fn freeze(&mut self, maps: &[MapId]) {
        self.frozen.extend(maps);
        maps.iter().for_each(|map| self.show_all(*map));
    }

    /// Commands may write again.
    pub fn thaw(&mut self, maps: &[MapId]) {
        self.frozen.retain(|map| !maps.contains(map));
        maps.iter().for_each(|map| self.show_all(*map));
        self.ask_again();
    }

    fn show_all(&self, map: MapId) {
        for table in self.live.get(&map).into_iter().flatten() {
            for index in 0..table.count() {
                table.set(index, self.piece(map, index));
            }
        }
    }

    /// New maps that have what others have at present.
    ///
    /// # Errors
    /// Too many share a piece.
    pub fn share(&mut self, pairs: &[(MapId, MapId)]) -> Result<(), NoRoom> {
        for (done, (of, into)) in pairs.iter().enumerate() {
            if let Err(error) = self.pool.share(*of, *into) {
                let made: Vec<MapId> = pairs[..done].iter().map(|(_, into)| *into).collect();
                self.remove(&made);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A map becomes as another one is. No command uses it.
    ///
    /// # Errors
    /// Too many share a piece.
    pub fn roll_back(&mut self, map: MapId, to: MapId) -> Result<(), NoRoom> {
        self.freed.extend(self.pool.roll_back(map, to)?);
        let count = self.live.get(&map).and_then(|tables| tables.last()).map_or(0, |table| table.count());
        self.changed.extend((0..count).map(|index| (map, index)));
        Ok(())
    }

    /// The pool has more pieces of the drive, which are wiped before their use unless they are `clean`.
    pub fn extend(&mut self, range: Range<u32>, clean: bool) {
        let places = self.pool.size()..self.pool.size() + range.len() as u32;
        self.pool.extend(range);
        for place in places.map(Place) {
            if clean { self.pool.wiped(place) } else { self.pool.release(place) }
        }
        self.was_refused = false;
        self.ask_again();
    }

    /// A command wants pieces.
    pub fn ask(&mut self, map: MapId, ask: Ask) {
        if self.frozen.contains(&map) {
            return self.postponed.push((map, ask));
        }
        if ask.wish == Wish::Discard {
            for index in ask.first..ask.first.saturating_add(ask.count) {
                self.freed.extend(self.pool.discard(map, index));
                self.changed.insert((map, index));
            }
            return self.granted.push(ask);
        }
        let mut copies = BTreeSet::new();
        for index in ask.first..ask.first.saturating_add(ask.count) {
            match self.give(map, index) {
                Ok(copy) => copies.extend(copy),
                Err(NoRoom) if self.gets_room(map) => return self.postponed.push((map, ask)),
                Err(NoRoom) => {
                    self.was_refused = true;
                    return ask.refuse();
                }
            }
        }
        match copies.is_empty() {
            true => self.granted.push(ask),
            false => self.waiting.push(Waiting { map, ask, copies }),
        }
    }

    /// Whether a map would get a piece once all pieces that nobody has are clean.
    fn gets_room(&self, map: MapId) -> bool {
        self.free() > self.pool.reserved_by_others(map)
    }

    /// Gives a map a piece of its own. Returns the copy that it becomes, if a copy is needed.
    fn give(&mut self, map: MapId, index: u32) -> Result<Option<Place>, NoRoom> {
        let is_its = |copying: &Copying| copying.map == map && copying.index == index;
        if let Some((to, _)) = self.copying.iter().find(|(_, copying)| is_its(copying)) {
            return Ok(Some(*to));
        }
        Ok(match self.pool.write(map, index)? {
            Grant::Own(_) | Grant::New(_) => {
                self.changed.insert((map, index));
                None
            }
            Grant::Copy { from, to } => {
                self.copying.insert(to, Copying { map, index, from });
                Some(to)
            }
        })
    }

    /// The mover has ended with pieces, durably or not.
    pub fn moved(&mut self, jobs: &[Job], is_ok: bool) {
        for job in jobs {
            let Some(to) = self.place_at(job.to_bytes) else { continue };
            match self.copying.remove(&to) {
                Some(Copying { map, index, from }) if is_ok => {
                    self.freed.extend(self.pool.copied(map, index, from, to));
                    self.changed.insert((map, index));
                    for waiting in &mut self.waiting {
                        waiting.copies.remove(&to);
                    }
                }
                Some(_) => {
                    self.pool.not_copied(to);
                    self.pool.release(to);
                    self.waiting.retain(|waiting| !waiting.copies.contains(&to));
                }
                None if self.wiping.remove(&to) && is_ok => self.pool.wiped(to),
                // What can't be wiped is given to nobody until the next start.
                None => {}
            }
        }
        let is_over = |waiting: &mut Waiting| waiting.copies.is_empty();
        let over: Vec<Waiting> = self.waiting.extract_if(.., is_over).collect();
        self.granted.extend(over.into_iter().map(|waiting| waiting.ask));
        self.ask_again();
    }

    fn ask_again(&mut self) {
        let waiting = std::mem::take(&mut self.postponed);
        waiting.into_iter().for_each(|(map, ask)| self.ask(map, ask));
    }

    /// No command uses these any more.
    pub fn release(&mut self, places: &[Place]) {
        self.leaving -= places.len() as u32;
        places.iter().for_each(|place| self.pool.release(*place));
        self.was_refused = false;
    }

    fn place_at(&self, at_bytes: u64) -> Option<Place> {
        self.pool.place_of((at_bytes / self.piece_bytes) as u32)
    }

    fn at(&self, place: Place) -> Option<u64> {
        Some(u64::from(self.pool.on_drive(place)?) * self.piece_bytes)
    }

    /// What has to be durable before [`publish`](Self::publish).
    pub fn take_batch(&mut self) -> Batch {
        self.pool.take_batch()
    }

    /// The batch is durable: pollers see what was decided. Returns pieces that nobody has any more: they are to be
    /// [released](Self::release) once no command of any disk uses them.
    pub fn publish(&mut self) -> Vec<Place> {
        for (map, index) in std::mem::take(&mut self.changed) {
            let piece = self.piece(map, index);
            for table in self.live.get(&map).into_iter().flatten() {
                table.set(index, piece);
            }
        }
        std::mem::take(&mut self.granted).into_iter().for_each(Ask::done);
        self.leaving += self.freed.len() as u32;
        std::mem::take(&mut self.freed)
    }

    /// The batch is not durable, and nobody knows whether it will be: nothing is given any more.
    pub fn give_up(&mut self) {
        self.granted.clear();
        self.waiting.clear();
        self.postponed.clear();
        self.changed.clear();
        self.freed.clear();
    }

    /// Pieces that are to be copied and wiped from now on, once the batch is durable. `begun`: copies that were begun.
    pub fn jobs(&mut self, begun: &mut BTreeSet<Place>) -> Jobs {
        let mut jobs = Jobs::default();
        begun.retain(|place| self.copying.contains_key(place));
        for (to, Copying { map, from, .. }) in &self.copying {
            if begun.insert(*to)
                && let (from_bytes, Some(to_bytes)) = (self.at(*from), self.at(*to))
            {
                let is_promised = self.promised.contains(map);
                let jobs = if is_promised { &mut jobs.promised } else { &mut jobs.others };
                jobs.push(Job { from_bytes, to_bytes });
            }
        }
        while self.wiping.len() < WIPES
            && let Some(place) = self.pool.take_dirty()
        {
            self.wiping.insert(place);
            jobs.others.extend(self.at(place).map(|to_bytes| Job { from_bytes: None, to_bytes }));
        }
        jobs
    }

    /// What is left.
    pub fn figures(&self) -> Figures {
        let (size, free, room) = (self.pool.size(), self.free(), self.room());
        Figures { size, free, room, maps: self.pool.maps().collect() }
    }

    fn free(&self) -> u32 {
        self.pool.free() + self.wiping.len() as u32 + self.leaving
    }

    /// How much is left.
    pub fn room(&self) -> RoomState {
        match self.free() {
            _ if self.was_refused => RoomState::Full,
            0 => RoomState::Full,
            free if free < self.pool.size() / LOW_PART => RoomState::Low,
            _ => RoomState::Enough,
        }
    }
}

#[cfg(test)]
mod tests;
