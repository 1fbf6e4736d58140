//! A tenant's NVMe controller as its client's thread sees it: a doorbell is stored, everything else is ordered from the
//! tenant's poller, and the thread waits until it is done.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use backend_nvme::{Pin, Pins};
use client_socket::Log;
use guest_memory::{MappedU32, Mapping};
use vfio_user::{Device, Errno, Reply, Request, Session};

use super::Port;
use super::nvme::{BAR0, DOORBELLS_END, DOORBELLS_START, Order};
use crate::panics;

/// A tenant's controller, for the thread of its socket.
pub struct NvmeClient {
    /// The poller that owns the controller.
    port: Port<Order>,
    /// The controller's doorbells.
    doorbells: Arc<Mapping>,
    /// What pins memory for the drive: seconds where there is much, which are this thread's too.
    pins: Option<Pins>,
    /// What the guest has mapped, by its place. The last to hold it: memory that its client has left is freed when it
    /// goes, which takes the kernel seconds, and those are this thread's and no poller's.
    maps: Vec<Mapped>,
    log: Log,
}

/// What a guest has mapped.
struct Mapped {
    iova: u64,
    len_bytes: u64,
    /// Before the memory: the drive must not reach what is gone.
    _pin: Option<Pin>,
    _memory: Arc<Mapping>,
}

impl NvmeClient {
    /// The controller at `port`, whose doorbells these are.
    pub fn new(port: Port<Order>, doorbells: Arc<Mapping>, pins: Option<Pins>, log: Log) -> Self {
        Self { port, doorbells, pins, maps: Vec::new(), log }
    }

    /// Stores a trapped doorbell where the poller looks for mapped ones. `None`: not a doorbell.
    fn ring(&self, request: &Request) -> Option<()> {
        let Request::RegionWrite { region: BAR0, offset_bytes, data } = request else { return None };
        if !(DOORBELLS_START..DOORBELLS_END).contains(offset_bytes) {
            return None;
        }
        let value = u32::from_le_bytes(data.as_slice().try_into().ok()?);
        MappedU32::new(&self.doorbells, offset_bytes - DOORBELLS_START)?.store(value);
        self.port.wake();
        Some(())
    }
}

impl Device for NvmeClient {
    fn connected(&mut self, session: Session) {
        panics::drill();
        self.port.order(Order::Connected(session));
    }

    fn request(&mut self, request: Request) -> Reply {
        if self.ring(&request).is_some() {
            return Reply::Done;
        }
        let (request, change) = match Change::of(request, self.pins.as_ref()) {
            Ok(ready) => ready,
            Err(error) => {
                self.log.warn(&format!("memory of a guest can't be pinned for the drive: {error}"));
                return Reply::Failed(Errno::NOMEM);
            }
        };
        // Of its own for each request: a poller that ends drops the only sender, and so ends the wait.
        let (done, answer) = channel();
        self.port.order(Order::Request(request, done));
        let reply = answer.recv();
        if let Ok(Reply::Done) = reply {
            change.apply(&mut self.maps);
        }
        reply.unwrap_or_else(|_| Reply::Fatal(Errno::SHUTDOWN, "the daemon is ending".into()))
    }

    fn restored(&mut self, alone: Duration) {
        self.port.order(Order::Restored(alone.into()));
    }

    fn left(&mut self) {
        let (done, answer) = channel();
        self.port.order(Order::Left(done));
        // Fails if the poller has ended, and with it everything of the client.
        let _ = answer.recv();
    }

    fn disconnected(&mut self, _reason: &str) {
        let (done, answer) = channel();
        self.port.order(Order::Gone(done));
        // Fails if the poller has ended, and with it everything of the client.
        let _ = answer.recv();
        self.maps.clear();
    }
}

/// What a request that is done changes of what is mapped.
enum Change {
    None,
    Maps(Mapped),
    Unmaps(u64, u64),
    UnmapsAll,
}

impl Change {
    /// What it changes, and the request as the poller gets it: with a count of its own, which tells when the poller
    /// uses the memory no more.
    fn of(request: Request, pins: Option<&Pins>) -> Result<(Request, Self), nvme_driver::Error> {
        Ok(match request {
            Request::DmaMap { iova, len_bytes, mapping: Some(memory) } => {
                let pin = pins.map(|pins| pins.pin(&memory)).transpose()?;
                let mapping = Some(Mapping::alias(&memory));
                let mapped = Mapped { iova, len_bytes, _pin: pin, _memory: memory };
                (Request::DmaMap { iova, len_bytes, mapping }, Self::Maps(mapped))
            }
            Request::DmaUnmap { iova, len_bytes } => {
                (Request::DmaUnmap { iova, len_bytes }, Self::Unmaps(iova, len_bytes))
            }
            Request::DmaUnmapAll => (Request::DmaUnmapAll, Self::UnmapsAll),
            other => (other, Self::None),
        })
    }

    fn apply(self, maps: &mut Vec<Mapped>) {
        match self {
            Self::None => {}
            Self::Maps(mapped) => maps.push(mapped),
            Self::Unmaps(iova, len_bytes) => maps.retain(|map| (map.iova, map.len_bytes) != (iova, len_bytes)),
            Self::UnmapsAll => maps.clear(),
        }
    }
}
