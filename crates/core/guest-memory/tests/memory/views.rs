//! Views of mapped ranges, and address spaces for several threads.

use std::ops::Range;
use std::sync::Arc;

use guest_memory::{Access, Budget, Fault, GuestMemory, IoBuf, MappedRange, Mapping, SpaceError};

fn range() -> MappedRange {
    let mapping = Mapping::anonymous(4096).expect("memory");
    MappedRange::new(&mapping, 16, 64).expect("inside")
}

#[test]
fn values_are_little_endian_and_in_place() {
    let range = range();
    range.store_u64(0, 0x0807_0605_0403_0201).expect("inside");
    range.store_u16(8, 0x0a09).expect("inside");
    range.store_u8(10, 0x0b).expect("inside");
    range.write_8(11, [0xc; 8]).expect("inside, and bytes need no alignment");
    let mut expected = [0xc; 16];
    expected[..11].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(range.read_16(0), Some(expected));
    assert_eq!((range.load_u64(0), range.load_u16(8)), (Some(0x0807_0605_0403_0201), Some(0x0a09)));
    assert_eq!(range.load_u8(18), Some(0xc));
    assert_eq!(range.read_16(3).map(|bytes| bytes[0]), Some(4));
}

#[test]
fn what_is_outside_or_not_aligned_is_not_touched() {
    let range = range();
    for offset in [1, 57, 63, 64, u64::MAX - 3, u64::MAX] {
        assert_eq!((range.load_u64(offset), range.store_u64(offset, 1)), (None, None), "{offset}");
    }
    for offset in [1, 63, 64, u64::MAX] {
        assert_eq!((range.load_u16(offset), range.store_u16(offset, 1)), (None, None), "{offset}");
    }
    assert_eq!((range.load_u8(64), range.store_u8(64, 1)), (None, None));
    assert_eq!((range.read_16(49), range.write_8(57, [1; 8])), (None, None));
    assert!((0..64).all(|offset| range.load_u8(offset) == Some(0)));
    assert!(range.read_16(48).is_some() && range.write_8(56, [0; 8]).is_some());
}

#[test]
fn a_read_only_mapping_is_not_written() {
    let (_, fd) = Mapping::memfd("views", 4096).expect("a memfd");
    let mapping = Mapping::shared(std::os::fd::AsFd::as_fd(&fd), 0, 4096, false).expect("mappable");
    let range = MappedRange::new(&mapping, 0, 64).expect("inside");
    assert_eq!((range.store_u8(0, 1), range.store_u16(0, 1), range.store_u64(0, 1)), (None, None, None));
    assert_eq!((range.write_8(0, [1; 8]), range.read_16(0)), (None, Some([0; 16])));
}

#[test]
fn a_check_is_what_an_access_would_be() {
    let mut memory = GuestMemory::default();
    for at in [0x1000, 0x2000] {
        memory.map(at, 0x1000, Some(Mapping::anonymous(0x1000).expect("memory")), &mut ()).expect("free");
    }
    memory.map(0x3000, 0x1000, None, &mut ()).expect("free");
    assert_eq!(memory.check(0x1800, 0x1800, Access::Write), Ok(()));
    assert_eq!(memory.check(0x1800, 0x1801, Access::Write), Err(Fault { iova: 0x3000 }));
    assert_eq!(memory.check(0xfff, 1, Access::Read), Err(Fault { iova: 0xfff }));
    assert_eq!(memory.check(u64::MAX, 2, Access::Read), Err(Fault { iova: u64::MAX }));
    assert_eq!(memory.check(0, 0, Access::Read), Ok(()));
}

/// A replica reaches the same memory, keeps it mapped, and does not count on the original's counter.
#[test]
fn a_replica_pins_by_itself() {
    let mapping = Mapping::anonymous(4096).expect("memory");
    let mut memory = GuestMemory::default();
    memory.map(0x1000, 4096, Some(Arc::clone(&mapping)), &mut ()).expect("free");
    let mut replica = memory.replica();
    let pins = Arc::strong_count(&mapping);
    memory.write(0x1000, b"shared").expect("mapped");
    let mut buf = IoBuf::default();
    replica.translate(0x1000, 6, Access::Read, &mut buf).expect("mapped");
    assert_eq!(Arc::strong_count(&mapping), pins, "the pin is the replica's own");
    drop((memory, mapping, replica));
    let mut out = [0; 6];
    assert_eq!(buf.copy_to(&mut out), out.len());
    assert_eq!(&out, b"shared");
}

