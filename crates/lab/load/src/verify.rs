//! Stamped data: what was written where and when, and whether it is what comes back.
//!
//! Every unit (the smallest block size) carries its place and a generation, and is filled with bytes that
//! follow from both and the seed. So a flipped bit, data of another place and data of an older write are
//! told apart. A unit that a write is in flight to is not read, and the other way round.

use std::collections::HashMap;
use std::fmt;

/// Mismatches that are kept word for word; the rest is counted.
const KEPT_MISMATCHES: usize = 10;
/// First word of a stamped unit, before the seed is mixed in.
const MAGIC: u64 = 0x6b65_656c_6e65_7665;
/// Generation of a unit of which nothing is known.
const UNKNOWN: u32 = 0;
/// A unit that a writer has to itself.
const EXCLUSIVE: u16 = u16::MAX;

/// What a unit that failed the check held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Data of an other generation of the same place.
    Generation(u32),
    /// Data of another place (its offset in bytes).
    Place(u64),
    /// Zeros only.
    Zeros,
    /// No stamp of this seed.
    NoStamp,
    /// The right stamp and a wrong byte.
    Byte {
        /// Place in the unit.
        at: usize,
        /// What should be there.
        expected: u8,
        /// What is there.
        found: u8,
    },
}

/// One unit that was not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Place on the namespace.
    pub offset_bytes: u64,
    /// Generation that was written last. `None`: any would do.
    pub expected: Option<u32>,
    /// What came back.
    pub found: Found,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {}: expected ", self.offset_bytes)?;
        match self.expected {
            Some(generation) => write!(f, "the data of write {generation}")?,
            None => write!(f, "stamped data of this place")?,
        }
        match &self.found {
            Found::Generation(found) => write!(f, ", found the data of write {found} (lost or stale write)"),
            Found::Place(place) => write!(f, ", found the data of offset {place} (misplaced)"),
            Found::Zeros => write!(f, ", found zeros"),
            Found::NoStamp => write!(f, ", found data that was not written with this seed"),
            Found::Byte { at, expected, found } => {
                write!(f, ", but byte {at} is {found:#04x} instead of {expected:#04x}")
            }
        }
    }
}

/// Knows what a job wrote to its range.
#[derive(Debug)]
pub struct Verifier {
    seed: u64,
    unit_bytes: u64,
    start_bytes: u64,
    generations: Vec<u32>,
    /// By unit: what else may be there, of writes whose end nobody saw.
    maybe: HashMap<usize, Vec<u32>>,
    /// Readers in flight per unit, or [`EXCLUSIVE`].
    users: Vec<u16>,
    /// Read-only: the stamps of an earlier run are trusted for their generation.
    any_generation: bool,
    last_generation: u32,
    expected: Vec<u8>,
    /// Units that were checked.
    pub checked_units: u64,
    /// Units that failed.
    pub mismatch_count: u64,
    /// The first few of them.
    pub mismatches: Vec<Mismatch>,
}

impl Verifier {
    /// For the range of `len_bytes` from `start_bytes`, both multiples of `unit_bytes` (512 at least).
    pub fn new(seed: u64, unit_bytes: u64, start_bytes: u64, len_bytes: u64, any_generation: bool) -> Self {
        let units = (len_bytes / unit_bytes) as usize;
        Self {
            seed,
            unit_bytes,
            start_bytes,
            generations: vec![UNKNOWN; units],
            maybe: HashMap::new(),
            users: vec![0; units],
            any_generation,
            last_generation: UNKNOWN,
            expected: vec![0; unit_bytes as usize],
            checked_units: 0,
            mismatch_count: 0,
            mismatches: Vec::new(),
        }
    }

    fn units(&self, offset_bytes: u64, len_bytes: u64) -> std::ops::Range<usize> {
        let first = ((offset_bytes - self.start_bytes) / self.unit_bytes) as usize;
        first..first + (len_bytes / self.unit_bytes) as usize
    }

    /// Claims units for a command; `false`, and nothing claimed, if another command is in their way.
    pub fn claim(&mut self, offset_bytes: u64, len_bytes: u64, exclusive: bool) -> bool {
        let units = self.units(offset_bytes, len_bytes);
        let users = &mut self.users[units];
        if users.iter().any(|&users| users >= EXCLUSIVE - 1 || (exclusive && users > 0)) {
            return false;
        }
        users.iter_mut().for_each(|users| if exclusive { *users = EXCLUSIVE } else { *users += 1 });
        true
    }

    fn release(&mut self, offset_bytes: u64, len_bytes: u64) {
        let units = self.units(offset_bytes, len_bytes);
        for users in &mut self.users[units] {
            *users = if *users == EXCLUSIVE { 0 } else { users.saturating_sub(1) };
        }
    }

