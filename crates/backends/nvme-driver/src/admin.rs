//! Admin commands, one at a time.

use std::thread;
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use nvme_spec::feature::fid;
use nvme_spec::identify::{IDENTIFY_BYTES, IdentifyController, cns};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode::{admin, create};
use nvme_spec::{NSID_ALL, PAGE_BYTES, Sqe};

use crate::controller::{Namespace, check};
use crate::device::{DmaMemory, PciDevice};
use crate::error::Error;
use crate::queue::{Completion, Data, QueuePair};

/// How long an admin command may take; a Format of a large namespace is the slowest.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// Polls before the processor is given up for longer than a yield.
const EAGER_POLLS: u32 = 1_000;
/// How often a controller that does not answer is asked whether it is still there: its queues, which lie in our
/// memory, would never say so.
const LOOK: Duration = Duration::from_millis(1);

/// More than any drive has; a list without an end is a lie.
const MOST_NAMESPACES: usize = 65_536;

/// The admin queues and a page for their data.
pub(crate) struct AdminQueue {
    pub queue: QueuePair,
    pub page: DmaMemory,
    /// The Asynchronous Event Request that waits at the controller.
    pub event_request: Option<u16>,
    /// Dword 0 of those that ended and that nobody has looked at.
    pub events: Vec<u32>,
    /// Pages of commands that nobody waits for any more: the controller may still write there.
    pub strays: Vec<(u16, DmaMemory)>,
}

impl AdminQueue {
    /// Queues of a controller that is enabled.
    pub fn new(queue: QueuePair, page: DmaMemory) -> Self {
        Self { queue, page, event_request: None, events: Vec::new(), strays: Vec::new() }
    }

    /// For commands to `device`, whose queues these are.
    pub fn on<'a>(&'a mut self, device: &'a mut dyn PciDevice) -> Admin<'a> {
        Admin { own: self, device, limit: COMMAND_LIMIT }
    }

    /// What to release once the controller is reset.
    pub fn into_memory(self) -> impl Iterator<Item = DmaMemory> {
        let strays = self.strays.into_iter().map(|(_, page)| page);
        [self.queue.into_memory(), self.page].into_iter().chain(strays)
    }
}

/// Admin commands of a controller.
pub struct Admin<'a> {
    own: &'a mut AdminQueue,
    device: &'a mut dyn PciDevice,
    limit: Duration,
}

