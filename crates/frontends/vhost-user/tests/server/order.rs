//! Which messages are refused, and why: one connection without a socket.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use guest_memory::Mapping;
use test_clients::vhost::*;
use vhost_user::{Connection, FrontEnd, Session};

use crate::common::{self, Held, MAX_SIZE, QUEUES, Recorder, STOPPED_AT, VERSION_1, inflight_bytes, notifier, spec};

const USER: u64 = 0x7f00_0000_0000;
const GUEST: u64 = 0x10_0000;
const LEN: u64 = 0x10_0000;
const RAM: RegionOf = (GUEST, LEN, USER, 0);

/// What came of a message.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Reply(Vec<u8>),
    Silence,
    /// Refused with an acknowledgement, and logged.
    Refused(String),
    /// Done, and logged.
    Warned(String),
    Closed(String),
}

struct Client {
    connection: Connection,
    device: Recorder,
    held: Arc<Mutex<Held>>,
    seen: Receiver<String>,
}

impl Client {
    fn connect() -> Self {
        let (mut device, held, seen) = Recorder::new();
        let spec = Arc::new(spec("vm"));
        let connection = Connection::open(FrontEnd::new(spec), Session::alone().unwrap(), &mut device);
        Self { connection, device, held, seen }
    }

    /// Protocol features are negotiated.
    fn negotiated() -> Self {
        let mut client = Self::connect();
        client.ok(SET_PROTOCOL_FEATURES, &longs(&[PROTOCOL_FEATURES]), vec![]);
        client
    }

    /// Features and memory are there too.
    fn ready() -> Self {
        let mut client = Self::negotiated();
        client.ok(SET_FEATURES, &longs(&[VERSION_1 | F_PROTOCOL_FEATURES]), vec![]);
        client.ok(SET_MEM_TABLE, &mem_table(&[RAM]), vec![ram()]);
        client
    }

    /// Ring 0 runs.
    fn running() -> Self {
        let mut client = Self::ready();
        client.set_up(0);
        client.ok(SET_VRING_KICK, &longs(&[0]), vec![notifier()]);
        client
    }

    fn set_up(&mut self, ring: u32) {
        self.ok(SET_VRING_NUM, &words(&[ring, 128]), vec![]);
        self.ok(SET_VRING_BASE, &words(&[ring, 3]), vec![]);
        self.ok(SET_VRING_ADDR, &addresses(ring, USER, USER + 0x2000, USER + 0x1000), vec![]);
    }

