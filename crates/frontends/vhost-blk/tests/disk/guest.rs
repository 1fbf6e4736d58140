//! A guest for the disk under test: memory, a driver for each virtqueue, written from the specification a second time,
//! and a drive behind the disk.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guest_memory::{GuestMemory, IoBuf, MappedRange, Mapping};
use io_model::{Command, DeviceError, Fetch, Op, Outcome, Place, Source, TenantId, Token};
use rustix::event::{EventfdFlags, eventfd};
pub use test_clients::rings::{Desc, INDIRECT, NEXT, WRITE};
use test_clients::rings::{Memory, Virtqueue};
use vhost_blk::{Disk, DiskConfig, Queues, RingSetup, Started, inflight_bytes, inflight_region};

/// Where guest memory lies.
pub const RAM: u64 = 0x10_0000;
pub const RAM_BYTES: u64 = 64 << 20;
/// The tenant's part of the drive, with a guard on both sides.
pub const BASE_BYTES: u64 = 1 << 20;
pub const SIZE_BYTES: u64 = 4 << 20;
pub const PLACE: Place = Place { tenant: TenantId(3), disk: 0, base_bytes: BASE_BYTES };
pub const GUARD: u8 = 0xa5;

/// Request types.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

/// Status bytes; the last is what the driver leaves there.
pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
pub const UNSUPP: u8 = 2;
pub const PENDING: u8 = 0xee;

pub const EVENT_IDX: u64 = 1 << 29;
pub const FEATURE_CONFIG_WCE: u64 = 1 << 11;
pub const FEATURE_FLUSH: u64 = 1 << 9;

pub fn config() -> DiskConfig {
    DiskConfig {
        place: PLACE,
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        serial: "EK0001".into(),
        queues: 4,
        read_only: false,
        discard: true,
        write_cache: true,
        by_priority: false,
    }
}

/// How a request is framed in descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Header, data, status.
    Direct,
    /// Header, data, status, in an indirect table.
    Indirect,
    /// Header in two pieces, data in three, the status with the last of what can be written.
    Odd,
}

/// A request as the driver sees it.
#[derive(Debug, Clone)]
pub struct Request {
    pub kind: u32,
    /// Of the process that asks.
    pub ioprio: u32,
    pub sector: u64,
    /// What the device reads behind the header.
    pub out: Vec<u8>,
    /// Bytes that the device may write before the status.
    pub in_bytes: u32,
}

impl Request {
    pub fn read(sector: u64, len_bytes: u32) -> Self {
        Self { kind: IN, ioprio: 0, sector, out: Vec::new(), in_bytes: len_bytes }
    }

    pub fn write(sector: u64, data: &[u8]) -> Self {
        Self { kind: OUT, ioprio: 0, sector, out: data.to_vec(), in_bytes: 0 }
    }

    pub fn other(kind: u32, in_bytes: u32) -> Self {
        Self { kind, ioprio: 0, sector: 0, out: Vec::new(), in_bytes }
    }

    /// A discard or write zeroes: sector, sectors, flags.
    pub fn ranges(kind: u32, ranges: &[(u64, u32, u32)]) -> Self {
        let bytes = |(sector, sectors, flags): &(u64, u32, u32)| {
            [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
        };
        Self { kind, ioprio: 0, sector: 0, out: ranges.iter().flat_map(bytes).collect(), in_bytes: 0 }
    }
}

/// One completion as the driver sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    pub head: u16,
    pub written: u32,
    pub status: u8,
    pub data: Vec<u8>,
}

/// Guest memory, and the driver's side of one virtqueue after the other.
pub struct Ram {
    pub mapping: Arc<Mapping>,
    pub fd: OwnedFd,
}

impl Ram {
    pub fn new() -> Self {
        let (mapping, fd) = Mapping::memfd("ram", RAM_BYTES as usize).expect("memfd");
        Self { mapping, fd }
    }

    pub fn memory(&self) -> GuestMemory {
        let mapping = Mapping::shared(self.fd.as_fd(), 0, RAM_BYTES, true).expect("mappable");
        let mut memory = GuestMemory::default();
        memory.map(RAM, RAM_BYTES, Some(mapping), &mut ()).expect("nothing else there");
        memory
    }

    pub fn read(&self, address: u64, len_bytes: usize) -> Vec<u8> {
        let mut out = vec![0; len_bytes];
        self.mapping.read_at(address - RAM, &mut out).expect("in memory");
        out
    }

    pub fn write(&self, address: u64, data: &[u8]) {
        self.mapping.write_at(address - RAM, data).expect("in memory");
    }

    pub fn u16(&self, address: u64) -> u16 {
        u16::from_le_bytes(self.read(address, 2).try_into().expect("two bytes"))
    }

