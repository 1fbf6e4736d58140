//! What a command costs the drive, so that one budget covers all opcodes and sizes.

use io_model::Op;

/// Cost of the reference command, one that the drive serves at its rate R: a 4 KiB random write.
pub const COST_UNIT: u32 = 64;

/// No command counts more than this (16 Ki reference commands), whatever its length.
pub const MAX_COST: u32 = 1 << 20;

const BASE_SHIFT: u32 = 12;
const POINTS: usize = 9;

/// Cost of one opcode at 4 KiB, 8 KiB, … 1 MiB, in 1/[`COST_UNIT`] of the reference command.
///
/// Sizes between two points are interpolated, shorter ones cost as much as 4 KiB, longer ones go on in
/// proportion to the 1 MiB point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Curve([u32; POINTS]);

impl Curve {
    /// From calibrated points. A point of 0 counts as 1, above [`MAX_COST`] as that, and a longer
    /// command never costs less than a shorter one.
    pub fn new(points: [u32; POINTS]) -> Self {
        let mut least = 1;
        Self(points.map(|point| {
            least = point.clamp(least, MAX_COST);
            least
        }))
    }

    /// In proportion to the length from 4 KiB up, where 4 KiB cost `first`.
    pub fn linear(first: u32) -> Self {
        let mut points = [0; POINTS];
        for (power, point) in points.iter_mut().enumerate() {
            *point = first.saturating_mul(1 << power);
        }
        Self::new(points)
    }

    /// One cost for every length.
    pub fn flat(cost: u32) -> Self {
        Self::new([cost; POINTS])
    }

    #[inline]
    fn at(&self, len_bytes: u64) -> u32 {
        if len_bytes <= 1 << BASE_SHIFT {
            return self.0[0];
        }
        self.above_first(len_bytes)
    }

    fn above_first(&self, len_bytes: u64) -> u32 {
        let power = len_bytes.ilog2() - BASE_SHIFT;
        let at = power as usize;
        if at + 1 >= POINTS {
            let last = self.0[POINTS - 1];
            if last == self.0[POINTS - 2] {
                return last;
            }
            let shift = BASE_SHIFT + POINTS as u32 - 1;
            let cost = (u128::from(last) * u128::from(len_bytes)) >> shift;
            return cost.min(u128::from(MAX_COST)) as u32;
        }
        let (low, high) = (u64::from(self.0[at]), u64::from(self.0[at + 1]));
        let start = 1 << (power + BASE_SHIFT);
        // Below 1 MiB, so the product fits: (2^20 cost) × (2^20 bytes).
        (low + ((high - low) * (len_bytes - start)).div_ceil(start)) as u32
    }
}

/// The calibrated cost of every command, by opcode and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// [`Op::Read`].
    pub read: Curve,
    /// [`Op::Write`].
    pub write: Curve,
    /// [`Op::WriteZeroes`].
    pub write_zeroes: Curve,
    /// [`Op::Discard`].
    pub discard: Curve,
    /// [`Op::Flush`], which has no length.
    pub flush: u32,
}

impl Default for Cost {
    /// Reads, writes and zeroing in proportion to their length above 4 KiB; flush and discard as one
    /// reference command.
    fn default() -> Self {
        let linear = Curve::linear(COST_UNIT);
        Self { read: linear, write: linear, write_zeroes: linear, discard: Curve::flat(COST_UNIT), flush: COST_UNIT }
    }
}

impl Cost {
    /// One command's cost, 1 to [`MAX_COST`].
    #[inline]
    pub fn of(&self, op: Op, len_bytes: u64) -> u32 {
        match op {
            Op::Read => self.read.at(len_bytes),
            Op::Write => self.write.at(len_bytes),
            Op::WriteZeroes => self.write_zeroes.at(len_bytes),
            Op::Discard => self.discard.at(len_bytes),
            Op::Flush => self.flush.clamp(1, MAX_COST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_linear_above_4_kib() {
        let cost = Cost::default();
        let units = |len| f64::from(cost.of(Op::Read, len)) / f64::from(COST_UNIT);
        assert_eq!(units(0), 1.0);
        assert_eq!(units(512), 1.0);
        assert_eq!(units(4096), 1.0);
        assert_eq!(units(6144), 1.5);
        assert_eq!(units(12288), 3.0);
        assert_eq!(units(1 << 20), 256.0);
        assert_eq!(units(3 << 20), 768.0);
        assert_eq!(cost.of(Op::Write, u64::MAX), MAX_COST);
        assert_eq!(cost.of(Op::Flush, 0), COST_UNIT);
        assert_eq!(cost.of(Op::Discard, 1 << 40), COST_UNIT);
    }

    #[test]
    fn calibrated_points_are_interpolated_and_never_fall() {
        let curve = Curve::new([13, 20, 10, 40, 80, 160, 320, 640, 1280]);
        assert_eq!(curve.at(4096), 13);
        assert_eq!(curve.at(8192), 20);
        assert_eq!(curve.at(6144), 17);
        assert_eq!(curve.at(16384), 20);
        assert_eq!(curve.at(2 << 20), 2560);
        assert_eq!(Curve::flat(0).at(4096), 1);
    }
}
