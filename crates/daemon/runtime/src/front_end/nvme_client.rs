//! A tenant's NVMe controller as its client's thread sees it: a doorbell is stored, everything else is ordered from the
//! tenant's pollers, and the thread waits until it is done. What all of several have to do, the first one does last.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use backend_nvme::{Pin, Pins};
use client_socket::Log;
use guest_memory::{MappedU32, Mapping};
use vfio_user::{Device, Errno, IrqChange, Reply, Request, Session, SetIrqs};

use super::Port;
use super::nvme::{BAR0, BAR4, DOORBELLS_END, DOORBELLS_START, Order};
use crate::panics;

/// A tenant's controller, for the thread of its socket.
pub struct NvmeClient {
    /// The poller that owns the controller, or its first part.
    port: Port<Order>,
    /// Those that have its other parts.
    others: Vec<Port<Order>>,
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
    /// Before the memory: the drive must not reach released memory.
    _pin: Option<Pin>,
    _memory: Arc<Mapping>,
}

impl NvmeClient {
    /// The controller at `port`, with its other parts at `others`, whose doorbells these are.
    pub fn new(
        port: Port<Order>,
        others: Vec<Port<Order>>,
        doorbells: Arc<Mapping>,
        pins: Option<Pins>,
        log: Log,
    ) -> Self {
        Self { port, others, doorbells, pins, maps: Vec::new(), log }
    }

    /// All parts, the first as the last.
    fn ports(&self) -> impl Iterator<Item = &Port<Order>> {
        self.others.iter().chain([&self.port])
    }

    /// Orders the same of all parts, of the first once the others have done it.
    fn order_all(&self, order: impl Fn(Sender<()>) -> Order) {
        for ports in [&self.others[..], std::slice::from_ref(&self.port)] {
            let (done, answers) = channel();
            ports.iter().for_each(|port| port.order(order(done.clone())));
            drop(done);
            // Fewer come if a poller has ended, and with it everything of the client.
            answers.iter().take(ports.len()).for_each(|()| ());
        }
    }

    /// Has all parts do what the client asks, the first as the last, and waits for them.
    fn request_all(&self, request: Request) -> Reply {
        let others = match self.others.iter().map(|_| for_other(&request)).collect::<io::Result<Vec<_>>>() {
            Ok(others) => others,
            Err(error) => {
                self.log.warn(&format!("an eventfd of a client's can't be duplicated: {error}"));
                return Reply::Failed(Errno::from_raw_os_error(error.raw_os_error().unwrap_or_default()));
            }
        };
        let asked: Vec<_> =
            self.others.iter().zip(others).filter_map(|(port, request)| Some(ask(port, request?))).collect();
        let did: Vec<Reply> = asked.iter().map(wait).collect();
        let failed = did.iter().find(|reply| !matches!(reply, Reply::Done | Reply::Data(_))).cloned();
        let map = match request {
            Request::DmaMap { iova, len_bytes, .. } => Some((iova, len_bytes)),
            _ => None,
        };
        match failed.unwrap_or_else(|| wait(&ask(&self.port, own(request)))) {
            Reply::Data(data) => Reply::Data(join(data, &did)),
            Reply::Done => Reply::Done,
            failed => {
                map.into_iter().for_each(|map| self.undo_map(map, &did));
                failed
            }
        }
    }

    /// Memory that some part can't have is taken from those that have it.
    fn undo_map(&self, (iova, len_bytes): (u64, u64), did: &[Reply]) {
        let mapped = self.others.iter().zip(did).filter(|(_, reply)| **reply == Reply::Done);
        let unmaps: Vec<_> = mapped.map(|(port, _)| ask(port, Request::DmaUnmap { iova, len_bytes })).collect();
        unmaps.iter().for_each(|unmapped| _ = wait(unmapped));
    }

    /// Stores a trapped doorbell where the poller looks for mapped ones. `None`: not a doorbell.
    fn ring(&self, request: &Request) -> Option<()> {
        let Request::RegionWrite { region: BAR0, offset_bytes, data } = request else { return None };
        if !(DOORBELLS_START..DOORBELLS_END).contains(offset_bytes) {
            return None;
        }
        let value = u32::from_le_bytes(data.as_slice().try_into().ok()?);
        MappedU32::new(&self.doorbells, offset_bytes - DOORBELLS_START)?.store(value);
        // Which of them has the queue, the guest alone has said, and to the pollers.
        self.ports().for_each(Port::wake);
        Some(())
    }
}

impl Device for NvmeClient {
    fn connected(&mut self, session: Session) {
        panics::drill();
        self.ports().for_each(|port| port.order(Order::Connected(session.clone())));
    }