/// A command's pin is the next one's, and keeps nothing of what is taken out but for commands in flight.
#[test]
fn a_pin_is_kept_until_its_memory_is_taken_out() {
    let [low, high] = [0, 1].map(|_| Mapping::anonymous(4096).expect("memory"));
    let mut memory = GuestMemory::default();
    for (at, mapping) in [(0x1000, &low), (0x2000, &high)] {
        memory.map(at, 4096, Some(Arc::clone(mapping)), &mut ()).expect("free");
    }
    let command = |memory: &mut GuestMemory, iova| {
        let mut buf = IoBuf::default();
        memory.translate(iova, 512, Access::Write, &mut buf).expect("mapped");
        buf
    };
    let (mut first, mut second) = (command(&mut memory, 0x1000), command(&mut memory, 0x1200));
    let pins = Arc::strong_count(&low);
    memory.release(&mut first);
    assert_eq!((Arc::strong_count(&low), first.len_bytes(), first.mappings().count()), (pins, 0, 0));
    first = command(&mut memory, 0x1400);
    assert_eq!(Arc::strong_count(&low), pins, "the pin that there was");
    let other = command(&mut memory, 0x2000);
    assert_eq!(other.mappings().next().expect("pinned").addresses(), high.addresses());

    memory.release(&mut second);
    drop(low);
    memory.unmap(0x1000, 4096).expect("mapped");
    assert_eq!(memory.take_unmapped(&mut ()), None, "a command is in flight");
    memory.release(&mut first);
    assert_eq!(memory.take_unmapped(&mut ()), Some((0x1000, 4096)));
    drop(other);
}

#[test]
fn short_accesses_are_those_of_any_length() {
    let mut memory = GuestMemory::default();
    for at in [0x1000, 0x2000] {
        memory.map(at, 0x1000, Some(Mapping::anonymous(0x1000).expect("memory")), &mut ()).expect("free");
    }
    let value: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
    for iova in [0x1000, 0x1ff1, 0x1ff8, 0x2ff0] {
        memory.write(iova, &value).expect("mapped");
        assert_eq!(memory.read_16(iova), Ok(value), "{iova:#x}");
    }
    assert_eq!(memory.read_16(0x2ff1), Err(Fault { iova: 0x3000 }));
    assert_eq!(memory.write_u8(0x2fff, 77), Ok(()));
    assert_eq!(memory.read_16(0x2ff0).map(|read| read[15]), Ok(77));
    assert_eq!(memory.write_u8(0x3000, 77), Err(Fault { iova: 0x3000 }));
}

/// What the kernel does with the pages of a mapping (VmFlags of proc_pid_smaps(5)): said of the area that holds it,
/// which may be larger, since the kernel joins neighbours of one kind.
fn flags_of(mapping: &Mapping) -> String {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
    let Range { start, end } = mapping.addresses();
    let holds_it = |line: &&str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let at = |digits| usize::from_str_radix(digits, 16).ok();
        Some(at(from)? <= start && end <= at(to)?)
    };
    let mut area = smaps.lines().skip_while(|line| holds_it(line) != Some(true));
    area.find(|line| line.starts_with("VmFlags:")).expect("the mapping").to_owned()
}

#[test]
fn no_tenants_data_goes_into_a_core_dump() {
    let (shared, _fd) = Mapping::memfd("guest", 4096).unwrap();
    let alias = Mapping::alias(&shared);
    // The kernel puts one beside the other and joins them.
    let [one, beside] = [(); 2].map(|()| Mapping::anonymous(3 << 20).unwrap());
    for mapping in [shared, alias, one, beside] {
        assert!(flags_of(&mapping).split_whitespace().any(|flag| flag == "dd"), "{}", flags_of(&mapping));
    }
}

