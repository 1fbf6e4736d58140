//! A peer that takes memory away under our hands.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use guest_memory::{GuestMemory, MapError, Mapping, sigbus};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

const HUGE_BYTES: u64 = 2 << 20;

/// A file of `len_bytes` that, unlike those of [`Mapping::memfd`], can shrink.
fn file(len_bytes: u64, flags: MemfdFlags) -> OwnedFd {
    let fd = memfd_create("peer", MemfdFlags::CLOEXEC | flags).unwrap();
    ftruncate(&fd, len_bytes).unwrap();
    fd
}

fn read_u8(mapping: &Mapping, offset: u64) -> u8 {
    let mut byte = [0xff];
    mapping.read_at(offset, &mut byte).unwrap();
    byte[0]
}

#[test]
fn a_shrunk_file_reads_as_zeros_and_poisons_its_mapping() {
    sigbus::install().unwrap();
    let (fd, other_fd) = (file(1 << 20, MemfdFlags::empty()), file(4096, MemfdFlags::empty()));
    let mapping = Mapping::shared(fd.as_fd(), 0x1000, 0x8000, true).unwrap();
    let other = Mapping::shared(other_fd.as_fd(), 0, 4096, true).unwrap();
    let mut memory = GuestMemory::default();
    memory.map(0, 0x8000, Some(mapping.clone()), &mut ()).unwrap();
    mapping.write_at(0x3000, &[7]).unwrap();
    other.write_at(0, &[8]).unwrap();
    assert!(!memory.any_poisoned());

    ftruncate(&fd, 0).unwrap();
    assert_eq!(read_u8(&mapping, 0x3000), 0);
    assert!(mapping.is_poisoned() && memory.any_poisoned());
    // Every page, and writes, with no further signal; and nobody else's memory.
    mapping.write_at(0, &[1; 0x8000]).unwrap();
    assert_eq!(read_u8(&mapping, 0x7fff), 1);
    assert_eq!(read_u8(&other, 0), 8);
    assert!(!other.is_poisoned());

    // A new mapping in the same slot starts clean.
    memory.unmap_all();
    drop(mapping);
    assert_eq!(memory.take_unmapped(&mut ()), Some((0, 0x8000)));
    let again = Mapping::shared(other_fd.as_fd(), 0, 4096, false).unwrap();
    assert!(!again.is_poisoned() && !memory.any_poisoned());
    assert_eq!(read_u8(&again, 0), 8);
}

#[test]
fn many_threads_meet_the_same_lie() {
    sigbus::install().unwrap();
    let fd = file(1 << 20, MemfdFlags::empty());
    let mapping = Mapping::shared(fd.as_fd(), 0, 1 << 20, true).unwrap();
    ftruncate(&fd, 0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let mapping = &mapping;
            scope.spawn(move || (0..256).for_each(|page| assert_eq!(read_u8(mapping, page * 4096 + thread), 0)));
        }
    });
    assert!(mapping.is_poisoned());
}

#[test]
fn huge_pages_are_mapped_in_part_and_guarded_whole() {
    sigbus::install().unwrap();
    let fd = file(2 * HUGE_BYTES, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
    // As a VMM maps the memory around its VGA hole: 4 KiB aligned pieces of huge pages.
    let mapping = match Mapping::shared(fd.as_fd(), 0xc_0000, HUGE_BYTES, true) {
        Ok(mapping) => mapping,
        Err(MapError::Os(rustix::io::Errno::NOMEM)) => return println!("skipped: this machine has no huge pages"),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(mapping.len_bytes(), HUGE_BYTES);
    let whole = Mapping::shared(fd.as_fd(), 0, 2 * HUGE_BYTES, true).unwrap();
    // A file may be larger than the pool of huge pages; touching it then is the same SIGBUS.
    whole.write_at(0xc_0000, &[5]).unwrap();
    if whole.is_poisoned() {
        return println!("skipped: no huge page is free");
    }
    assert_eq!(read_u8(&mapping, 0), 5);
    assert!(mapping.read_at(HUGE_BYTES, &mut [0]).is_none());
    ftruncate(&fd, 0).unwrap();
    assert_eq!(read_u8(&mapping, HUGE_BYTES - 1), 0);
    assert!(mapping.is_poisoned());
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
        sigbus::install().unwrap();
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
