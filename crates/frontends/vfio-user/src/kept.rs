//! Which of a client's messages a process has to hear that serves it next: what it agreed on, the memory that it has
//! mapped, the eventfds of its interrupts. All else is in the device's own state.

use std::collections::BTreeSet;

use client_socket::Keeping;

/// What a message did that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lasting {
    /// It agreed on a version.
    Version,
    /// It mapped memory.
    Map {
        /// Where.
        iova: u64,
        /// How much.
        len_bytes: u64,
    },
    /// It took all memory in there away.
    Unmap {
        /// Where.
        iova: u64,
        /// How much.
        len_bytes: u64,
    },
    /// It took all memory away.
    UnmapAll,
    /// It gave eventfds for these interrupts of a type, or took theirs away.
    Irqs {
        /// The type.
        index: u32,
        /// Which.
        vectors: Vec<u32>,
        /// They have eventfds now.
        assigned: bool,
    },
}

/// The messages that are kept, by their numbers.
#[derive(Debug, Default)]
pub struct KeptMessages {
    maps: Vec<(u64, u64, u64)>,
    /// Each with the interrupts that no later one is about.
    irqs: Vec<(u64, u32, BTreeSet<u32>)>,
}

impl KeptMessages {
    /// The message of that number was done.
    pub fn done(&mut self, number: u64, what: Lasting) -> Keeping {
        match what {
            Lasting::Version => Keeping { keep: true, forget: Vec::new() },
            Lasting::Map { iova, len_bytes } => {
                self.maps.push((number, iova, len_bytes));
                Keeping { keep: true, forget: Vec::new() }
            }
            // No map lies there only in part: that would have been refused.
            Lasting::Unmap { iova, len_bytes } => self.unmapped(|map| map.1 >= iova && map.1 - iova < len_bytes),
            Lasting::UnmapAll => self.unmapped(|_| true),
            Lasting::Irqs { index, vectors, assigned } => self.irqs(number, index, vectors, assigned),
        }
    }

    fn unmapped(&mut self, is_gone: impl Fn(&(u64, u64, u64)) -> bool) -> Keeping {
        let forget = self.maps.iter().filter(|map| is_gone(map)).map(|map| map.0).collect();
        self.maps.retain(|map| !is_gone(map));
        Keeping { keep: false, forget }
    }

    /// What an earlier message said of these interrupts does not matter any more. One that only takes eventfds away
    /// matters where an earlier one that gave them is still kept for others.
    fn irqs(&mut self, number: u64, index: u32, vectors: Vec<u32>, assigned: bool) -> Keeping {
        let vectors: BTreeSet<u32> = vectors.into_iter().collect();
        let (mut forget, mut is_left_over) = (Vec::new(), false);
        self.irqs.retain_mut(|(earlier, of, theirs)| {
            let before = theirs.len();
            if *of == index {
                theirs.retain(|vector| !vectors.contains(vector));
            }
            is_left_over |= theirs.len() < before && !theirs.is_empty();
            if theirs.is_empty() {
                forget.push(*earlier);
            }
            !theirs.is_empty()
        });
        let keep = !vectors.is_empty() && (assigned || is_left_over);
        if keep {
            self.irqs.push((number, index, vectors));
        }
        Keeping { keep, forget }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn irqs(vectors: impl IntoIterator<Item = u32>, assigned: bool) -> Lasting {
        Lasting::Irqs { index: 2, vectors: vectors.into_iter().collect(), assigned }
    }

    #[test]
    fn memory_is_kept_as_long_as_it_is_mapped() {
        let mut kept = KeptMessages::default();
        let map = |iova| Lasting::Map { iova, len_bytes: 4096 };
        assert!(kept.done(1, Lasting::Version).keep && kept.done(2, map(0)).keep && kept.done(3, map(4096)).keep);
        let unmap = Lasting::Unmap { iova: 0, len_bytes: 4096 };
        assert_eq!(kept.done(4, unmap), Keeping { keep: false, forget: vec![2] });
        assert!(kept.done(5, map(0)).keep);
        let both = Lasting::Unmap { iova: 0, len_bytes: 1 << 20 };
        assert_eq!(kept.done(6, both), Keeping { keep: false, forget: vec![3, 5] });
        assert!(kept.done(7, map(0)).keep);
        assert_eq!(kept.done(8, Lasting::UnmapAll), Keeping { keep: false, forget: vec![7] });
    }

    #[test]
    fn of_interrupts_only_what_still_holds_is_kept() {
        let mut kept = KeptMessages::default();
        assert_eq!(kept.done(1, irqs(0..8, true)), Keeping { keep: true, forget: vec![] });
        // Takes one of them away, which the first one gives.
        assert_eq!(kept.done(2, irqs(3..4, false)), Keeping { keep: true, forget: vec![] });
        assert_eq!(kept.done(3, irqs(3..4, true)), Keeping { keep: true, forget: vec![2] });
        let other = Lasting::Irqs { index: 0, vectors: vec![0], assigned: true };
        assert!(kept.done(4, other).keep);
        assert_eq!(kept.done(5, irqs(0..8, true)), Keeping { keep: true, forget: vec![1, 3] });
        assert_eq!(kept.done(6, irqs(0..8, false)), Keeping { keep: false, forget: vec![5] });
        // However often, no more is kept than there are interrupts.
        (10..1000).for_each(|number| drop(kept.done(number, irqs([number as u32 % 8], true))));
        assert_eq!(kept.irqs.len(), 8 + 1);
    }
}
