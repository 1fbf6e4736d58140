//! Where the pieces of a disk lie on its drive: of a thin disk, or of one that is an image.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::{DeviceError, Op, Outcome};

/// In an entry: other disks use the piece, too.
const SHARED: u32 = 1 << 31;
/// An entry: the disk has the piece, but not as it is on the drive.
const PACKED: u32 = u32::MAX;
/// No part of a command passes over more pieces than this, so that a look-up takes microseconds at most.
const PIECES_MAX: u32 = 1024;

/// A table from the pieces of a thin disk to pieces of its drive. Pollers read it for each command: one array access.
/// One thread writes it, and answers what pollers ask for.
pub struct PieceMap {
    piece_shift: u32,
    size_bytes: u64,
    /// Where the drive's piece 0 is.
    base_bytes: u64,
    /// 0: the disk has no piece there. Otherwise the piece's number on the drive plus one.
    entries: Box<[AtomicU32]>,
    ask: Box<dyn Fn(Ask) + Send + Sync>,
}

/// What a piece of a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// It was never written, or was given back. It reads as zeros.
    None,
    /// The drive's piece of that number, which no other disk uses.
    Own(u32),
    /// The drive's piece of that number. It must not be written.
    Shared(u32),
    /// It has data that a command can't reach, such as a compressed cluster of an image.
    Packed,
}

impl Piece {
    /// Numbers of a drive's pieces are below this.
    pub const NUMBERS: u32 = SHARED - 2;
}

/// What a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Pieces of the disk's own, with the data of shared and packed ones.
    Write,
    /// No pieces: all of each is discarded.
    Discard,
}

/// A command's wish for pieces. Dropped without an answer, it has failed.
#[derive(Debug)]
pub struct Ask {
    /// The first piece, counted from the disk's start.
    pub first: u32,
    /// How many, at least one.
    pub count: u32,
    /// What is to become of them.
    pub wish: Wish,
    answer: Arc<AtomicU8>,
}

/// The other end of an [`Ask`].
#[derive(Debug)]
pub struct Awaited(Arc<AtomicU8>);

const PENDING: u8 = 0;
const DONE: u8 = 1;
const NO_ROOM: u8 = 2;
const FAILED: u8 = 3;

/// What the next part of a command meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is for the drive.
    Drive { offset_bytes: u64, len_bytes: u64 },
    /// The disk has no piece there: a read gets zeros, and nothing else is to be done.
    Nothing { len_bytes: u64 },
    /// It waits for pieces.
    Wait { first: u32, count: u32, wish: Wish },
}

impl Step {
    /// Bytes of the disk. 0: they wait.
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Drive { len_bytes, .. } | Self::Nothing { len_bytes } => *len_bytes,
            Self::Wait { .. } => 0,
        }
    }
}

impl PieceMap {
    /// A disk of `size_bytes` without any piece. Pieces have `piece_bytes`, a power of two; the last one may have
    /// fewer. `ask` is called by pollers, so it must not block.
    pub fn new(piece_bytes: u64, size_bytes: u64, ask: impl Fn(Ask) + Send + Sync + 'static) -> Self {
        let count = size_bytes.div_ceil(piece_bytes);
        let entries = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { piece_shift: piece_bytes.trailing_zeros(), size_bytes, base_bytes: 0, entries, ask: Box::new(ask) }
    }

    /// Pieces of the drive count from this byte on.
    #[must_use]
    pub fn with_base(self, base_bytes: u64) -> Self {
        Self { base_bytes, ..self }
    }

    /// Size of the disk.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// How many pieces the disk may have.
    pub fn count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// A piece. [`Piece::None`] beyond the disk's end.
    pub fn piece(&self, index: u32) -> Piece {
        of_entry(self.entry(index))
    }

    fn entry(&self, index: u32) -> u32 {
        // Pairs with `set`: who sees a piece sees what was done to the drive before.
        self.entries.get(index as usize).map_or(0, |entry| entry.load(Ordering::Acquire))
    }

