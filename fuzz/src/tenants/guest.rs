//! A guest with a sane driver: two I/O queue pairs, and commands that are told apart.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytemuck::Zeroable;
use guest_memory::{Mapping, MemoryListener};
use io_model::TenantId;
use nvme_controller::{Controller, ControllerConfig, Doorbells, Interrupts, NamespaceConfig, VECTORS};
use nvme_spec::opcode::{create, nvm};
use nvme_spec::regs::{Aqa, Cc, Reg};
use nvme_spec::{PAGE_BYTES, Sqe};
use test_clients::rings::{Cq, Sq, create_cq, create_sq};

/// A tenant's part of the drive.
pub const SIZE_BYTES: u64 = 1 << 20;

const RAM_BYTES: u64 = 16 * PAGE_BYTES;
/// Entries of every queue.
const ENTRIES: u16 = 16;
const QUEUES: u16 = 3;

/// What reads of a tenant's part of the drive return.
pub fn mark(tenant: u8) -> u8 {
    0x40 + tenant
}

pub struct Wires;

impl Interrupts for Wires {
    fn raise(&mut self, vector: u16) {
        assert!(vector < VECTORS, "vector {vector}");
    }
}

#[derive(Debug, Clone)]
struct Pair {
    sq: Sq,
    cq: Cq,
    /// Completions seen and not given back to the device.
    seen: u16,
    /// Command identifiers that wait for their completion, and whether each is a read.
    open: Vec<(u16, bool)>,
}

impl Pair {
    fn new(number: u16) -> Self {
        let at = PAGE_BYTES * 2 * u64::from(number);
        let (sq, cq) = (Sq::new(at, ENTRIES, number), Cq::new(at + PAGE_BYTES, ENTRIES));
        Self { sq, cq, seen: 0, open: Vec::new() }
    }
}

pub struct Guest {
    tenant: u8,
    ram: Arc<Mapping>,
    ram_fd: OwnedFd,
    bells: Arc<Mapping>,
    pairs: Vec<Pair>,
    next_cid: u16,
}

/// Where a command's data goes: one block for each identifier.
fn data_at(cid: u16) -> u64 {
    8 * PAGE_BYTES + u64::from(cid % 64) * 512
}

impl Guest {
    /// A guest that is switched off, and its controller.
    pub fn new(tenant: u8) -> (Self, Controller<Wires>) {
        let (ram, ram_fd) = Mapping::memfd("ram", RAM_BYTES as usize).expect("a memfd");
        let (bells, _) = Mapping::memfd("doorbells", PAGE_BYTES as usize).expect("a memfd");
        let namespace = NamespaceConfig {
            base_bytes: SIZE_BYTES * u64::from(tenant),
            size_bytes: SIZE_BYTES,
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
            model: "fuzz".into(),
            firmware: "1".into(),
            subnqn: "nqn.2026-01.io.evenkeel:fuzz".into(),
            tenant: TenantId(tenant.into()),
            namespaces: vec![(1, namespace)],
            sanitize: None,
            discard: true,
            write_zeroes: true,
            volatile_write_cache: true,
            max_io_queues: QUEUES - 1,
            max_depth: ENTRIES,
            max_transfer_bytes: 64 << 10,
            doorbells: Doorbells::Mapped,
            queues_singly: false,
            part: nvme_controller::Part::WHOLE,
        };
        let controller = Controller::new(config, Arc::clone(&bells), Wires).expect("a good configuration");
        (Self { tenant, ram, ram_fd, bells, pairs: Vec::new(), next_cid: 0 }, controller)
    }

