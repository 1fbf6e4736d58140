//! Which bytes of a drive are a disk's.

use std::sync::Arc;

use crate::piece_map::{PieceMap, Step};
use crate::{Command, HeldRange, Op};

/// Where a disk lies on a drive: its ranges in the disk's order, or the map of a thin disk. A look-up costs one
/// comparison for a disk in one range, a short search for a disk that grew behind a neighbour, and an array access for
/// a thin disk.
#[derive(Debug, Clone)]
pub struct Extents {
    /// Found without following a pointer. Empty where each command takes more than that.
    first: Range,
    more: Box<[Range]>,
    /// Of a thin disk, which has no ranges.
    map: Option<Arc<PieceMap>>,
    /// Where commands may have to wait.
    held: Option<Arc<HeldRange>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    /// Its end in the disk.
    end_bytes: u64,
    /// What is added to an offset in the disk; wraps around, as a later range may lie nearer to the drive's start.
    shift_bytes: u64,
}

impl Extents {
    /// Of ranges on the drive, each a start and a length in bytes, which don't overlap there. Without any, the disk has
    /// no byte.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut end_bytes = 0_u64;
        let mut ranges = ranges.into_iter().map(|(offset_bytes, size_bytes)| {
            let shift_bytes = offset_bytes.wrapping_sub(end_bytes);
            end_bytes = end_bytes.saturating_add(size_bytes);
            Range { end_bytes, shift_bytes }
        });
        let first = ranges.next().unwrap_or(Range { end_bytes: 0, shift_bytes: 0 });
        Self { first, more: ranges.collect(), map: None, held: None }
    }

    /// Of a thin disk.
    pub fn thin(map: Arc<PieceMap>) -> Self {
        Self { map: Some(map), ..Self::new([]) }
    }

    /// These ranges. A part of the disk may be held now and then.
    #[must_use]
    pub fn with_held(self, held: Option<Arc<HeldRange>>) -> Self {
        if held.is_none() {
            return self;
        }
        let nothing = Range { end_bytes: 0, shift_bytes: 0 };
        Self { first: nothing, more: [self.first].into_iter().chain(self.more).collect(), held, ..self }
    }

    /// What keeps commands away from a part of the disk at present.
    pub(crate) fn held(&self) -> Option<&Arc<HeldRange>> {
        self.held.as_ref().filter(|held| held.is_active())
    }

    /// Of a disk of `size_bytes` that starts at `base_bytes` of the drive.
    pub fn one(base_bytes: u64, size_bytes: u64) -> Self {
        Self::new([(base_bytes, size_bytes)])
    }

    /// Where the disk's byte `at_bytes` lies on the drive, and how many bytes follow it there, itself included. `None`:
    /// beyond the disk's end, or the disk is thin.
    #[inline]
    pub fn locate(&self, at_bytes: u64) -> Option<(u64, u64)> {
        let range = if at_bytes < self.first.end_bytes { &self.first } else { self.search(at_bytes)? };
        Some((at_bytes.wrapping_add(range.shift_bytes), range.end_bytes - at_bytes))
    }

    /// As [`locate`](Self::locate), for the start of a command, and whether the command is of a thin disk. `None`: it
    /// takes more than a look-up.
    #[inline]
    pub(crate) fn locate_for(&self, command: &Command) -> Option<(u64, u64, bool)> {
        let at_bytes = command.tenant_offset_bytes;
        if at_bytes < self.first.end_bytes {
            return Some((at_bytes.wrapping_add(self.first.shift_bytes), self.first.end_bytes - at_bytes, false));
        }
        match &self.map {
            Some(map) if self.held.is_none() => {
                let (offset_bytes, follow_bytes) = map.locate(command.op, at_bytes)?;
                Some((offset_bytes, follow_bytes, true))
            }
            _ => self.locate_elsewhere(command),
        }
    }

    fn locate_elsewhere(&self, command: &Command) -> Option<(u64, u64, bool)> {
        if self.held().is_some() {
            return None;
        }
        let (offset_bytes, follow_bytes) = match &self.map {
            None => self.locate(command.tenant_offset_bytes),
            Some(map) => map.locate(command.op, command.tenant_offset_bytes),
        }?;
        Some((offset_bytes, follow_bytes, self.map.is_some()))
    }

    /// The map of a thin disk.
    pub(crate) fn map(&self) -> Option<&PieceMap> {
        self.map.as_deref()
    }

    /// Where the drive takes the disk's flushes. It counts for drives with several files.
    #[inline]
    pub(crate) fn flush_at_bytes(&self) -> u64 {
        self.map.as_ref().map_or(0, |map| map.base_bytes())
    }

    /// Where the disk ends.
    pub(crate) fn size_bytes(&self) -> u64 {
        let last = self.more.last().unwrap_or(&self.first);
        self.map.as_ref().map_or(last.end_bytes, |map| map.size_bytes())
    }

    /// What the start of a range meets. `None`: it lies beyond the disk's end.
    pub(crate) fn step(&self, op: Op, at_bytes: u64, len_bytes: u64) -> Option<Step> {
        if let Some(map) = &self.map {
            let is_inside = at_bytes.checked_add(len_bytes).is_some_and(|end| end <= map.size_bytes());
            return is_inside.then(|| map.step(op, at_bytes, len_bytes));
        }
        let (offset_bytes, follow_bytes) = self.locate(at_bytes)?;
        Some(Step::Drive { offset_bytes, len_bytes: len_bytes.min(follow_bytes) })
    }

    fn search(&self, at_bytes: u64) -> Option<&Range> {
        self.more.get(self.more.partition_point(|range| range.end_bytes <= at_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_in_three_pieces() {
        let extents = Extents::new([(1000, 10), (500, 20), (2000, 5)]);
        let seen: Vec<_> = [0, 9, 10, 29, 30, 34, 35, u64::MAX].map(|at| extents.locate(at)).into();
        let expected = [Some((1000, 10)), Some((1009, 1)), Some((500, 20)), Some((519, 1)), Some((2000, 5))];
        assert_eq!(seen[..5], expected);
        assert_eq!(seen[5..], [Some((2004, 1)), None, None]);
    }

    #[test]
    fn a_disk_without_bytes() {
        assert_eq!(Extents::new([]).locate(0), None);
    }
}
