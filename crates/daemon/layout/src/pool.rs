//! The room that thin disks share.

use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::placement::{Placement, Snapshot, Thin};
use crate::space::{self, Extent};

/// Pieces have from 64 KiB to 4 MiB: smaller ones make maps large, larger ones are long to copy.
const PIECE_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(4 << 20);

/// A pool: ranges of the drive in pieces, which thin disks get as they are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Bytes of a piece: a power of two.
    pub piece_bytes: u64,
    /// Tells the file of its maps from others and from older copies: another number with each start. `None`: there is
    /// no file yet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<u32>,
    /// The number before, which the file may still have.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub former_id: Option<u32>,
    /// The number of the next map: none is used twice.
    pub next_map: u32,
    /// Where it lies, in the order in which the ranges came to it. Each is of whole pieces.
    pub extents: Vec<Extent>,
    /// What of it was known to read as zeros when it came, until the file of its maps says so.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub clean: Vec<Extent>,
}

impl Pool {
    /// Bytes of all pieces.
    pub fn size_bytes(&self) -> u64 {
        space::sum(&self.extents)
    }

    /// Its ranges in pieces, counted from the drive's start.
    pub fn ranges(&self) -> Vec<std::ops::Range<u32>> {
        let in_pieces = |bytes: u64| (bytes / self.piece_bytes) as u32;
        self.extents.iter().map(|extent| in_pieces(extent.offset_bytes)..in_pieces(extent.end_bytes())).collect()
    }

    /// As [`ranges`](Self::ranges), of what was known to read as zeros.
    pub fn clean_ranges(&self) -> Vec<std::ops::Range<u32>> {
        let in_pieces = |bytes: u64| (bytes / self.piece_bytes) as u32;
        self.clean.iter().map(|extent| in_pieces(extent.offset_bytes)..in_pieces(extent.end_bytes())).collect()
    }

    /// How many pieces a disk of `size_bytes` has at most.
    pub fn pieces_of(&self, size_bytes: u64) -> u32 {
        size_bytes.div_ceil(self.piece_bytes) as u32
    }

    /// Says what is wrong with it.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let Self { piece_bytes, extents, .. } = self;
        if !piece_bytes.is_power_of_two() || !PIECE_BYTES.contains(piece_bytes) {
            return Err(format!("the pool has pieces of {piece_bytes} bytes"));
        }
        let is_whole = |it: &Extent| (it.offset_bytes | it.size_bytes).is_multiple_of(*piece_bytes);
        if !extents.iter().all(is_whole) {
            return Err("a range of the pool is not of whole pieces".to_owned());
        }
        // Numbers of pieces leave room for a mark.
        if extents.iter().any(|it| it.end_bytes() / piece_bytes >= 1 << 30) {
            return Err("the pool has too many pieces".to_owned());
        }
        Ok(())
    }

    /// Whether `next` has the pieces where they are, with more behind them or not.
    pub(crate) fn is_kept_in(&self, next: Option<&Self>) -> bool {
        next.is_some_and(|next| next.piece_bytes == self.piece_bytes && next.extents.starts_with(&self.extents))
    }
}

impl Layout {
    /// The room that thin disks share.
    pub fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// The file of the pool's maps has the number `former`, or does not exist, and gets `id` once this is recorded.
    pub fn renew_pool(&mut self, former: Option<u32>, id: u32) {
        if let Some(pool) = &mut self.pool {
            (pool.former_id, pool.id) = (former, Some(id));
        }
    }

    /// The pool's ranges in pieces behind the first `known` ones, each with whether it reads as zeros. The layout does
    /// not keep that: if the daemon dies before the file of the maps says so, they are wiped.
    pub fn take_new_ranges(&mut self, known: usize) -> Vec<(std::ops::Range<u32>, bool)> {
        let Some(pool) = &mut self.pool else { return Vec::new() };
        let clean = pool.clean_ranges();
        pool.clean.clear();
        pool.ranges().into_iter().skip(known).map(|range| (range.clone(), clean.contains(&range))).collect()
    }

