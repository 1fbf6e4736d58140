use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use guest_memory::{IoBuf, Mapping};
use io_model::{Command, Op, Outcome, Place, TenantId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::{UringDrive, WINDOW_BYTES};

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

/// Sends a command, and waits for its end.
fn outcome_of(uring: &mut Uring, command: Command, buf: IoBuf) -> Outcome {
    uring.submit(HwqId(0), Io { tag: 1, command, buf }, Nanos(0));
    uring.kick();
    let mut ended = None;
    while ended.is_none() {
        uring.reap(Nanos(0), &mut |_, done| ended = Some(done.outcome));
    }
    ended.unwrap()
}

/// A pipe as the drive of one poller: it can't be made durable. The other's is a file, with the same memory of failures
/// as if both were one.
#[test]
fn a_flush_that_fails_reaches_every_tenant_that_wrote() {
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let failing = Arc::new(Opened::pretended_over(File::from(reader)));
    let mut file = Opened::pretended_over(tempfile::tempfile().unwrap());
    file.files.share_flushes(&failing.files);
    let file = Arc::new(file);
    let mut pollers = [&failing, &file].map(|drive| Uring::new(drive, 1, 4).unwrap());
    let memory = Mapping::anonymous(4096).unwrap();
    let mut run = |poller: usize, tenant, op| {
        let place = Place::whole_drive(TenantId(tenant));
        let (command, buf) = match op {
            Op::Flush => (place.flush(), IoBuf::default()),
            _ => (place.command(op, 0, 4096), IoBuf::owned(&memory)),
        };
        outcome_of(&mut pollers[poller], command, buf)
    };
    let (fails, file) = (0, 1);
    for tenant in [1, 2] {
        assert_eq!(run(file, tenant, Op::Write), Ok(()));
    }
    assert_eq!(run(file, 2, Op::Flush), Ok(()));
    assert_eq!(run(fails, 9, Op::Flush), Err(DeviceError::Unsupported));
    assert_eq!(run(file, 1, Op::Flush), Err(DeviceError::Medium), "the kernel says that all is well");
    assert_eq!(run(file, 1, Op::Flush), Ok(()), "once");
    assert_eq!(run(file, 2, Op::Flush), Ok(()), "what it wrote was durable before");
    assert_eq!(run(file, 3, Op::Write), Ok(()));
    assert_eq!(run(file, 3, Op::Flush), Ok(()), "it came later");
}

/// A command for one image would reach another one, or the wrong place in it.
#[test]
fn each_file_has_the_commands_of_its_window() {
    let files = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    files.iter().for_each(|file| file.as_file().set_len(1 << 20).unwrap());
    let [first, third] = &files;
    let open = |file: &tempfile::NamedTempFile| (file.reopen().unwrap(), file.path().to_owned());
    let (first, third) = (open(first), open(third));
    let drive = UringDrive::in_windows(first, vec![None, Some(third)]).unwrap();
    let mut uring = drive.open_queues(1, 4).unwrap();
    let memory = Mapping::anonymous(4096).unwrap();
    memory.write_at(0, &[7; 4096]).unwrap();
    let mut run = |op, window: u64| {
        let place = Place::whole_drive(TenantId(1));
        let (mut command, buf) = match op {
            Op::Flush => (place.flush(), IoBuf::default()),
            _ => (place.command(op, 8192, 4096), IoBuf::owned(&memory)),
        };
        command.offset_bytes += window * WINDOW_BYTES;
        outcome_of(&mut uring, command, buf)
    };
    assert_eq!(run(Op::Write, 2), Ok(()));
    assert_eq!(run(Op::Flush, 2), Ok(()));
    assert_eq!([1, 3].map(|window| run(Op::Write, window)), [Err(DeviceError::OutOfRange); 2]);
    let written = files.map(|file| std::fs::read(file.path()).unwrap().iter().filter(|byte| **byte == 7).count());
    assert_eq!(written, [0, 4096]);
}

/// Reads from an empty pipe hold their bounce buffers for as long as the test likes.
#[test]
fn a_tenant_that_waits_for_bounce_buffers_holds_up_no_other() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut writer = File::from(writer);
    let drive = Arc::new(Opened::pretended_over(File::from(reader)));
    let mut uring = Uring::new(&drive, 2, 256).unwrap();
    let memory = Mapping::anonymous(8192).unwrap();
    let submit = |uring: &mut Uring, hwq, tag, tenant| {
        let command = Place::whole_drive(TenantId(tenant)).command(Op::Read, 0, 512);
        let mut buf = IoBuf::default();
        // Not aligned.
        assert!(buf.push(&memory, 1, 512));
        uring.submit(HwqId(hwq), Io { tag, command, buf }, Nanos(0));
        uring.kick();
    };
    (0..100).for_each(|tag| submit(&mut uring, 0, tag, 1));
    submit(&mut uring, 1, 200, 2);
    assert_eq!([1, 2].map(|tenant| uring.bounces.held(TenantId(tenant))), [32, 1]);
    // Everything ends all the same.
    let mut ended = Vec::new();
    while ended.len() < 101 {
        if readable(uring.wake_fd().expect("an eventfd"), false) || ended.is_empty() {
            writer.write_all(&[7; 512]).unwrap();
        }
        uring.reap(Nanos(0), &mut |_, done| ended.push((done.tag, done.outcome)));
        uring.kick();
    }
    assert!(ended.iter().all(|(_, outcome)| *outcome == Ok(())));
    assert_eq!(uring.bounces.held(TenantId(1)), 0);
}
