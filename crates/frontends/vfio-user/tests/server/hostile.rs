//! Hostile clients at a running server: their own connection ends, the others go on.

#![allow(clippy::disallowed_methods, reason = "clients have threads")]

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use guest_memory::Mapping;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vfio_user::Errno;
use vfio_user_client::Client;

use crate::common::message::*;
use crate::common::{self, Running, Seen};

/// A client of our own that sends what it likes.
struct Raw(UnixStream);

impl Raw {
    fn connect(socket: &Path) -> Self {
        Self(UnixStream::connect(socket).unwrap())
    }

    fn ready(socket: &Path) -> Self {
        let mut raw = Self::connect(socket);
        assert_eq!(raw.ask(&version("{}"), &[]), Ok(()));
        raw
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    /// Sends a message and reads its reply; `Err` is the reply's error.
    fn ask(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.send(bytes, fds);
        let mut header = [0; 16];
        self.0.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; word(4) as usize - 16];
        self.0.read_exact(&mut payload).unwrap();
        if word(8) & 0x20 == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(word(12) as i32)) }
    }
}

fn memory(len: usize) -> OwnedFd {
    Mapping::memfd("guest", len).unwrap().1
}

#[test]
fn attacks_end_their_own_connection_only() {
    let server = Running::start();
    let (bad, bad_socket, _) = server.add("bad");
    let (_, good_socket, _) = server.add("good");
    let mut good = Client::new(&good_socket).unwrap();
    let mut check = |value: u8| {
        let mut read = [0];
        good.region_write(7, 0, &[value]).unwrap();
        good.region_read(7, 0, &mut read).unwrap();
        assert_eq!(read, [value]);
    };

    let raw = Raw::connect(&bad_socket);
    raw.send(b"GET / HTTP/1.1\r\nHost: nvme\r\n\r\n", &[]);
    assert!(server.disconnection(bad).contains("a message of"));
    check(1);

    let raw = Raw::ready(&bad_socket);
    raw.send(&header(1, REGION_WRITE, u32::MAX, 0), &[]);
    assert!(server.disconnection(bad).contains("a message of 4294967295 bytes"));
    check(2);

    let raw = Raw::ready(&bad_socket);
    let fd = memory(4096);
    raw.send(&message(1, GET_INFO, 0, &words(&[16, 0, 0, 0])), &[fd.as_fd(); 100]);
    assert!(server.disconnection(bad).contains("file descriptors"));
    check(3);

    let mut raw = Raw::ready(&bad_socket);
    assert_eq!(raw.ask(&dma_map(1, 3, 0, 0, 4096), &[fd.as_fd()]), Ok(()));
    assert_eq!(raw.ask(&dma_map(2, 3, 0, 0, 4096), &[fd.as_fd()]), Err(Errno::EXIST));
    assert_eq!(server.disconnection(bad), "a DMA map over another");
    check(4);

    let raw = Raw::ready(&bad_socket);
    raw.send(&region_write(1, 0, 7, 0, &[1; 64])[..40], &[fd.as_fd(); 3]);
    drop(raw);
    assert_eq!(server.disconnection(bad), "the client went away");
    check(5);

    let raw = Raw::connect(&bad_socket);
    raw.send(&version("{\"capabilities\":"), &[]);
    assert!(server.disconnection(bad).contains("no version"));
    check(6);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let server = Running::start();
    let (bad, socket, _) = server.add("bad");
    let raw = Raw::ready(&socket);
    let mut stream = raw.0.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        let read = region_read(1, 0, 0, 0x4000);
        while stream.write_all(&read).is_ok() {}
    });
    assert_eq!(server.disconnection(bad), "it does not read its replies");
    flood.join().unwrap();
}

#[test]
fn a_client_that_reads_may_send_ahead() {
    let server = Running::start();
    let (_, socket, _) = server.add("vm");
    let raw = Raw::ready(&socket);
    let mut stream = raw.0.try_clone().unwrap();
    const READS: usize = 1000;
    let ahead = std::thread::spawn(move || {
        let reads = region_read(1, 0, 0, 0x4000).repeat(READS);
        stream.write_all(&reads).unwrap();
    });
    let mut replies = vec![0; READS * (32 + 0x4000)];
    (&raw.0).read_exact(&mut replies).unwrap();
    ahead.join().unwrap();
}

#[test]
fn a_client_that_says_nothing_is_disconnected_before_the_version_is_agreed_on() {
    let server = Running::start();
    let (bad, bad_socket, _) = server.add("bad");
    let (good, good_socket, _) = server.add("good");
    let idle = Raw::ready(&good_socket);
    let silent = Raw::connect(&bad_socket);
    let told = server.seen.iter().find_map(|seen| match seen {
        Seen::Disconnected(device, reason) => Some((device, reason)),
        _ => None,
    });
    // A client that has nothing to say may be silent for as long as it likes.
    assert_eq!(told, Some((bad.into(), "it left a message unfinished for too long".into())));
    drop((idle, silent));
    assert_eq!(server.disconnection(good), "the client went away");
}

#[test]
fn a_client_that_stops_in_the_middle_is_disconnected() {
    let server = Running::start();
    let (bad, socket, _) = server.add("bad");
    let raw = Raw::ready(&socket);
    raw.send(&region_write(1, 0, 7, 0, &[1; 64])[..40], &[]);
    assert_eq!(server.disconnection(bad), "it left a message unfinished for too long");
}

