//! Where the next command goes.

use crate::spec::{JobSpec, Range, Rw};
use crate::stats::Direction;
use crate::value::BlockSizes;

/// A command to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) direction: Direction,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

/// Draws commands; the same seed draws the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    rw: Rw,
    read_percent: u64,
    sizes: BlockSizes,
    unit_bytes: u64,
    range: Range,
    rng: fastrand::Rng,
    /// Where each direction's next sequential command starts, relative to the range.
    cursors: [u64; 3],
}

impl Pattern {
    pub(crate) fn new(spec: &JobSpec, range: Range, seed: u64) -> Self {
        Self {
            rw: spec.rw,
            read_percent: spec.rwmixread.into(),
            unit_bytes: spec.block_sizes.min_bytes().max(1),
            sizes: spec.block_sizes.clone(),
            range,
            rng: fastrand::Rng::with_seed(seed),
            cursors: [0; 3],
        }
    }

    pub(crate) fn next(&mut self) -> Next {
        let direction = self.direction();
        let len_bytes = self.len_bytes();
        let room = self.range.len_bytes - len_bytes;
        let at = if self.rw.is_random() {
            self.rng.u64(..room / self.unit_bytes + 1) * self.unit_bytes
        } else {
            let cursor = &mut self.cursors[direction as usize];
            let at = if *cursor > room { 0 } else { *cursor };
            *cursor = at + len_bytes;
            at
        };
        Next { direction, offset_bytes: self.range.start_bytes + at, len_bytes }
    }

    fn direction(&mut self) -> Direction {
        match self.rw {
            Rw::Read | Rw::RandRead => Direction::Read,
            Rw::Write | Rw::RandWrite => Direction::Write,
            Rw::Trim | Rw::RandTrim => Direction::Trim,
            Rw::ReadWrite | Rw::RandRw if self.rng.u64(..100) < self.read_percent => Direction::Read,
            Rw::ReadWrite | Rw::RandRw => Direction::Write,
        }
    }

    fn len_bytes(&mut self) -> u64 {
        let shares = self.sizes.shares();
        if let [(only, _)] = shares {
            return *only;
        }
        let mut left = self.rng.u64(..100);
        for &(size, share) in shares {
            match left.checked_sub(share.into()) {
                None => return size,
                Some(rest) => left = rest,
            }
        }
        self.unit_bytes
    }
}