    /// Changes a piece for commands that are fetched from now on. `false`: the disk ends before.
    pub fn set(&self, index: u32, piece: Piece) -> bool {
        let value = match piece {
            Piece::None => 0,
            Piece::Own(number) => number + 1,
            Piece::Shared(number) => (number + 1) | SHARED,
            Piece::Packed => PACKED,
        };
        self.entries.get(index as usize).map(|entry| entry.store(value, Ordering::Release)).is_some()
    }

    /// Where a plain command begins on the drive, and how many bytes of its piece follow. `None`: it takes more than a
    /// look-up.
    #[inline]
    pub(crate) fn locate(&self, op: Op, at_bytes: u64) -> Option<(u64, u64)> {
        let entry = self.entry((at_bytes >> self.piece_shift) as u32);
        let is_plain = match op {
            Op::Read => entry != 0 && entry != PACKED,
            Op::Write => entry != 0 && entry & SHARED == 0,
            _ => false,
        };
        let within_bytes = at_bytes & self.mask();
        is_plain.then(|| (self.offset(entry) + within_bytes, self.mask() + 1 - within_bytes))
    }

    fn mask(&self) -> u64 {
        (1 << self.piece_shift) - 1
    }

    /// Where the piece of an entry begins on the drive.
    fn offset(&self, entry: u32) -> u64 {
        self.base_bytes + (u64::from((entry & !SHARED) - 1) << self.piece_shift)
    }

    /// Where a flush of the disk goes.
    #[inline]
    pub(crate) fn base_bytes(&self) -> u64 {
        self.base_bytes
    }

    /// What the start of a range inside of the disk meets.
    pub(crate) fn step(&self, op: Op, at_bytes: u64, len_bytes: u64) -> Step {
        let end_bytes = at_bytes + len_bytes;
        let first = (at_bytes >> self.piece_shift) as u32;
        // What the range has of a piece, and whether that is all.
        let part_of = |index: u32| {
            let start = u64::from(index) << self.piece_shift;
            let end = (start + self.mask() + 1).min(self.size_bytes);
            (end_bytes.min(end) - at_bytes.max(start), at_bytes <= start && end <= end_bytes)
        };
        let (part_bytes, is_whole) = part_of(first);
        // How many of the following pieces go on alike, and the bytes of the range in all of them.
        let run = |goes_on: &dyn Fn(u32, bool) -> bool| {
            let (mut count, mut bytes) = (1, part_bytes);
            while count < PIECES_MAX && bytes < len_bytes {
                let (its_bytes, its_whole) = part_of(first + count);
                if !goes_on(count, its_whole) {
                    break;
                }
                (count, bytes) = (count + 1, bytes + its_bytes);
            }
            (count, bytes)
        };
        let entry = self.entry(first);
        let nothing = || Step::Nothing { len_bytes: run(&|more, _| self.entry(first + more) == 0).1 };
        let wait = |wish, goes_on: &dyn Fn(Piece, bool) -> bool| {
            let count = run(&|more, is_whole| goes_on(self.piece(first + more), is_whole)).0;
            Step::Wait { first, count, wish }
        };
        match (of_entry(entry), op) {
            (Piece::None, Op::Read | Op::Discard | Op::WriteZeroes | Op::Flush) => nothing(),
            (Piece::Own(_) | Piece::Shared(_) | Piece::Packed, Op::Discard | Op::WriteZeroes) if is_whole => {
                wait(Wish::Discard, &|piece, is_whole| is_whole && piece != Piece::None)
            }
            (Piece::Shared(_) | Piece::Packed, Op::Discard) => Step::Nothing { len_bytes: part_bytes },
            (Piece::Packed, Op::Read) => wait(Wish::Write, &|piece, _| piece == Piece::Packed),
            (Piece::None | Piece::Shared(_) | Piece::Packed, Op::Write | Op::WriteZeroes) => {
                let is_alike = |is_whole: bool| op == Op::Write || !is_whole;
                wait(Wish::Write, &|piece, is_whole| is_alike(is_whole) && !matches!(piece, Piece::Own(_)))
            }
            (Piece::Own(_) | Piece::Shared(_) | Piece::Packed, _) => {
                let is_next = |more: u32, is_whole: bool| {
                    let is_drives = op.has_data() || !is_whole;
                    is_drives && self.entry(first + more) == entry.wrapping_add(more)
                };
                let offset_bytes = self.offset(entry) + (at_bytes & self.mask());
                Step::Drive { offset_bytes, len_bytes: run(&is_next).1 }
            }
        }
    }

