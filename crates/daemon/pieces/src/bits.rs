//! A set of small numbers.

/// Bits of a word, as files have them.
pub(crate) const WORD_BITS: u32 = u32::BITS;

/// A set of numbers below a limit that only grows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits {
    words: Vec<u32>,
    count: u32,
}

impl Bits {
    /// Makes room for numbers below `limit`.
    pub(crate) fn grow(&mut self, limit: u32) {
        self.words.resize(limit.div_ceil(WORD_BITS) as usize, 0);
    }

    /// How many numbers it has.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn has(&self, number: u32) -> bool {
        let word = self.words.get((number / WORD_BITS) as usize);
        word.is_some_and(|word| word >> (number % WORD_BITS) & 1 != 0)
    }

    /// `true`: that is a change. Numbers at the limit or above are ignored.
    pub(crate) fn set(&mut self, number: u32, has: bool) -> bool {
        let (had, bit) = (self.has(number), 1 << (number % WORD_BITS));
        let Some(word) = self.words.get_mut((number / WORD_BITS) as usize).filter(|_| had != has) else { return false };
        *word ^= bit;
        self.count = if has { self.count + 1 } else { self.count - 1 };
        true
    }

    /// The first number from `from` on, or else the first one of all.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let at = (from / WORD_BITS) as usize;
        let first = self.words.get(at).map(|word| word & (u32::MAX << (from % WORD_BITS)));
        let rest = self.words.iter().copied().enumerate().skip(at + 1);
        let found = first.map(|word| (at, word)).into_iter().chain(rest).chain(self.words.iter().copied().enumerate());
        let (at, word) = found.into_iter().find(|(_, word)| *word != 0)?;
        Some(at as u32 * WORD_BITS + word.trailing_zeros())
    }

    /// A word, as it is in a file.
    pub(crate) fn word(&self, at: usize) -> u32 {
        self.words.get(at).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_number_is_found_around_the_end() {
        let mut bits = Bits::default();
        bits.grow(100);
        assert_eq!(bits.next(5), None);
        assert!([3, 40, 99].into_iter().all(|number| bits.set(number, true)) && !bits.set(40, true));
        assert_eq!(
            [0, 3, 4, 40, 41, 99, 100, 1000].map(|from| bits.next(from)),
            [3, 3, 40, 40, 99, 99, 3, 3].map(Some)
        );
        assert!(bits.set(3, false) && !bits.set(3, false) && !bits.set(128, true));
        assert_eq!((bits.count(), bits.next(0)), (2, Some(40)));
    }
}