    /// Fills `data`, to be written at `offset_bytes`, with a new generation; returns it.
    pub fn stamp(&mut self, offset_bytes: u64, data: &mut [u8]) -> u32 {
        self.last_generation = self.last_generation.wrapping_add(1).max(1);
        for (index, unit) in data.chunks_exact_mut(self.unit_bytes as usize).enumerate() {
            fill(unit, self.seed, offset_bytes + index as u64 * self.unit_bytes, self.last_generation);
        }
        self.last_generation
    }

    /// A write of `generation` ended. `None`: a trim, or a write that failed: anything may be there.
    pub fn written(&mut self, offset_bytes: u64, len_bytes: u64, generation: Option<u32>) {
        let units = self.units(offset_bytes, len_bytes);
        self.maybe.retain(|unit, _| !units.contains(unit));
        self.generations[units].fill(generation.unwrap_or(UNKNOWN));
        self.release(offset_bytes, len_bytes);
    }

    /// Nobody will hear of the end of a write of `generation`: its data may be there, or what was there before. The
    /// next read settles it.
    pub fn unsettled(&mut self, offset_bytes: u64, len_bytes: u64, generation: u32) {
        for unit in self.units(offset_bytes, len_bytes) {
            if self.generations[unit] != UNKNOWN {
                self.maybe.entry(unit).or_default().push(generation);
            }
        }
        self.release(offset_bytes, len_bytes);
    }

    /// A read ended with `data`. `None`: it failed.
    pub fn was_read(&mut self, offset_bytes: u64, len_bytes: u64, data: Option<&[u8]>) {
        let first = self.units(offset_bytes, len_bytes).start;
        let units = data.unwrap_or_default().chunks_exact(self.unit_bytes as usize);
        for (index, unit) in units.enumerate() {
            let offset_bytes = offset_bytes + index as u64 * self.unit_bytes;
            self.settle(first + index, unit);
            let expected = match self.generations[first + index] {
                _ if self.any_generation => None,
                UNKNOWN => continue,
                generation => Some(generation),
            };
            self.checked_units += 1;
            if let Some(found) = self.check(offset_bytes, expected, unit) {
                self.mismatch_count += 1;
                if self.mismatches.len() < KEPT_MISMATCHES {
                    self.mismatches.push(Mismatch { offset_bytes, expected, found });
                }
            }
        }
        self.release(offset_bytes, len_bytes);
    }

    /// One of the writes whose end nobody saw, if it is found, was the last.
    fn settle(&mut self, unit: usize, data: &[u8]) {
        if let Some(generations) = self.maybe.remove(&unit) {
            let found = data.as_chunks::<8>().0.get(2).map_or(0, |bytes| u64::from_le_bytes(*bytes));
            if let Some(generation) = generations.into_iter().find(|&generation| u64::from(generation) == found) {
                self.generations[unit] = generation;
            }
        }
    }

    /// What is wrong with `unit`, if anything is.
    fn check(&mut self, offset_bytes: u64, expected: Option<u32>, unit: &[u8]) -> Option<Found> {
        let word = |index: usize| unit.as_chunks::<8>().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let generation = expected.unwrap_or(word(2) as u32);
        fill(&mut self.expected, self.seed, offset_bytes, generation);
        if unit == self.expected {
            return None;
        }
        if unit.iter().all(|&byte| byte == 0) {
            return Some(Found::Zeros);
        }
        if word(0) == MAGIC ^ self.seed && word(1) != offset_bytes {
            return Some(Found::Place(word(1)));
        }
        if word(0) == MAGIC ^ self.seed && word(2) != u64::from(generation) {
            return Some(Found::Generation(word(2) as u32));
        }
        let at = unit.iter().zip(&self.expected).position(|(found, expected)| found != expected)?;
        match at {
            0..8 => Some(Found::NoStamp),
            at => Some(Found::Byte { at, expected: self.expected[at], found: unit[at] }),
        }
    }

    /// Whether anything is known about the units there.
    pub(crate) fn knows(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let units = self.units(offset_bytes, len_bytes);
        self.generations[units].iter().any(|&generation| generation != UNKNOWN)
    }
}

/// Stamp and filling of one unit.
fn fill(unit: &mut [u8], seed: u64, offset_bytes: u64, generation: u32) {
    let base = mix(seed ^ mix(offset_bytes ^ mix(generation.into())));
    let (words, _) = unit.as_chunks_mut::<8>();
    for (index, word) in words.iter_mut().enumerate() {
        *word = base.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    }
    for (word, value) in words.iter_mut().zip([MAGIC ^ seed, offset_bytes, generation.into()]) {
        *word = value.to_le_bytes();
    }
}