/// A memfd with the number of each page in it.
fn numbered(pages: u64) -> std::os::fd::OwnedFd {
    let (pages_of, fd) = Mapping::memfd("numbered", pages as usize * 4096).expect("a memfd");
    for page in 0..pages {
        pages_of.write_at(page * 4096, &[page as u8; 4096]).expect("inside");
    }
    fd
}

/// Only here: a queue in pages that an IOMMU puts together, or one that keeps memory that was taken out.
#[test]
fn a_view_over_several_ranges_is_their_memory_in_order() {
    let fd = numbered(8);
    let mut memory = GuestMemory::default();
    for (at, page) in [(0x1000, 5), (0x2000, 2), (0x3000, 7)] {
        let mapping = Mapping::shared(std::os::fd::AsFd::as_fd(&fd), page * 4096, 4096, true).expect("mappable");
        memory.map(at, 4096, Some(mapping), &mut ()).expect("free");
    }
    memory.map(0x4000, 0x1000, None, &mut ()).expect("free");
    let view = memory.view(0x1000, 0x2400, Access::Write).expect("mapped");
    assert_eq!([0, 4096, 8192, 0x23ff].map(|at| view.load_u8(at)), [5, 2, 7, 7].map(Some));
    view.store_u8(4096, 99).expect("inside");
    let mut byte = [0];
    memory.read(0x2000, &mut byte).expect("mapped");
    assert_eq!((byte, view.load_u8(0x2400)), ([99], None));
    for (at, len_bytes, fault) in [(0x3000, 0x1001, 0x4000), (0x0, 16, 0x0)] {
        assert_eq!(memory.view(at, len_bytes, Access::Read).err(), Some(Fault { iova: fault }));
    }
    // A view that does not start at a page has no place to be mapped at.
    assert!(memory.view(0x1800, 0x1000, Access::Read).is_err());

    memory.unmap(0x1000, 0x3000).expect("whole ranges");
    assert_eq!((memory.take_unmapped(&mut ()), memory.is_in_use(0x2000, 1)), (None, true));
    drop(view);
    let quiet = std::iter::from_fn(|| memory.take_unmapped(&mut ())).count();
    assert_eq!((quiet, memory.is_in_use(0x1000, 0x3000), memory.len()), (3, false, 1));
}

/// Only here: queues in many pieces that take more of the process's mappings than their tenant may have.
#[test]
fn a_view_over_several_ranges_is_within_the_budget() {
    let (fd, budget) = (numbered(4), Budget::new(1 << 20, 6));
    let mut memory = GuestMemory::default();
    for page in 0..4 {
        let mapping = Mapping::within(&budget, std::os::fd::AsFd::as_fd(&fd), page * 4096, 4096, true);
        memory.map(page * 4096, 4096, Some(Mapping::alias(&mapping.expect("mappable"))), &mut ()).expect("free");
    }
    let first = memory.view(0, 0x2000, Access::Write).expect("two more");
    assert!(memory.view(0x1000, 0x2000, Access::Write).is_err());
    drop(first);
    assert!(memory.view(0x1000, 0x2000, Access::Write).is_ok());
}

/// Only here: an unmap of an IOMMU, which covers several ranges, none, or a part of one.
#[test]
fn an_unmap_takes_all_ranges_that_lie_in_it() {
    let mut memory = GuestMemory::default();
    for at in [0x1000, 0x2000, 0x8000] {
        memory.map(at, 0x1000, None, &mut ()).expect("free");
    }
    for (at, len_bytes) in [(0x1800, 0x4000), (0, 0x1001), (0x8000, 0x800)] {
        assert_eq!(memory.unmap(at, len_bytes), Err(SpaceError::Part), "{at:#x}");
    }
    assert_eq!(memory.len(), 3);
    assert_eq!((memory.unmap(0x4000, 0x4000), memory.len()), (Ok(()), 3));
    assert_eq!((memory.unmap(0, 0x8000), memory.len()), (Ok(()), 1));
    assert_eq!((memory.unmap(0, u64::MAX), memory.len()), (Ok(()), 0));
    memory.map(0x2000, 0x1000, None, &mut ()).expect("free again");
}
