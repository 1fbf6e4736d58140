//! The `vhost` crate's front end as a client that was written by others.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use guest_memory::Mapping;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::common::{self, FLUSH, MAX_SIZE, QUEUES, Running, STOPPED_AT, VERSION_1, inflight_bytes};

const PROTOCOL: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
/// Where the client has its memory.
const USER: u64 = 0x7f00_0000_0000;
const GUEST: u64 = 0x10_0000;
const LEN: u64 = 0x10_0000;

fn memory() -> OwnedFd {
    Mapping::memfd("guest", 2 * LEN as usize).unwrap().1
}

fn region(file: &OwnedFd, index: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST + 4 * index * LEN,
        memory_size: LEN,
        userspace_addr: USER + 2 * index * LEN,
        mmap_offset: index * LEN,
        mmap_handle: file.as_raw_fd(),
    }
}

fn addresses(at: u64, size: u16) -> VringConfigData {
    VringConfigData {
        queue_max_size: MAX_SIZE,
        queue_size: size,
        flags: 0,
        desc_table_addr: at,
        avail_ring_addr: at + 0x4000,
        used_ring_addr: at + 0x8000,
        log_addr: None,
    }
}

/// Gets as far as a front end does before a guest's driver starts.
fn attach(server: &Running) -> Frontend {
    let mut front = Frontend::connect(&server.socket, QUEUES.into()).unwrap();
    assert_eq!(server.next(), "connected");
    assert_eq!(front.get_features().unwrap(), VERSION_1 | FLUSH | PROTOCOL);
    let offered = front.get_protocol_features().unwrap();
    let wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::RESET_DEVICE;
    assert_eq!(offered, wanted);
    front.set_protocol_features(wanted).unwrap();
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front.set_owner().unwrap();
    front
}

fn start_ring(front: &mut Frontend, ring: usize, base: u16) {
    front.set_vring_num(ring, 128).unwrap();
    front.set_vring_base(ring, base).unwrap();
    front.set_vring_addr(ring, &addresses(USER + 0x1_0000 * ring as u64, 128)).unwrap();
    front.set_vring_kick(ring, &EventFd::new(0).unwrap()).unwrap();
    front.set_vring_call(ring, &EventFd::new(0).unwrap()).unwrap();
    front.set_vring_enable(ring, true).unwrap();
}

#[test]
fn the_ordinary_course() {
    let server = Running::start("vm");
    let mut front = attach(&server);
    assert_eq!(front.get_queue_num().unwrap(), u64::from(QUEUES));
    assert_eq!(front.get_max_mem_slots().unwrap(), 509);
    let (_, config) = front.get_config(0, 96, VhostUserConfigFlags::empty(), &[0; 96]).unwrap();
    assert_eq!(config[..60], common::CONFIG);
    assert_eq!(config[60..], [0; 36], "fields that the device does not have");
    front.set_config(32, VhostUserConfigFlags::WRITABLE, &[1]).unwrap();
    assert_eq!(server.next(), "config 32 [1]");

    front.set_features(VERSION_1 | PROTOCOL).unwrap();
    assert_eq!(server.next(), format!("features {VERSION_1:#x}"));
    let file = memory();
    front.set_mem_table(&[region(&file, 0), region(&file, 1)]).unwrap();
    assert_eq!(server.next(), "memory 0x100000+0x100000 0x500000+0x100000");

    start_ring(&mut front, 1, 5);
    assert_eq!(server.next(), "start 1: 128 at 0x110000 0x114000 0x118000 from 5 enabled=false");
    assert_eq!(server.next(), "call 1 true");
    assert_eq!(server.next(), "enable 1 true");

    // Memory comes and goes under the running ring.
    front.remove_mem_region(&region(&file, 1)).unwrap();
    assert_eq!(server.next(), "memory 0x100000+0x100000");
    front.add_mem_region(&region(&file, 1)).unwrap();
    assert_eq!(server.next(), "memory 0x100000+0x100000 0x500000+0x100000");

    assert_eq!(front.get_vring_base(1).unwrap(), u32::from(STOPPED_AT));
    assert_eq!(server.next(), "stop 1");
    assert_eq!(front.get_vring_base(0).unwrap(), 0, "a ring that never ran is where it was");
    assert_eq!(front.get_vring_base(1).unwrap(), u32::from(STOPPED_AT));

    front.reset_device().unwrap();
    assert_eq!(server.next(), "reset");
    front.set_features(VERSION_1 | PROTOCOL).unwrap();
    assert_eq!(server.next(), format!("features {VERSION_1:#x}"));
    // The memory is still there.
    start_ring(&mut front, 0, 0);
    assert_eq!(server.next(), "start 0: 128 at 0x100000 0x104000 0x108000 from 0 enabled=false");

    drop(front);
    assert_eq!(server.disconnection(), "the client went away");
}

