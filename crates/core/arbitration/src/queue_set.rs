//! A set of queues in which the next one is found at once.

use crate::MAX_QUEUES;

const WORD_BITS: u16 = 64;

/// Two levels of bits: a word for each 64 queues, and one that tells which words have any.
#[derive(Debug, Clone)]
pub(crate) struct QueueSet {
    words: Box<[u64]>,
    summary: u64,
    len: u32,
}

impl QueueSet {
    /// An empty set for queues `0..queues`, [`MAX_QUEUES`] at most.
    pub fn new(queues: u16) -> Self {
        let words = usize::from(queues.min(MAX_QUEUES).div_ceil(WORD_BITS));
        Self { words: vec![0; words].into(), summary: 0, len: 0 }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.summary == 0
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub fn contains(&self, queue: u16) -> bool {
        let word = self.words.get(usize::from(queue / WORD_BITS)).copied().unwrap_or(0);
        word & 1 << (queue % WORD_BITS) != 0
    }

    /// Puts a queue in or takes it out.
    #[inline]
    pub fn set(&mut self, queue: u16, member: bool) {
        if self.contains(queue) == member {
            return;
        }
        let at = queue / WORD_BITS;
        let Some(word) = self.words.get_mut(usize::from(at)) else { return };
        *word ^= 1 << (queue % WORD_BITS);
        self.len = if member { self.len + 1 } else { self.len - 1 };
        let any = u64::from(*word != 0) << at;
        self.summary = self.summary & !(1 << at) | any;
    }

    /// The first member after a queue, going around: the queue itself comes last. 0 if the set is empty.
    #[inline]
    pub fn next_after(&self, queue: u16) -> u16 {
        let at = queue / WORD_BITS;
        let word = self.words.get(usize::from(at)).copied().unwrap_or(0);
        let later = word & (!1_u64 << (queue % WORD_BITS));
        if later != 0 {
            return at * WORD_BITS + later.trailing_zeros() as u16;
        }
        let turn = u32::from(at) + 1;
        let distance = self.summary.rotate_right(turn).trailing_zeros();
        let at = ((turn + distance) % u32::from(WORD_BITS)) as u16;
        let word = self.words.get(usize::from(at)).copied().unwrap_or(0);
        if word == 0 { 0 } else { at * WORD_BITS + word.trailing_zeros() as u16 }
    }

    /// All members, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as u16;
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    at as u16 * WORD_BITS + bit
                })
            })
        })
    }
}
