use std::fs::File;

use io_uring::types::{Fd, Fixed};
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::kernel_ring::Entry;

/// How the kernel answers an entry on a ring that runs.
fn outcome(ring: &mut Ring, entry: &squeue::Entry) -> Result<i32, Errno> {
    // SAFETY: no entry of these tests points to memory that dies before it completes.
    assert!(unsafe { ring.uring.push(&Entry::Short(entry.clone())) });
    ring.uring.submitter().submit_and_wait(1).unwrap();
    let (_, result) = ring.uring.next().unwrap();
    if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(result) }
}

fn running_ring() -> (Ring, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    std::fs::write(&path, [7; 4096]).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut ring = Ring::new(&Arc::new(Opened::pretended_over(file)), 4).unwrap();
    assert_eq!(ring.enter_queued().unwrap(), 0);
    (ring, dir)
}

#[test]
fn a_ring_does_io_on_its_drive_and_nothing_else() {
    let (mut ring, _dir) = running_ring();
    let mut data = [0_u8; 8];
    let drive = Fixed(0);
    let read = opcode::Read::new(drive, data.as_mut_ptr(), 8).build();
    assert_eq!(outcome(&mut ring, &read), Ok(8));
    assert_eq!(data, [7; 8]);

    let root = c"/etc/passwd".as_ptr();
    let forbidden = [
        ("another file", opcode::Read::new(Fd(0), data.as_mut_ptr(), 8).build()),
        ("opening", opcode::OpenAt::new(Fd(libc::AT_FDCWD), root).build()),
        ("a socket", opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build().flags(squeue::Flags::FIXED_FILE)),
        ("closing", opcode::Close::new(drive).build().flags(squeue::Flags::FIXED_FILE)),
        ("nothing", opcode::Nop::new().build().flags(squeue::Flags::FIXED_FILE)),
        ("a link of entries", read.clone().flags(squeue::Flags::FIXED_FILE | squeue::Flags::IO_LINK)),
    ];
    for (what, entry) in forbidden {
        assert_eq!(outcome(&mut ring, &entry), Err(Errno::ACCESS), "{what}");
    }
}

#[test]
fn a_ring_that_runs_takes_no_other_file() {
    let (ring, _dir) = running_ring();
    let other = File::open("/dev/null").unwrap();
    let submitter = ring.uring.submitter();
    for refused in [
        submitter.register_files_update(0, &[other.as_raw_fd()]).map(|_| ()),
        submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::OpenAt::CODE)]),
        submitter.register_personality().map(|_| ()),
    ] {
        assert!(refused.is_err(), "{refused:?}");
    }
    ring.signal(&eventfd(0, EventfdFlags::CLOEXEC).unwrap()).expect("whoever sleeps later is woken all the same");
}
