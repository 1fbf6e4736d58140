//! A peer that takes memory away under our hands.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use guest_memory::{Budget, GuestMemory, IoBuf, MapError, MappedRange, MappedU32, Mapping, install};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

const HUGE_BYTES: u64 = 2 << 20;

/// A file of `len_bytes` that, unlike those of [`Mapping::memfd`], can shrink.
fn file(len_bytes: u64, flags: MemfdFlags) -> OwnedFd {
    let fd = memfd_create("peer", MemfdFlags::CLOEXEC | flags).unwrap();
    ftruncate(&fd, len_bytes).unwrap();
    fd
}

/// `None`: lost.
fn read_u8(mapping: &Mapping, offset: u64) -> Option<u8> {
    let mut byte = [0xff];
    mapping.read_at(offset, &mut byte).map(|()| byte[0])
}

#[test]
fn what_a_file_does_not_reach_any_more_fails_and_the_rest_is_what_it_was() {
    install().unwrap();
    let (fd, other_fd) = (file(1 << 20, MemfdFlags::empty()), file(4096, MemfdFlags::empty()));
    let mapping = Mapping::shared(fd.as_fd(), 0x1000, 0x8000, true).unwrap();
    let other = Mapping::shared(other_fd.as_fd(), 0, 4096, true).unwrap();
    let mut memory = GuestMemory::default();
    memory.map(0, 0x8000, Some(Mapping::alias(&mapping)), &mut ()).unwrap();
    mapping.write_at(0x0fff, &[6, 7]).unwrap();
    other.write_at(0, &[8]).unwrap();
    assert!(!memory.is_lost());

    // One page of the mapping is left.
    ftruncate(&fd, 0x2000).unwrap();
    assert_eq!(read_u8(&mapping, 0x1000), None);
    assert!(mapping.is_lost() && memory.is_lost());
    assert_eq!(mapping.write_at(0x7fff, &[1]), None);
    // Half of it is there: that it failed is what counts.
    assert_eq!(mapping.read_at(0xfff, &mut [0; 2]), None);
    assert_eq!(read_u8(&mapping, 0xfff), Some(6));
    assert_eq!(read_u8(&other, 0), Some(8));
    assert!(!other.is_lost());

    memory.unmap_all();
    drop(mapping);
    assert_eq!(memory.take_unmapped(&mut ()), Some((0, 0x8000)));
    assert!(!memory.is_lost(), "its next memory is another");
}

#[test]
fn every_access_says_that_memory_is_lost() {
    install().unwrap();
    let fd = file(4096, MemfdFlags::empty());
    let mapped = || Mapping::shared(fd.as_fd(), 0, 4096, true).unwrap();
    let accesses: [fn(&MappedRange) -> bool; 10] = [
        |view| view.read_64(0, &mut [0; 64]).is_none(),
        |view| view.read_16(0).is_none(),
        |view| view.consume_16(0).is_none(),
        |view| view.publish_16(0, 1, 2).is_none(),
        |view| view.load_u8(0).is_none(),
        |view| view.load_u16(0).is_none(),
        |view| view.load_u64(0).is_none(),
        |view| view.store_u8(0, 1).is_none(),
        |view| view.store_u16(0, 1).is_none(),
        |view| view.store_u64(0, 1).is_none(),
    ];
    for (number, access) in accesses.iter().enumerate() {
        ftruncate(&fd, 4096).unwrap();
        let mapping = mapped();
        let view = MappedRange::new(&mapping, 0, 4096).unwrap();
        assert!(!access(&view), "{number}");
        ftruncate(&fd, 0).unwrap();
        assert!(access(&view) && mapping.is_lost(), "{number}");
    }
    ftruncate(&fd, 4096).unwrap();
    let (mapping, ours) = (mapped(), Mapping::anonymous(4096).unwrap());
    let (cell, mut buf) = (MappedU32::new(&mapping, 4).unwrap(), IoBuf::default());
    assert!(buf.push(&mapping, 0, 4096));
    cell.store(5);
    assert_eq!((cell.load(), buf.copy_to(&mut [0; 4096])), (5, 4096));
    ftruncate(&fd, 0).unwrap();
    assert_eq!((buf.copy_to(&mut [0; 4096]), buf.copy_from(&[1; 4096])), (0, 0));
    assert!(!buf.copy_mapping(&ours, 0, true) && !buf.copy_mapping(&ours, 0, false));
    assert_eq!(cell.load(), 0);
    assert!(mapping.is_lost() && !ours.is_lost());
}

