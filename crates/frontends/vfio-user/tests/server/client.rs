//! The server with an independent client: the published `vfio_user` crate.

#![allow(clippy::disallowed_methods, reason = "clients have threads, and waiting has an end")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_memory::Mapping;
use rustix::event::{EventfdFlags, eventfd};
use vfio_user::BindError;
use vfio_user_client::Client;

use crate::common::{BAR0_BYTES, COPY_REGISTER, DOORBELLS, RESETS_REGISTER, Running, VECTORS, peek};

const MSIX: u32 = 2;
const DATA_EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;
const DATA_NONE_TRIGGER: u32 = 1 | 1 << 5;

fn counter() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// How often an eventfd was signalled since it was last read.
fn count(eventfd: &OwnedFd) -> u64 {
    let mut value = [0; 8];
    rustix::io::read(eventfd, &mut value).map_or(0, |_| u64::from_ne_bytes(value))
}

fn guest_ram() -> (Arc<Mapping>, OwnedFd) {
    Mapping::memfd("guest", 1 << 20).unwrap()
}

#[test]
fn regions_are_described_and_doorbells_mapped() {
    let server = Running::start();
    let (_, socket, bar0) = server.add("db");
    let client = Client::new(&socket).unwrap();
    assert_eq!(client.region(0).unwrap().size, BAR0_BYTES);
    assert_eq!(client.region(0).unwrap().flags, 0b1111);
    assert_eq!(client.region(7).unwrap().flags, 0b11);
    assert_eq!(client.region(8).unwrap().size, 0);
    assert!(client.region(9).is_none());

    let region = client.region(0).unwrap();
    let area = &region.sparse_areas[..];
    assert_eq!((area.len(), area[0].offset, area[0].size), (1, DOORBELLS, 0x1000));
    let file = region.file_offset.as_ref().unwrap();
    let mapped = Mapping::shared(file.file().as_fd(), file.start() + area[0].offset, area[0].size, true).unwrap();
    mapped.write_at(8, &7u64.to_ne_bytes()).unwrap();
    assert_eq!(peek(&bar0, DOORBELLS + 8), 7);
    // The client can't pull the page from under the server.
    assert!(file.file().set_len(0).is_err());
}

#[test]
fn registers_memory_and_interrupts_work_together() {
    let server = Running::start();
    let (_, socket, _) = server.add("db");
    let mut client = Client::new(&socket).unwrap();

    client.region_write(7, 4, &[1, 2, 3]).unwrap();
    let mut bytes = [0; 4];
    client.region_read(7, 4, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 0]);

    let info = client.get_irq_info(MSIX).unwrap();
    assert_eq!((info.flags, info.count), (1, VECTORS));
    let counters: Vec<OwnedFd> = (0..VECTORS).map(|_| counter()).collect();
    let raw: Vec<i32> = counters.iter().map(AsRawFd::as_raw_fd).collect();
    client.set_irqs(MSIX, DATA_EVENTFD_TRIGGER, 0, VECTORS, &raw).unwrap();

    let (ram, fd) = guest_ram();
    client.dma_map(0x10000, 0x8000_0000, 0x4000, fd.as_raw_fd()).unwrap();
    ram.write_at(0x10000, &0x1122_3344_5566_7788u64.to_ne_bytes()).unwrap();
    client.region_write(0, COPY_REGISTER, &0x8000_0000u64.to_ne_bytes()).unwrap();
    assert_eq!(peek(&ram, 0x11000), 0x1122_3344_5566_7788);
    assert_eq!(counters.iter().map(count).collect::<Vec<_>>(), [0, 1, 0, 0, 0, 0, 0, 0]);

    client.set_irqs(MSIX, DATA_NONE_TRIGGER, 2, 2, &[]).unwrap();
    assert_eq!(counters.iter().map(count).collect::<Vec<_>>(), [0, 0, 1, 1, 0, 0, 0, 0]);
    // Without descriptors: signalled no more.
    client.set_irqs(MSIX, DATA_EVENTFD_TRIGGER, 2, 1, &[]).unwrap();
    client.set_irqs(MSIX, DATA_NONE_TRIGGER, 2, 2, &[]).unwrap();
    assert_eq!(counters.iter().map(count).collect::<Vec<_>>(), [0, 0, 0, 1, 0, 0, 0, 0]);
    client.set_irqs(MSIX, DATA_NONE_TRIGGER, 0, 0, &[]).unwrap();
    client.set_irqs(MSIX, DATA_NONE_TRIGGER, 0, VECTORS, &[]).unwrap();
    assert_eq!(counters.iter().map(count).sum::<u64>(), 0);

    client.dma_unmap(0x8000_0000, 0x4000).unwrap();
    ram.write_at(0x11000, &[0; 8]).unwrap();
    // The client ignores the error reply; the memory shows that the device did not reach it.
    client.region_write(0, COPY_REGISTER + 8, &[0]).unwrap();
    assert_eq!(peek(&ram, 0x11000), 0);

    client.reset().unwrap();
    client.reset().unwrap();
    client.region_read(0, RESETS_REGISTER, &mut bytes[..1]).unwrap();
    assert_eq!(bytes[0], 2);
}

