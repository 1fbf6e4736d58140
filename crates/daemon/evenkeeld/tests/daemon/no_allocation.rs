//! The polling path allocates nothing: doorbell, fetch, policy, device, completion.
//!
//! One thread plays both sides, so that every allocation is counted: an NVMe driver with its queues, and the
//! poller that serves it.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use backend_memory::{Memory, MemoryDrive};
use guest_memory::{MappedU32, Mapping};
use io_model::{Nanos, TenantId};
use nvme_controller::{Controller, ControllerConfig, Doorbells, Interrupts, NamespaceConfig};
use nvme_driver::{Blocks, Data, DmaMemory, Doorbell, Error, PciDevice, QueuePair, Ring};
use nvme_spec::regs::DOORBELL_BASE;
use policy::{
    AnyPolicy, ArbitratedConfig, Class, EvenkeelConfig, FairConfig, Limits, Lpns, LpnsConfig, Passthrough,
    PolicyConfig, PollerShape, Terms,
};
use poller::{Board, Poller, Probe, TenantSlot};

const DRIVE_BYTES: u64 = 16 << 20;
const DEPTH: u16 = 128;
const BLOCK_BYTES: u64 = 4096;
const COMMANDS: u32 = 100_000;
/// Time between two iterations: as busy as a fast drive keeps a poller. Some are as long as a policy's interval, so
/// that its work at the end of intervals and periods is measured too.
const STEP: Nanos = Nanos(2_000);
const LONG_STEP: Nanos = Nanos::from_millis(10);
const LONG_EVERY: u64 = 16;

/// The daemon's side: its poller, and the time.
struct Daemon {
    poller: Poller<Controller<NoInterrupts>, Memory, AnyPolicy>,
    tenant: TenantSlot,
    doorbells: Arc<Mapping>,
    now: Nanos,
    steps: u64,
}

struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&mut self, _vector: u16) {}
}

impl Daemon {
    fn new(policy: AnyPolicy, hwqs: u16, class: Class) -> Self {
        let (doorbells, _) = Mapping::memfd("doorbells", 4096).unwrap();
        let namespace = NamespaceConfig {
            base_bytes: 0,
            size_bytes: DRIVE_BYTES,
            lba_bytes: 512,
            lba_sizes: vec![512],
            read_only: false,
            shared: false,
            elsewhere: false,
            nguid: None,
            format_cut_short: false,
            erases_by_key: false,
        };
        let config = ControllerConfig {
            serial: "1".into(),
            model: "test".into(),
            firmware: "1".into(),
            subnqn: "nqn.2026-11.evenkeel:test".into(),
            tenant: TenantId(0),
            namespaces: vec![(1, namespace)],
            sanitize: None,
            discard: true,
            write_zeroes: true,
            volatile_write_cache: false,
            max_io_queues: 8,
            max_depth: 1024,
            max_transfer_bytes: 1 << 20,
            doorbells: Doorbells::Mapped,
            queues_singly: false,
            part: nvme_controller::Part::WHOLE,
        };
        let controller = Controller::new(config, Arc::clone(&doorbells), NoInterrupts).unwrap();
        let board = Arc::new(Board::default());
        let probe = Arc::new(Probe::new(TenantId(0), class));
        let queues = MemoryDrive::new(DRIVE_BYTES).unwrap().open_queues(hwqs, 1024);
        let mut poller = Poller::new(queues, policy, board, Nanos(0));
        let limits = Limits { rw_ios_per_sec: 200_000, ..Limits::default() };
        let terms = Terms { limits, ..class.into() };
        let tenant = poller.add(controller, probe, &terms).ok().expect("there is room");
        Self { poller, tenant, doorbells, now: Nanos(0), steps: 0 }
    }

    fn step(&mut self) {
        self.steps += 1;
        self.now += if self.steps.is_multiple_of(LONG_EVERY) { LONG_STEP } else { STEP };
        self.poller.step(self.now);
    }

    fn controller(&mut self) -> &mut Controller<NoInterrupts> {
        self.poller.source_mut(self.tenant).unwrap()
    }
}

/// The driver's way to it, without a socket between them.
struct Wire {
    daemon: Arc<Mutex<Daemon>>,
    next_iova: u64,
}

impl Wire {
    fn read<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        let mut value = [0; N];
        let mut daemon = self.daemon.lock().unwrap();
        daemon.step();
        daemon.controller().bar_read(0, offset, &mut value);
        value
    }

    fn write(&mut self, offset: u64, value: &[u8]) {
        self.daemon.lock().unwrap().controller().bar_write(0, offset, value);
    }
}

