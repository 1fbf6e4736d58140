//! A listener knows all memory that commands may point into, until nothing uses it any more.

use std::sync::Arc;

use guest_memory::{Access, GuestMemory, IoBuf, Mapping, MemoryListener, Refused, SpaceError};

const LEN: u64 = 0x1000;
const REFUSED: Refused = Refused { errno: 28 };

/// Where what it was told of begins.
#[derive(Default)]
struct Ears {
    told: Vec<usize>,
    /// Refuses further mappings once it knows this many.
    room: Option<usize>,
}

impl MemoryListener for Ears {
    fn map(&mut self, mapping: &Mapping) -> Result<(), Refused> {
        if self.room == Some(self.told.len()) {
            return Err(REFUSED);
        }
        self.told.push(mapping.addresses().start);
        Ok(())
    }

    fn unmap(&mut self, mapping: &Mapping) {
        let at = self.told.iter().position(|start| *start == mapping.addresses().start).expect("told before");
        self.told.remove(at);
    }
}

fn mappings<const N: usize>() -> [Arc<Mapping>; N] {
    std::array::from_fn(|_| Mapping::anonymous(LEN as usize).expect("memory"))
}

/// What a client shares, each as it would be handed to one of several threads.
fn table(mappings: &[&Arc<Mapping>]) -> GuestMemory {
    let mut table = GuestMemory::default();
    for (at, mapping) in (0..).zip(mappings) {
        table.map(at * LEN, LEN, Some(Mapping::alias(mapping)), &mut ()).expect("free");
    }
    table
}

fn starts(mappings: &[&Arc<Mapping>]) -> Vec<usize> {
    let mut starts: Vec<usize> = mappings.iter().map(|mapping| mapping.addresses().start).collect();
    starts.sort_unstable();
    starts
}

fn check(memory: &GuestMemory, ears: &Ears, expected: &[&Arc<Mapping>]) {
    let mut told = ears.told.clone();
    told.sort_unstable();
    let mut known: Vec<usize> = memory.mappings().map(|mapping| mapping.addresses().start).collect();
    known.sort_unstable();
    assert_eq!((told, known), (starts(expected), starts(expected)));
}

#[test]
fn memory_is_told_when_it_comes_and_when_nothing_uses_it_any_more() {
    let (mut memory, mut ears) = (GuestMemory::default(), Ears::default());
    let [one, two] = mappings();
    memory.map(0, LEN, Some(Mapping::alias(&one)), &mut ears).expect("free");
    assert_eq!(memory.map(0x800, LEN, Some(Mapping::alias(&two)), &mut ears), Err(SpaceError::Overlap));
    memory.map(LEN, LEN, None, &mut ears).expect("a hole");
    check(&memory, &ears, &[&one]);
    ears.room = Some(1);
    assert_eq!(memory.map(2 * LEN, LEN, Some(Mapping::alias(&two)), &mut ears), Err(REFUSED.into()));
    assert_eq!(memory.len(), 2);

    let mut in_flight = IoBuf::default();
    memory.translate(0x100, 512, Access::Write, &mut in_flight).expect("mapped");
    assert_eq!(memory.unmap_all(), [(0, LEN), (LEN, LEN)]);
    assert_eq!((memory.take_unmapped(&mut ears), memory.take_unmapped(&mut ears)), (Some((LEN, LEN)), None));
    check(&memory, &ears, &[&one]);
    in_flight.clear();
    assert_eq!((memory.take_unmapped(&mut ears), memory.unmaps_pending()), (Some((0, LEN)), 0));
    check(&memory, &ears, &[]);
    assert_eq!(Arc::strong_count(&one), 1);
}

#[test]
fn of_a_new_table_only_the_difference_is_told() {
    let (mut memory, mut ears) = (GuestMemory::default(), Ears::default());
    let [one, two, three] = mappings();
    memory.replace(table(&[&one, &two]), &mut ears).expect("room");
    check(&memory, &ears, &[&one, &two]);
    let mut in_flight = IoBuf::default();
    memory.translate(LEN - 512, 1024, Access::Write, &mut in_flight).expect("mapped");

    // What stays may have another guest address.
    memory.replace(table(&[&three, &one]), &mut ears).expect("room");
    check(&memory, &ears, &[&one, &two, &three]);
    assert_eq!((memory.take_unmapped(&mut ears), memory.unmaps_pending()), (None, 1));
    one.write_at(7, &[9]).expect("inside");
    let mut read = [0];
    memory.read(LEN + 7, &mut read).expect("mapped");
    assert_eq!(read, [9]);

    // A command of before the first change keeps `one` too, although it stayed in between.
    memory.replace(GuestMemory::default(), &mut ears).expect("nothing is new");
    assert_eq!(memory.take_unmapped(&mut ears), Some((0, LEN)));
    assert_eq!((memory.take_unmapped(&mut ears), memory.is_empty()), (None, true));
    check(&memory, &ears, &[&one, &two]);
    in_flight.clear();
    let mut last = [memory.take_unmapped(&mut ears), memory.take_unmapped(&mut ears)];
    last.sort_unstable();
    assert_eq!(last, [Some((LEN, LEN)); 2]);
    check(&memory, &ears, &[]);
    assert!([one, two, three].iter().all(|mapping| Arc::strong_count(mapping) == 1));
}

#[test]
fn a_table_that_is_refused_changes_nothing() {
    let (mut memory, mut ears) = (GuestMemory::default(), Ears::default());
    let [one, two, three, four] = mappings();
    memory.replace(table(&[&one, &two]), &mut ears).expect("room");
    ears.room = Some(3);
    assert_eq!(memory.replace(table(&[&three, &two, &four]), &mut ears), Err(REFUSED));
    check(&memory, &ears, &[&one, &two]);
    assert_eq!((memory.len(), memory.unmaps_pending()), (2, 0));
    assert_eq!(memory.check(0, 2 * LEN, Access::Write), Ok(()));
    assert_eq!((Arc::strong_count(&three), Arc::strong_count(&four)), (1, 1));
}

#[test]
fn the_same_memory_twice_is_told_twice() {
    let (mut memory, mut ears) = (GuestMemory::default(), Ears::default());
    let [one] = mappings();
    for count in [2, 3, 1] {
        let mappings = vec![&one; count];
        memory.replace(table(&mappings), &mut ears).expect("room");
        while memory.take_unmapped(&mut ears).is_some() {}
        check(&memory, &ears, &mappings);
    }
}