    /// Asks for pieces.
    pub fn ask(&self, first: u32, count: u32, wish: Wish) -> Awaited {
        let answer = Arc::new(AtomicU8::new(PENDING));
        (self.ask)(Ask { first, count, wish, answer: Arc::clone(&answer) });
        Awaited(answer)
    }
}

fn of_entry(entry: u32) -> Piece {
    if entry == PACKED {
        return Piece::Packed;
    }
    match (entry & !SHARED).checked_sub(1) {
        None => Piece::None,
        Some(number) if entry & SHARED == 0 => Piece::Own(number),
        Some(number) => Piece::Shared(number),
    }
}

impl Ask {
    /// The pieces are [set](PieceMap::set) as wished: the command goes on.
    pub fn done(self) {
        self.answer.store(DONE, Ordering::Release);
    }

    /// There is no room: the command fails.
    pub fn refuse(self) {
        self.answer.store(NO_ROOM, Ordering::Release);
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        // There is no one else to answer.
        if self.answer.load(Ordering::Relaxed) == PENDING {
            self.answer.store(FAILED, Ordering::Release);
        }
    }
}

impl Awaited {
    /// Whether the wish was granted. `None`: there is no answer yet.
    pub fn answer(&self) -> Option<Outcome> {
        match self.0.load(Ordering::Acquire) {
            PENDING => None,
            DONE => Some(Ok(())),
            NO_ROOM => Some(Err(DeviceError::NoSpace)),
            _ => Some(Err(DeviceError::Medium)),
        }
    }
}

