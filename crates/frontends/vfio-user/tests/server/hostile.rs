//! Hostile clients at a running server: their own connection ends, the others go on.

#![allow(clippy::disallowed_methods, reason = "clients have threads")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use guest_memory::Mapping;
use test_clients::seeds;
use test_clients::vfio::{Client as Raw, *};
use vfio_user::Errno;
use vfio_user_client::Client;

use crate::common::{self, Running, Seen};

/// Far longer than any answer takes.
const LONG: Duration = Duration::from_secs(60);

fn connect(socket: &Path) -> Raw {
    Raw::connect(socket, LONG).unwrap()
}

fn ready(socket: &Path) -> Raw {
    Raw::greet(socket, LONG).unwrap()
}

/// Sends a message and reads its reply; `Err` is the reply's error.
fn ask(raw: &Raw, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    raw.expect_reply(bytes, fds).map(drop)
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

    let raw = connect(&bad_socket);
    raw.send(b"GET / HTTP/1.1\r\nHost: nvme\r\n\r\n", &[]).unwrap();
    assert!(server.disconnection(bad).contains("a message of"));
    check(1);

    let raw = ready(&bad_socket);
    raw.send(&header(1, REGION_WRITE, u32::MAX, 0), &[]).unwrap();
    assert!(server.disconnection(bad).contains("a message of 4294967295 bytes"));
    check(2);

    let raw = ready(&bad_socket);
    let fd = memory(4096);
    raw.send(&message(1, GET_INFO, 0, &words(&[16, 0, 0, 0])), &[fd.as_fd(); 100]).unwrap();
    assert!(server.disconnection(bad).contains("file descriptors"));
    check(3);

    let raw = ready(&bad_socket);
    assert_eq!(ask(&raw, &dma_map(1, 3, 0, 0, 4096), &[fd.as_fd()]), Ok(()));
    assert_eq!(ask(&raw, &dma_map(2, 3, 0, 0, 4096), &[fd.as_fd()]), Err(Errno::EXIST));
    assert_eq!(server.disconnection(bad), "a DMA map over another");
    check(4);

    let raw = ready(&bad_socket);
    raw.send(&region_write(1, 0, 7, 0, &[1; 64])[..40], &[fd.as_fd(); 3]).unwrap();
    drop(raw);
    assert_eq!(server.disconnection(bad), "the client went away");
    check(5);

    let raw = connect(&bad_socket);
    raw.send(&version("{\"capabilities\":"), &[]).unwrap();
    assert!(server.disconnection(bad).contains("no version"));
    check(6);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let server = Running::start();
    let (bad, socket, _) = server.add("bad");
    let raw = ready(&socket);
    let mut stream = raw.stream.try_clone().unwrap();
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
    let raw = ready(&socket);
    let mut stream = raw.stream.try_clone().unwrap();
    const READS: usize = 1000;
    let ahead = std::thread::spawn(move || {
        let reads = region_read(1, 0, 0, 0x4000).repeat(READS);
        stream.write_all(&reads).unwrap();
    });
    let mut replies = vec![0; READS * (32 + 0x4000)];
    (&raw.stream).read_exact(&mut replies).unwrap();
    ahead.join().unwrap();
}

#[test]
fn a_client_that_says_nothing_is_disconnected_before_the_version_is_agreed_on() {
    let server = Running::start();
    let (bad, bad_socket, _) = server.add("bad");
    let (good, good_socket, _) = server.add("good");
    let idle = ready(&good_socket);
    let silent = connect(&bad_socket);
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
    let raw = ready(&socket);
    raw.send(&region_write(1, 0, 7, 0, &[1; 64])[..40], &[]).unwrap();
    assert_eq!(server.disconnection(bad), "it left a message unfinished for too long");
}

