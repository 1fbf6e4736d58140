use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use guest_memory::Mapping;
use io_model::{Op, Place, TenantId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// Whether `fd` becomes readable at once, or in the time that a lost wake-up would hang the test.
fn readable(fd: BorrowedFd<'_>, wait: bool) -> bool {
    let timeout = Timespec { tv_sec: if wait { 60 } else { 0 }, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)) == Ok(1)
}

/// A pipe as the drive: what is read from it completes when the test writes.
#[test]
fn a_completion_that_comes_late_wakes_whoever_waits() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut writer = File::from(writer);
    let drive = Arc::new(Opened::pretended_over(File::from(reader)));
    let mut uring = Uring::new(&drive, 3, 4).unwrap();
    let wake = uring.wake_fd().expect("an eventfd").try_clone_to_owned().unwrap();
    let memory = Mapping::anonymous(4096).unwrap();
    let command = Place::whole_drive(TenantId(0)).command(Op::Read, 0, 4096);
    for (tag, hwq) in (0..6).zip([0, 1, 2, 2, 1, 0].map(HwqId)) {
        uring.submit(hwq, Io { tag, command, buf: IoBuf::owned(&memory) }, Nanos(0));
        uring.kick();
        uring.reap(Nanos(0), &mut |_, done| panic!("{done:?} before there was anything to read"));
        assert!(!readable(wake.as_fd(), false), "woken for nothing");
        writer.write_all(&[7; 4096]).unwrap();
        assert!(readable(wake.as_fd(), true), "not woken");
        let mut ended = Vec::new();
        while ended.is_empty() {
            uring.reap(Nanos(0), &mut |hwq, done| ended.push((hwq, done.tag, done.outcome)));
        }
        assert_eq!(ended, [(hwq, tag, Ok(()))]);
        rustix::io::read(&wake, &mut [0; 8]).unwrap();
    }
}