impl Admin<'_> {
    /// Has each command wait so long at most, instead of 30 s.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs one command and waits for it, as long as the limit says, and only while the controller is there. `name` is
    /// for the error.
    pub fn run(&mut self, name: &'static str, sqe: Sqe, data: Option<Data>) -> Result<u32, Error> {
        let cid =
            self.own.queue.submit(sqe, data).map_err(|_| Error::Invalid("an earlier admin command still runs"))?;
        self.own.queue.ring()?;
        let done = self.wait(name, cid)?;
        if done.status.is_success() {
            Ok(done.result)
        } else {
            Err(Error::Command { command: name, status: done.status })
        }
    }

    fn wait(&mut self, what: &'static str, cid: u16) -> Result<Completion, Error> {
        let start = Instant::now();
        let (mut polls, mut next_look) = (0, LOOK);
        loop {
            if let Some(done) = self.poll(Some(cid))? {
                return Ok(done);
            }
            if start.elapsed() > self.limit {
                self.leave_page_to(cid)?;
                return Err(Error::NoAnswer { peer: "the controller".into(), what, limit: self.limit });
            }
            if start.elapsed() > next_look {
                check(self.device)?;
                next_look = start.elapsed() + LOOK;
            }
            polls += 1;
            if polls < EAGER_POLLS { thread::yield_now() } else { thread::sleep(Duration::from_micros(100)) }
        }
    }

    /// Looks at the completion queue once: for the command `wanted`, and for events.
    fn poll(&mut self, wanted: Option<u16>) -> Result<Option<Completion>, Error> {
        let AdminQueue { queue, event_request, events, strays, .. } = &mut *self.own;
        let (mut found, mut written) = (None, Vec::new());
        queue.poll(&mut |done| {
            if Some(done.cid) == wanted {
                found = Some(done);
            } else if Some(done.cid) == *event_request {
                *event_request = None;
                // A controller that refuses the request has no events, and is not asked again.
                events.extend(done.status.is_success().then_some(done.result));
            } else {
                written.extend(strays.extract_if(.., |(cid, _)| *cid == done.cid).map(|(_, page)| page));
            }
        })?;
        written.into_iter().try_for_each(|page| self.device.release_dma(page))?;
        Ok(found)
    }

    /// Gives up waiting for a command: the page for its data is its own until it ends, and others get a new one.
    fn leave_page_to(&mut self, cid: u16) -> Result<(), Error> {
        let fresh = self.device.allocate_dma(PAGE_BYTES as usize)?;
        self.own.strays.push((cid, std::mem::replace(&mut self.own.page, fresh)));
        Ok(())
    }

    /// Asks to be told of the next asynchronous event (Base 5.2), unless that was done already.
    pub fn request_event(&mut self) -> Result<(), Error> {
        if self.own.event_request.is_none() {
            let sqe = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
            let cid = self.own.queue.submit(sqe, None).map_err(|_| Error::Invalid("the admin queue is full"))?;
            self.own.event_request = Some(cid);
            self.own.queue.ring()?;
        }
        Ok(())
    }

    /// The next asynchronous event that the controller told of, if there is one: dword 0 of its completion. Waits for
    /// nothing.
    pub fn take_event(&mut self) -> Result<Option<u32>, Error> {
        self.poll(None)?;
        Ok(self.own.events.pop())
    }

    /// Asks the controller to abort a command (Base 5.1). That it answers doesn't mean that it will.
    pub fn abort(&mut self, sqid: u16, cid: u16) -> Result<(), Error> {
        let sqe = Sqe { opc: admin::ABORT, cdw10: u32::from(sqid) | u32::from(cid) << 16, ..Sqe::default() };
        self.run("Abort", sqe, None).map(drop)
    }

    /// Runs a command that returns one structure in our page.
    fn fetch<T: Pod>(&mut self, name: &'static str, sqe: Sqe) -> Result<Box<T>, Error> {
        let data = Data { iova: self.own.page.iova(), len_bytes: size_of::<T>() as u64 };
        self.run(name, sqe, Some(data))?;
        let mut value: Box<T> = Box::new(T::zeroed());
        let page = &self.own.page;
        page.read(0, bytemuck::bytes_of_mut(&mut *value)).ok_or(Error::Invalid("more than a page asked for"))?;
        Ok(value)
    }

    fn identify<T: Pod>(&mut self, name: &'static str, cns: u8, nsid: u32) -> Result<Box<T>, Error> {
        let sqe = Sqe { opc: admin::IDENTIFY, nsid, cdw10: cns.into(), ..Sqe::default() };
        self.fetch(name, sqe)
    }

    /// Identify Controller.
    pub fn identify_controller(&mut self) -> Result<IdentifyController, Error> {
        self.identify("Identify Controller", cns::CONTROLLER, 0).map(|identity| *identity)
    }

    /// Active namespaces, lowest first.
    pub fn active_namespaces(&mut self) -> Result<Vec<u32>, Error> {
        self.namespaces("Identify Active Namespace ID list", cns::ACTIVE_NAMESPACES)
    }

    /// All namespaces of the NVM subsystem, whichever controllers they are attached to. Only a controller with
    /// Namespace Management tells.
    pub fn allocated_namespaces(&mut self) -> Result<Vec<u32>, Error> {
        self.namespaces("Identify Allocated Namespace ID list", cns::ALLOCATED_NAMESPACES)
    }

    /// A list that goes on after its last entry where it is full (Base 5.17.2.2).
    fn namespaces(&mut self, name: &'static str, cns: u8) -> Result<Vec<u32>, Error> {
        const ENTRIES: usize = IDENTIFY_BYTES / 4;
        let mut all: Vec<u32> = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let list: Box<[u32; ENTRIES]> = self.identify(name, cns, after)?;
            let found: Vec<u32> = list.iter().copied().take_while(|&nsid| nsid != 0).collect();
            if found.iter().try_fold(after, |last, &nsid| (nsid > last).then_some(nsid)).is_none() {
                return Err(Error::Protocol("its list of namespaces is not in order"));
            }
            let is_full = found.len() == ENTRIES && all.len() < MOST_NAMESPACES;
            all.extend(found);
            if !is_full {
                return Ok(all);
            }
        }
    }

    /// The controllers that a namespace is attached to. Not every controller tells.
    pub fn controllers_of(&mut self, nsid: u32) -> Result<Vec<u16>, Error> {
        let list: Box<[u16; IDENTIFY_BYTES / 2]> =
            self.identify("Identify Controller list", cns::CONTROLLERS_OF_NAMESPACE, nsid)?;
        let count = usize::from(list[0]);
        Ok(list.iter().copied().skip(1).take(count).collect())
    }

    /// The UUID of a namespace, if it has one (Base 5.17.2.3).
    pub fn namespace_uuid(&mut self, nsid: u32) -> Result<Option<[u8; 16]>, Error> {
        const UUID: u8 = 3;
        let list: Box<[u8; IDENTIFY_BYTES]> =
            self.identify("Identify Namespace descriptors", cns::NAMESPACE_DESCRIPTORS, nsid)?;
        let mut rest = &list[..];
        while let [kind, len, _, _, tail @ ..] = rest {
            // Nothing follows one without a kind.
            let Some((id, after)) = tail.split_at_checked(usize::from(*len)).filter(|_| *kind > 0) else { break };
            if *kind == UUID {
                return Ok(id.try_into().ok());
            }
            rest = after;
        }
        Ok(None)
    }

    /// Identify Namespace.
    pub fn namespace(&mut self, nsid: u32) -> Result<Box<IdentifyNamespace>, Error> {
        self.identify("Identify Namespace", cns::NAMESPACE, nsid)
    }

    /// Identify Namespace, reduced to its geometry.
    pub fn identify_namespace(&mut self, nsid: u32) -> Result<Namespace, Error> {
        Namespace::of(nsid, &*self.namespace(nsid)?)
    }

    /// The first `size_of::<T>()` bytes (at most 4096, whole dwords) of log page `lid` of the controller.
    pub fn log_page<T: Pod + Zeroable>(&mut self, lid: u8) -> Result<Box<T>, Error> {
        if size_of::<T>() as u64 > PAGE_BYTES || !size_of::<T>().is_multiple_of(4) || size_of::<T>() == 0 {
            return Err(Error::Invalid("a log page is read in 4 to 4096 bytes, whole dwords"));
        }
        let dwords = size_of::<T>() as u32 / 4 - 1;
        let sqe =
            Sqe { opc: admin::GET_LOG_PAGE, nsid: NSID_ALL, cdw10: u32::from(lid) | dwords << 16, ..Sqe::default() };
        self.fetch("Get Log Page", sqe)
    }

    /// Asks for `wanted` I/O queue pairs; returns how many pairs there are.
    pub fn set_number_of_queues(&mut self, wanted: u16) -> Result<u16, Error> {
        let count = u32::from(wanted.max(1) - 1);
        let sqe = Sqe {
            opc: admin::SET_FEATURES,
            cdw10: fid::NUMBER_OF_QUEUES.into(),
            cdw11: count | count << 16,
            ..Sqe::default()
        };
        let granted = self.run("Set Features, Number of Queues", sqe, None)?;
        let (sqs, cqs) = (granted as u16, (granted >> 16) as u16);
        Ok(sqs.min(cqs).saturating_add(1).min(wanted))
    }

    pub(crate) fn create_cq(&mut self, qid: u16, entries: u16, iova: u64, vector: Option<u16>) -> Result<(), Error> {
        let interrupt = vector.map_or(0, |vector| create::IEN | u32::from(vector) << 16);
        let sqe = Sqe { opc: admin::CREATE_CQ, cdw11: create::PC | interrupt, ..queue_command(qid, entries, iova) };
        self.run("Create I/O Completion Queue", sqe, None).map(drop)
    }

    /// The current value of a feature that is a dword.
    pub fn feature(&mut self, fid: u8) -> Result<u32, Error> {
        let sqe = Sqe { opc: admin::GET_FEATURES, cdw10: fid.into(), ..Sqe::default() };
        self.run("Get Features", sqe, None)
    }

    /// Sets a feature that is a dword, until the next reset.
    pub fn set_feature(&mut self, fid: u8, value: u32) -> Result<(), Error> {
        let sqe = Sqe { opc: admin::SET_FEATURES, cdw10: fid.into(), cdw11: value, ..Sqe::default() };
        self.run("Set Features", sqe, None).map(drop)
    }

    pub(crate) fn create_sq(&mut self, qid: u16, entries: u16, iova: u64, qprio: u8) -> Result<(), Error> {
        let sqe = Sqe {
            opc: admin::CREATE_SQ,
            cdw11: create::PC | u32::from(qprio) << create::QPRIO_SHIFT | u32::from(qid) << 16,
            ..queue_command(qid, entries, iova)
        };
        self.run("Create I/O Submission Queue", sqe, None).map(drop)
    }

    pub(crate) fn delete_sq(&mut self, qid: u16) -> Result<(), Error> {
        let sqe = Sqe { opc: admin::DELETE_SQ, cdw10: qid.into(), ..Sqe::default() };
        self.run("Delete I/O Submission Queue", sqe, None).map(drop)
    }

    pub(crate) fn delete_cq(&mut self, qid: u16) -> Result<(), Error> {
        let sqe = Sqe { opc: admin::DELETE_CQ, cdw10: qid.into(), ..Sqe::default() };
        self.run("Delete I/O Completion Queue", sqe, None).map(drop)
    }

    pub(crate) fn doorbell_buffer_config(&mut self, values_iova: u64, event_indexes_iova: u64) -> Result<(), Error> {
        let sqe = Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: [values_iova, event_indexes_iova], ..Sqe::default() };
        self.run("Doorbell Buffer Config", sqe, None).map(drop)
    }
}

fn queue_command(qid: u16, entries: u16, iova: u64) -> Sqe {
    Sqe { cdw10: u32::from(qid) | u32::from(entries - 1) << 16, dptr: [iova, 0], ..Sqe::default() }
}
