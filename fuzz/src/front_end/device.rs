//! The device's side: it checks what it is told, and refuses some of it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use guest_memory::{Access, Budget, GuestMemory};
use rustix::io::Errno;
use vhost_user::{Device, DeviceSpec, Memory, RingSetup, Session};

pub const QUEUES: u16 = 4;
pub const FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 9;
const MAX_SIZE: u16 = 256;
const CONFIG_BYTES: usize = 60;

pub fn spec() -> DeviceSpec {
    DeviceSpec {
        name: "fuzzed".into(),
        features: FEATURES,
        queues: QUEUES,
        max_queue_size: MAX_SIZE,
        inflight_bytes,
        budget: Budget::new(1 << 40, 4096),
    }
}

fn inflight_bytes(queue_size: u16) -> u64 {
    (16 + 16 * u64::from(queue_size)).next_multiple_of(64)
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    New,
    Connected,
    Disconnected,
}

/// A device that holds the server to its contract.
#[derive(Debug)]
pub struct Checker {
    stage: Stage,
    features: Option<u64>,
    memory: GuestMemory,
    rings: BTreeMap<u16, RingSetup>,
    /// Its lowest bit says whether the next thing is refused.
    refusals: u64,
}

impl Checker {
    /// Refuses about one thing in eight.
    pub fn new(noise: u64) -> Self {
        let refusals = noise & noise.rotate_left(17) & noise.rotate_left(31);
        Self { stage: Stage::New, features: None, memory: GuestMemory::default(), rings: BTreeMap::new(), refusals }
    }

    /// The connection is over.
    pub fn check_end(&self) {
        assert_eq!(self.stage, Stage::Disconnected);
    }

    fn check_connected(&self) {
        assert_eq!(self.stage, Stage::Connected);
    }

    fn judge(&mut self) -> Result<(), String> {
        self.check_connected();
        self.refusals = self.refusals.rotate_right(1);
        if self.refusals & 1 != 0 { Err("refused".into()) } else { Ok(()) }
    }

    fn running(&mut self, ring: u16) -> &mut RingSetup {
        self.check_connected();
        self.rings.get_mut(&ring).expect("the ring runs")
    }
}

/// All parts of a ring can be read and written.
fn check_place(memory: &mut GuestMemory, setup: &RingSetup) {
    let size = u64::from(setup.size);
    let parts =
        [(setup.desc_table, 16 * size, 16), (setup.avail_ring, 6 + 2 * size, 2), (setup.used_ring, 6 + 8 * size, 4)];
    for (at, len, align) in parts {
        assert!(at.is_multiple_of(align), "{at:#x} is not aligned to {align}");
        assert!(memory.view(at, len, Access::Write).is_ok(), "{at:#x}+{len:#x} is not in one region");
    }
}

/// Reading from it does not wait, and gives a count or nothing.
fn check_eventfd(fd: Option<&OwnedFd>) {
    if let Some(fd) = fd {
        let read = rustix::io::read(fd, &mut [0; 8]);
        assert!(matches!(read, Ok(8) | Err(Errno::AGAIN)), "{read:?}");
    }
}

impl Device for Checker {
    fn connected(&mut self, _session: Session) {
        assert_eq!(self.stage, Stage::New);
        self.stage = Stage::Connected;
    }

    fn config(&mut self) -> Vec<u8> {
        self.check_connected();
        vec![0xc0; CONFIG_BYTES]
    }

    fn set_config(&mut self, offset_bytes: u32, data: &[u8]) -> Result<(), String> {
        assert!(offset_bytes as usize + data.len() <= 4096 - 256);
        self.judge()
    }

    fn features_acked(&mut self, features: u64) {
        self.check_connected();
        assert_eq!(features & !FEATURES, 0);
        assert!(self.rings.is_empty(), "features change under a running ring");
        self.features = Some(features);
    }

    fn memory(&mut self, memory: &Memory) -> Result<(), String> {
        self.judge()?;
        let mut guest = memory.guest_memory();
        assert_eq!(guest.len(), memory.regions().len());
        for region in memory.regions().iter().filter(|region| region.mapping.is_some()) {
            let last = region.guest_addr + region.len_bytes - 1;
            assert!(guest.write(region.guest_addr, &[1]).is_ok() && guest.write(last, &[1]).is_ok());
        }
        self.rings.values().for_each(|setup| check_place(&mut guest, setup));
        self.memory = guest;
        Ok(())
    }

    fn start(&mut self, ring: u16, setup: RingSetup) -> Result<(), String> {
        assert!(ring < QUEUES && !self.rings.contains_key(&ring));
        assert!(setup.size.is_power_of_two() && setup.size <= MAX_SIZE);
        assert_eq!(Some(setup.features), self.features);
        check_place(&mut self.memory, &setup);
        [&setup.kick, &setup.call, &setup.err].into_iter().for_each(|fd| check_eventfd(fd.as_ref()));
        if let Some(log) = &setup.inflight {
            assert!(log.len_bytes() >= inflight_bytes(setup.size));
            assert!(log.cell(log.len_bytes() - 4).is_some());
        }
        self.judge()?;
        self.rings.insert(ring, setup);
        Ok(())
    }

    fn set_call(&mut self, ring: u16, call: Option<OwnedFd>) {
        check_eventfd(call.as_ref());
        self.running(ring).call = call;
    }

    fn set_err(&mut self, ring: u16, err: Option<OwnedFd>) {
        check_eventfd(err.as_ref());
        self.running(ring).err = err;
    }

    fn enable(&mut self, ring: u16, enabled: bool) {
        let was = std::mem::replace(&mut self.running(ring).enabled, enabled);
        assert_ne!(was, enabled, "told what it knew");
    }

    fn stop(&mut self, ring: u16) -> Result<u16, String> {
        let next_avail = self.running(ring).next_avail;
        self.rings.remove(&ring);
        Ok(next_avail.wrapping_add(1))
    }

    fn reset(&mut self) {
        self.check_connected();
        assert!(self.rings.is_empty(), "a reset under a running ring");
        self.features = None;
    }

    fn disconnected(&mut self, _reason: &str) {
        self.check_connected();
        self.stage = Stage::Disconnected;
        self.rings.clear();
    }
}
