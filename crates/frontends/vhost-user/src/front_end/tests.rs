//! What is kept of a client's messages, whatever they were, gives another process the same state.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;

use client_socket::{Protocol, Replies, Session};
use guest_memory::{Budget, Mapping};
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::device::RingSetup;
use crate::wire::{HEADER_BYTES, Header};

const QUEUES: u16 = 3;
const SIZE: u16 = 64;
const FEATURES: u64 = 1 << 32 | 1 << 9;
const REGION_BYTES: u64 = 1 << 16;
const REGIONS: u64 = 4;
const NEED_REPLY: u32 = 1 << 3;

/// A ring that runs: where it is, whether it is enabled, has a call, an err.
type Runs = (u64, bool, bool, bool);

/// A device that knows what it was told.
#[derive(Default)]
struct Disk {
    features: u64,
    memory: Vec<u64>,
    rings: BTreeMap<u16, Runs>,
    /// Outlives it.
    stopped: BTreeMap<u16, u16>,
    is_restored: bool,
}

impl Device for Disk {
    fn connected(&mut self, _session: Session) {}

    fn config(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn set_config(&mut self, _offset_bytes: u32, _data: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn features_acked(&mut self, features: u64) {
        self.features = features;
    }

    fn memory(&mut self, memory: &Memory) -> Result<(), String> {
        self.memory = memory.regions().iter().map(|region| region.guest_addr).collect();
        Ok(())
    }

    fn start(&mut self, ring: u16, setup: RingSetup) -> Result<(), String> {
        assert!(!self.is_restored || self.rings.len() < usize::from(QUEUES));
        let runs = (setup.desc_table, setup.enabled, setup.call.is_some(), setup.err.is_some());
        assert!(self.rings.insert(ring, runs).is_none(), "ring {ring} runs already");
        Ok(())
    }

    fn set_call(&mut self, ring: u16, call: Option<OwnedFd>) {
        self.rings.get_mut(&ring).unwrap().2 = call.is_some();
    }

    fn set_err(&mut self, ring: u16, err: Option<OwnedFd>) {
        self.rings.get_mut(&ring).unwrap().3 = err.is_some();
    }

    fn enable(&mut self, ring: u16, enabled: bool) {
        self.rings.get_mut(&ring).unwrap().1 = enabled;
    }

    fn stop(&mut self, ring: u16) -> Result<u16, String> {
        self.rings.remove(&ring).unwrap();
        let at = self.stopped.get(&ring).map_or(100 * (ring + 1), |at| at + 1);
        self.stopped.insert(ring, at);
        Ok(at)
    }

    fn stopped_at(&mut self, ring: u16) -> Option<u16> {
        self.stopped.get(&ring).copied()
    }

    fn restored(&mut self, _alone: Duration) {
        self.is_restored = true;
    }

    fn reset(&mut self) {}

    fn disconnected(&mut self, _reason: &str) {}
}

fn spec() -> Arc<DeviceSpec> {
    let inflight_bytes = |size: u16| (16 + 16 * u64::from(size)).next_multiple_of(64);
    let budget = Budget::new(1 << 30, 64);
    let name = "vm".into();
    Arc::new(DeviceSpec { name, features: FEATURES, queues: QUEUES, max_queue_size: SIZE, inflight_bytes, budget })
}

/// A message with its descriptors.
struct Message {
    request: u32,
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Message {
    fn new(request: u32, payload: Vec<u8>, fd: Option<OwnedFd>) -> Self {
        Self { request, payload, fds: fd.into_iter().collect() }
    }

    fn again(&self) -> Self {
        let fds = self.fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        Self { request: self.request, payload: self.payload.clone(), fds }
    }
}

/// A client's time with one process.
struct Process {
    front_end: FrontEnd,
    disk: Disk,
}

impl Process {
    fn new(stopped: BTreeMap<u16, u16>) -> Self {
        Self { front_end: FrontEnd::new(spec()), disk: Disk { stopped, ..Disk::default() } }
    }

    fn say(&mut self, number: u64, message: Message) -> (client_socket::Keeping, bool) {
        let words = [message.request, 1 | NEED_REPLY, message.payload.len() as u32];
        let mut bytes = [0; HEADER_BYTES];
        bytes.chunks_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
        let Message { payload, fds, .. } = message;
        let mut replies = Replies::default();
        let done = self.front_end.message(Header::parse(&bytes), &payload, fds, &mut self.disk, &mut replies);
        (self.front_end.keeping(number), done == Ok(None))
    }

    /// All that the client's messages made of it. Of a ring that runs, the device knows where it is.
    fn state(&self) -> String {
        let FrontEnd { owned, features, protocol_features, memory, rings, inflight, backend_channel, .. } =
            &self.front_end;
        let memory: Vec<_> = memory.regions().iter().map(|region| region.guest_addr).collect();
        let rings: Vec<_> = rings.iter().map(Ring::summary).collect();
        let log = inflight.as_ref().map(|inflight| inflight.part(0).map(|(size, _)| size));
        let ours = (owned, features, protocol_features, memory, rings, log, backend_channel.is_some());
        let Disk { features, memory, rings, .. } = &self.disk;
        // A device keeps features where its client does not.
        let features = self.front_end.features.map(|_| features);
        format!("{ours:?} {features:?} {memory:?} {rings:?}")
    }
}

/// Draws messages.
struct Client {
    random: u64,
    memory: OwnedFd,
}

impl Client {
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    fn region(&mut self) -> (Vec<u64>, OwnedFd) {
        let at = self.below(REGIONS) * REGION_BYTES;
        (vec![at, REGION_BYTES, at, at], self.memory.try_clone().unwrap())
    }

    fn longs(longs: &[u64]) -> Vec<u8> {
        longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn of_ring(&mut self, request: u32, value: u32) -> Message {
        Message::new(request, Self::words(&[self.below(QUEUES.into()) as u32, value]), None)
    }

    fn ring_fd(&mut self, request: u32) -> Message {
        let ring = self.below(QUEUES.into());
        if self.below(4) == 0 {
            return Message::new(request, Self::longs(&[ring | 1 << 8]), None);
        }
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Message::new(request, Self::longs(&[ring]), Some(fd))
    }

    fn next(&mut self) -> Message {
        match self.below(30) {
            0 => {
                let with = if self.below(2) == 0 { VHOST_USER_F_PROTOCOL_FEATURES } else { 0 };
                let features = [FEATURES, 1 << 32][self.below(2) as usize];
                Message::new(2, Self::longs(&[features | with]), None)
            }
            1 => {
                let without = if self.below(4) == 0 { protocol_feature::CONFIGURE_MEM_SLOTS } else { 0 };
                Message::new(16, Self::longs(&[PROTOCOL_FEATURES & !without]), None)
            }
            2 => Message::new(3, Vec::new(), None),
            3 if self.below(3) == 0 => Message::new(4, Vec::new(), None),
            3 | 4 if self.below(8) == 0 => Message::new(34, Vec::new(), None),
            5 => {
                let count = 1 + self.below(3);
                let regions: Vec<_> = (0..count).map(|_| self.region()).collect();
                let payload = [Self::words(&[count as u32, 0])].into_iter();
                let payload = payload.chain(regions.iter().map(|(region, _)| Self::longs(region))).flatten().collect();
                Message { request: 5, payload, fds: regions.into_iter().map(|(_, fd)| fd).collect() }
            }
            6..=8 => {
                let (region, fd) = self.region();
                Message::new(37, Self::longs(&[vec![0], region].concat()), Some(fd))
            }
            9 | 10 => {
                let (region, _) = self.region();
                Message::new(38, Self::longs(&[vec![0], region].concat()), None)
            }
            11 => {
                let fd = UnixStream::pair().unwrap().0.into();
                Message::new(21, Vec::new(), Some(fd))
            }
            12 => {
                let (_, log) = Mapping::memfd("log", 1 << 16).unwrap();
                let shorts = u64::from(QUEUES) | u64::from(SIZE) << 16;
                Message::new(32, Self::longs(&[1 << 16, 0, shorts]), Some(log))
            }
            13 | 14 => self.of_ring(8, u32::from(SIZE)),
            15 | 16 => {
                let (ring, at) = (self.below(QUEUES.into()), self.below(REGIONS) * REGION_BYTES);
                Message::new(9, Self::longs(&[ring, at, at + 0x8000, at + 0x4000, 0]), None)
            }
            17 => {
                let base = self.below(1 << 16) as u32;
                self.of_ring(10, base)
            }
            18 | 19 => self.of_ring(11, 0),
            20 | 21 => self.ring_fd(13),
            22 => self.ring_fd(14),
            23 | 24 => {
                let enabled = self.below(2) as u32;
                self.of_ring(18, enabled)
            }
            _ => self.ring_fd(12),
        }
    }
}

#[test]
fn what_is_kept_gives_the_same_state_whatever_was_said() {
    let (_, memory) = Mapping::memfd("guest", (REGIONS * REGION_BYTES) as usize).unwrap();
    let mut client = Client { random: 7, memory };
    let (mut running, mut done_in_all) = (0, 0);
    for _ in 0..60 {
        let mut process = Process::new(BTreeMap::new());
        let mut kept: BTreeMap<u64, Message> = BTreeMap::new();
        for number in 0..400 {
            let message = client.next();
            let (keeping, is_done) = process.say(number, message.again());
            assert!(is_done || keeping == client_socket::Keeping::default(), "what was refused lasts");
            done_in_all += usize::from(is_done);
            keeping.forget.iter().for_each(|number| assert!(kept.remove(number).is_some(), "{number} is not kept"));
            if keeping.keep {
                kept.insert(number, message);
            }
            if client.below(20) != 0 {
                continue;
            }
            // It dies, and the next one hears what is kept.
            let mut next = Process::new(process.disk.stopped.clone());
            next.front_end.begin_to_restore();
            for (number, message) in &kept {
                let (keeping, is_done) = next.say(*number, message.again());
                assert!(is_done && keeping.keep && keeping.forget.is_empty(), "request {}", message.request);
                assert!(next.disk.rings.is_empty(), "a ring runs before all was repeated");
            }
            FrontEnd::restored(&mut next.front_end, &mut next.disk, Duration::ZERO).unwrap();
            assert!(next.disk.is_restored);
            assert_eq!(next.state(), process.state());
            running += next.disk.rings.len();
            process = next;
        }
    }
    assert!(running > 500 && done_in_all > 5000, "{running} rings ran, {done_in_all} messages were done");
}