    fn request(&mut self, request: Request) -> Reply {
        if self.ring(&request).is_some() {
            return Reply::Done;
        }
        let change = match Change::of(&request, self.pins.as_ref()) {
            Ok(change) => change,
            Err(error) => {
                self.log.warn(&format!("memory of a guest can't be pinned for the drive: {error}"));
                return Reply::Failed(Errno::NOMEM);
            }
        };
        let reply = self.request_all(request);
        if reply == Reply::Done {
            change.apply(&mut self.maps);
        }
        reply
    }

    fn restored(&mut self, alone: Duration) {
        self.ports().for_each(|port| port.order(Order::Restored(alone.into())));
    }

    fn left(&mut self) {
        self.order_all(Order::Left);
    }

    fn disconnected(&mut self, _reason: &str) {
        self.order_all(Order::Gone);
        self.maps.clear();
    }
}

/// Gives a poller a request. Its answer has a channel of its own: a poller that ends drops the only sender, and so ends
/// the wait.
fn ask(port: &Port<Order>, request: Request) -> Receiver<Reply> {
    let (done, answer) = channel();
    port.order(Order::Request(request, done));
    answer
}

fn wait(answer: &Receiver<Reply>) -> Reply {
    answer.recv().unwrap_or_else(|_| Reply::Fatal(Errno::SHUTDOWN, "the daemon is ending".into()))
}

/// A request as a poller gets it: memory with a count of its own, which tells when the poller uses it no more.
fn own(request: Request) -> Request {
    match request {
        Request::DmaMap { iova, len_bytes, mapping } => {
            Request::DmaMap { iova, len_bytes, mapping: mapping.as_ref().map(Mapping::alias) }
        }
        other => other,
    }
}

/// The request for a part that is not the first. `None`: only the first part needs it.
fn for_other(request: &Request) -> io::Result<Option<Request>> {
    Ok(Some(match request {
        // Which interrupts are pending, each part knows of its own.
        Request::RegionRead { region: BAR4, offset_bytes, len_bytes } => {
            Request::RegionRead { region: BAR4, offset_bytes: *offset_bytes, len_bytes: *len_bytes }
        }
        Request::RegionRead { .. } => return Ok(None),
        Request::RegionWrite { region, offset_bytes, data } => {
            Request::RegionWrite { region: *region, offset_bytes: *offset_bytes, data: data.clone() }
        }
        Request::DmaMap { iova, len_bytes, mapping } => {
            own(Request::DmaMap { iova: *iova, len_bytes: *len_bytes, mapping: mapping.clone() })
        }
        Request::DmaUnmap { iova, len_bytes } => Request::DmaUnmap { iova: *iova, len_bytes: *len_bytes },
        Request::DmaUnmapAll => Request::DmaUnmapAll,
        Request::Reset => Request::Reset,
        Request::SetIrqs(SetIrqs { index, vectors, change }) => {
            let change = match change {
                IrqChange::Assign(fds) => {
                    IrqChange::Assign(fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?)
                }
                IrqChange::Deassign => IrqChange::Deassign,
                IrqChange::Trigger => return Ok(None),
                IrqChange::Mask => IrqChange::Mask,
                IrqChange::Unmask => IrqChange::Unmask,
            };
            Request::SetIrqs(SetIrqs { index: *index, vectors: vectors.clone(), change })
        }
    }))
}

/// What all parts read, together: what is not of one of them alone is the same in each.
fn join(mut data: Vec<u8>, others: &[Reply]) -> Vec<u8> {
    for other in others {
        if let Reply::Data(other) = other {
            data.iter_mut().zip(other).for_each(|(byte, other)| *byte |= other);
        }
    }
    data
}

/// The mappings that a completed request changes.
enum Change {
    None,
    Maps(Mapped),
    Unmaps(u64, u64),
    UnmapsAll,
}

impl Change {
    fn of(request: &Request, pins: Option<&Pins>) -> Result<Self, nvme_driver::Error> {
        Ok(match request {
            Request::DmaMap { iova, mapping: Some(memory), .. } => {
                let pin = pins.map(|pins| pins.pin(memory)).transpose()?;
                Self::Maps(Mapped { iova: *iova, _pin: pin, _memory: Arc::clone(memory) })
            }
            Request::DmaUnmap { iova, len_bytes } => Self::Unmaps(*iova, *len_bytes),
            Request::DmaUnmapAll => Self::UnmapsAll,
            _ => Self::None,
        })
    }

    fn apply(self, maps: &mut Vec<Mapped>) {
        match self {
            Self::None => {}
            Self::Maps(mapped) => maps.push(mapped),
            // None of them lies there only in part: that would have been refused.
            Self::Unmaps(iova, len_bytes) => maps.retain(|map| map.iova < iova || map.iova - iova >= len_bytes),
            Self::UnmapsAll => maps.clear(),
        }
    }
}