    pub fn put_u16(&self, address: u64, value: u16) {
        self.write(address, &value.to_le_bytes());
    }

    pub fn put_desc(&self, address: u64, desc: Desc) {
        self.write(address, &desc.bytes());
    }
}

impl Memory for Ram {
    fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        Memory::read(&*self.mapping, address - RAM, out)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        Memory::write(&*self.mapping, address - RAM, data)
    }
}

/// Bytes of guest memory that a head has for its buffers.
const HEAD_BYTES: u64 = 32 << 10;
const STATUS_AT: u64 = 16;
const TABLE_AT: u64 = 64;
pub const DATA_AT: u64 = 4096;

/// The driver's side of one virtqueue.
pub struct Driver {
    pub ring: Virtqueue,
    buffers: u64,
    free: Vec<u16>,
    /// Requests not completed: head, its other descriptors, where its data is, how long, where its status is.
    pub open: Vec<(u16, Vec<u16>, u64, u32, u64)>,
}

impl Driver {
    pub fn new(ram: &Ram, queue: u16, size: u16) -> Self {
        let base = RAM + u64::from(queue) * 0x1_0000;
        let ring = Virtqueue { size, desc: base, avail: base + 0x4000, used: base + 0x5000, avail_idx: 0, used_idx: 0 };
        let driver = Self {
            ring,
            buffers: RAM + 0x40_0000 + u64::from(queue) * 0xc0_0000,
            free: (0..size).rev().collect(),
            open: Vec::new(),
        };
        ram.write(base, &vec![0; 0x8000]);
        driver
    }

    pub fn setup(&self) -> RingSetup {
        RingSetup {
            size: self.ring.size,
            desc: self.ring.desc,
            avail: self.ring.avail,
            used: self.ring.used,
            next_avail: 0,
            features: u64::MAX,
            call: None,
            err: None,
            inflight: None,
            log_is_own: false,
        }
    }

    /// Where a head's buffers lie.
    pub fn buffers(&self, head: u16) -> u64 {
        self.buffers + u64::from(head) * HEAD_BYTES
    }

    /// Puts a head into the available ring and moves its index.
    pub fn offer(&mut self, ram: &Ram, head: u16) {
        self.ring.offer(ram, head).expect("in memory");
    }

    /// The pieces of a request whose buffers start at `at`: address, length, flags.
    fn pieces(request: &Request, at: u64, framing: Framing) -> (Vec<(u64, u32, u16)>, u64) {
        let Request { out, in_bytes, .. } = request;
        let data = at + DATA_AT;
        let out_bytes = out.len() as u32;
        let mut pieces = Vec::new();
        if framing == Framing::Odd {
            pieces.extend([(at, 5, 0), (at + 5, 11, 0)]);
            let third = out_bytes / 3;
            pieces.extend([(data, third, 0), (data + u64::from(third), third, 0)]);
            pieces.push((data + 2 * u64::from(third), out_bytes - 2 * third, 0));
            let (half, data) = (in_bytes / 2, data + u64::from(out_bytes));
            pieces.push((data, half, WRITE));
            pieces.push((data + u64::from(half), in_bytes - half + 1, WRITE));
            pieces.retain(|(_, len_bytes, _)| *len_bytes > 0);
            return (pieces, data + u64::from(*in_bytes));
        }
        pieces.extend([(at, 16, 0), (data, out_bytes, 0), (data, *in_bytes, WRITE), (at + STATUS_AT, 1, WRITE)]);
        pieces.retain(|(_, len_bytes, _)| *len_bytes > 0);
        (pieces, at + STATUS_AT)
    }

    /// Offers a request. `None`: no room. Returns its head.
    pub fn submit(&mut self, ram: &Ram, request: &Request, framing: Framing) -> Option<u16> {
        let head = *self.free.last()?;
        let at = self.buffers(head);
        let (pieces, status) = Self::pieces(request, at, framing);
        let count = if framing == Framing::Indirect { 1 } else { pieces.len() };
        if self.free.len() < count {
            return None;
        }
        let mut header = [request.kind.to_le_bytes(), request.ioprio.to_le_bytes()].concat();
        header.extend(request.sector.to_le_bytes());
        ram.write(at, &header);
        ram.write(at + DATA_AT, &request.out);
        ram.write(status, &[PENDING]);
        let indexes: Vec<u16> = (0..count).map(|_| self.free.pop().expect("counted")).collect();
        let table: Vec<u16> = (0..pieces.len() as u16).collect();
        let (base, places) = match framing {
            Framing::Indirect => (at + TABLE_AT, &table),
            _ => (self.ring.desc, &indexes),
        };
        for (n, (address, len_bytes, flags)) in pieces.iter().enumerate() {
            let next = places.get(n + 1).copied();
            let flags = flags | if next.is_some() { NEXT } else { 0 };
            let desc = Desc { address: *address, len_bytes: *len_bytes, flags, next: next.unwrap_or(0) };
            ram.put_desc(base + 16 * u64::from(places[n]), desc);
        }
        if framing == Framing::Indirect {
            let len_bytes = 16 * pieces.len() as u32;
            ram.put_desc(self.ring.desc_at(head), Desc { address: base, len_bytes, flags: INDIRECT, next: 0 });
        }
        self.open.push((head, indexes, at + DATA_AT, request.in_bytes, status));
        self.offer(ram, head);
        Some(head)
    }