#[test]
fn clients_come_and_go_and_state_stays() {
    let server = Running::start();
    let (device, socket, _) = server.add("db");
    for round in 0..20u8 {
        let mut client = Client::new(&socket).unwrap();
        let mut last = [0];
        client.region_read(7, 0, &mut last).unwrap();
        assert_eq!(last[0], round);
        client.region_write(7, 0, &[round + 1]).unwrap();
        let (_, fd) = guest_ram();
        client.dma_map(0, 0, 1 << 20, fd.as_raw_fd()).unwrap();
        if round % 2 == 0 {
            client.shutdown().unwrap();
        }
        // No waiting: the next client may arrive together with the end of this one.
    }
    for _ in 0..20 {
        assert_eq!(server.disconnection(device), "the client went away");
    }
}

#[test]
fn a_second_client_is_refused_and_the_first_goes_on() {
    let server = Running::start();
    let (_, socket, _) = server.add("db");
    let mut first = Client::new(&socket).unwrap();
    assert!(Client::new(&socket).is_err());
    first.region_write(7, 0, &[9]).unwrap();
    server.logged("db: client refused: another one is attached");
}

#[test]
fn a_device_cuts_its_client_off_but_never_the_next_one() {
    let server = Running::start();
    let (device, socket, _) = server.add("db");
    let first = Client::new(&socket).unwrap();
    let first_session = server.connection(device);
    first_session.disconnect("its memory went away");
    assert_eq!(server.disconnection(device), "its memory went away");
    drop(first);

    let mut second = Client::new(&socket).unwrap();
    server.connection(device);
    first_session.disconnect("too late");
    second.region_write(7, 0, &[1]).unwrap();
    second.reset().unwrap();
}

#[test]
fn devices_are_added_and_removed_while_others_are_served() {
    let server = Running::start();
    let (_, first, _) = server.add("one");
    let mut client = Client::new(&first).unwrap();
    let (second_id, second, _) = server.add("two");
    let mut other = Client::new(&second).unwrap();
    other.region_write(7, 0, &[1]).unwrap();
    let removed = server.take(second_id);
    removed.stop();
    assert!(!second.exists() && Client::new(&second).is_err());
    assert_eq!(server.disconnection(second_id), "the device is taken off its socket");
    client.region_write(7, 0, &[1]).unwrap();
    assert!(removed.join_by(Instant::now() + Duration::from_secs(60)));
    let (_, second, _) = server.add("two");
    Client::new(&second).unwrap().reset().unwrap();
}

#[test]
fn sockets_are_private_replaced_when_stale_and_kept_when_live() {
    let server = Running::start();
    let (_, socket, _) = server.add("db");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().unwrap()), 0o700);

    let other = Running::start();
    let error = other.add_at("db", &socket).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(socket.to_str().unwrap()));

    let stale = server.socket("stale");
    std::fs::create_dir(stale.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    server.add_at("stale", &stale).unwrap();
    Client::new(&stale).unwrap();

    let file = server.directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = server.add_at("file", &file).unwrap_err();
    assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

    let long = server.directory.path().join("x".repeat(120));
    let error = server.add_at("long", &long).unwrap_err();
    assert!(matches!(error, BindError::TooLong { .. }), "{error}");

    drop(server);
    assert!(!socket.exists() && !stale.exists());
}