    /// The file of the pool's maps says which pieces are clean.
    pub fn end_renewal(&mut self) {
        if let Some(pool) = &mut self.pool {
            pool.clean.clear();
        }
    }

    /// Bytes of all thin disks, if all of them were written.
    pub fn thin_bytes(&self) -> u64 {
        self.tenants.iter().filter(|it| it.thin.is_some()).map(Placement::size_bytes).sum()
    }

    /// A number for a new map. `None`: there is no pool.
    pub(crate) fn new_map(&mut self) -> Option<u32> {
        let pool = self.pool.as_mut()?;
        let map = pool.next_map;
        pool.next_map = map.checked_add(1)?;
        Some(map)
    }

    /// A thin disk has one more snapshot, whose map is new. `false`: there is no such disk, or no pool.
    pub fn add_snapshot(&mut self, name: &str, snapshot: Snapshot) -> bool {
        let next = snapshot.map.saturating_add(1);
        let (Some(pool), Some(_)) = (&mut self.pool, self.tenants.iter().find(|it| it.name == name)) else {
            return false;
        };
        pool.next_map = pool.next_map.max(next);
        self.thin_mut(name).map(|thin| thin.snapshots.push(snapshot)).is_some()
    }

    /// A thin disk has one snapshot less. Returns its map.
    pub fn remove_snapshot(&mut self, name: &str, snapshot: &str) -> Option<u32> {
        let snapshots = &mut self.thin_mut(name)?.snapshots;
        let at = snapshots.iter().position(|it| it.name == snapshot)?;
        Some(snapshots.remove(at).map)
    }

    /// What is recorded of a thin disk, to change it.
    pub(crate) fn thin_mut(&mut self, name: &str) -> Option<&mut Thin> {
        self.tenants.iter_mut().find(|placement| placement.name == name)?.thin.as_mut()
    }

    /// All maps that disks and snapshots have, each with the size of its disk.
    pub fn maps(&self) -> impl Iterator<Item = (u32, u64)> {
        self.tenants.iter().filter_map(|placement| placement.thin.as_ref()).flat_map(|thin| {
            let snapshots = thin.snapshots.iter().map(|snapshot| (snapshot.map, snapshot.size_bytes));
            [(thin.map, thin.size_bytes)].into_iter().chain(snapshots)
        })
    }

    /// Gives the pool more room, or makes it: in whole pieces, in as few ranges as possible.
    ///
    /// # Errors
    /// So much more is available.
    pub(crate) fn grow_pool(&mut self, piece_bytes: u64, bytes: u64) -> Result<(), u64> {
        let in_pieces = |range: Extent| {
            let start = range.offset_bytes.next_multiple_of(piece_bytes);
            let end = range.end_bytes() / piece_bytes * piece_bytes;
            (start < end).then(|| Extent::between(start, end))
        };
        let free: Vec<Extent> = self.free().into_iter().filter_map(in_pieces).collect();
        let clean: Vec<Extent> = self.clean.iter().copied().filter_map(in_pieces).collect();
        let chosen = space::choose(&free, &clean, bytes.next_multiple_of(piece_bytes));
        let chosen = chosen.ok_or_else(|| space::most(&free))?;
        let clean = chosen.iter().filter(|extent| space::covers(&self.clean, extent)).copied().collect::<Vec<_>>();
        self.take(&chosen);
        let (id, former_id, next_map) = (None, None, FIRST_MAP);
        let new = || Pool { piece_bytes, id, former_id, next_map, extents: Vec::new(), clean: Vec::new() };
        let pool = self.pool.get_or_insert_with(new);
        pool.extents.extend(chosen);
        pool.clean.extend(clean);
        Ok(())
    }
}

/// The number of the first disk's map: smaller ones are the file's own.
const FIRST_MAP: u32 = 2;
