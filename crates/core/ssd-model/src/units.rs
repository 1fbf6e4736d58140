//! The parallel units behind the controller.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::{Placement, Profile};

const BLOCK_BYTES: u64 = 4096;

/// The part of a command that lies on one stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) stripe: u64,
    pub(crate) len_bytes: u64,
}

/// Cuts a command at multiples of `stripe_bytes`. One without data still is somewhere.
pub(crate) fn pieces(stripe_bytes: u64, offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Piece> {
    let end = offset_bytes.saturating_add(len_bytes.max(1));
    let mut at = offset_bytes;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let stripe = at / stripe_bytes;
        let piece_end = (stripe + 1).saturating_mul(stripe_bytes).min(end);
        let len_bytes = piece_end - at;
        at = piece_end;
        Some(Piece { stripe, len_bytes })
    })
}

/// When each unit is free again. Work reaches the units in the order in which the controller hands it
/// out, and each is first in, first out: so a piece's end is known when it arrives, without an event.
#[derive(Debug)]
pub(crate) struct Units {
    free_at: FreeAt,
    stripe_bytes: u64,
    further_ns: u64,
}

#[derive(Debug)]
enum FreeAt {
    Hashed(Vec<u64>),
    Pooled(BinaryHeap<Reverse<u64>>),
}

/// When a command's first and last pieces were through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Through {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
}

impl Units {
    pub(crate) fn new(profile: &Profile) -> Self {
        let units = profile.units.max(1) as usize;
        let free_at = match profile.placement {
            Placement::Hashed => FreeAt::Hashed(vec![0; units]),
            Placement::Pooled => FreeAt::Pooled(std::iter::repeat_n(Reverse(0), units).collect()),
        };
        let stripe_bytes = profile.stripe_bytes.max(BLOCK_BYTES);
        Self { free_at, stripe_bytes, further_ns: profile.further_ns }
    }

    /// Occupies units for a command that arrives at `now_ns`.
    pub(crate) fn occupy(&mut self, now_ns: u64, offset_bytes: u64, len_bytes: u64, first_ns: u64) -> Through {
        let mut through = Through { first_ns: u64::MAX, last_ns: now_ns };
        for Piece { stripe, len_bytes } in pieces(self.stripe_bytes, offset_bytes, len_bytes) {
            let further = len_bytes.div_ceil(BLOCK_BYTES) - 1;
            let done_ns = self.free_at.piece(now_ns, stripe, first_ns + further * self.further_ns);
            through.first_ns = through.first_ns.min(done_ns);
            through.last_ns = through.last_ns.max(done_ns);
        }
        through
    }
}

impl FreeAt {
    fn piece(&mut self, now_ns: u64, stripe: u64, service_ns: u64) -> u64 {
        match self {
            Self::Hashed(free_at) => {
                let unit = unit_of(stripe, free_at.len() as u64);
                let free_at = &mut free_at[unit];
                *free_at = now_ns.max(*free_at) + service_ns;
                *free_at
            }
            Self::Pooled(free_at) => {
                let soonest = free_at.pop().map_or(0, |Reverse(at)| at);
                let done_ns = now_ns.max(soonest) + service_ns;
                free_at.push(Reverse(done_ns));
                done_ns
            }
        }
    }
}

/// Consecutive stripes on different units; each group of as many stripes as units starts elsewhere, so that
/// no regular stride stays on one unit.
pub(crate) fn unit_of(stripe: u64, units: u64) -> usize {
    let (group, within) = (stripe / units, stripe % units);
    // Two rounds: a single multiplication leaves strides that it maps next to each other.
    let mixed = (group ^ (group >> 29)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let turned = ((mixed >> 32) * units) >> 32;
    ((within + turned) % units) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_stripes_covers_every_unit_once() {
        for units in [1, 6, 36, 128] {
            for group in 0..1_000 {
                let mut seen = vec![false; units as usize];
                (0..units).for_each(|within| seen[unit_of(group * units + within, units)] = true);
                assert!(seen.iter().all(|&seen| seen), "{units} units, group {group}");
            }
        }
    }

    #[test]
    fn no_stride_stays_on_one_unit() {
        for units in [6, 128] {
            for stride in 1..=1_024 {
                let mut hits = vec![0; units as usize];
                (0..units * 100).for_each(|step| hits[unit_of(step * stride, units)] += 1);
                assert!(hits.iter().all(|&hits| hits < 250), "{units} units, stride {stride}: {hits:?}");
            }
        }
    }

    #[test]
    fn a_unit_is_first_in_first_out_and_units_work_side_by_side() {
        for placement in [Placement::Hashed, Placement::Pooled] {
            let mut units = Units::new(&Profile { placement, units: 4, ..Profile::p5800x() });
            let stripe = Profile::p5800x().stripe_bytes;
            let ends: Vec<u64> = (0..8).map(|step| units.occupy(100, step % 4 * stripe, 4096, 7_200).last_ns).collect();
            assert_eq!(ends, [7_300, 7_300, 7_300, 7_300, 14_500, 14_500, 14_500, 14_500], "{placement:?}");
        }
    }

    #[test]
    fn a_large_command_occupies_a_unit_per_stripe() {
        let mut units = Units::new(&Profile { further_ns: 1_000, units: 4, ..Profile::p5800x() });
        // 8 KiB of the first stripe, one whole stripe, 512 bytes of a third.
        let through = units.occupy(0, 8 << 10, (24 << 10) + 512, 7_000);
        assert_eq!(through, Through { first_ns: 7_000, last_ns: 10_000 });
    }
}