impl PciDevice for Wire {
    fn read_u32(&mut self, offset: u64) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.read(offset)))
    }

    fn read_u64(&mut self, offset: u64) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.read(offset)))
    }

    fn write_u32(&mut self, offset: u64, value: u32) -> Result<(), Error> {
        self.write(offset, &value.to_le_bytes());
        Ok(())
    }

    fn write_u64(&mut self, offset: u64, value: u64) -> Result<(), Error> {
        self.write(offset, &value.to_le_bytes());
        Ok(())
    }

    fn doorbell(&mut self, offset: u64) -> Result<Doorbell, Error> {
        let page = Arc::clone(&self.daemon.lock().unwrap().doorbells);
        let cell = MappedU32::new(&page, offset - DOORBELL_BASE).unwrap();
        // Admin commands are waited for inside of the driver: their doorbells make the poller run.
        let is_admin = offset < DOORBELL_BASE + 8;
        Ok(if is_admin {
            Doorbell::Sent(Box::new(AdminRing { daemon: Arc::clone(&self.daemon), cell }))
        } else {
            Doorbell::Mapped(cell)
        })
    }

    fn allocate_dma(&mut self, len_bytes: usize) -> Result<DmaMemory, Error> {
        let (mapping, _) = Mapping::memfd("guest", len_bytes.next_multiple_of(4096))?;
        let iova = self.next_iova;
        self.next_iova += mapping.len_bytes();
        self.daemon
            .lock()
            .unwrap()
            .controller()
            .dma_map(iova, mapping.len_bytes(), Some(Arc::clone(&mapping)), &mut ())
            .unwrap();
        Ok(DmaMemory::new(mapping, iova))
    }

    fn release_dma(&mut self, memory: DmaMemory) -> Result<(), Error> {
        self.daemon.lock().unwrap().controller().dma_unmap(memory.iova(), memory.len_bytes()).unwrap();
        Ok(())
    }

    fn set_interrupt(&mut self, _vector: u16, _event: BorrowedFd<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.daemon.lock().unwrap().controller().reset();
        Ok(())
    }
}

struct AdminRing {
    daemon: Arc<Mutex<Daemon>>,
    cell: MappedU32,
}

impl Ring for AdminRing {
    fn ring(&mut self, value: u32) -> Result<(), Error> {
        self.cell.store(value);
        let mut daemon = self.daemon.lock().unwrap();
        (0..4).for_each(|_| daemon.step());
        Ok(())
    }
}

/// Completes `count` commands, two reads to each write, with the queue kept full.
fn move_commands(daemon: &Mutex<Daemon>, queue: &mut QueuePair, data: &DmaMemory, count: u32) {
    let mut daemon = daemon.lock().unwrap();
    let (mut sent, mut completed, mut idle) = (0_u32, 0, 0);
    while completed < count {
        while let Some(cid) = queue.next_cid() {
            let blocks = Blocks { nsid: 1, lba: u64::from(sent) * 8 % (DRIVE_BYTES / 512), count: 8 };
            let data = Data { iova: data.iova() + u64::from(cid) * BLOCK_BYTES, len_bytes: BLOCK_BYTES };
            let submitted = if sent % 3 == 0 { queue.write(blocks, data, false) } else { queue.read(blocks, data) };
            submitted.unwrap();
            sent += 1;
        }
        queue.ring().unwrap();
        daemon.step();
        let reaped = queue.poll(&mut |done| assert!(done.status.is_success(), "{}", done.status)).unwrap();
        completed += reaped;
        // A policy may hold commands back for as long as it likes, but not for ever.
        idle = if reaped == 0 { idle + 1 } else { 0 };
        assert!(idle < 10_000_000, "nothing completes any more");
    }
}

fn allocations(policy: AnyPolicy, hwqs: u16, class: Class) -> (u64, u64) {
    let daemon = Arc::new(Mutex::new(Daemon::new(policy, hwqs, class)));
    let device = Wire { daemon: Arc::clone(&daemon), next_iova: 1 << 32 };
    let mut controller = nvme_driver::Controller::start(device).unwrap();
    let mut queue = controller.create_queue_pair(DEPTH, None).unwrap();
    let data = controller.allocate_dma(usize::from(DEPTH) * BLOCK_BYTES as usize).unwrap();
    // Tables grow to the size that this load needs; then no more.
    let first = allocation_counter::measure(|| move_commands(&daemon, &mut queue, &data, COMMANDS));
    let steady = allocation_counter::measure(|| move_commands(&daemon, &mut queue, &data, COMMANDS));
    (first.count_total, steady.count_total)
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1)))).count_total, 1);
}

#[test]
fn passthrough_allocates_nothing() {
    let policy = || Passthrough::new(4, 1024).into();
    let (first, steady) = allocations(policy(), 4, Class::BestEffort { weight: 1 });
    assert_eq!(steady, 0, "{first} while warming up");
}

#[test]
fn lpns_allocates_nothing() {
    for class in [Class::BestEffort { weight: 1 }, Class::guaranteed(Some(Nanos(50_000)))] {
        let config = LpnsConfig::p5800x().with_hwqs(8, 5, 1024);
        let (first, steady) = allocations(Lpns::new(config).unwrap().into(), 8, class);
        assert_eq!(steady, 0, "{class:?}: {first} while warming up");
    }
}

#[test]
fn the_other_policies_allocate_nothing() {
    let shape = PollerShape { hwqs: 8, hwq_depth: 1024, guaranteed_vqs: 5, weighted: false };
    let policies = [
        PolicyConfig::Fair(FairConfig::p5800x()),
        PolicyConfig::Wrr(ArbitratedConfig::wrr()),
        PolicyConfig::Drr(ArbitratedConfig::drr()),
        PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()),
    ];
    for config in policies {
        for class in [Class::BestEffort { weight: 1 }, Class::guaranteed(Some(Nanos(50_000)))] {
            let (first, steady) = allocations(config.build(&shape).unwrap(), shape.hwqs, class);
            assert_eq!(steady, 0, "{} {class:?}: {first} while warming up", config.name());
        }
    }
}