#[test]
fn many_threads_meet_the_same_lie() {
    install().unwrap();
    let fd = file(1 << 20, MemfdFlags::empty());
    let mapping = Mapping::shared(fd.as_fd(), 0, 1 << 20, true).unwrap();
    ftruncate(&fd, 0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let mapping = &mapping;
            scope.spawn(move || (0..256).for_each(|page| assert_eq!(read_u8(mapping, page * 4096 + thread), None)));
        }
    });
    assert!(mapping.is_lost());
}

#[test]
fn huge_pages_are_mapped_in_part() {
    install().unwrap();
    let fd = file(2 * HUGE_BYTES, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
    let budget = Budget::new(4 * HUGE_BYTES, 8);
    // As a VMM maps the memory around its VGA hole: 4 KiB aligned pieces of huge pages.
    let mapping = match Mapping::within(&budget, fd.as_fd(), 0xc_0000, HUGE_BYTES, true) {
        Ok(mapping) => mapping,
        Err(MapError::Os(rustix::io::Errno::NOMEM)) => return println!("skipped: this machine has no huge pages"),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(mapping.len_bytes(), HUGE_BYTES);
    let third = Mapping::within(&budget, fd.as_fd(), 0, 2 * HUGE_BYTES, true);
    // What counts is the address space that it takes: whole huge pages.
    let whole = third.unwrap();
    assert!(matches!(Mapping::within(&budget, fd.as_fd(), 0, 4096, true), Err(MapError::OverBudget(_))));
    // A file may be larger than the pool of huge pages; touching it then is the same SIGBUS.
    if whole.write_at(0xc_0000, &[5]).is_none() {
        return println!("skipped: no huge page is free");
    }
    assert_eq!(read_u8(&mapping, 0), Some(5));
    assert!(mapping.read_at(HUGE_BYTES, &mut [0]).is_none());
    ftruncate(&fd, 0).unwrap();
    assert_eq!(read_u8(&mapping, HUGE_BYTES - 1), None);
    assert!(mapping.is_lost());
}

#[test]
fn only_memory_is_mapped() {
    let mapped = |path: &str| {
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        Mapping::shared(file.as_fd(), 0, 4096, true).map(|_| ())
    };
    // Both lie on devtmpfs, which says that it is tmpfs.
    for device in ["/dev/zero", "/dev/null"] {
        assert!(matches!(mapped(device), Err(MapError::NotMemory)), "{device}");
    }
    let other = std::fs::File::open("/proc/version").unwrap();
    let refused = Mapping::shared(other.as_fd(), 0, 4096, false).map(|_| ());
    assert!(matches!(refused, Err(MapError::NotMemory)), "{refused:?}");
}

#[test]
fn sealed_memory_can_not_be_taken_away() {
    let (mapping, fd) = Mapping::memfd("doorbells", 4096).unwrap();
    assert!(ftruncate(&fd, 0).is_err());
    assert!(ftruncate(&fd, 8192).is_err());
    assert_eq!(mapping.len_bytes(), 4096);
}

#[test]
fn other_bus_errors_still_end_the_process() {
    const CHILD: &str = "GUEST_MEMORY_SIGBUS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        install().unwrap();
        let fd = file(4096, MemfdFlags::empty());
        let prot = ProtFlags::READ;
        // SAFETY: a new mapping; nothing refers into it.
        let page = unsafe { mmap(std::ptr::null_mut(), 4096, prot, MapFlags::SHARED, &fd, 0) }.unwrap();
        ftruncate(&fd, 0).unwrap();
        // SAFETY: mapped above. The read raises SIGBUS, which is what the test is about.
        let byte = unsafe { page.cast::<u8>().read_volatile() };
        unreachable!("read {byte}");
    }
    let name = "other_bus_errors_still_end_the_process";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let status = child.args(["--exact", name]).env(CHILD, "1").output().unwrap().status;
    assert_eq!(status.signal(), Some(7), "{status}");
}