/// A number that follows from `value` and looks like no other's.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    fastrand::Rng::with_seed(value).u64(..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(verifier: &mut Verifier, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        assert!(verifier.claim(offset, len as u64, true));
        let generation = verifier.stamp(offset, &mut data);
        verifier.written(offset, len as u64, Some(generation));
        data
    }

    fn found(verifier: &mut Verifier, offset: u64, data: &[u8]) -> Vec<Found> {
        assert!(verifier.claim(offset, data.len() as u64, false));
        verifier.mismatches.clear();
        verifier.was_read(offset, data.len() as u64, Some(data));
        verifier.mismatches.iter().map(|mismatch| mismatch.found.clone()).collect()
    }

    #[test]
    fn tells_kinds_of_damage_apart() {
        let mut verifier = Verifier::new(7, 512, 4096, 8192, false);
        let first = written(&mut verifier, 4096, 1024);
        assert_eq!(found(&mut verifier, 4096, &first), []);
        let second = written(&mut verifier, 4096, 1024);
        assert_eq!(found(&mut verifier, 4096, &second), []);
        assert_eq!(found(&mut verifier, 4096, &first), [Found::Generation(1), Found::Generation(1)]);
        let elsewhere = written(&mut verifier, 8192, 512);
        assert_eq!(found(&mut verifier, 4096, &elsewhere), [Found::Place(8192)]);
        assert_eq!(found(&mut verifier, 4096, &[0; 512]), [Found::Zeros]);
        assert_eq!(found(&mut verifier, 4096, &[9; 512]), [Found::NoStamp]);
        let mut flipped = second.clone();
        flipped[600] ^= 4;
        let at = 600 - 512;
        let byte = Found::Byte { at, expected: second[600], found: flipped[600] };
        assert_eq!(found(&mut verifier, 4096, &flipped), [byte]);
    }

    #[test]
    fn does_not_judge_what_it_does_not_know() {
        let mut verifier = Verifier::new(7, 512, 0, 4096, false);
        assert_eq!(found(&mut verifier, 0, &[9; 512]), []);
        written(&mut verifier, 0, 512);
        assert!(verifier.claim(0, 512, true));
        verifier.written(0, 512, None);
        assert_eq!(found(&mut verifier, 0, &[9; 512]), [], "after a trim or a failed write");
        assert_eq!(verifier.checked_units, 0);
    }

    #[test]
    fn trusts_the_stamps_of_an_earlier_run() {
        let mut earlier = Verifier::new(7, 512, 0, 4096, false);
        let data = written(&mut earlier, 512, 512);
        let mut verifier = Verifier::new(7, 512, 0, 4096, true);
        assert_eq!(found(&mut verifier, 512, &data), []);
        assert_eq!(found(&mut verifier, 1024, &data), [Found::Place(512)]);
        let mut other_seed = Verifier::new(8, 512, 0, 4096, true);
        assert_eq!(found(&mut other_seed, 512, &data), [Found::NoStamp]);
    }

    #[test]
    fn a_write_whose_end_nobody_saw_may_have_happened_or_not() {
        let mut verifier = Verifier::new(7, 512, 0, 4096, false);
        for happened in [false, true] {
            let old = written(&mut verifier, 512, 512);
            let mut new = vec![0; 512];
            assert!(verifier.claim(512, 512, true));
            let generation = verifier.stamp(512, &mut new);
            verifier.unsettled(512, 512, generation);
            let (there, gone) = if happened { (&new, &old) } else { (&old, &new) };
            assert_eq!(found(&mut verifier, 512, there), []);
            assert!(matches!(found(&mut verifier, 512, gone)[..], [Found::Generation(_)]), "settled by the read");
        }
        assert_eq!(found(&mut verifier, 512, &[0; 512]), [Found::Zeros]);
    }

    #[test]
    fn keeps_readers_and_writers_of_a_unit_apart() {
        let mut verifier = Verifier::new(7, 512, 0, 4096, false);
        assert!(verifier.claim(0, 1024, false));
        assert!(verifier.claim(512, 1024, false), "readers share");
        assert!(!verifier.claim(512, 512, true));
        verifier.was_read(0, 1024, None);
        assert!(!verifier.claim(512, 512, true), "one reader is left");
        verifier.was_read(512, 1024, None);
        assert!(verifier.claim(512, 512, true));
        assert!(!verifier.claim(0, 4096, false));
        verifier.written(512, 512, None);
        assert!(verifier.claim(0, 4096, false));
    }
}
