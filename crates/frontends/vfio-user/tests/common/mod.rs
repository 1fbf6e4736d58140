//! A small device for tests: a register file, a mapped doorbell page, guest memory, interrupts.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod message;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use guest_memory::{GuestMemory, Mapping};
use vfio_user::{
    DeviceId, DeviceSpec, Errno, Handler, IrqChange, IrqSpec, MmapSpec, RegionSpec, Reply, ReplyTo, Request, Server,
    ServerHandle, Session,
};

pub const BAR0_BYTES: u64 = 0x4000;
/// Offset of the page of BAR 0 that clients map.
pub const DOORBELLS: u64 = 0x1000;
pub const VECTORS: u32 = 8;

/// What happened, in the order in which the server said so.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Connected(Session),
    Disconnected(DeviceId, String),
    Log(String),
}

/// An NVMe-like PCI device at `socket`, and what its clients map a page of.
pub fn spec(name: &str, socket: &Path) -> (DeviceSpec, Arc<Mapping>) {
    let (bar0, fd) = Mapping::memfd("bar0", BAR0_BYTES as usize).unwrap();
    let mmap = Some(MmapSpec { fd, file_offset_bytes: 0, areas: vec![(DOORBELLS, 0x1000)] });
    let mut regions: Vec<RegionSpec> = (0..9).map(|_| RegionSpec::default()).collect();
    regions[0] = RegionSpec { size_bytes: BAR0_BYTES, readable: true, writable: true, mmap };
    regions[7] = RegionSpec { size_bytes: 4096, readable: true, writable: true, mmap: None };
    let mut irqs = vec![IrqSpec::default(); 5];
    irqs[2] = IrqSpec::eventfds(VECTORS);
    let spec = DeviceSpec { name: name.into(), socket: socket.to_owned(), regions, irqs, resettable: true };
    (spec, bar0)
}

#[derive(Default)]
struct Device {
    registers: HashMap<(u32, u64), u8>,
    memory: GuestMemory,
    eventfds: BTreeMap<u32, OwnedFd>,
    resets: u8,
}

/// A write to this offset of BAR 0 copies the 8 bytes at the guest address that was written to the
/// address 4096 higher, and raises interrupt 1.
pub const COPY_REGISTER: u64 = 0x100;
/// Reads the number of resets.
pub const RESETS_REGISTER: u64 = 0x108;

struct Devices {
    devices: HashMap<DeviceId, Device>,
    late: Sender<(ReplyTo, Reply)>,
    seen: Sender<Seen>,
}

impl Device {
    fn copy(&mut self, iova: u64) -> Reply {
        let mut data = [0; 8];
        let copied = self.memory.read(iova, &mut data).and_then(|()| self.memory.write(iova + 4096, &data));
        if copied.is_err() {
            return Reply::Failed(Errno::FAULT);
        }
        if let Some(eventfd) = self.eventfds.get(&1) {
            rustix::io::write(eventfd, &1u64.to_ne_bytes()).unwrap();
        }
        Reply::Done
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Reply {
        if let (0, COPY_REGISTER, Ok(iova)) = (region, offset, data.try_into()) {
            return self.copy(u64::from_ne_bytes(iova));
        }
        for (at, &byte) in (offset..).zip(data) {
            self.registers.insert((region, at), byte);
        }
        Reply::Done
    }

    fn read(&self, region: u32, offset: u64, len: u32) -> Reply {
        let byte = |at| match (region, at) {
            (0, RESETS_REGISTER) => self.resets,
            _ => self.registers.get(&(region, at)).copied().unwrap_or(0),
        };
        Reply::Data((offset..).take(len as usize).map(byte).collect())
    }
}

impl Handler for Devices {
    fn connected(&mut self, session: Session) {
        self.seen.send(Seen::Connected(session)).unwrap();
    }