#[test]
fn memory_notifiers_and_the_log_are_the_clients() {
    let server = Running::start("vm");
    let mut front = attach(&server);
    front.set_features(VERSION_1 | PROTOCOL).unwrap();
    let file = memory();
    front.set_mem_table(&[region(&file, 0), region(&file, 1)]).unwrap();

    let (log, log_file) = front.get_inflight_fd(&VhostUserInflight::new(0, 0, QUEUES, 128)).unwrap();
    assert_eq!((log.mmap_size, log.mmap_offset), (u64::from(QUEUES) * inflight_bytes(128), 0));
    front.set_inflight_fd(&log, log_file.as_raw_fd()).unwrap();

    front.set_vring_num(1, 128).unwrap();
    front.set_vring_addr(1, &addresses(USER, 128)).unwrap();
    let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    front.set_vring_call(1, &call).unwrap();
    front.set_vring_kick(1, &kick).unwrap();

    let held = server.held.lock().unwrap();
    let ring = &held.rings[&1];
    kick.write(3).unwrap();
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(ring.kick.as_ref().unwrap(), &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), 3);
    assert_eq!(rustix::io::read(ring.kick.as_ref().unwrap(), &mut count), Err(rustix::io::Errno::AGAIN));
    rustix::io::write(ring.call.as_ref().unwrap(), &1u64.to_ne_bytes()).unwrap();
    assert_eq!(call.read().unwrap(), 1);

    let part = ring.inflight.as_ref().unwrap();
    assert_eq!(part.len_bytes(), inflight_bytes(128));
    part.cell(0).unwrap().store(0xfeed);
    let mapping = Mapping::shared(std::os::fd::AsFd::as_fd(&log_file), 0, log.mmap_size, true).unwrap();
    let mut word = [0; 4];
    mapping.read_at(inflight_bytes(128), &mut word).unwrap();
    assert_eq!(u32::from_ne_bytes(word), 0xfeed, "queue 1's part follows queue 0's");

    let mut guest = held.memory.guest_memory();
    guest.write(GUEST + 4 * LEN, b"disk").unwrap();
    let ours = Mapping::shared(std::os::fd::AsFd::as_fd(&file), LEN, LEN, true).unwrap();
    ours.read_at(0, &mut word).unwrap();
    assert_eq!(&word, b"disk");
    assert!(guest.write(GUEST + 2 * LEN, b"hole").is_err());
}

#[test]
fn a_client_without_protocol_features_finds_its_rings_enabled() {
    let server = Running::start("vm");
    let front = Frontend::connect(&server.socket, QUEUES.into()).unwrap();
    front.set_owner().unwrap();
    front.get_features().unwrap();
    front.set_features(VERSION_1).unwrap();
    let file = memory();
    front.set_mem_table(&[region(&file, 0)]).unwrap();
    front.set_vring_num(0, 64).unwrap();
    front.set_vring_addr(0, &addresses(USER, 64)).unwrap();
    front.set_vring_base(0, 0).unwrap();
    front.set_vring_kick(0, &EventFd::new(0).unwrap()).unwrap();
    assert_eq!(server.next(), "connected");
    assert_eq!(server.next(), format!("features {VERSION_1:#x}"));
    assert_eq!(server.next(), "memory 0x100000+0x100000");
    assert_eq!(server.next(), "start 0: 64 at 0x100000 0x104000 0x108000 from 0 enabled=true");
}