    /// Starts the driver anew.
    pub fn bring_up(&mut self, controller: &mut Controller<Wires>, listener: &mut dyn MemoryListener) {
        self.ram.write_at(0, &vec![0; RAM_BYTES as usize]).expect("inside");
        self.pairs = (0..QUEUES).map(Pair::new).collect();
        controller.dma_unmap_all();
        while controller.take_unmapped(listener).is_some() {}
        assert_eq!(controller.unmaps_pending(), 0, "an idle controller uses memory");
        let mapping = Mapping::shared(self.ram_fd.as_fd(), 0, RAM_BYTES, true).expect("mappable");
        controller.dma_map(0, RAM_BYTES, Some(mapping), listener).expect("nothing is mapped");
        let mut set = |reg: Reg, bytes: &[u8]| controller.bar_write(0, reg.offset(), bytes);
        set(Reg::Aqa, &Aqa::new(ENTRIES - 1, ENTRIES - 1).0.to_le_bytes());
        set(Reg::Asq, &self.pairs[0].sq.at.to_le_bytes());
        set(Reg::Acq, &self.pairs[0].cq.at.to_le_bytes());
        set(Reg::Cc, &Cc::enable_nvm().0.to_le_bytes());
        for queue in 1..QUEUES {
            let Pair { sq, cq, .. } = self.pairs[usize::from(queue)];
            self.push(0, create_cq(queue, ENTRIES, cq.at, create::PC | create::IEN));
            self.push(0, create_sq(queue, ENTRIES, sq.at, queue));
        }
    }

    /// Submits a read or write of one block, if there is room.
    pub fn submit(&mut self, queue: u8, write: bool, lba: u16) {
        let queue = 1 + u16::from(queue) % (QUEUES - 1);
        // As many open as the completion queue holds, so that a tail always fits.
        if self.pairs.get(usize::from(queue)).is_none_or(|pair| pair.open.len() + 2 > ENTRIES.into()) {
            return;
        }
        let opc = if write { nvm::WRITE } else { nvm::READ };
        let at = data_at(self.next_cid.wrapping_add(1));
        self.ram.write_at(at, &[0; 512]).expect("inside");
        let cdw10 = u32::from(lba) % (SIZE_BYTES / 512) as u32;
        self.push(queue, Sqe { opc, nsid: 1, dptr: [at, 0], cdw10, ..Sqe::zeroed() });
    }

    fn push(&mut self, queue: u16, mut sqe: Sqe) {
        self.next_cid = self.next_cid.wrapping_add(1);
        sqe.cid = self.next_cid;
        let pair = &mut self.pairs[usize::from(queue)];
        pair.open.push((sqe.cid, queue > 0 && sqe.opc == nvm::READ));
        pair.sq.push(&*self.ram, &sqe).expect("inside");
        self.bells.write_at(8 * u64::from(queue), &u32::from(pair.sq.tail).to_le_bytes()).expect("inside");
    }

    /// Takes note of every completion.
    pub fn look(&mut self) {
        for (queue, pair) in self.pairs.iter_mut().enumerate() {
            while let Some(cqe) = pair.cq.take(&*self.ram).expect("inside") {
                assert_eq!(usize::from(cqe.sqid), queue, "tenant {}: in another queue: {cqe:?}", self.tenant);
                let at = pair.open.iter().position(|(cid, _)| *cid == cqe.cid);
                let at = at.unwrap_or_else(|| panic!("tenant {}: nobody waits for {cqe:?}", self.tenant));
                let (cid, is_read) = pair.open.swap_remove(at);
                if is_read && cqe.status().is_success() {
                    let mut block = [0; 512];
                    self.ram.read_at(data_at(cid), &mut block).expect("inside");
                    assert!(block == [mark(self.tenant); 512], "tenant {}: another tenant's data", self.tenant);
                }
                assert!(queue > 0 || cqe.status().is_success(), "tenant {}: {cqe:?}", self.tenant);
                pair.seen += 1;
                assert!(pair.seen < ENTRIES, "tenant {}: queue {queue} overflowed", self.tenant);
            }
        }
    }

    /// Gives the completion entries back to the device.
    pub fn consume(&mut self) {
        for (queue, pair) in self.pairs.iter_mut().enumerate() {
            pair.seen = 0;
            self.bells.write_at(8 * queue as u64 + 4, &u32::from(pair.cq.head).to_le_bytes()).expect("inside");
        }
    }

    /// Whether nothing is open.
    pub fn is_settled(&self) -> bool {
        self.pairs.iter().all(|pair| pair.open.is_empty())
    }
}