    fn request(&mut self, session: Session, request: Request, to: ReplyTo) -> Option<Reply> {
        let device = self.devices.entry(session.device).or_default();
        Some(match request {
            Request::RegionRead { region, offset_bytes, len_bytes } => device.read(region, offset_bytes, len_bytes),
            Request::RegionWrite { region, offset_bytes, data } => device.write(region, offset_bytes, &data),
            Request::DmaMap { iova, len_bytes, mapping } => match device.memory.map(iova, len_bytes, mapping) {
                Ok(()) => Reply::Done,
                Err(_) => Reply::Fatal(Errno::EXIST, "a DMA map over another".into()),
            },
            // Unmaps and resets are answered later, by another thread, as by a poller that waits for
            // its drive.
            Request::DmaUnmap { iova, len_bytes } => {
                let reply = device.memory.unmap(iova, len_bytes).map_or(Reply::Failed(Errno::NOENT), |_| Reply::Done);
                self.late.send((to, reply)).unwrap();
                return None;
            }
            Request::DmaUnmapAll => {
                device.memory.unmap_all();
                Reply::Done
            }
            Request::SetIrqs(irqs) => {
                match irqs.change {
                    IrqChange::Assign(eventfds) => device.eventfds.extend(irqs.vectors.into_iter().zip(eventfds)),
                    IrqChange::Deassign => irqs.vectors.iter().for_each(|vector| drop(device.eventfds.remove(vector))),
                    IrqChange::Trigger => {
                        for eventfd in irqs.vectors.iter().filter_map(|vector| device.eventfds.get(vector)) {
                            rustix::io::write(eventfd, &1u64.to_ne_bytes()).unwrap();
                        }
                    }
                    IrqChange::Mask | IrqChange::Unmask => {}
                }
                Reply::Done
            }
            Request::Reset => {
                device.resets += 1;
                self.late.send((to, Reply::Done)).unwrap();
                return None;
            }
        })
    }

    fn disconnected(&mut self, session: Session, reason: &str) {
        let device = self.devices.entry(session.device).or_default();
        device.memory.unmap_all();
        device.eventfds.clear();
        self.seen.send(Seen::Disconnected(session.device, reason.into())).unwrap();
    }
}

/// A running server; stops when dropped.
pub struct Running {
    pub handle: ServerHandle,
    pub directory: tempfile::TempDir,
    pub seen: Receiver<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start() -> Self {
        Self::start_with_stall_limit(Duration::from_secs(60))
    }

    pub fn start_with_stall_limit(limit: Duration) -> Self {
        let (seen_sender, seen) = channel();
        let log = Mutex::new(seen_sender.clone());
        let sink = Arc::new(move |_, line: &str| drop(log.lock().unwrap().send(Seen::Log(line.into()))));
        let mut server = Server::new(sink).unwrap();
        server.set_stall_limit(limit);
        let handle = server.handle();
        let (late, late_replies) = channel();
        let answering = handle.clone();
        std::thread::spawn(move || late_replies.iter().for_each(|(to, reply)| answering.reply(to, reply)));
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut handler = Devices { devices: HashMap::new(), late, seen: seen_sender };
            server.run(&mut handler, &stopping).unwrap();
        });
        Self { handle, directory: tempfile::tempdir().unwrap(), seen, stop, thread: Some(thread) }
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name).join("cntrl")
    }

    pub fn add(&self, name: &str) -> (DeviceId, PathBuf, Arc<Mapping>) {
        let socket = self.socket(name);
        let (spec, bar0) = spec(name, &socket);
        (self.handle.add_device(spec).unwrap(), socket, bar0)
    }

    /// Waits for a client of the device.
    pub fn connection(&self, device: DeviceId) -> Session {
        loop {
            match self.seen.recv_timeout(Duration::from_secs(60)).expect("the server says nothing any more") {
                Seen::Connected(session) if session.device == device => return session,
                _ => {}
            }
        }
    }

    /// Waits for the device's client to go; returns the reason.
    pub fn disconnection(&self, device: DeviceId) -> String {
        loop {
            match self.seen.recv_timeout(Duration::from_secs(60)).expect("the server says nothing any more") {
                Seen::Disconnected(gone, reason) if gone == device => return reason,
                _ => {}
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.handle.wake();
        let outcome = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            outcome.unwrap();
        }
    }
}

/// Where a value of guest memory lies, for reading it back.
pub fn peek(memory: &Mapping, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.read_at(offset, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}
