//! A small device for tests: a register file, a mapped doorbell page, guest memory, interrupts.

#![allow(clippy::disallowed_methods, reason = "the server has a thread")]

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_memory::{Budget, GuestMemory, Mapping};
use vfio_user::{
    About, Access, BindError, DeviceSpec, Errno, IrqChange, IrqSpec, Listener, MmapSpec, RegionSpec, Reply, Request,
    Server, Session, Sink, Surroundings,
};

pub const BAR0_BYTES: u64 = 0x4000;
/// Offset of the page of BAR 0 that clients map.
pub const DOORBELLS: u64 = 0x1000;
pub const VECTORS: u32 = 8;

/// What happened at which device, in the order in which it said so.
#[derive(Debug)]
pub enum Seen {
    Connected(String, Session),
    /// A request waits for the gate.
    Waits(String),
    Disconnected(String, String),
    Log(String),
}

/// An NVMe-like PCI device, and what its clients map a page of.
pub fn spec(name: &str) -> (DeviceSpec, Arc<Mapping>) {
    let (bar0, fd) = Mapping::memfd("bar0", BAR0_BYTES as usize).unwrap();
    let mmap = Some(MmapSpec { fd: fd.into(), file_offset_bytes: 0, areas: vec![(DOORBELLS, 0x1000)] });
    let mut regions: Vec<RegionSpec> = (0..9).map(|_| RegionSpec::default()).collect();
    regions[0] = RegionSpec { size_bytes: BAR0_BYTES, readable: true, writable: true, mmap };
    regions[7] = RegionSpec { size_bytes: 4096, readable: true, writable: true, mmap: None };
    let mut irqs = vec![IrqSpec::default(); 5];
    irqs[2] = IrqSpec::eventfds(VECTORS);
    let spec = DeviceSpec { name: name.into(), regions, irqs, resettable: true, budget: Budget::new(1 << 40, 4096) };
    (spec, bar0)
}

struct Device {
    name: String,
    seen: Sender<Seen>,
    late: Sender<(Reply, Sender<Reply>)>,
    gate: Arc<Mutex<()>>,
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

/// A write to this one waits until nobody holds [`Running::gate`].
pub const GATE_REGISTER: u64 = 0x110;

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
        if (region, offset) == (0, GATE_REGISTER) {
            self.seen.send(Seen::Waits(self.name.clone())).unwrap();
            drop(self.gate.lock());
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

    /// Waits for another thread's answer, as for a poller that waits for its drive.
    fn late(&self, reply: Reply) -> Reply {
        let (done, answer) = channel();
        self.late.send((reply, done)).unwrap();
        answer.recv().unwrap()
    }
}

impl vfio_user::Device for Device {
    fn connected(&mut self, session: Session) {
        // Nobody may be listening any more.
        let _ = self.seen.send(Seen::Connected(self.name.clone(), session));
    }

    fn request(&mut self, request: Request) -> Reply {
        match request {
            Request::RegionRead { region, offset_bytes, len_bytes } => self.read(region, offset_bytes, len_bytes),
            Request::RegionWrite { region, offset_bytes, data } => self.write(region, offset_bytes, &data),
            Request::DmaMap { iova, len_bytes, mapping } => match self.memory.map(iova, len_bytes, mapping, &mut ()) {
                Ok(()) => Reply::Done,
                Err(_) => Reply::Fatal(Errno::EXIST, "a DMA map over another".into()),
            },
            Request::DmaUnmap { iova, len_bytes } => {
                let unmapped = self.memory.unmap(iova, len_bytes);
                self.late(unmapped.map_or(Reply::Failed(Errno::NOENT), |_| Reply::Done))
            }
            Request::DmaUnmapAll => {
                self.memory.unmap_all();
                Reply::Done
            }
            Request::SetIrqs(irqs) => {
                match irqs.change {
                    IrqChange::Assign(eventfds) => self.eventfds.extend(irqs.vectors.into_iter().zip(eventfds)),
                    IrqChange::Deassign => irqs.vectors.iter().for_each(|vector| drop(self.eventfds.remove(vector))),
                    IrqChange::Trigger => {
                        for eventfd in irqs.vectors.iter().filter_map(|vector| self.eventfds.get(vector)) {
                            rustix::io::write(eventfd, &1u64.to_ne_bytes()).unwrap();
                        }
                    }
                    IrqChange::Mask | IrqChange::Unmask => {}
                }
                Reply::Done
            }
            Request::Reset => {
                self.resets += 1;
                self.late(Reply::Done)
            }
        }
    }

