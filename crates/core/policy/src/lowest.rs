//! Finds the lowest tag (virtual or real time): a tournament of all identifiers.
//!
//! Each match is between the winners of two halves, so a tag that changes is played again against as many rivals as the
//! number of identifiers has bits: 4 for 16, 10 for 1024. Which rivals these are does not depend on the tags: a match
//! waits for nothing but the one before, and no branch is mispredicted. The order is exact; of equal tags the lower
//! identifier goes first.

/// The tag of who takes no part; all others are below it.
const ABSENT: u64 = u64::MAX / 2;

/// An identifier and its tag.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u64,
    id: u16,
}

const NOBODY: Entry = Entry { tag: ABSENT, id: 0 };

/// Tags by identifier, and the lowest of them.
#[derive(Debug)]
pub struct Lowest {
    /// The winner of match 1 between those of 2 and 3, of 2 between those of 4 and 5 and so on; the second half are all
    /// identifiers, up to a power of two.
    matches: Vec<Entry>,
}

impl Default for Lowest {
    fn default() -> Self {
        Self { matches: vec![NOBODY; 2] }
    }
}

impl Lowest {
    /// Makes room for identifiers below `ids`, of which there are at most 2^16.
    pub fn grow(&mut self, ids: usize) {
        let had = self.ids();
        if ids <= had {
            return;
        }
        let ids = ids.next_power_of_two();
        let tags = self.matches.split_off(had);
        self.matches = vec![NOBODY; 2 * ids];
        tags.into_iter().filter(|it| it.tag != ABSENT).for_each(|Entry { tag, id }| self.play(id, tag));
    }

    fn ids(&self) -> usize {
        self.matches.len() / 2
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    #[inline]
    pub(crate) fn contains(&self, id: u16) -> bool {
        self.matches[self.ids() + usize::from(id)].tag != ABSENT
    }

    /// It takes part with this tag, whether it did before or not.
    #[inline]
    pub fn insert(&mut self, id: u16, tag: u64) {
        self.play(id, tag.min(ABSENT - 1));
    }

    /// It takes no part any more. `false`: it did not.
    #[inline]
    pub fn remove(&mut self, id: u16) -> bool {
        let contained = self.contains(id);
        if contained {
            self.play(id, ABSENT);
        }
        contained
    }

    fn play(&mut self, id: u16, tag: u64) {
        let mut at = self.ids() + usize::from(id);
        let mut winner = Entry { tag, id };
        self.matches[at] = winner;
        while at > 1 {
            let rival = self.matches[at ^ 1];
            // The right side of a match loses to an equal.
            let wins = rival.tag < winner.tag + (at as u64 & 1);
            winner = if wins { rival } else { winner };
            at /= 2;
            self.matches[at] = winner;
        }
    }

    /// The lowest tag and whose it is.
    #[inline]
    pub fn first(&self) -> Option<(u64, u16)> {
        let Entry { tag, id } = self.matches[1];
        (tag != ABSENT).then_some((tag, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_comes_first_and_the_lower_identifier_of_equals() {
        let tags = [70_000_u64, 3, 64, 70_001, u64::MAX, 4_096, 3, 0];
        let mut lowest = Lowest::default();
        for (id, tag) in tags.into_iter().enumerate() {
            lowest.grow(id + 1);
            lowest.insert(id as u16, tag);
        }
        let order = std::iter::from_fn(|| lowest.first().filter(|(_, id)| lowest.remove(*id)).map(|(_, id)| id));
        assert_eq!(order.collect::<Vec<_>>(), [7, 1, 6, 2, 5, 0, 3, 4]);
        assert!(lowest.is_empty() && !lowest.remove(0));
    }

    #[test]
    fn any_order_of_events_is_as_by_looking_at_all() {
        let (mut lowest, mut rng) = (Lowest::default(), fastrand::Rng::with_seed(7));
        let mut all: Vec<Option<u64>> = vec![None; 100];
        lowest.grow(all.len());
        for _ in 0..100_000 {
            let id = rng.usize(..all.len());
            let tag = rng.bool().then(|| rng.u64(..50));
            match tag {
                Some(tag) => lowest.insert(id as u16, tag),
                None => assert_eq!(lowest.remove(id as u16), all[id].is_some()),
            }
            all[id] = tag;
            let first = all.iter().enumerate().filter_map(|(id, tag)| Some(((*tag)?, id as u16))).min();
            assert_eq!(lowest.first(), first);
        }
    }
}
