//! The protocol without sockets: what [`Connection`] makes of bytes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use guest_memory::Mapping;
use rustix::event::{EventfdFlags, eventfd};
use test_clients::seeds;
use test_clients::vfio::*;
use vfio_user::{
    ClientState, Closed, Connection, Device, Errno, IrqChange, ProtocolError, Reply, Request, Session, SetIrqs,
};

use crate::common;

const JSON: &str = r#"{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576,"pgsizes":4096}}"#;

/// A device that keeps what it is asked, and answers as it was told to.
#[derive(Default)]
struct Keeper {
    asked: Vec<Request>,
    answers: VecDeque<Reply>,
}

impl Device for Keeper {
    fn connected(&mut self, _session: Session) {}

    fn request(&mut self, request: Request) -> Reply {
        let proper = match &request {
            Request::RegionRead { len_bytes, .. } => Reply::Data(vec![0; *len_bytes as usize]),
            _ => Reply::Done,
        };
        self.asked.push(request);
        self.answers.pop_front().unwrap_or(proper)
    }

    fn disconnected(&mut self, _reason: &str) {}
}

/// A connection and its device.
struct Client {
    connection: Connection,
    device: Keeper,
    /// Of messages that were refused.
    log: Vec<String>,
}

fn fresh() -> Client {
    let spec = Arc::new(common::spec("test").0);
    let mut device = Keeper::default();
    let connection = Connection::open(ClientState::new(spec), Session::alone().unwrap(), &mut device);
    Client { connection, device, log: Vec::new() }
}

/// A connection with the version agreed on.
fn ready() -> Client {
    let mut client = fresh();
    client.feed(&version(JSON), vec![]).unwrap();
    assert_eq!(client.take().len(), 1);
    client
}

impl Client {
    /// Delivers bytes as the server does: no more than wanted at a time.
    fn feed(&mut self, mut bytes: &[u8], mut fds: Vec<OwnedFd>) -> Result<(), Closed<ProtocolError>> {
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(self.connection.wanted_bytes().min(bytes.len()));
            self.log.extend(self.connection.feed(piece, std::mem::take(&mut fds), &mut self.device)?);
            bytes = rest;
        }
        Ok(())
    }

    /// What the device was asked since the last time.
    fn asked(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.device.asked)
    }

    /// Takes all output and parses it.
    fn take(&mut self) -> Vec<Answer> {
        let connection = &mut self.connection;
        let mut answers = Vec::new();
        while let Some((bytes, fd)) = connection.output() {
            let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
            let half = |at: usize| u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap());
            assert_eq!(word(4) as usize, bytes.len());
            let error = match word(8) {
                1 => None,
                0x21 => Some(word(12) as i32),
                flags => panic!("reply flags {flags:#x}"),
            };
            let payload = bytes[16..].to_vec();
            answers.push(Answer { id: half(0), command: half(2), error, payload, with_fd: fd.is_some() });
            let sent = bytes.len();
            connection.sent(sent);
        }
        answers
    }
}

#[derive(Debug, PartialEq, Eq, Clone)]
struct Answer {
    id: u16,
    command: u16,
    error: Option<i32>,
    payload: Vec<u8>,
    with_fd: bool,
}

/// Feeds one message; expects one error reply and no request.
fn refusal(bytes: &[u8], fds: Vec<OwnedFd>) -> Errno {
    let mut client = ready();
    client.feed(bytes, fds).unwrap();
    assert!(client.asked().is_empty(), "a request came through");
    let answers = client.take();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers[0].payload.is_empty());
    Errno::from_raw_os_error(answers[0].error.expect("an error reply"))
}

fn accepted(bytes: &[u8], fds: Vec<OwnedFd>) -> Request {
    let mut client = ready();
    client.feed(bytes, fds).unwrap();
    let mut asked = client.asked();
    assert_eq!(asked.len(), 1, "{:?} {:?}", client.take(), client.log);
    asked.remove(0)
}