    /// Takes everything that the device returned. Panics where a head is not open: completed twice, or never offered.
    pub fn completions(&mut self, ram: &Ram) -> Vec<Done> {
        let mut done = Vec::new();
        let (size, used_idx) = (self.ring.size, self.ring.used_idx);
        let idx = self.ring.device_idx(ram).expect("in memory");
        assert!(idx.wrapping_sub(used_idx) <= size, "the used index ran from {used_idx} to {idx}");
        while let Some((head, written)) = self.ring.take_used(ram).expect("in memory") {
            let place = self.open.iter().position(|open| open.0 == head);
            let place = place.unwrap_or_else(|| panic!("head {head} was completed, but is not open"));
            let (_, indexes, data, in_bytes, status) = self.open.swap_remove(place);
            self.free.extend(indexes.into_iter().rev());
            let status = ram.read(status, 1)[0];
            let data = ram.read(data, in_bytes as usize);
            done.push(Done { head, written, status, data });
        }
        done
    }
}

/// A command says whose it is and where it begins in the tenant's disk.
fn check_place(command: &Command) {
    let Command { op, tenant_offset_bytes, len_bytes, .. } = *command;
    let again = if op == Op::Flush { PLACE.flush() } else { PLACE.command(op, tenant_offset_bytes, len_bytes) };
    assert_eq!(*command, again.with_fua(command.fua));
    assert!(tenant_offset_bytes + len_bytes <= SIZE_BYTES, "{command:?}");
}

/// A drive that remembers everything and fails on demand.
pub struct Drive {
    pub content: Vec<u8>,
    /// Commands in the order they were fetched.
    pub seen: Vec<Command>,
    /// What it answers instead of doing the next commands.
    pub fail: Option<DeviceError>,
}

impl Drive {
    pub fn new() -> Self {
        let mut content = vec![GUARD; (2 * BASE_BYTES + SIZE_BYTES) as usize];
        content[BASE_BYTES as usize..(BASE_BYTES + SIZE_BYTES) as usize].fill(0);
        Self { content, seen: Vec::new(), fail: None }
    }

    pub fn execute(&mut self, command: &Command, buf: &IoBuf) -> Outcome {
        check_place(command);
        self.seen.push(*command);
        if let Some(error) = self.fail {
            return Err(error);
        }
        let (start, end) = (command.offset_bytes as usize, (command.offset_bytes + command.len_bytes) as usize);
        let range = &mut self.content[start..end];
        let moved = match command.op {
            Op::Read => buf.copy_from(range),
            Op::Write => buf.copy_to(range),
            Op::WriteZeroes | Op::Discard => {
                range.fill(0);
                range.len()
            }
            Op::Flush => 0,
        };
        assert_eq!(moved, range.len(), "the buffer has the command's length");
        Ok(())
    }

    pub fn guards_are_whole(&self) -> bool {
        let end = (BASE_BYTES + SIZE_BYTES) as usize;
        let guards = self.content[..BASE_BYTES as usize].iter().chain(&self.content[end..]);
        guards.copied().all(|byte| byte == GUARD)
    }
}

/// A guest with one virtqueue that runs, on one poller.
pub struct World {
    pub ram: Ram,
    pub driver: Driver,
    pub queues: Queues,
    pub drive: Drive,
    pub log: Arc<Mapping>,
    pub in_flight: Vec<(Token, Command, IoBuf)>,
    pub call: OwnedFd,
}

impl World {
    /// Virtqueue 1 of the disk, with a ring of `size` and no log.
    pub fn new(config: DiskConfig, size: u16, features: u64) -> Self {
        let mut world = Self::unstarted(config, size);
        let setup = RingSetup { features, ..world.setup() };
        world.queues.start(QUEUE, setup).expect("a good ring");
        world.queues.enable(QUEUE, true);
        drain(&world.call);
        world
    }

