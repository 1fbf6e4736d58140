//! A device that writes down what it is told, alone or behind a running server.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_memory::Budget;
use rustix::event::{EventfdFlags, eventfd};
use vhost_user::{
    About, Access, BindError, Device, DeviceSpec, Listener, Memory, RingSetup, Server, Session, Surroundings,
};

pub const QUEUES: u16 = 4;
pub const MAX_SIZE: u16 = 256;
pub const VERSION_1: u64 = 1 << 32;
pub const FLUSH: u64 = 1 << 9;
pub const CONFIG: [u8; 60] = [0xc0; 60];
/// The index that a ring has come to when it is stopped.
pub const STOPPED_AT: u16 = 77;

pub fn inflight_bytes(queue_size: u16) -> u64 {
    (16 + 16 * u64::from(queue_size)).next_multiple_of(64)
}

pub fn spec(name: &str) -> DeviceSpec {
    let features = VERSION_1 | FLUSH;
    let budget = Budget::new(1 << 40, 4096);
    DeviceSpec { name: name.into(), features, queues: QUEUES, max_queue_size: MAX_SIZE, inflight_bytes, budget }
}

pub fn listen_at(socket: &Path) -> Result<Listener, BindError> {
    Listener::bind(socket, Access::default())
}

/// What the device holds.
#[derive(Default)]
pub struct Held {
    pub session: Option<Session>,
    pub memory: Memory,
    pub rings: BTreeMap<u16, RingSetup>,
    pub refuses: bool,
}

pub struct Recorder {
    pub held: Arc<Mutex<Held>>,
    seen: Sender<String>,
}

impl Recorder {
    pub fn new() -> (Self, Arc<Mutex<Held>>, Receiver<String>) {
        let (sender, seen) = channel();
        let held = Arc::new(Mutex::new(Held::default()));
        (Self { held: Arc::clone(&held), seen: sender }, held, seen)
    }

    fn note(&self, line: impl Into<String>) {
        // Nobody may be reading any more.
        let _ = self.seen.send(line.into());
    }

    fn judge(&self) -> Result<(), String> {
        if self.held.lock().unwrap().refuses { Err("the device does not like it".into()) } else { Ok(()) }
    }
}

impl Device for Recorder {
    fn connected(&mut self, session: Session) {
        self.held.lock().unwrap().session = Some(session);
        self.note("connected");
    }

    fn config(&mut self) -> Vec<u8> {
        CONFIG.to_vec()
    }

    fn set_config(&mut self, offset_bytes: u32, data: &[u8]) -> Result<(), String> {
        self.judge()?;
        self.note(format!("config {offset_bytes} {data:?}"));
        Ok(())
    }

    fn features_acked(&mut self, features: u64) {
        self.note(format!("features {features:#x}"));
    }

    fn memory(&mut self, memory: &Memory) -> Result<(), String> {
        self.judge()?;
        self.held.lock().unwrap().memory = memory.clone();
        let regions: Vec<String> =
            memory.regions().iter().map(|region| format!("{:#x}+{:#x}", region.guest_addr, region.len_bytes)).collect();
        self.note(format!("memory {}", regions.join(" ")));
        Ok(())
    }

    fn start(&mut self, ring: u16, setup: RingSetup) -> Result<(), String> {
        self.judge()?;
        let RingSetup { size, desc_table, avail_ring, used_ring, next_avail, enabled, .. } = setup;
        self.note(format!(
            "start {ring}: {size} at {desc_table:#x} {avail_ring:#x} {used_ring:#x} from {next_avail} enabled={enabled}"
        ));
        assert!(self.held.lock().unwrap().rings.insert(ring, setup).is_none(), "ring {ring} was started twice");
        Ok(())
    }

    fn set_call(&mut self, ring: u16, call: Option<OwnedFd>) {
        self.note(format!("call {ring} {}", call.is_some()));
        self.held.lock().unwrap().rings.get_mut(&ring).expect("the ring runs").call = call;
    }

    fn set_err(&mut self, ring: u16, err: Option<OwnedFd>) {
        self.note(format!("err {ring} {}", err.is_some()));
        self.held.lock().unwrap().rings.get_mut(&ring).expect("the ring runs").err = err;
    }

    fn enable(&mut self, ring: u16, enabled: bool) {
        self.note(format!("enable {ring} {enabled}"));
        self.held.lock().unwrap().rings.get_mut(&ring).expect("the ring runs").enabled = enabled;
    }

    fn stop(&mut self, ring: u16) -> Result<u16, String> {
        self.note(format!("stop {ring}"));
        self.held.lock().unwrap().rings.remove(&ring).expect("the ring runs");
        Ok(STOPPED_AT)
    }

    fn reset(&mut self) {
        assert!(self.held.lock().unwrap().rings.is_empty(), "rings run at a reset");
        self.note("reset");
    }

    fn disconnected(&mut self, reason: &str) {
        *self.held.lock().unwrap() = Held::default();
        self.note(format!("disconnected: {reason}"));
    }
}

/// A device on a socket; stops when dropped.
pub struct Running {
    pub server: Option<Server>,
    _directory: tempfile::TempDir,
    pub socket: PathBuf,
    pub held: Arc<Mutex<Held>>,
    pub seen: Receiver<String>,
    pub log: Receiver<String>,
}

impl Running {
    pub fn start(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join(name).join("vhost.sock");
        let (device, held, seen) = Recorder::new();
        let (lines, log) = channel();
        let lines = Mutex::new(lines);
        let sink = Arc::new(move |_: About<'_>, line: &str| drop(lines.lock().unwrap().send(line.to_owned())));
        let server =
            vhost_user::serve(spec(name), listen_at(&socket).unwrap(), Box::new(device), Surroundings::plain(sink))
                .unwrap();
        Self { server: Some(server), _directory: directory, socket, held, seen, log }
    }

    /// What the device was told next.
    pub fn next(&self) -> String {
        self.seen.recv_timeout(Duration::from_secs(60)).expect("the device is told nothing any more")
    }

    /// Waits for the client to be disconnected; returns the reason.
    pub fn disconnection(&self) -> String {
        loop {
            if let Some(reason) = self.next().strip_prefix("disconnected: ") {
                return reason.into();
            }
        }
    }

    /// Waits for a log line with this in it.
    pub fn logged(&self, text: &str) -> String {
        loop {
            let line = self.log.recv_timeout(Duration::from_secs(60)).expect("nothing is logged any more");
            if line.contains(text) {
                return line;
            }
        }
    }
}

/// An eventfd as most clients make them: reads and writes wait.
pub fn notifier() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}