    fn send(&mut self, bytes: &[u8], mut fds: Vec<OwnedFd>) -> Outcome {
        let mut bytes = bytes;
        let mut refusal = None;
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(self.connection.wanted_bytes().min(bytes.len()));
            match self.connection.feed(piece, std::mem::take(&mut fds), &mut self.device) {
                Ok(text) => refusal = text,
                Err(closed) => return Outcome::Closed(closed.to_string()),
            }
            bytes = rest;
        }
        let reply = self.connection.output().map(|(reply, _)| reply.to_vec());
        self.connection.sent(reply.as_ref().map_or(0, Vec::len));
        match (refusal, reply) {
            (Some(warning), Some(reply)) if reply[12..] == 0u64.to_ne_bytes() => Outcome::Warned(warning),
            (Some(refusal), Some(reply)) => {
                assert_eq!(reply[12..], 1u64.to_ne_bytes());
                Outcome::Refused(refusal)
            }
            (Some(refusal), None) => panic!("refused without a word: {refusal}"),
            (None, Some(reply)) => Outcome::Reply(reply[12..].to_vec()),
            (None, None) => Outcome::Silence,
        }
    }

    /// Asks for an acknowledgement, which does not come before REPLY_ACK was negotiated.
    fn ask(&mut self, request: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Outcome {
        self.send(&message(request, VERSION | NEED_REPLY, payload), fds)
    }

    #[track_caller]
    fn ok(&mut self, request: u32, payload: &[u8], fds: Vec<OwnedFd>) {
        assert_eq!(self.ask(request, payload, fds), Outcome::Reply(vec![0; 8]), "request {request}");
    }

    #[track_caller]
    fn number(&mut self, request: u32, payload: &[u8]) -> u64 {
        match self.ask(request, payload, vec![]) {
            Outcome::Reply(reply) => u64::from_ne_bytes(reply.try_into().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn refused(&mut self, request: u32, payload: &[u8], fds: Vec<OwnedFd>, why: &str) {
        match self.ask(request, payload, fds) {
            Outcome::Refused(text) if text.contains(why) => {}
            other => panic!("{why}: {other:?}"),
        }
    }

    #[track_caller]
    fn closed(&mut self, request: u32, payload: &[u8], fds: Vec<OwnedFd>, why: &str) {
        match self.send(&message(request, VERSION, payload), fds) {
            Outcome::Closed(text) if text.contains(why) => {}
            other => panic!("{why}: {other:?}"),
        }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.try_iter().collect()
    }
}

fn ram() -> OwnedFd {
    Mapping::memfd("guest", LEN as usize).unwrap().1
}

#[test]
fn the_way_of_qemu() {
    let mut client = Client::connect();
    assert_eq!(client.number(GET_FEATURES, &[]) & F_PROTOCOL_FEATURES, F_PROTOCOL_FEATURES);
    assert_eq!(client.number(GET_PROTOCOL_FEATURES, &[]), PROTOCOL_FEATURES);
    // QEMU leaves out what it does not know.
    client.ok(SET_PROTOCOL_FEATURES, &longs(&[PROTOCOL_FEATURES]), vec![]);
    assert_eq!(client.number(GET_QUEUE_NUM, &[]), u64::from(QUEUES));
    assert_eq!(client.number(GET_MAX_MEM_SLOTS, &[]), 509);
    client.ok(SET_OWNER, &[], vec![]);
    client.number(GET_FEATURES, &[]);
    for ring in 0..u64::from(QUEUES) {
        client.ok(SET_VRING_CALL, &longs(&[ring]), vec![notifier()]);
        client.ok(SET_VRING_ERR, &longs(&[ring]), vec![notifier()]);
    }
    let Outcome::Reply(config) = client.ask(GET_CONFIG, &config(0, 60, 0, &[0; 60]), vec![]) else { panic!() };
    assert_eq!(config, [words(&[0, 60, 0]), common::CONFIG.to_vec()].concat());

    // The guest's driver starts.
    let features = VERSION_1 | F_PROTOCOL_FEATURES;
    client.ok(SET_FEATURES, &longs(&[features]), vec![]);
    let Outcome::Reply(log) = client.ask(GET_INFLIGHT_FD, &inflight(0, 0, QUEUES, 128), vec![]) else { panic!() };
    assert_eq!(log, inflight(u64::from(QUEUES) * inflight_bytes(128), 0, QUEUES, 128));
    let log_file = Mapping::memfd("log", 1 << 16).unwrap().1;
    client.ok(SET_INFLIGHT_FD, &inflight(1 << 16, 0, QUEUES, 128), vec![log_file]);
    client.ok(SET_FEATURES, &longs(&[features]), vec![]);
    client.ok(ADD_MEM_REG, &mem_reg(RAM), vec![ram()]);
    client.set_up(0);
    client.ok(SET_VRING_KICK, &longs(&[0]), vec![notifier()]);
    client.ok(SET_VRING_CALL, &longs(&[0]), vec![notifier()]);
    client.ok(SET_VRING_ENABLE, &words(&[0, 1]), vec![]);
    // It masks and unmasks the interrupt.
    client.ok(SET_VRING_CALL, &longs(&[NO_FD]), vec![]);
    client.ok(SET_VRING_CALL, &longs(&[0]), vec![notifier()]);
    // It stops.
    client.ok(SET_VRING_ENABLE, &words(&[0, 0]), vec![]);
    assert_eq!(client.number(GET_VRING_BASE, &words(&[0, 0])), u64::from(STOPPED_AT) << 32);
    client.ok(RESET_DEVICE, &[], vec![]);
    assert_eq!(
        client.seen(),
        [
            "connected",
            "features 0x100000000",
            "memory 0x100000+0x100000",
            "start 0: 128 at 0x100000 0x101000 0x102000 from 3 enabled=false",
            "call 0 true",
            "enable 0 true",
            "call 0 false",
            "call 0 true",
            "enable 0 false",
            "stop 0",
            "reset"
        ]
    );
}

#[test]
fn a_refusal_without_an_acknowledgement_ends_the_connection() {
    let mut client = Client::ready();
    client.refused(SET_VRING_NUM, &words(&[0, 0]), vec![], "SET_VRING_NUM refused: a ring of 0 entries");
    client.closed(SET_VRING_NUM, &words(&[0, 0]), vec![], "SET_VRING_NUM refused: a ring of 0 entries");
    // A client that waits for a descriptor would take an acknowledgement for it.
    let mut client = Client::ready();
    let outcome = client.ask(GET_INFLIGHT_FD, &inflight(0, 0, 0, 128), vec![]);
    assert!(matches!(outcome, Outcome::Closed(why) if why.contains("GET_INFLIGHT_FD refused")));
    let mut client = Client::connect();
    let outcome = client.ask(SET_VRING_NUM, &words(&[9, 64]), vec![]);
    assert!(matches!(outcome, Outcome::Closed(why) if why.contains("there is no ring 9")), "not negotiated");
}

#[test]
fn what_was_not_negotiated_is_refused() {
    for (request, payload, fds) in [
        (GET_QUEUE_NUM, vec![], 0),
        (GET_CONFIG, config(0, 4, 0, &[0; 4]), 0),
        (SET_CONFIG, config(0, 4, 0, &[0; 4]), 0),
        (GET_INFLIGHT_FD, inflight(0, 0, 1, 128), 0),
        (SET_INFLIGHT_FD, inflight(1 << 16, 0, 1, 128), 1),
        (GET_MAX_MEM_SLOTS, vec![], 0),
        (ADD_MEM_REG, mem_reg(RAM), 1),
        (REM_MEM_REG, mem_reg(RAM), 0),
        (RESET_DEVICE, vec![], 0),
        (SET_BACKEND_REQ_FD, vec![], 1),
        (SET_VRING_ENABLE, words(&[0, 1]), 0),
    ] {
        let fds = (0..fds).map(|_| ram()).collect();
        Client::connect().closed(request, &payload, fds, "was not acknowledged");
    }
    let mut client = Client::negotiated();
    client.refused(SET_FEATURES, &longs(&[VERSION_1 | 1 << 26]), vec![], "0x4000000 are not offered");
    client.refused(SET_PROTOCOL_FEATURES, &longs(&[1 << 8 | REPLY_ACK]), vec![], "0x100 were not offered");
    client.refused(SET_LOG_BASE, &longs(&[0, 0]), vec![ram()], "does not know it");
    client.refused(99, &[], vec![], "request 99 refused: the server does not know it");
    client.refused(SET_BACKEND_REQ_FD, &[], vec![ram()], "not a Unix stream socket");
}

#[test]
fn a_ring_starts_only_when_all_is_there() {
    let kick = |client: &mut Client, why: &str| client.refused(SET_VRING_KICK, &longs(&[1]), vec![notifier()], why);
    let mut client = Client::negotiated();
    kick(&mut client, "features were not acknowledged");
    client.ok(SET_FEATURES, &longs(&[F_PROTOCOL_FEATURES]), vec![]);
    kick(&mut client, "SET_VRING_NUM");
    client.ok(SET_VRING_NUM, &words(&[1, 128]), vec![]);
    kick(&mut client, "SET_VRING_ADDR");
    client.ok(SET_VRING_ADDR, &addresses(1, USER, USER + 0x2000, USER + 0x1000), vec![]);
    kick(&mut client, "descriptor table at 0x7f0000000000 is not in one memory region");
    client.ok(SET_MEM_TABLE, &mem_table(&[RAM]), vec![ram()]);
    client.ok(SET_VRING_KICK, &longs(&[1]), vec![notifier()]);
    kick(&mut client, "the ring is running");

    let mut client = Client::ready();
    for (desc, used, avail, why) in [
        (USER - 16, USER + 0x2000, USER + 0x1000, "descriptor table"),
        (USER + LEN - 2048 + 16, USER + 0x2000, USER + 0x1000, "descriptor table"),
        (USER, USER + LEN - 1024, USER + 0x1000, "used ring"),
        (USER, USER + 0x2000, USER + LEN - 256, "available ring"),
        (USER, USER + 0x2000, u64::MAX - 1, "available ring"),
        (u64::MAX - 15, USER + 0x2000, USER + 0x1000, "descriptor table"),
    ] {
        client.ok(SET_VRING_NUM, &words(&[1, 128]), vec![]);
        client.ok(SET_VRING_ADDR, &addresses(1, desc, used, avail), vec![]);
        kick(&mut client, why);
    }
    for (desc, used, avail) in [(8, 0, 0), (0, 2, 0), (0, 0, 1)] {
        let unaligned = addresses(1, USER + desc, USER + used, USER + avail);
        client.refused(SET_VRING_ADDR, &unaligned, vec![], "not aligned");
    }
    let logged = [words(&[1, 1]), longs(&[USER, USER, USER, 0])].concat();
    client.refused(SET_VRING_ADDR, &logged, vec![], "dirty pages");
    assert!(client.seen().iter().all(|line| !line.starts_with("start")));
}

#[test]
fn what_a_device_refuses_to_start_does_not_run() {
    let mut client = Client::ready();
    client.set_up(0);
    client.held.lock().unwrap().refuses = true;
    client.refused(SET_VRING_KICK, &longs(&[0]), vec![notifier()], "the device does not like it");
    client.held.lock().unwrap().refuses = false;
    assert_eq!(client.number(GET_VRING_BASE, &words(&[0, 0])), 3 << 32);
    client.ok(SET_VRING_KICK, &longs(&[0]), vec![notifier()]);
}

#[test]
fn ring_numbers_and_sizes_are_checked() {
    let mut client = Client::ready();
    for size in [0, 3, 100, u32::from(MAX_SIZE) * 2, 0x8000, 0x1_0000, u32::MAX] {
        client.refused(SET_VRING_NUM, &words(&[0, size]), vec![], "powers of two");
    }
    for ring in [u32::from(QUEUES), 0xffff, 0x1_0000, u32::MAX] {
        client.refused(SET_VRING_NUM, &words(&[ring, 128]), vec![], "there is no ring");
        client.refused(SET_VRING_BASE, &words(&[ring, 0]), vec![], "there is no ring");
        client.refused(SET_VRING_ADDR, &addresses(ring, 0, 0, 0), vec![], "there is no ring");
        client.refused(SET_VRING_ENABLE, &words(&[ring, 1]), vec![], "there is no ring");
    }
    for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        client.refused(request, &longs(&[QUEUES.into()]), vec![notifier()], "there is no ring");
        client.refused(request, &longs(&[1 << 9]), vec![notifier()], "flags");
        client.refused(request, &longs(&[0]), vec![], "number of file descriptors");
        client.refused(request, &longs(&[NO_FD]), vec![notifier()], "number of file descriptors");
        client.refused(request, &longs(&[0]), vec![notifier(), notifier()], "number of file descriptors");
        client.refused(request, &longs(&[0]), vec![ram()], "not an eventfd");
    }
    client.refused(SET_VRING_BASE, &words(&[0, 0x1_0000]), vec![], "16 bits");
    client.refused(SET_VRING_ENABLE, &words(&[0, 2]), vec![], "neither 0 nor 1");
    client.closed(GET_VRING_BASE, &words(&[QUEUES.into(), 0]), vec![], "there is no ring");
}

#[test]
fn a_ring_without_kick_is_polled_and_a_stopped_one_forgets_its_descriptors() {
    let mut client = Client::ready();
    client.set_up(0);
    client.ok(SET_VRING_CALL, &longs(&[0]), vec![notifier()]);
    client.ok(SET_VRING_KICK, &longs(&[NO_FD]), vec![]);
    {
        let held = client.held.lock().unwrap();
        assert!(held.rings[&0].kick.is_none());
        assert!(held.rings[&0].call.is_some());
    }
    client.number(GET_VRING_BASE, &words(&[0, 0]));
    client.ok(SET_VRING_KICK, &longs(&[0]), vec![notifier()]);
    let held = client.held.lock().unwrap();
    assert!(held.rings[&0].call.is_none());
    assert_eq!(held.rings[&0].next_avail, STOPPED_AT);
}

#[test]
fn owners_come_one_at_a_time() {
    let mut client = Client::running();
    client.ok(SET_VRING_ENABLE, &words(&[0, 1]), vec![]);
    client.ok(SET_OWNER, &[], vec![]);
    client.refused(SET_OWNER, &[], vec![], "it has an owner");
    client.seen();
    client.ok(RESET_OWNER, &[], vec![]);
    assert_eq!(client.seen(), ["enable 0 false"]);
    client.ok(SET_OWNER, &[], vec![]);
}

#[test]
fn a_reset_stops_all_rings() {
    let mut client = Client::running();
    client.seen();
    client.ok(RESET_DEVICE, &[], vec![]);
    assert_eq!(client.seen(), ["stop 0", "reset"]);
    client.refused(SET_VRING_KICK, &longs(&[0]), vec![notifier()], "features were not acknowledged");
    assert_eq!(client.number(GET_VRING_BASE, &words(&[0, 0])), 0);
}

#[test]
fn only_sound_memory_tables_are_taken() {
    let mut client = Client::negotiated();
    let page = 0x1000;
    for (region, why) in [
        ((GUEST, 0, USER, 0), "it is empty"),
        ((u64::MAX - 0xfff, 0x2000, USER, 0), "wraps around"),
        ((GUEST, 0x2000, u64::MAX - 0xfff, 0), "wraps around"),
        ((GUEST, LEN, USER, page), "the file has 1048576 bytes"),
        ((GUEST, LEN + 1, USER, 0), "the file has 1048576 bytes"),
        ((GUEST, page, USER, 512), "not page aligned"),
        ((GUEST, page, USER, u64::MAX - 0xfff), "overflows"),
    ] {
        client.refused(ADD_MEM_REG, &mem_reg(region), vec![ram()], why);
        client.refused(SET_MEM_TABLE, &mem_table(&[region]), vec![ram()], why);
    }
    // Files that can't be mapped: holes.
    let (pipe, _writer) = std::io::pipe().unwrap();
    let binary = std::fs::File::open("/proc/self/exe").unwrap();
    for (number, file) in [OwnedFd::from(pipe), binary.into()].into_iter().enumerate() {
        let region = (GUEST + (8 + number as u64) * LEN, page, USER + (8 + number as u64) * LEN, 0);
        match client.ask(ADD_MEM_REG, &mem_reg(region), vec![file]) {
            Outcome::Warned(text) if text.contains("which can't be mapped") => {}
            other => panic!("{other:?}"),
        }
        client.ok(REM_MEM_REG, &mem_reg(region), vec![]);
    }

    let other = (GUEST + 4 * LEN, LEN, USER + 4 * LEN, 0);
    for overlapping in [
        (GUEST + LEN - page, page, USER + 8 * LEN, 0),
        (GUEST, LEN, USER + 8 * LEN, 0),
        (GUEST + 8 * LEN, LEN, USER, 0),
        (GUEST + 8 * LEN, page, USER + LEN - page, 0),
        (GUEST - page, 2 * page, USER + 8 * LEN, 0),
    ] {
        client.refused(SET_MEM_TABLE, &mem_table(&[other, RAM, overlapping]), vec![ram(), ram(), ram()], "overlaps");
    }
    client.seen();
    client.ok(SET_MEM_TABLE, &mem_table(&[other, RAM]), vec![ram(), ram()]);
    client.ok(REM_MEM_REG, &mem_reg((RAM.0, RAM.1, RAM.2, page)), vec![ram()]);
    client.refused(REM_MEM_REG, &mem_reg(RAM), vec![], "there is no memory region");
    client.refused(REM_MEM_REG, &mem_reg((other.0, page, other.2, 0)), vec![], "there is no memory region");
    client.ok(SET_MEM_TABLE, &mem_table(&[]), vec![]);
    assert_eq!(client.seen(), ["memory 0x500000+0x100000 0x100000+0x100000", "memory 0x500000+0x100000", "memory "]);
}

#[test]
fn a_region_need_not_end_with_a_page() {
    let mut client = Client::negotiated();
    client.ok(ADD_MEM_REG, &mem_reg((GUEST, 0x1234, USER, 0)), vec![ram()]);
    let memory = client.held.lock().unwrap().memory.clone();
    assert!(memory.guest_memory().write(GUEST + 0x1230, &[1; 4]).is_ok());
    assert!(memory.guest_memory().write(GUEST + 0x1234, &[1]).is_err());
}

#[test]
fn there_are_as_many_slots_as_are_told() {
    let mut client = Client::negotiated();
    let file = ram();
    for slot in 0..509 {
        let region = (GUEST + slot * LEN, 0x1000, USER + slot * LEN, 0);
        client.ok(ADD_MEM_REG, &mem_reg(region), vec![file.try_clone().unwrap()]);
    }
    client.refused(ADD_MEM_REG, &mem_reg((0, 0x1000, 0, 0)), vec![file], "more than 509");
}

#[test]
fn memory_counts_and_descriptors_must_agree() {
    let mut client = Client::negotiated();
    client.refused(SET_MEM_TABLE, &mem_table(&[RAM]), vec![], "number of file descriptors");
    client.refused(SET_MEM_TABLE, &mem_table(&[RAM]), vec![ram(), ram()], "number of file descriptors");
    let promised = [words(&[2, 0]), region(RAM)].concat();
    client.refused(SET_MEM_TABLE, &promised, vec![ram(), ram()], "wrong length");
    let huge = [words(&[u32::MAX, 0]), region(RAM)].concat();
    client.refused(SET_MEM_TABLE, &huge, vec![ram()], "number of file descriptors");
    client.refused(ADD_MEM_REG, &mem_reg(RAM), vec![], "number of file descriptors");
    client.refused(REM_MEM_REG, &mem_reg(RAM), vec![ram(), ram()], "number of file descriptors");
    client.refused(SET_OWNER, &[], vec![ram()], "number of file descriptors");
}

#[test]
fn payloads_have_their_length() {
    for request in 0..60 {
        let mut client = Client::negotiated();
        for len in [1, 7, 9, 13, 4096] {
            let outcome = client.ask(request, &vec![0; len], vec![]);
            assert!(matches!(outcome, Outcome::Refused(_) | Outcome::Closed(_)), "request {request}: {outcome:?}");
        }
    }
    let mut client = Client::negotiated();
    for bad in [config(0, 5, 0, &[0; 4]), config(3840, 4, 0, &[0; 4]), config(u32::MAX, 4, 0, &[0; 4])] {
        client.refused(SET_CONFIG, &bad, vec![], "wrong length");
    }
    let too_long = [words(&[SET_CONFIG, VERSION, 4097])].concat();
    assert!(
        matches!(client.send(&too_long, vec![]), Outcome::Closed(why) if why.contains("SET_CONFIG with 4097 bytes"))
    );
}

#[test]
fn only_requests_of_version_1_are_taken() {
    for flags in [0, 2, 3, VERSION | 1 << 2, VERSION | 1 << 4, VERSION | 1 << 31] {
        let outcome = Client::connect().send(&message(GET_FEATURES, flags, &[]), vec![]);
        assert!(matches!(outcome, Outcome::Closed(why) if why.contains("not a request of version 1")), "{flags:#x}");
    }
}

#[test]
fn only_a_log_that_fits_is_taken() {
    let mut client = Client::negotiated();
    let part = inflight_bytes(128);
    let log = |len: u64| Mapping::memfd("log", len as usize).unwrap().1;
    for (given, why) in [
        (inflight(part - 1, 0, 1, 128), "queues of 128 entries need"),
        (inflight(2 * part, 0, 3, 128), "queues of 128 entries need"),
        (inflight(1 << 20, 0, QUEUES + 1, 128), "a log for 5 queues"),
        (inflight(1 << 20, 0, 0, 128), "a log for 0 queues"),
        (inflight(1 << 20, 0, 1, 0), "of 0 entries"),
        (inflight(1 << 20, 0, 1, MAX_SIZE + 1), "of 257 entries"),
        (inflight(1 << 20, 0x10_0000, 1, 128), "the file has"),
        (inflight(1 << 20, 5, 1, 128), "not page aligned"),
        (inflight(u64::MAX, u64::MAX - 0xfff, 1, 128), "the file has"),
    ] {
        client.refused(SET_INFLIGHT_FD, &given, vec![log(0x10_0000)], why);
    }
    client.refused(SET_INFLIGHT_FD, &inflight(1 << 20, 0, 4, 128), vec![log(part)], "the file has");
    client.refused(SET_INFLIGHT_FD, &inflight(1 << 20, 0, 4, 128), vec![notifier()], "must be a memfd");

    client.ok(SET_INFLIGHT_FD, &inflight(1 << 20, 0, 1, 64), vec![log(0x1000)]);
    client.ok(SET_FEATURES, &longs(&[VERSION_1 | F_PROTOCOL_FEATURES]), vec![]);
    client.ok(SET_MEM_TABLE, &mem_table(&[RAM]), vec![ram()]);
    client.set_up(0);
    client.refused(SET_VRING_KICK, &longs(&[0]), vec![notifier()], "for rings of 64 entries, not of 128");
    // The log was not made for this queue.
    client.set_up(1);
    client.ok(SET_VRING_KICK, &longs(&[1]), vec![notifier()]);
    assert!(client.held.lock().unwrap().rings[&1].inflight.is_none());
}