impl fmt::Debug for PieceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PieceMap").field("size_bytes", &self.size_bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE_BYTES: u64 = 65_536;

    /// Six pieces and a half: own ones that touch, a shared one, none, an own one elsewhere, none, half a piece.
    fn map() -> PieceMap {
        let map = PieceMap::new(PIECE_BYTES, 6 * PIECE_BYTES + 32_768, |_| ());
        let pieces = [Piece::Own(8), Piece::Own(9), Piece::Shared(10), Piece::None, Piece::Own(2), Piece::None];
        pieces.into_iter().chain([Piece::Own(40)]).enumerate().for_each(|(at, it)| assert!(map.set(at as u32, it)));
        assert!(!map.set(7, Piece::None));
        map
    }

    #[test]
    fn plain_commands_take_one_look_up() {
        let map = map();
        let at = |op, piece: u64| map.locate(op, piece * PIECE_BYTES + 512);
        let place = |number: u64| Some((number * PIECE_BYTES + 512, PIECE_BYTES - 512));
        assert_eq!([0, 1, 2, 3, 4].map(|it| at(Op::Read, it)), [place(8), place(9), place(10), None, place(2)]);
        assert_eq!([0, 2, 3, 7].map(|it| at(Op::Write, it)), [place(8), None, None, None]);
        assert_eq!([Op::Discard, Op::WriteZeroes].map(|op| at(op, 0)), [None, None]);
    }

    /// Where data would be lost, leak from another disk, or be written twice.
    #[test]
    fn each_operation_meets_what_the_pieces_are() {
        let map = map();
        let step = |op, at: f64, len: f64| {
            let bytes = |pieces: f64| (pieces * PIECE_BYTES as f64) as u64;
            map.step(op, bytes(at), bytes(len))
        };
        let drive = |number: f64, len: f64| {
            let [offset_bytes, len_bytes] = [number, len].map(|pieces| (pieces * PIECE_BYTES as f64) as u64);
            Step::Drive { offset_bytes, len_bytes }
        };
        let nothing = |len: f64| Step::Nothing { len_bytes: (len * PIECE_BYTES as f64) as u64 };
        let wait = |first, count, wish| Step::Wait { first, count, wish };
        assert_eq!(step(Op::Read, 0.5, 6.0), drive(8.5, 1.5), "a shared piece ends the run");
        assert_eq!(step(Op::Read, 2.25, 0.5), drive(10.25, 0.5));
        assert_eq!(step(Op::Read, 3.5, 3.0), nothing(0.5));
        assert_eq!(step(Op::Read, 6.25, 0.25), drive(40.25, 0.25), "the last one is short");
        assert_eq!(step(Op::Write, 1.5, 4.0), drive(9.5, 0.5));
        assert_eq!(step(Op::Write, 2.5, 2.0), wait(2, 2, Wish::Write), "one that is shared, and none");
        assert_eq!(step(Op::Write, 5.5, 0.25), wait(5, 1, Wish::Write));
        assert_eq!(step(Op::Discard, 0.5, 6.0), drive(8.5, 0.5), "whole pieces are given back");
        assert_eq!(step(Op::Discard, 1.0, 5.5), wait(1, 2, Wish::Discard));
        assert_eq!(step(Op::Discard, 2.5, 4.0), nothing(0.5), "a shared piece keeps its data");
        assert_eq!(step(Op::WriteZeroes, 2.5, 0.25), wait(2, 1, Wish::Write), "zeros are data");
        assert_eq!(step(Op::WriteZeroes, 6.0, 0.5), wait(6, 1, Wish::Discard), "all of the last one");
        assert_eq!(step(Op::WriteZeroes, 6.0, 0.25), drive(40.0, 0.25));
    }

    /// Where compressed data would be taken for plain data, or a command go to another image's file.
    #[test]
    fn packed_pieces_are_made_plain_before_they_are_read() {
        const BASE_BYTES: u64 = 3 << 47;
        let map = PieceMap::new(PIECE_BYTES, 3 * PIECE_BYTES, |_| ()).with_base(BASE_BYTES);
        for (at, piece) in [Piece::Packed, Piece::Packed, Piece::Own(7)].into_iter().enumerate() {
            map.set(at as u32, piece);
        }
        assert_eq!([Op::Read, Op::Write].map(|op| map.locate(op, 512)), [None; 2]);
        let step = |op, len: u64| map.step(op, 0, len * PIECE_BYTES);
        let wait = |count, wish| Step::Wait { first: 0, count, wish };
        assert_eq!([step(Op::Read, 3), step(Op::Write, 3)], [wait(2, Wish::Write); 2]);
        assert_eq!(step(Op::Discard, 1), wait(1, Wish::Discard));
        assert_eq!(map.step(Op::Discard, 0, 512), Step::Nothing { len_bytes: 512 });
        assert_eq!(map.locate(Op::Read, 2 * PIECE_BYTES), Some((BASE_BYTES + 7 * PIECE_BYTES, PIECE_BYTES)));
    }

    #[test]
    fn a_wish_is_answered_even_if_it_is_lost() {
        let answer = |answer: fn(Ask)| PieceMap::new(PIECE_BYTES, PIECE_BYTES, answer).ask(0, 1, Wish::Write).answer();
        assert_eq!(answer(Ask::done), Some(Ok(())));
        assert_eq!(answer(Ask::refuse), Some(Err(DeviceError::NoSpace)));
        assert_eq!(answer(drop), Some(Err(DeviceError::Medium)));
        assert_eq!(answer(std::mem::forget), None);
    }
}