/// `count` descriptors, and a function that says whether all of them are closed.
fn watched_fds(count: usize) -> (Vec<OwnedFd>, impl Fn() -> bool) {
    let (reader, writer) = std::io::pipe().unwrap();
    let fds = (0..count).map(|_| OwnedFd::from(writer.try_clone().unwrap())).collect();
    drop(writer);
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).unwrap();
    (fds, move || rustix::io::read(&reader, &mut [0; 1]) == Ok(0))
}

/// One of each message, all right.
fn session() -> Vec<Vec<u8>> {
    vec![
        version(JSON),
        message(1, GET_INFO, 0, &words(&[16, 0, 0, 0])),
        get_region_info(2, 64, 0),
        message(3, GET_IRQ_INFO, 0, &words(&[16, 0, 2, 0])),
        dma_map(4, 3, 0, 0x1000, 0x1000),
        dma_unmap(5, 0, 0x1000, 0x1000),
        set_irqs(6, 1 << 1 | 1 << 5, 2, 0, 4, &[1, 0, 1, 0]),
        region_read(7, 0, 0, 8),
        region_write(8, 0, 0, 0x14, &[1, 2, 3, 4]),
        message(9, RESET, 0, &[]),
    ]
}

#[test]
fn bytes_may_come_in_any_pieces() {
    let whole: Vec<u8> = session().concat();
    let mut at_once = fresh();
    at_once.feed(&whole, vec![]).unwrap();
    let expected = format!("{:?}", at_once.asked());
    let answers = at_once.take();
    assert_eq!(answers.iter().map(|answer| answer.id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    for piece in 1..40 {
        let mut client = fresh();
        whole.chunks(piece).for_each(|bytes| client.feed(bytes, vec![]).unwrap());
        assert_eq!(format!("{:?}", client.asked()), expected, "pieces of {piece}");
        assert_eq!(client.take(), answers);
        assert!(!client.connection.is_midway());
    }
}

#[test]
fn a_reader_that_heeds_wanted_bytes_never_crosses_a_message() {
    let whole: Vec<u8> = session().concat();
    let ends: Vec<usize> = session().iter().scan(0, |end, m| Some((*end += m.len(), *end).1)).collect();
    let (mut client, mut at) = (fresh(), 0);
    while at < whole.len() {
        let next = at + client.connection.wanted_bytes();
        assert!(!ends.iter().any(|&end| at < end && end < next), "{at}..{next} crosses a message's end");
        client.connection.feed(&whole[at..next], vec![], &mut client.device).unwrap();
        at = next;
    }
    assert!(!client.connection.is_midway());
}

#[test]
fn truncated_payloads_are_refused_and_the_connection_goes_on() {
    for full in session().split_off(1) {
        let command = u16::from_ne_bytes([full[2], full[3]]);
        for len in 0..full.len() - 16 {
            // Only these fields of longer messages are needed.
            let enough = match command {
                GET_INFO => 4,
                GET_REGION_INFO | GET_IRQ_INFO => 12,
                _ => usize::MAX,
            };
            if len < enough {
                assert_eq!(
                    refusal(&message(1, command, 0, &full[16..16 + len]), vec![]),
                    Errno::INVAL,
                    "{command} {len}"
                );
            }
        }
    }
}

#[test]
fn impossible_lengths_end_the_connection() {
    for size in (0..16).chain([65536 + 33, 1 << 20, u32::MAX]) {
        let error = ready().feed(&header(1, REGION_WRITE, size, 0), vec![]).unwrap_err();
        let Closed::Protocol(ProtocolError::BadLength { size_bytes, .. }) = error else { panic!("{error}") };
        assert_eq!(size_bytes, size);
    }
    for size in [4, 4097, 65536] {
        let error = fresh().feed(&header(1, VERSION, size, 0), vec![]).unwrap_err();
        assert!(matches!(error, Closed::Protocol(ProtocolError::BadLength { .. })), "{error}");
    }
    // The longest that is possible.
    let data = vec![0; 65536];
    assert_eq!(refusal(&region_write(1, 0, 0, 0, &data), vec![]), Errno::INVAL);
}

#[test]
fn the_version_comes_first() {
    assert!(fresh().connection.is_midway() && !ready().connection.is_midway());
    for message in session().split_off(1) {
        let mut client = fresh();
        let error = client.feed(&message, vec![]).unwrap_err();
        assert!(matches!(error, Closed::Protocol(ProtocolError::NotNegotiated(_))), "{error}");
        assert_eq!(client.take()[0].error, Some(Errno::INVAL.raw_os_error()));
    }
    for (bad, errno) in [(version("nonsense"), Errno::INVAL), (message(0, VERSION, 0, &[9; 4]), Errno::NOTSUP)] {
        let mut client = fresh();
        assert_eq!(client.feed(&bad, vec![]), Err(ProtocolError::BadVersion(errno).into()));
        assert_eq!(client.take()[0].error, Some(errno.raw_os_error()));
    }
    assert_eq!(refusal(&version(JSON), vec![]), Errno::INVAL);
}

#[test]
fn replies_and_unknown_commands_are_refused() {
    let not_a_command = Err(ProtocolError::NotACommand.into());
    assert_eq!(ready().feed(&message(1, REGION_READ, 1, &[0; 16]), vec![]), not_a_command);
    for command in [0, 6, 11, 12, 14, 15, 16, 17, 18, 99, u16::MAX] {
        assert_eq!(refusal(&message(1, command, 0, &[0; 64]), vec![]), Errno::NOTSUP, "command {command}");
    }
}

#[test]
fn a_closed_connection_stays_closed() {
    let mut client = ready();
    let not_a_command = || Err(ProtocolError::NotACommand.into());
    // The header of something that is not a command; one byte more would make it a whole message again.
    assert_eq!(client.feed(&message(2, RESET, 1, &[]), vec![]), not_a_command());
    assert_eq!(client.feed(&[0], vec![]), not_a_command());
    assert_eq!(client.feed(&message(3, RESET, 0, &[]), vec![]), not_a_command());
    assert!(client.asked().is_empty());
    assert!(client.take().is_empty());
}

#[test]
fn descriptors_are_never_leaked() {
    let (fds, all_closed) = watched_fds(17);
    let mut client = ready();
    assert_eq!(client.feed(&header(1, GET_INFO, 32, 0), fds), Err(Closed::TooManyFds));
    drop(client);
    assert!(all_closed());

    // In portions, within one message.
    let (mut fds, all_closed) = watched_fds(20);
    let mut client = ready();
    client.feed(&[1], fds.split_off(10)).unwrap();
    assert_eq!(client.feed(&[0], fds), Err(Closed::TooManyFds));
    drop(client);
    assert!(all_closed());

    for message in session().split_off(1) {
        let (fds, all_closed) = watched_fds(16);
        let mut client = ready();
        client.feed(&message, fds).unwrap();
        assert!(all_closed(), "after {message:?}");
    }
    // Those of an unfinished message go with the connection.
    let (fds, all_closed) = watched_fds(3);
    let mut client = ready();
    client.feed(&[1, 2, 3], fds).unwrap();
    assert!(!all_closed());
    drop(client);
    assert!(all_closed());
}

#[test]
fn replies_come_in_the_order_of_requests_and_identifiers_may_repeat() {
    let mut client = ready();
    let answers = [Reply::Data(vec![1; 5]), Reply::Data(vec![1, 2, 3, 4]), Reply::Failed(Errno::NOENT), Reply::Done];
    client.device.answers.extend(answers);
    for offset in [0, 8, 16] {
        client.feed(&region_read(7, 0, offset, 4), vec![]).unwrap();
    }
    client.feed(&dma_unmap(7, 0, 0x2000, 0x1000), vec![]).unwrap();
    let offsets = client.asked().into_iter().map(|request| match request {
        Request::RegionRead { offset_bytes, .. } => offset_bytes,
        Request::DmaUnmap { iova, .. } => iova,
        other => panic!("{other:?}"),
    });
    assert_eq!(offsets.collect::<Vec<_>>(), [0, 8, 16, 0x2000]);
    let answers = client.take();
    // The first was not what was asked for: the device's mistake, not the client's.
    assert_eq!(answers.iter().map(|a| a.error).collect::<Vec<_>>(), [Some(5), None, Some(2), None]);
    assert_eq!(answers[1].payload, [&region_read(7, 0, 8, 4)[16..], &[1, 2, 3, 4]].concat());
    assert_eq!(answers[3].payload, dma_unmap(7, 0, 0x2000, 0x1000)[16..]);
    assert!(answers.iter().all(|answer| answer.id == 7));
}

#[test]
fn posted_messages_get_no_reply() {
    let mut client = ready();
    client.feed(&region_write(1, NO_REPLY, 0, 0, &[1; 4]), vec![]).unwrap();
    client.feed(&region_write(2, NO_REPLY, 99, 0, &[1; 4]), vec![]).unwrap();
    assert_eq!(client.asked().len(), 1);
    assert!(client.take().is_empty());
}

#[test]
fn a_fatal_reply_tells_the_client_and_ends_the_connection() {
    let mut client = ready();
    client.device.answers.push_back(Reply::Fatal(Errno::EXIST, "overlap".into()));
    let error = client.feed(&dma_map(3, 3, 0, 0, 4096), vec![]).unwrap_err();
    assert_eq!(error.to_string(), "overlap");
    assert_eq!(client.take()[0].error, Some(Errno::EXIST.raw_os_error()));
}

#[test]
fn what_waits_for_a_client_is_bounded() {
    let mut client = ready();
    // 256 KiB of replies, the last of which may go beyond.
    for _ in 0..16 {
        assert!(!client.connection.is_full());
        client.feed(&region_read(1, 0, 0, 0x4000), vec![]).unwrap();
    }
    assert!(client.connection.is_full());
    let (first, _) = client.connection.output().unwrap();
    let first_bytes = first.len();
    client.connection.sent(first_bytes - 1);
    assert!(client.connection.is_full());
    client.connection.sent(1);
    assert!(!client.connection.is_full());
    assert_eq!(client.take().len(), 15);
}

#[test]
fn accesses_stay_inside_their_region() {
    assert!(matches!(
        accepted(&region_read(1, 0, 0x3ff8, 8), vec![]),
        Request::RegionRead { region: 0, offset_bytes: 0x3ff8, len_bytes: 8 }
    ));
    for (region, offset, len) in [
        (0, 0x3ff9, 8),
        (0, u64::MAX, 1),
        (0, u64::MAX - 3, 8),
        (0, 0, 0x4001),
        (0, 0, u32::MAX),
        (0, 0, 0),
        (1, 0, 1),
        (9, 0, 4),
        (u32::MAX, 0, 4),
    ] {
        assert_eq!(refusal(&region_read(1, region, offset, len), vec![]), Errno::INVAL);
    }
    // A length that does not match the data.
    let mut write = region_write(1, 0, 0, 0, &[1, 2, 3, 4]);
    write[28] = 3;
    assert_eq!(refusal(&write, vec![]), Errno::INVAL);
}

#[test]
fn region_info_tells_how_much_to_ask_for() {
    let mut client = ready();
    for argsz in [32, 63, 64, 4064, u32::MAX] {
        client.feed(&get_region_info(1, argsz, 0), vec![]).unwrap();
    }
    let answers = client.take();
    for (answer, full) in answers.iter().zip([false, false, true, true, true]) {
        assert_eq!(answer.payload[..4], 64u32.to_ne_bytes());
        assert_eq!((answer.payload.len(), answer.with_fd), if full { (64, true) } else { (32, false) });
    }
    assert_eq!(refusal(&get_region_info(1, 31, 0), vec![]), Errno::INVAL);
    assert_eq!(refusal(&get_region_info(1, 64, 9), vec![]), Errno::INVAL);

    // A client that takes no descriptors is not told that it can map anything.
    let mut client = fresh();
    client.feed(&version(r#"{"capabilities":{"max_msg_fds":0}}"#), vec![]).unwrap();
    client.feed(&get_region_info(1, 64, 0), vec![]).unwrap();
    let answer = client.take().pop().unwrap();
    assert_eq!((answer.payload.len(), answer.payload[4], answer.with_fd), (32, 0b11, false));
}

#[test]
fn unmaps_are_told_apart() {
    let unmap = |flags, iova, len| dma_unmap(1, flags, iova, len);
    assert!(matches!(accepted(&unmap(2, 0, 0), vec![]), Request::DmaUnmapAll));
    let one = accepted(&unmap(0, 0x1000, 0x2000), vec![]);
    assert!(matches!(one, Request::DmaUnmap { iova: 0x1000, len_bytes: 0x2000 }));
    assert_eq!(refusal(&unmap(1, 0x1000, 0x2000), vec![]), Errno::NOTSUP);
    for (flags, iova, len) in [(2, 0x1000, 0), (2, 0, 1), (0, 0, 0), (3, 0, 0), (4, 0, 4096)] {
        assert_eq!(refusal(&unmap(flags, iova, len), vec![]), Errno::INVAL);
    }
    let two_fds = watched_fds(2).0;
    assert_eq!(refusal(&dma_map(1, 3, 0, 0, 4096), two_fds), Errno::INVAL);
}

const NONE: u32 = 1;
const BOOL: u32 = 1 << 1;
const EVENTFD: u32 = 1 << 2;
const MASK: u32 = 1 << 3;
const TRIGGER: u32 = 1 << 5;
const MSIX: u32 = 2;

#[test]
fn interrupts_are_named_one_by_one() {
    let irqs = |flags, start, count, bools: &[u8], fds: usize| {
        let fds = (0..fds).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
        let asked = accepted(&set_irqs(1, flags, MSIX, start, count, bools), fds);
        let Request::SetIrqs(SetIrqs { index: MSIX, vectors, change }) = asked else { panic!("{asked:?}") };
        (vectors, change)
    };
    let (vectors, change) = irqs(NONE | TRIGGER, 6, 2, &[], 0);
    assert!(vectors == [6, 7] && matches!(change, IrqChange::Trigger));
    let (vectors, change) = irqs(BOOL | TRIGGER, 4, 3, &[0, 1, 255], 0);
    assert!(vectors == [5, 6] && matches!(change, IrqChange::Trigger));
    let (vectors, change) = irqs(EVENTFD | TRIGGER, 1, 3, &[], 3);
    assert!(vectors == [1, 2, 3] && matches!(change, IrqChange::Assign(fds) if fds.len() == 3));
    let (vectors, change) = irqs(EVENTFD | TRIGGER, 1, 3, &[], 0);
    assert!(vectors == [1, 2, 3] && matches!(change, IrqChange::Deassign));
    let (vectors, change) = irqs(NONE | TRIGGER, 0, 0, &[], 0);
    assert!(vectors == [0, 1, 2, 3, 4, 5, 6, 7] && matches!(change, IrqChange::Deassign));
}

#[test]
fn impossible_interrupts_are_refused() {
    for (flags, index, start, count, bools, fds) in [
        (NONE | TRIGGER, MSIX, 8, 1, 0, 0),
        (NONE | TRIGGER, MSIX, 0, 9, 0, 0),
        (NONE | TRIGGER, MSIX, u32::MAX, 2, 0, 0),
        (NONE | TRIGGER, MSIX, 1, u32::MAX, 0, 0),
        (NONE | TRIGGER, 5, 0, 1, 0, 0),
        (NONE | TRIGGER, 0, 0, 1, 0, 0),
        (NONE | TRIGGER, MSIX, 1, 0, 0, 0),
        (NONE | MASK, MSIX, 0, 0, 0, 0),
        (NONE | MASK, MSIX, 0, 1, 0, 0),
        (EVENTFD | TRIGGER, MSIX, 0, 0, 0, 0),
        (EVENTFD | TRIGGER, MSIX, 0, 3, 0, 2),
        (EVENTFD | TRIGGER, MSIX, 0, 1, 0, 2),
        (NONE | TRIGGER, MSIX, 0, 1, 0, 1),
        (BOOL | TRIGGER, MSIX, 0, 4, 3, 0),
        (BOOL | TRIGGER, MSIX, 0, 4, 5, 0),
        (BOOL | NONE | TRIGGER, MSIX, 0, 4, 4, 0),
        (NONE | TRIGGER | MASK, MSIX, 0, 1, 0, 0),
        (NONE, MSIX, 0, 1, 0, 0),
        (TRIGGER, MSIX, 0, 1, 0, 0),
        (NONE | TRIGGER | 1 << 6, MSIX, 0, 1, 0, 0),
    ] {
        let message = set_irqs(1, flags, index, start, count, &vec![1; bools]);
        let what = format!("flags {flags:#b}, index {index}, {start}+{count}, {bools} bools, {fds} fds");
        assert_eq!(refusal(&message, watched_fds(fds).0), Errno::INVAL, "{what}");
    }
}

/// Messages with random damage: nothing panics, and what comes through keeps its promises.
#[test]
fn random_streams_never_panic() {
    for seed in seeds(300) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut client = if random.u64(..8) == 0 { fresh() } else { ready() };
        for _ in 0..200 {
            let bytes = damaged(&mut random);
            let fds = some_fds(&mut random);
            let cut = random.usize(..=bytes.len());
            let fed = client.feed(&bytes[..cut], fds).and_then(|()| client.feed(&bytes[cut..], vec![]));
            check(&client.asked());
            client.take();
            if fed.is_err() {
                client = ready();
            }
        }
    }
}

fn damaged(random: &mut fastrand::Rng) -> Vec<u8> {
    let messages = session();
    let mut bytes = messages[random.usize(..messages.len())].clone();
    for _ in 0..random.u64(..4) {
        // Bytes of the header's length are left alone mostly, or few messages would arrive.
        let at = random.usize(..bytes.len());
        if !(4..8).contains(&at) || random.u64(..16) == 0 {
            bytes[at] = random.u8(..);
        }
    }
    bytes
}

fn some_fds(random: &mut fastrand::Rng) -> Vec<OwnedFd> {
    let count = random.usize(..4);
    match random.u8(..3) {
        0 => watched_fds(count).0,
        1 => (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect(),
        _ => (0..count).map(|_| Mapping::memfd("guest", 0x2000).unwrap().1).collect(),
    }
}

fn check(asked: &[Request]) {
    for request in asked {
        match request {
            Request::RegionRead { region, offset_bytes, len_bytes } => {
                assert!([0, 7].contains(region) && offset_bytes + u64::from(*len_bytes) <= common::BAR0_BYTES);
            }
            Request::DmaMap { iova, len_bytes, mapping } => {
                assert!(iova % 4096 == 0 && len_bytes % 4096 == 0 && iova.checked_add(*len_bytes).is_some());
                assert!(mapping.is_none() || *len_bytes <= 0x2000, "behind the end of the file");
            }
            Request::SetIrqs(irqs) => assert!(irqs.vectors.iter().all(|&vector| vector < common::VECTORS)),
            _ => {}
        }
    }
}
