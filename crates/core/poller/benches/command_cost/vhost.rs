//! A guest with a virtio-blk disk, and the front end that it is attached to.

use std::os::fd::AsFd;
use std::sync::Arc;

use guest_memory::{GuestMemory, MappedRange, Mapping};
use io_model::{Extents, Place, Placed};
use vhost_blk::{Disk, DiskConfig, Queues, RingSetup, inflight_bytes, inflight_region};

use crate::{DISK_BYTES, Guest, TENANT};

const RAM_BYTES: u64 = 4 << 20;
const SIZE: u16 = 512;
const DESC: u64 = 0;
const AVAIL: u64 = 0x2000;
const USED: u64 = 0x3000;
const BUFFERS: u64 = 0x10_0000;

/// Requests of three descriptors each, which come and go in their order.
pub struct VhostGuest {
    ram: MappedRange,
    chains: u16,
    avail_idx: u16,
    used_idx: u16,
}

impl VhostGuest {
    fn new(ram: MappedRange, chains: u16) -> Self {
        let this = Self { ram, chains, avail_idx: 0, used_idx: 0 };
        (0..chains).for_each(|chain| this.prepare(chain));
        this
    }

    /// Writes all that a request consists of: a read of sector 0.
    fn prepare(&self, chain: u16) {
        let (head, buffers) = (3 * chain, BUFFERS + u64::from(chain) * 8192);
        self.write_16(buffers, 0);
        self.describe(head, buffers, 16, 1);
        self.describe(head + 1, buffers + 4096, 4096, 3);
        self.describe(head + 2, buffers + 16, 1, 2);
    }

    fn describe(&self, at: u16, address: u64, len_bytes: u32, flags: u16) {
        let next = at + 1;
        let rest = u64::from(len_bytes) | u64::from(flags) << 32 | u64::from(next) << 48;
        let raw = u128::from(address) | u128::from(rest) << 64;
        self.write_16(DESC + 16 * u64::from(at), raw);
    }

    fn write_16(&self, address: u64, value: u128) {
        self.ram.publish_16(address, value as u64, (value >> 64) as u64).expect("in memory");
    }
}

impl Guest for VhostGuest {
    fn offer(&mut self, count: u16) {
        for _ in 0..count {
            let chain = self.avail_idx % self.chains;
            self.prepare(chain);
            let head = 3 * chain;
            self.ram.store_u16(AVAIL + 4 + 2 * u64::from(self.avail_idx % SIZE), head);
            self.avail_idx = self.avail_idx.wrapping_add(1);
        }
        self.ram.store_u16(AVAIL + 2, self.avail_idx);
    }

    fn take(&mut self) -> u16 {
        let used_idx = self.ram.load_u16(USED + 2).expect("in memory");
        used_idx.wrapping_sub(std::mem::replace(&mut self.used_idx, used_idx))
    }
}

/// `depth`: commands that it has at a time.
pub fn attach(depth: u16) -> (VhostGuest, Placed<Queues>) {
    let (ram, fd) = Mapping::memfd("ram", RAM_BYTES as usize).expect("memfd");
    let ram = MappedRange::new(&ram, 0, RAM_BYTES).expect("all of it");
    let guest = VhostGuest::new(ram, depth.next_power_of_two());
    let mut memory = GuestMemory::default();
    let mapping = Mapping::shared(fd.as_fd(), 0, RAM_BYTES, true).expect("mappable");
    memory.map(0, RAM_BYTES, Some(mapping), &mut ()).expect("nothing else there");
    let config = DiskConfig {
        place: Place::whole_drive(TENANT),
        size_bytes: DISK_BYTES,
        block_bytes: 512,
        serial: "bench".into(),
        queues: 1,
        read_only: false,
        discard: false,
        write_cache: true,
        by_priority: false,
    };
    let mut queues = Queues::new(Arc::new(Disk::new(config).expect("a good configuration")), 0..1);
    queues.set_memory(memory, &mut ()).expect("nobody refuses");
    let log = Mapping::anonymous(inflight_bytes(1, SIZE) as usize).expect("memory");
    let setup = RingSetup {
        size: SIZE,
        desc: DESC,
        avail: AVAIL,
        used: USED,
        next_avail: 0,
        features: u64::MAX,
        call: None,
        err: None,
        inflight: inflight_region(&log, 0, SIZE),
        log_is_own: true,
    };
    queues.start(0, setup).expect("a good ring");
    queues.enable(0, true);
    (guest, Placed::new(queues, vec![Extents::one(0, DISK_BYTES)]))
}