    pub fn unstarted(config: DiskConfig, size: u16) -> Self {
        let disk = Arc::new(Disk::new(config).expect("a good configuration"));
        let ram = Ram::new();
        let driver = Driver::new(&ram, QUEUE, size);
        let mut queues = Queues::new(disk, 0..4);
        queues.set_memory(ram.memory(), &mut ()).expect("nobody refuses");
        let log = Mapping::anonymous(inflight_bytes(4, size) as usize).expect("memory");
        let call = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
        Self { ram, driver, queues, drive: Drive::new(), log, in_flight: Vec::new(), call }
    }

    pub fn ready() -> Self {
        Self::new(config(), 64, u64::MAX)
    }

    pub fn setup(&self) -> RingSetup {
        RingSetup { call: Some(self.call.try_clone().expect("a descriptor")), ..self.driver.setup() }
    }

    pub fn log_region(&self) -> MappedRange {
        inflight_region(&self.log, QUEUE, self.driver.ring.size).expect("long enough")
    }

    /// Another process takes over: what ran before is dropped where it stood.
    pub fn restart(&mut self) -> Started {
        let disk = Disk::new(self.queues.disk().config().clone()).expect("as before");
        let dead = std::mem::replace(&mut self.queues, Queues::new(Arc::new(disk), 0..4));
        drop(dead);
        for (token, ..) in self.in_flight.drain(..) {
            token.spend();
        }
        self.queues.set_memory(self.ram.memory(), &mut ()).expect("nobody refuses");
        let setup = RingSetup { inflight: Some(self.log_region()), ..self.setup() };
        let started = self.queues.start(QUEUE, setup).expect("the log is good");
        self.queues.enable(QUEUE, true);
        started
    }

    pub fn submit(&mut self, request: &Request, framing: Framing) -> u16 {
        self.driver.submit(&self.ram, request, framing).expect("room in the ring")
    }

    /// Fetches all that waits. Returns what was consumed: device commands and requests answered at once.
    pub fn fetch(&mut self) -> usize {
        let mut count = 0;
        let mut rest = self.queues.live_vqs();
        while rest != 0 {
            let vq = rest.trailing_zeros() as u16;
            rest &= rest - 1;
            while self.queues.backlog(vq) > 0 {
                match self.queues.fetch(vq) {
                    Fetch::Command(command, buf, token) => self.in_flight.push((token, command, buf)),
                    Fetch::Handled => {}
                    Fetch::Empty => break,
                }
                count += 1;
            }
        }
        count
    }

    /// The drive does everything that was fetched.
    pub fn complete(&mut self) {
        for (token, command, buf) in std::mem::take(&mut self.in_flight) {
            let outcome = self.drive.execute(&command, &buf);
            self.queues.complete(token, outcome, buf);
        }
    }

    /// Serves until nothing waits; what the driver got.
    pub fn run(&mut self) -> Vec<Done> {
        while self.fetch() > 0 {
            self.complete();
        }
        self.queues.notify();
        self.driver.completions(&self.ram)
    }

    /// As [`World::run`], for heads that the driver did not submit: heads and bytes written.
    pub fn run_raw(&mut self) -> Vec<(u16, u32)> {
        while self.fetch() > 0 {
            self.complete();
        }
        self.queues.notify();
        let ring = &self.driver.ring;
        let count = ring.device_idx(&self.ram).expect("in memory").wrapping_sub(ring.used_idx);
        (0..count).map(|ahead| ring.used_at(&self.ram, ahead).expect("in memory")).collect()
    }

    /// One request from start to end.
    pub fn one(&mut self, request: &Request, framing: Framing) -> Done {
        let head = self.submit(request, framing);
        let mut done = self.run();
        assert_eq!(done.len(), 1, "{request:?} {framing:?}");
        assert_eq!(done[0].head, head);
        done.remove(0)
    }

    /// Whether the driver was interrupted since the last call.
    pub fn interrupted(&self) -> bool {
        drain(&self.call)
    }
}

/// The virtqueue that the world uses: not the first, so that indexes get mixed up where they can.
pub const QUEUE: u16 = 1;
/// Its VQ.
pub const VQ: u16 = QUEUE + 1;

/// Reads an eventfd; whether it was raised.
pub fn drain(fd: &OwnedFd) -> bool {
    rustix::io::read(fd, &mut [0_u8; 8][..]) == Ok(8)
}

/// Bytes that tell `tag` from any other.
pub fn pattern(tag: u64, len_bytes: usize) -> Vec<u8> {
    let word = |n: u64| (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n.wrapping_mul(0xd134_2543_de82_ef95)).to_le_bytes();
    (0..len_bytes as u64 / 8).flat_map(word).collect()
}