#[test]
fn only_memory_can_be_mapped() {
    let server = Running::start();
    let (_, socket, _) = server.add("vm");
    let mut raw = Raw::ready(&socket);
    let ram = memory(0x10000);
    let map = |offset, iova, len| dma_map(1, 3, offset, iova, len);
    let mut ask = |bytes: &[u8], fd: BorrowedFd<'_>| raw.ask(bytes, &[fd]);
    for (offset, iova, len) in [
        (0, 0, 0),
        (0, 1, 4096),
        (0, 0, 4095),
        (512, 0, 4096),
        (0, u64::MAX - 4095, 4096),
        (0, 0x1000, u64::MAX - 4095),
        (u64::MAX - 4095, 0, 4096),
        (0x10000, 0, 4096),
        (0xf000, 0, 0x2000),
    ] {
        assert_eq!(ask(&map(offset, iova, len), ram.as_fd()), Err(Errno::INVAL), "{offset:#x} {iova:#x} {len:#x}");
    }
    assert_eq!(ask(&dma_map(1, 3 | 1 << 3, 0, 0, 4096), ram.as_fd()), Err(Errno::INVAL));

    let (pipe, _writer) = std::io::pipe().unwrap();
    let program = std::fs::File::open("/proc/self/cmdline").unwrap();
    let read_only = std::fs::File::open(format!("/proc/self/fd/{}", ram.as_raw_fd())).unwrap();
    // Files that can't be mapped: holes.
    for file in [pipe.as_fd(), program.as_fd(), read_only.as_fd()] {
        assert_eq!(ask(&map(0, 0, 4096), file), Ok(()));
        server.logged("which can't be mapped");
        assert_eq!(ask(&dma_unmap(1, 0, 0, 4096), file), Ok(()));
    }

    assert_eq!(ask(&dma_map(1, 1, 0, 0, 4096), read_only.as_fd()), Ok(()));
    assert_eq!(ask(&map(0x8000, 0x1000, 0x8000), ram.as_fd()), Ok(()));
    // Without a descriptor: known, but nothing to reach.
    assert_eq!(raw.ask(&map(0, 0xa_0000, 0x2_0000), &[]), Ok(()));
    assert_eq!(raw.ask(&dma_map(1, 3 | 1 << 2, 0, 0x10_0000, 4096), &[]), Err(Errno::INVAL));
    assert_eq!(raw.ask(&dma_unmap(1, 0, 0xa_0000, 0x2_0000), &[]), Ok(()));
    assert_eq!(raw.ask(&dma_unmap(1, 0, 0xa_0000, 0x2_0000), &[]), Ok(()));
    assert_eq!(raw.ask(&dma_unmap(1, 2, 0, 0), &[]), Ok(()));
    assert_eq!(raw.ask(&dma_unmap(1, 0, 0, 4096), &[]), Ok(()));
}

#[test]
fn only_eventfds_can_be_signalled_and_they_never_block() {
    let server = Running::start();
    let (_, socket, _) = server.add("vm");
    let mut raw = Raw::ready(&socket);
    let assign = set_irqs(1, 1 << 2 | 1 << 5, 2, 0, 1, &[]);
    let (_reader, pipe) = std::io::pipe().unwrap();
    assert_eq!(raw.ask(&assign, &[pipe.as_fd()]), Err(Errno::INVAL));
    assert_eq!(raw.ask(&assign, &[memory(4096).as_fd()]), Err(Errno::INVAL));
    let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(raw.ask(&assign, &[counter.as_fd()]), Ok(()));
    let flags = rustix::fs::fcntl_getfl(&counter).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
}

#[test]
fn descriptors_reach_the_message_that_they_came_with() {
    let server = Running::start();
    let (_, socket, _) = server.add("vm");
    let raw = Raw::ready(&socket);
    let ram = memory(0x10000);
    // Sent without waiting, so that the server finds them together: a hole, memory, a hole.
    for (id, fds) in [(1, &[][..]), (2, &[ram.as_fd()]), (3, &[])] {
        raw.send(&dma_map(id, 3, 0, u64::from(id) << 20, 0x2000), fds);
    }
    let mut stream = &raw.0;
    stream.read_exact(&mut [0; 48]).unwrap();
    let mut raw = raw;
    let copy = |iova: u64| region_write(9, 0, 0, common::COPY_REGISTER, &iova.to_ne_bytes());
    assert_eq!(raw.ask(&copy(1 << 20), &[]), Err(Errno::FAULT));
    assert_eq!(raw.ask(&copy(2 << 20), &[]), Ok(()));
    assert_eq!(raw.ask(&copy(3 << 20), &[]), Err(Errno::FAULT));
}

#[test]
fn random_bytes_at_a_socket_end_in_a_disconnection() {
    let server = Running::start();
    let (bad, bad_socket, _) = server.add("bad");
    let (_, good_socket, _) = server.add("good");
    let mut good = Client::new(&good_socket).unwrap();
    let fd = memory(4096);
    for seed in seeds(50) {
        println!("EVENKEEL_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let raw = if random.u64(..2) == 0 { Raw::connect(&bad_socket) } else { Raw::ready(&bad_socket) };
        for _ in 0..random.u64(..20) {
            let mut bytes = vec![0; 1 + random.usize(..100)];
            bytes.iter_mut().for_each(|byte| *byte = random.u8(..));
            if bytes.len() >= 16 && random.u64(..4) > 0 {
                let size = bytes.len() as u32;
                bytes[..16].copy_from_slice(&header(1, random.u16(..20), size, 0));
            }
            let fds = vec![fd.as_fd(); random.usize(..20)];
            // The server may have closed it by now.
            let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let _ = fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds));
            let _ = sendmsg(&raw.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        }
        drop(raw);
        assert!(!server.disconnection(bad).is_empty());
        good.region_write(7, 0, &[seed as u8]).unwrap();
    }
}
