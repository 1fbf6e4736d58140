//! Lists of slots that cost nothing per element: doubly linked through a table that grows at attach.

/// No slot.
pub const NONE: u16 = u16::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    next: u16,
    prev: u16,
}

/// The links of all slots. A slot is in at most one of the lists that share a table.
#[derive(Debug, Default)]
pub struct Links(Vec<Link>);

impl Links {
    /// Makes room for slots below `slots`.
    pub fn grow(&mut self, slots: usize) {
        if self.0.len() < slots {
            self.0.resize(slots, Link { next: NONE, prev: NONE });
        }
    }
}

/// A first-in first-out list; every operation is O(1).
#[derive(Debug, Clone, Copy)]
pub struct List {
    head: u16,
    tail: u16,
}

impl Default for List {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The first.
    #[inline]
    pub fn front(&self) -> Option<u16> {
        (self.head != NONE).then_some(self.head)
    }

    /// From the front on.
    pub(crate) fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = u16> + use<'a> {
        let next_of = |slot: &u16| Some(links.0[usize::from(*slot)].next).filter(|next| *next != NONE);
        std::iter::successors(self.front(), next_of)
    }

    /// Puts a slot that is in no list behind all others.
    #[inline]
    pub fn push_back(&mut self, links: &mut Links, slot: u16) {
        links.0[usize::from(slot)] = Link { next: NONE, prev: self.tail };
        match self.tail {
            NONE => self.head = slot,
            tail => links.0[usize::from(tail)].next = slot,
        }
        self.tail = slot;
    }

    #[inline]
    pub(crate) fn push_front(&mut self, links: &mut Links, slot: u16) {
        links.0[usize::from(slot)] = Link { next: self.head, prev: NONE };
        match self.head {
            NONE => self.tail = slot,
            head => links.0[usize::from(head)].prev = slot,
        }
        self.head = slot;
    }

    /// Puts a slot before the first one of which that holds.
    pub(crate) fn insert_where(&mut self, links: &mut Links, slot: u16, holds: impl Fn(u16) -> bool) {
        let mut next = self.head;
        while next != NONE && !holds(next) {
            next = links.0[usize::from(next)].next;
        }
        if next == NONE {
            return self.push_back(links, slot);
        }
        let prev = std::mem::replace(&mut links.0[usize::from(next)].prev, slot);
        links.0[usize::from(slot)] = Link { next, prev };
        match prev {
            NONE => self.head = slot,
            prev => links.0[usize::from(prev)].next = slot,
        }
    }

    /// Takes out a slot that is in this list.
    #[inline]
    pub fn remove(&mut self, links: &mut Links, slot: u16) {
        let Link { next, prev } = links.0[usize::from(slot)];
        match prev {
            NONE => self.head = next,
            prev => links.0[usize::from(prev)].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => links.0[usize::from(next)].prev = prev,
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self, links: &mut Links) -> Option<u16> {
        let slot = self.front()?;
        self.remove(links, slot);
        Some(slot)
    }

    /// Moves a slot of this list to its end.
    #[inline]
    pub fn rotate(&mut self, links: &mut Links, slot: u16) {
        if self.tail != slot {
            self.remove(links, slot);
            self.push_back(links, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(list: &mut List, links: &mut Links) -> Vec<u16> {
        std::iter::from_fn(|| list.pop_front(links)).collect()
    }

    #[test]
    fn keeps_order_through_removals_and_rotations() {
        let mut links = Links::default();
        links.grow(6);
        let mut list = List::default();
        for slot in 0..5 {
            list.push_back(&mut links, slot);
        }
        list.remove(&mut links, 2);
        list.rotate(&mut links, 0);
        list.push_front(&mut links, 5);
        list.insert_where(&mut links, 2, |slot| slot == 3);
        assert_eq!(drain(&mut list, &mut links), [5, 1, 2, 3, 4, 0]);
        assert!(list.is_empty());
        for slot in 0..3 {
            list.insert_where(&mut links, slot, |other| other == 0);
        }
        assert_eq!(drain(&mut list, &mut links), [1, 2, 0]);
    }

    #[test]
    fn two_lists_share_one_table() {
        let mut links = Links::default();
        links.grow(4);
        let (mut a, mut b) = (List::default(), List::default());
        a.push_back(&mut links, 0);
        b.push_back(&mut links, 1);
        a.push_back(&mut links, 2);
        b.push_back(&mut links, 3);
        a.remove(&mut links, 2);
        b.push_back(&mut links, 2);
        assert_eq!(drain(&mut a, &mut links), [0]);
        assert_eq!(drain(&mut b, &mut links), [1, 3, 2]);
    }
}