#[test]
fn only_memory_can_be_mapped() {
    let server = Running::start();
    let (_, socket, _) = server.add("vm");
    let raw = ready(&socket);
    let ram = memory(0x10000);
    let map = |offset, iova, len| dma_map(1, 3, offset, iova, len);
    let with = |bytes: &[u8], fd: BorrowedFd<'_>| ask(&raw, bytes, &[fd]);
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
        assert_eq!(with(&map(offset, iova, len), ram.as_fd()), Err(Errno::INVAL), "{offset:#x} {iova:#x} {len:#x}");
    }
    assert_eq!(with(&dma_map(1, 3 | 1 << 3, 0, 0, 4096), ram.as_fd()), Err(Errno::INVAL));

    let (pipe, _writer) = std::io::pipe().unwrap();
    let program = std::fs::File::open("/proc/self/cmdline").unwrap();
    let read_only = std::fs::File::open(format!("/proc/self/fd/{}", ram.as_raw_fd())).unwrap();
    // Files that can't be mapped: holes.
    for file in [pipe.as_fd(), program.as_fd(), read_only.as_fd()] {
        assert_eq!(with(&map(0, 0, 4096), file), Ok(()));
        server.logged("which can't be mapped");
        assert_eq!(with(&dma_unmap(1, 0, 0, 4096), file), Ok(()));
    }

    assert_eq!(with(&dma_map(1, 1, 0, 0, 4096), read_only.as_fd()), Ok(()));
    assert_eq!(with(&map(0x8000, 0x1000, 0x8000), ram.as_fd()), Ok(()));
    // Without a descriptor: known, but nothing to reach.
    assert_eq!(ask(&raw, &map(0, 0xa_0000, 0x2_0000), &[]), Ok(()));
    assert_eq!(ask(&raw, &dma_map(1, 3 | 1 << 2, 0, 0x10_0000, 4096), &[]), Err(Errno::INVAL));
    assert_eq!(ask(&raw, &dma_unmap(1, 0, 0xa_0000, 0x2_0000), &[]), Ok(()));
    assert_eq!(ask(&raw, &dma_unmap(1, 0, 0xa_0000, 0x2_0000), &[]), Ok(()));
    assert_eq!(ask(&raw, &dma_unmap(1, 2, 0, 0), &[]), Ok(()));
    assert_eq!(ask(&raw, &dma_unmap(1, 0, 0, 4096), &[]), Ok(()));
}

#[test]
fn only_eventfds_can_be_signalled_and_they_never_block() {
    let server = Running::start();
    let (_, socket, _) = server.add("vm");
    let raw = ready(&socket);
    let assign = set_irqs(1, 1 << 2 | 1 << 5, 2, 0, 1, &[]);
    let (_reader, pipe) = std::io::pipe().unwrap();
    assert_eq!(ask(&raw, &assign, &[pipe.as_fd()]), Err(Errno::INVAL));
    assert_eq!(ask(&raw, &assign, &[memory(4096).as_fd()]), Err(Errno::INVAL));
    let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(ask(&raw, &assign, &[counter.as_fd()]), Ok(()));
    let flags = rustix::fs::fcntl_getfl(&counter).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
}

#[test]
fn descriptors_reach_the_message_that_they_came_with() {
    let server = Running::start();
    let (_, socket, _) = server.add("vm");
    let raw = ready(&socket);
    let ram = memory(0x10000);
    // Sent without waiting, so that the server finds them together: a hole, memory, a hole.
    for (id, fds) in [(1, &[][..]), (2, &[ram.as_fd()]), (3, &[])] {
        raw.send(&dma_map(id, 3, 0, u64::from(id) << 20, 0x2000), fds).unwrap();
    }
    let mut stream = &raw.stream;
    stream.read_exact(&mut [0; 48]).unwrap();
    let copy = |iova: u64| region_write(9, 0, 0, common::COPY_REGISTER, &iova.to_ne_bytes());
    assert_eq!(ask(&raw, &copy(1 << 20), &[]), Err(Errno::FAULT));
    assert_eq!(ask(&raw, &copy(2 << 20), &[]), Ok(()));
    assert_eq!(ask(&raw, &copy(3 << 20), &[]), Err(Errno::FAULT));
}

#[test]
fn random_bytes_at_a_socket_end_in_a_disconnection() {
    let server = Running::start();
    let (bad, bad_socket, _) = server.add("bad");
    let (_, good_socket, _) = server.add("good");
    let mut good = Client::new(&good_socket).unwrap();
    let fd = memory(4096);
    for seed in seeds(50) {
        let mut random = fastrand::Rng::with_seed(seed);
        let raw = if random.u64(..2) == 0 { connect(&bad_socket) } else { ready(&bad_socket) };
        for _ in 0..random.u64(..20) {
            let mut bytes = vec![0; 1 + random.usize(..100)];
            bytes.iter_mut().for_each(|byte| *byte = random.u8(..));
            if bytes.len() >= 16 && random.u64(..4) > 0 {
                let size = bytes.len() as u32;
                bytes[..16].copy_from_slice(&header(1, random.u16(..20), size, 0));
            }
            let fds = vec![fd.as_fd(); random.usize(..20)];
            // The server may have closed it by now.
            let _ = raw.send(&bytes, &fds);
        }
        drop(raw);
        assert!(!server.disconnection(bad).is_empty());
        good.region_write(7, 0, &[seed as u8]).unwrap();
    }
}