#[test]
fn refusals_are_acknowledged_and_leave_everything_as_it_was() {
    let server = Running::start("vm");
    let mut front = attach(&server);
    front.set_features(VERSION_1 | PROTOCOL).unwrap();
    let file = memory();
    front.set_mem_table(&[region(&file, 0)]).unwrap();
    start_ring(&mut front, 0, 0);

    assert!(front.set_vring_num(0, 64).is_err());
    assert!(server.logged("vm: SET_VRING_NUM refused").contains("the ring is running"));
    assert!(front.set_vring_base(0, 1).is_err());
    assert!(front.set_vring_addr(0, &addresses(USER + 0x2_0000, 64)).is_err());
    assert!(front.set_vring_kick(0, &EventFd::new(0).unwrap()).is_err());
    server.logged("SET_VRING_KICK refused: the ring is running");
    assert!(front.set_features(VERSION_1 | FLUSH | PROTOCOL).is_err());
    front.set_features(VERSION_1 | PROTOCOL).unwrap();
    assert!(front.remove_mem_region(&region(&file, 0)).is_err());
    server.logged("REM_MEM_REG refused: it would take the memory of ring 0 away");
    assert!(front.set_mem_table(&[region(&file, 1)]).is_err());
    let log = VhostUserInflight::new(1 << 20, 0, QUEUES, 128);
    assert!(front.set_inflight_fd(&log, file.as_raw_fd()).is_err());
    server.logged("SET_INFLIGHT_FD refused: ring 0 is running");

    server.held.lock().unwrap().refuses = true;
    assert!(front.add_mem_region(&region(&file, 1)).is_err());
    server.logged("ADD_MEM_REG refused: the device does not like it");
    server.held.lock().unwrap().refuses = false;
    front.add_mem_region(&region(&file, 1)).unwrap();
    assert_eq!(front.get_vring_base(0).unwrap(), u32::from(STOPPED_AT));
}

#[test]
fn a_change_of_configuration_is_told_once_the_client_is_silent() {
    let server = Running::start("vm");
    let mut front = attach(&server);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    front.set_backend_request_fd(&theirs).unwrap();
    let session = server.held.lock().unwrap().session.clone().unwrap();
    session.config_changed();
    let mut told = [0; 12];
    ours.read_exact(&mut told).unwrap();
    assert_eq!(told[..4], 2u32.to_ne_bytes());
    assert_eq!(told[4..], [1, 0, 0, 0, 0, 0, 0, 0], "version 1, no payload");
}

#[test]
fn a_ring_that_an_earlier_daemon_left_is_taken_up_and_the_configuration_told_anew() {
    let server = Running::start("vm");
    let log_file: File = {
        let mut front = attach(&server);
        front.get_inflight_fd(&VhostUserInflight::new(0, 0, QUEUES, 128)).unwrap().1
    };
    assert_eq!(server.disconnection(), "the client went away");

    // As QEMU comes back: the log first, then features and memory.
    let mut front = attach(&server);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    front.set_backend_request_fd(&theirs).unwrap();
    let log = VhostUserInflight::new(u64::from(QUEUES) * inflight_bytes(128), 0, QUEUES, 128);
    front.set_inflight_fd(&log, log_file.as_raw_fd()).unwrap();
    front.set_features(VERSION_1 | PROTOCOL).unwrap();
    let file = memory();
    front.add_mem_region(&region(&file, 0)).unwrap();
    start_ring(&mut front, 0, 9);
    assert!(server.held.lock().unwrap().rings[&0].inflight.is_some());
    let mut told = [0; 12];
    ours.read_exact(&mut told).unwrap();
    assert_eq!(told[..4], 2u32.to_ne_bytes());
}

#[test]
fn another_thread_disconnects_a_session_but_not_the_next() {
    let server = Running::start("vm");
    let first = attach(&server);
    let session = server.held.lock().unwrap().session.clone().unwrap();
    session.disconnect("its memory was taken away");
    assert_eq!(server.disconnection(), "its memory was taken away");
    server.logged("vm: client disconnected: its memory was taken away");
    drop(first);
    let second = attach(&server);
    session.disconnect("too late");
    session.config_changed();
    assert!(second.get_features().is_ok());
    drop(second);
    assert_eq!(server.disconnection(), "the client went away");
}
