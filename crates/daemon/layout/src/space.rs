//! Ranges of a drive, and which of them are free.

use serde::{Deserialize, Serialize};

/// New extents start on a multiple of this: larger than any drive's page or stripe unit that matters.
const ALIGN_BYTES: u64 = 1 << 20;

/// A disk is a short list: no new disk, and no growth, is scattered over more free ranges than this.
const PIECES_MAX: usize = 16;

/// A range of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Start on the drive, a multiple of [`RANGE_STEP_BYTES`](crate::RANGE_STEP_BYTES).
    pub offset_bytes: u64,
    /// Length, a multiple of the same, above 0.
    pub size_bytes: u64,
}

impl Extent {
    /// From a start to the first byte behind it.
    pub(crate) fn between(start: u64, end: u64) -> Self {
        Self { offset_bytes: start, size_bytes: end - start }
    }

    /// The first byte behind it. Saturates, for ranges that were not checked yet.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.size_bytes)
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.offset_bytes < other.end_bytes() && other.offset_bytes < self.end_bytes()
    }

    fn contains(&self, other: &Self) -> bool {
        self.offset_bytes <= other.offset_bytes && other.end_bytes() <= self.end_bytes()
    }

    /// From the first aligned byte on.
    fn aligned(&self) -> Option<Self> {
        let start = self.offset_bytes.checked_next_multiple_of(ALIGN_BYTES)?;
        (start < self.end_bytes()).then(|| Self::between(start, self.end_bytes()))
    }

    fn first(&self, size_bytes: u64) -> Self {
        Self { size_bytes: size_bytes.min(self.size_bytes), ..*self }
    }
}

/// Bytes of all together.
pub(crate) fn sum(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.size_bytes).sum()
}

/// Whether one of these sorted, merged ranges holds all of `inner`.
pub(crate) fn covers(ranges: &[Extent], inner: &Extent) -> bool {
    ranges.iter().any(|range| range.contains(inner))
}

/// Appends to a disk's list; what lies right behind its end makes that longer.
pub(crate) fn push(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut().filter(|last| last.end_bytes() == extent.offset_bytes) {
        Some(last) => last.size_bytes += extent.size_bytes,
        None => extents.push(extent),
    }
}

/// Adds a range to sorted ones that it does not overlap, and merges neighbours.
pub(crate) fn add(ranges: &mut Vec<Extent>, extent: Extent) {
    let mut all = std::mem::take(ranges);
    all.push(extent);
    all.sort_by_key(|range| range.offset_bytes);
    all.into_iter().for_each(|range| push(ranges, range));
}

/// What is left of sorted `ranges` without `taken`.
pub(crate) fn subtract(ranges: &[Extent], taken: &[Extent]) -> Vec<Extent> {
    let mut left = ranges.to_vec();
    for hole in taken {
        left = left.iter().flat_map(|range| without(range, hole)).flatten().collect();
    }
    left
}

fn without(range: &Extent, hole: &Extent) -> [Option<Extent>; 2] {
    if !range.overlaps(hole) {
        return [Some(*range), None];
    }
    let piece = |start, end| (start < end).then(|| Extent::between(start, end));
    [
        piece(range.offset_bytes, hole.offset_bytes.max(range.offset_bytes)),
        piece(hole.end_bytes().min(range.end_bytes()), range.end_bytes()),
    ]
}

/// The ranges below `end_bytes` that none of the sorted `taken` ones holds.
pub(crate) fn gaps(taken: &[Extent], end_bytes: u64) -> Vec<Extent> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in taken {
        if range.offset_bytes > at {
            gaps.push(Extent::between(at, range.offset_bytes));
        }
        at = at.max(range.end_bytes());
    }
    if end_bytes > at {
        gaps.push(Extent::between(at, end_bytes));
    }
    gaps
}

/// Chooses free ranges of `size_bytes` in all: a clean one, or else any one, or else as few as possible. `None`: there
/// is not enough space, or it would take too many ranges.
pub(crate) fn choose(free: &[Extent], clean: &[Extent], size_bytes: u64) -> Option<Vec<Extent>> {
    let fits = |ranges: &[Extent]| {
        let found = ranges.iter().filter_map(Extent::aligned).find(|range| range.size_bytes >= size_bytes);
        found.map(|range| vec![range.first(size_bytes)])
    };
    fits(clean).or_else(|| fits(free)).or_else(|| scatter(free, size_bytes))
}

fn scatter(free: &[Extent], size_bytes: u64) -> Option<Vec<Extent>> {
    let mut ranges: Vec<Extent> = free.iter().filter_map(Extent::aligned).collect();
    ranges.sort_by_key(|range| std::cmp::Reverse(range.size_bytes));
    let mut chosen = Vec::new();
    let mut missing = size_bytes;
    for range in ranges.into_iter().take(PIECES_MAX) {
        let piece = range.first(missing);
        missing -= piece.size_bytes;
        chosen.push(piece);
        if missing == 0 {
            return Some(chosen);
        }
    }
    None
}

/// The most that [`choose`] would find.
pub(crate) fn most(free: &[Extent]) -> u64 {
    let mut sizes: Vec<u64> = free.iter().filter_map(Extent::aligned).map(|range| range.size_bytes).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.iter().take(PIECES_MAX).sum()
}
