//! Which bytes of a drive are a disk's.

use std::sync::Arc;

use crate::HeldRange;

/// Where a disk lies on a drive: its pieces in the disk's order. A look-up costs one comparison for a disk in one
/// piece, and a short search for one that grew behind a neighbour.
#[derive(Debug, Clone)]
pub struct Extents {
    /// Of the piece below, found without following a pointer.
    first: Piece,
    more: Box<[Piece]>,
    /// Where commands may have to wait.
    held: Option<Arc<HeldRange>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// Its end in the disk.
    end_bytes: u64,
    /// What is added to an offset in the disk; wraps around, as a later piece may lie nearer to the drive's start.
    shift_bytes: u64,
}

impl Extents {
    /// Of pieces on the drive, each a start and a length in bytes, which don't overlap there. Without any, the disk has
    /// no byte.
    pub fn new(pieces: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut end_bytes = 0_u64;
        let mut pieces = pieces.into_iter().map(|(offset_bytes, size_bytes)| {
            let shift_bytes = offset_bytes.wrapping_sub(end_bytes);
            end_bytes = end_bytes.saturating_add(size_bytes);
            Piece { end_bytes, shift_bytes }
        });
        let first = pieces.next().unwrap_or(Piece { end_bytes: 0, shift_bytes: 0 });
        Self { first, more: pieces.collect(), held: None }
    }

    /// These pieces. A part of them may be held now and then.
    #[must_use]
    pub fn with_held(self, held: Option<Arc<HeldRange>>) -> Self {
        Self { held, ..self }
    }

    /// What keeps commands away from a part of the disk at present.
    #[inline]
    pub(crate) fn held(&self) -> Option<&Arc<HeldRange>> {
        self.held.as_ref().filter(|held| held.is_active())
    }

    /// Of a disk of `size_bytes` that starts at `base_bytes` of the drive.
    pub fn one(base_bytes: u64, size_bytes: u64) -> Self {
        Self::new([(base_bytes, size_bytes)])
    }

    /// Where the disk's byte `at_bytes` lies on the drive, and how many bytes follow it there, itself included. `None`:
    /// beyond the disk's end.
    #[inline]
    pub fn locate(&self, at_bytes: u64) -> Option<(u64, u64)> {
        let piece = if at_bytes < self.first.end_bytes { &self.first } else { self.search(at_bytes)? };
        Some((at_bytes.wrapping_add(piece.shift_bytes), piece.end_bytes - at_bytes))
    }

    fn search(&self, at_bytes: u64) -> Option<&Piece> {
        self.more.get(self.more.partition_point(|piece| piece.end_bytes <= at_bytes))
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