    fn disconnected(&mut self, reason: &str) {
        self.memory.unmap_all();
        self.eventfds.clear();
        let _ = self.seen.send(Seen::Disconnected(self.name.clone(), reason.into()));
    }
}

/// Devices on sockets; they stop when it is dropped.
pub struct Running {
    pub directory: tempfile::TempDir,
    pub seen: Receiver<Seen>,
    pub gate: Arc<Mutex<()>>,
    servers: Mutex<Vec<(String, Server)>>,
    sink: Sink,
    seen_by: Sender<Seen>,
    late: Sender<(Reply, Sender<Reply>)>,
}

impl Running {
    pub fn start() -> Self {
        let (seen_by, seen) = channel();
        let log = Mutex::new(seen_by.clone());
        let sink = Arc::new(move |_: About<'_>, line: &str| drop(log.lock().unwrap().send(Seen::Log(line.into()))));
        let (late, late_replies) = channel::<(Reply, Sender<Reply>)>();
        std::thread::spawn(move || late_replies.iter().for_each(|(reply, to)| to.send(reply).unwrap()));
        let directory = tempfile::tempdir().unwrap();
        Self { directory, seen, gate: Arc::default(), servers: Mutex::default(), sink, seen_by, late }
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name).join("cntrl")
    }

    /// Puts a device on its usual socket; its name stands for it from then on.
    pub fn add<'a>(&self, name: &'a str) -> (&'a str, PathBuf, Arc<Mapping>) {
        let socket = self.socket(name);
        let bar0 = self.add_at(name, &socket).unwrap();
        (name, socket, bar0)
    }

    pub fn add_at(&self, name: &str, socket: &Path) -> Result<Arc<Mapping>, BindError> {
        let (spec, bar0) = spec(name);
        let device = Device {
            name: name.into(),
            seen: self.seen_by.clone(),
            late: self.late.clone(),
            gate: Arc::clone(&self.gate),
            registers: HashMap::new(),
            memory: GuestMemory::default(),
            eventfds: BTreeMap::new(),
            resets: 0,
        };
        let server = vfio_user::serve(
            spec,
            Listener::bind(socket, Access::default())?,
            Box::new(device),
            Surroundings::plain(Arc::clone(&self.sink)),
        )?;
        self.servers.lock().unwrap().push((name.into(), server));
        Ok(bar0)
    }

    /// The first of the devices of that name, which is not this one's any more.
    pub fn take(&self, name: &str) -> Server {
        let mut servers = self.servers.lock().unwrap();
        let at = servers.iter().position(|(of, _)| of == name).unwrap();
        servers.remove(at).1
    }

    /// Waits for something to be seen.
    fn wait<T>(&self, wanted: impl Fn(Seen) -> Option<T>) -> T {
        loop {
            let seen = self.seen.recv_timeout(Duration::from_secs(60)).expect("nothing happens any more");
            if let Some(wanted) = wanted(seen) {
                return wanted;
            }
        }
    }

    /// Waits for a client of the device.
    pub fn connection(&self, device: &str) -> Session {
        self.wait(|seen| match seen {
            Seen::Connected(of, session) if of == device => Some(session),
            _ => None,
        })
    }

    /// Waits until the device waits for the gate.
    pub fn waits(&self, device: &str) {
        self.wait(|seen| matches!(seen, Seen::Waits(of) if of == device).then_some(()));
    }

    /// Waits for the device's client to go; returns the reason.
    pub fn disconnection(&self, device: &str) -> String {
        self.wait(|seen| match seen {
            Seen::Disconnected(of, reason) if of == device => Some(reason),
            _ => None,
        })
    }

    /// Waits for a log line with this in it.
    pub fn logged(&self, text: &str) -> String {
        self.wait(|seen| match seen {
            Seen::Log(line) if line.contains(text) => Some(line),
            _ => None,
        })
    }
}

/// Where a value of guest memory lies, for reading it back.
pub fn peek(memory: &Mapping, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.read_at(offset, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}
