//! A tenant's NVMe controller at its poller: the controller, its interrupts as eventfds, and what its client asks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use client_socket::{Listener, Log};
use config::Tenant;
use eventfd::EventFd;
use guest_memory::{MappedU32, Mapping, MemoryListener, SpaceError};
use io_model::{Extents, Fetch, IoBuf, Nanos, Outcome, Placed, QueuePriority, Source, TenantId, Token};
use layout::Placement;
use nvme_controller::{
    Controller, ControllerConfig, Doorbells, Event, FormatRecord, Interrupts, NamespaceConfig, NamespaceError,
};
use policy::TenantPriority;
use vfio_user::{DeviceSpec, Errno, IrqChange, IrqSpec, MmapSpec, RegionSpec, Reply, Request, Session, SetIrqs};

use super::{FrontEnd, Making, OnFormat};
use crate::drive::Facts;

/// Region indexes of a PCI device (VFIO).
pub const BAR0: u32 = 0;
const BAR4: u32 = 4;
const CONFIG_SPACE: u32 = 7;
const REGIONS: usize = 9;

/// Interrupt indexes of a PCI device (VFIO).
const INTX: u32 = 0;
const MSIX: u32 = 2;
const ERROR: u32 = 3;
const IRQ_TYPES: usize = 5;

/// The doorbell page in BAR 0.
pub const DOORBELLS_START: u64 = 0x1000;
/// Its end.
pub const DOORBELLS_END: u64 = 0x2000;

/// The namespace that a tenant has from its start.
pub const NSID: u32 = 1;

/// What the thread of the controller's client asks for.
pub enum Order {
    /// A client attached.
    Connected(Session),
    /// The client's request; answered when it is done, or not at all if the daemon ends first.
    Request(Request, Sender<Reply>),
    /// The client has repeated what it had said to an earlier process, after so long with none.
    Restored(Nanos),
    /// This process ends, and the client goes on with the next one; answered when nothing of it is in flight here.
    Left(Sender<()>),
    /// The client is gone; answered when nothing of it is in flight and its memory is let go of.
    Gone(Sender<()>),
    /// A step of a Format is in the layout. `false`: it could not be written.
    Recorded(FormatRecord, bool),
    /// There is a namespace more from now on, which lies there. What is there is the tenant's own.
    Attach(u32, NamespaceConfig, Extents),
    /// A namespace has so many bytes from now on, which lie there. What is new is there and zeroed.
    Grow(u32, u64, Extents),
    /// Another controller has a namespace too, or no more.
    Elsewhere(u32, bool),
    /// A namespace goes; called when nothing of it is in flight, so that its place may be used for something else.
    Detach(u32, OnDetached),
}

/// Hears that a controller has let go of a namespace.
pub type OnDetached = Box<dyn FnOnce() + Send>;

/// An answer that waits for the drive.
enum Waiting {
    /// For memory to be quiet: a range, or all that was taken away.
    Unmap(Option<(u64, u64)>, Sender<Reply>),
    /// For commands in flight to end.
    Reset(Sender<Reply>),
    /// For both, after the client left.
    Gone(Option<Sender<()>>),
    /// For what is in flight of a namespace.
    Detach(u32, OnDetached),
    /// For commands in flight to end, before the next process goes on.
    Left(Sender<()>),
}

/// What outlives this process, for the next one to go on with.
struct Lasting {
    doorbells: Arc<Mapping>,
    journal: Arc<Mapping>,
}

/// The eventfds that a client gave for a device's interrupts.
#[derive(Debug, Default)]
pub struct EventFds {
    intx: Option<EventFd>,
    msix: Vec<Option<EventFd>>,
    /// The client kept one from being signalled: none is any more.
    held_up: bool,
}

impl EventFds {
    fn has_msix(&self) -> bool {
        self.msix.iter().any(Option::is_some)
    }

    fn set(&mut self, index: u32, vector: u32, fd: Option<OwnedFd>) {
        let fd = fd.map(EventFd::new);
        match index {
            INTX => self.intx = fd,
            MSIX => {
                let at = vector as usize;
                if at >= self.msix.len() {
                    self.msix.resize_with(at + 1, || None);
                }
                self.msix[at] = fd;
            }
            _ => {}
        }
    }
}

impl Interrupts for EventFds {
    fn raise(&mut self, vector: u16) {
        let msix = self.msix.get(usize::from(vector)).and_then(Option::as_ref);
        if let Some(fd) = msix.or(self.intx.as_ref()).filter(|_| !self.held_up) {
            self.held_up = !fd.raise();
        }
    }
}

/// A tenant's controller, owned by one poller.
pub struct NvmeDevice {
    controller: Placed<Controller<EventFds>>,
    session: Option<Session>,
    waiting: Vec<Waiting>,
    /// Where clients are kept.
    lasting: Option<Lasting>,
    /// Nothing is done for the guest: its memory is not there yet, or the next process goes on with it.
    is_paused: bool,
    /// How long the client that was taken over had nobody to serve it, until the poller has heard.
    alone: Nanos,
    name: String,
    log: Log,
    on_format: OnFormat,
}

/// Data of one command at most (MDTS).
const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// The same where tenants take turns: nothing interrupts a command, and all that the arbiter lets into the drive at a
/// time is hardly more than a large one. Guests split what is larger.
const MAX_TRANSFER_IN_TURN_BYTES: u32 = 128 << 10;

/// Makes the device and says how the server is to present it. The mapping is its doorbell page.
pub fn build(making: Making<'_>) -> Result<(NvmeDevice, DeviceSpec, Arc<Mapping>, Listener)> {
    let Making { id, tenant, placement, drive, policy, listener, around, on_format, .. } = making;
    let mut listener = listener.context("it has no socket")?;
    let log = Log::new(around.sink, &tenant.name);
    let doorbells = match tenant.doorbells {
        config::Doorbells::Mapped => Doorbells::Mapped,
        config::Doorbells::Trapped => Doorbells::Trapped,
    };
    let in_turn = policy.has_priorities();
    let config = ControllerConfig {
        max_transfer_bytes: if in_turn { MAX_TRANSFER_IN_TURN_BYTES } else { MAX_TRANSFER_BYTES },
        ..controller_config(id, tenant, placement, drive, doorbells)
    };
    let (fd, page, lasting) = memory(&mut listener, &config)?;
    let controller = Controller::new(config, Arc::clone(&page), EventFds::default())?;
    let controller = Placed::new(controller, vec![placement.to_look_up()]);
    let mut regions: Vec<RegionSpec> = (0..REGIONS).map(|_| RegionSpec::default()).collect();
    for (index, size_bytes) in [(BAR0, 0x4000), (BAR4, 0x1000), (CONFIG_SPACE, 0x1000)] {
        regions[index as usize] = RegionSpec { size_bytes, readable: true, writable: true, mmap: None };
    }
    if doorbells == Doorbells::Mapped {
        let areas = vec![(DOORBELLS_START, DOORBELLS_END - DOORBELLS_START)];
        regions[BAR0 as usize].mmap = Some(MmapSpec { fd: Arc::new(fd), file_offset_bytes: 0, areas });
    }
    let mut irqs = vec![IrqSpec::default(); IRQ_TYPES];
    irqs[INTX as usize] = IrqSpec { maskable: true, automasked: true, ..IrqSpec::eventfds(1) };
    irqs[MSIX as usize] = IrqSpec { maskable: true, ..IrqSpec::eventfds(u32::from(tenant.queues) + 1) };
    // Never raised; QEMU warns where it is missing.
    irqs[ERROR as usize] = IrqSpec::eventfds(1);
    let (name, budget) = (tenant.name.clone(), super::budget(tenant));
    let spec = DeviceSpec { name: name.clone(), regions, irqs, resettable: true, budget };
    let (session, waiting, is_paused, alone) = (None, Vec::new(), false, Nanos(0));
    let device = NvmeDevice { controller, session, waiting, lasting, is_paused, alone, name, log, on_format };
    Ok((device, spec, page, listener))
}

/// A controller's doorbell page, its file, and what must outlive this process where clients are kept: as an earlier
/// process left it, if a client of that one is held.
fn memory(listener: &mut Listener, config: &ControllerConfig) -> Result<(OwnedFd, Arc<Mapping>, Option<Lasting>)> {
    let doorbells_in = |fd: &OwnedFd| {
        // Clients map a region's file at the same offsets as the region: the page lies where BAR 0 has it.
        Mapping::shared(fd.as_fd(), DOORBELLS_START, DOORBELLS_END - DOORBELLS_START, true)
    };
    let journal_bytes = nvme_controller::journal_bytes(config);
    // A journal of another length is another controller's: in a new one there is nothing to go on with, and the
    // client is sent away.
    let is_its = |journal: &OwnedFd| rustix::fs::fstat(journal).is_ok_and(|file| file.st_size as u64 == journal_bytes);
    if let Some((true, [doorbells, journal])) = listener.held()
        && is_its(journal)
    {
        let doorbells = doorbells.try_clone()?;
        let journal = Mapping::shared(journal.as_fd(), 0, journal_bytes, true).context("can't map a journal")?;
        let page = doorbells_in(&doorbells)?;
        return Ok((doorbells, Arc::clone(&page), Some(Lasting { doorbells: page, journal })));
    }
    let (_, fd) = Mapping::memfd("evenkeel-doorbells", DOORBELLS_END as usize).context("can't make a doorbell page")?;
    let page = doorbells_in(&fd)?;
    if listener.held().is_none() {
        return Ok((fd, page, None));
    }
    let (journal, file) = Mapping::memfd("evenkeel-journal", journal_bytes as usize).context("can't make a journal")?;
    listener.keep_memory(vec![fd.try_clone()?, file]);
    Ok((fd, Arc::clone(&page), Some(Lasting { doorbells: page, journal })))
}

fn controller_config(
    id: TenantId,
    tenant: &Tenant,
    placement: &Placement,
    drive: &Facts,
    doorbells: Doorbells,
) -> ControllerConfig {
    ControllerConfig {
        serial: tenant.name.chars().take(20).collect(),
        model: "Evenkeel virtual NVMe disk".into(),
        firmware: env!("CARGO_PKG_VERSION").chars().take(8).collect(),
        subnqn: format!("nqn.2026-11.evenkeel:{}", tenant.name),
        tenant: id,
        namespaces: vec![(NSID, own_disk(placement, drive))],
        discard: drive.discard,
        write_zeroes: true,
        volatile_write_cache: drive.write_cache,
        max_io_queues: tenant.queues,
        max_depth: 1024,
        max_transfer_bytes: MAX_TRANSFER_BYTES,
        doorbells,
        queues_singly: tenant.terms.priority == TenantPriority::OfQueue,
    }
}

/// A tenant's own disk.
fn own_disk(placement: &Placement, drive: &Facts) -> NamespaceConfig {
    NamespaceConfig {
        // Where it lies is looked up.
        base_bytes: 0,
        size_bytes: placement.served_bytes(),
        lba_bytes: placement.lba_bytes,
        lba_sizes: [512, 4096].into_iter().filter(|size| *size >= drive.block_bytes).collect(),
        read_only: false,
        shared: false,
        elsewhere: false,
        nguid: None,
        format_cut_short: placement.formatting_to_lba_bytes.is_some(),
    }
}

/// The order that attaches a namespace of several tenants.
pub fn attach(nsid: u32, placement: &Placement, drive: &Facts, read_only: bool, elsewhere: bool) -> Order {
    let nguid = nvme_controller::nguid(&format!("nqn.2026-11.evenkeel:namespace:{}", placement.name));
    let own = own_disk(placement, drive);
    let namespace = NamespaceConfig { read_only, shared: true, elsewhere, nguid: Some(nguid), ..own };
    Order::Attach(nsid, namespace, placement.to_look_up())
}

impl NvmeDevice {
    fn connected(&mut self, session: Session) {
        if let Some(Lasting { doorbells, journal }) = &self.lasting {
            let (is_held, mut error) = (session.is_held(), None);
            if is_held {
                let config = self.controller.config();
                let taken = Controller::take_over(config, Arc::clone(doorbells), EventFds::default(), journal);
                match taken {
                    Ok(controller) => *self.controller = controller,
                    Err(why) => error = Some(why),
                }
            } else {
                error = self.controller.keep_journal(journal).err();
            }
            self.is_paused = is_held && error.is_none();
            if let Some(error) = error {
                session.disconnect(&format!(
                    "an earlier process's state of its controller can't be gone on with: {error}"
                ));
            }
        }
        self.session = Some(session);
    }

    /// Does what a client asks, or begins it.
    fn request(&mut self, request: Request, done: Sender<Reply>, memory: &mut dyn MemoryListener) {
        let reply = match request {
            Request::RegionRead { region, offset_bytes, len_bytes } => {
                let mut data = vec![0; len_bytes as usize];
                self.read(region, offset_bytes, &mut data);
                // It changes nothing that would have to be recorded.
                return answer(&done, Reply::Data(data));
            }
            Request::RegionWrite { region, offset_bytes, data } => {
                self.write(region, offset_bytes, &data);
                // A write can make parked completions deliverable; so can memory that comes back.
                self.notify();
                Reply::Done
            }
            Request::DmaMap { iova, len_bytes, mapping } => {
                let mapped = self.controller.dma_map(iova, len_bytes, mapping, memory);
                if !self.is_paused {
                    self.notify();
                }
                mapped.map_or_else(|error| refusal(error, iova, len_bytes), |()| Reply::Done)
            }
            Request::DmaUnmap { iova, len_bytes } => match self.controller.dma_unmap(iova, len_bytes) {
                Ok(()) => return self.waiting.push(Waiting::Unmap(Some((iova, len_bytes)), done)),
                Err(_) => Reply::Failed(Errno::NOENT),
            },
            Request::DmaUnmapAll => {
                self.controller.dma_unmap_all();
                return self.waiting.push(Waiting::Unmap(None, done));
            }
            Request::Reset => {
                self.controller.reset();
                return self.waiting.push(Waiting::Reset(done));
            }
            Request::SetIrqs(change) => {
                self.set_irqs(change);
                Reply::Done
            }
        };
        // Before the client hears that it was done.
        self.controller.record();
        answer(&done, reply);
    }

    /// The client is gone: its memory is let go once nothing in flight uses it; the controller is reset.
    fn client_gone(&mut self, done: Option<Sender<()>>) {
        self.session = None;
        self.is_paused = false;
        *self.controller.interrupts_mut() = EventFds::default();
        self.controller.client_gone();
        self.waiting.push(Waiting::Gone(done));
    }

    /// A namespace that was changed lies there from now on, unless it could not be changed.
    fn place(&mut self, nsid: u32, extents: Extents, changed: Result<(), NamespaceError>) {
        match changed {
            Ok(()) => self.controller.set_disk(disk_of(nsid), extents),
            Err(error) => self.log.warn(&format!("{}: namespace {nsid} stays as it is: {error}", self.name)),
        }
        self.notify();
    }

    fn detach(&mut self, nsid: u32, done: OnDetached) {
        let detached = self.controller.detach(nsid);
        self.notify();
        // One that is not there may be going already, and need not go otherwise.
        if detached.is_err() && self.controller.is_detached(nsid) {
            return done();
        }
        self.waiting.push(Waiting::Detach(nsid, done));
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        match region {
            CONFIG_SPACE => self.controller.config_read(offset, data),
            BAR0 | BAR4 => self.controller.bar_read(region as u8, offset, data),
            _ => {}
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match region {
            CONFIG_SPACE => self.controller.config_write(offset, data),
            BAR0 | BAR4 => self.controller.bar_write(region as u8, offset, data),
            _ => {}
        }
    }

    fn set_irqs(&mut self, SetIrqs { index, vectors, change }: SetIrqs) {
        let masked = matches!(change, IrqChange::Mask);
        match change {
            IrqChange::Assign(fds) => {
                for (vector, fd) in vectors.into_iter().zip(fds) {
                    self.controller.interrupts_mut().set(index, vector, Some(fd));
                }
            }
            IrqChange::Deassign => {
                vectors.into_iter().for_each(|vector| self.controller.interrupts_mut().set(index, vector, None));
            }
            IrqChange::Trigger => {
                vectors.into_iter().for_each(|vector| self.controller.interrupts_mut().raise(vector as u16));
            }
            IrqChange::Mask | IrqChange::Unmask => {
                vectors.into_iter().for_each(|vector| self.controller.set_vector_masked(vector as u16, masked));
            }
        }
        let armed = self.controller.interrupts_mut().has_msix();
        self.controller.set_msix_armed(armed);
    }
}

/// A namespace as [`Placed`] knows it.
fn disk_of(nsid: u32) -> u16 {
    (nsid - 1) as u16
}

/// The answer to a DMA map that failed.
fn refusal(error: SpaceError, iova: u64, len_bytes: u64) -> Reply {
    match error {
        // No VMM does this; what it means by its addresses can't be known any more.
        SpaceError::Overlap => {
            Reply::Fatal(Errno::EXIST, format!("a DMA map over another, of {len_bytes:#x} bytes at {iova:#x}"))
        }
        SpaceError::TooMany => Reply::Failed(Errno::NOSPC),
        SpaceError::Refused(refused) => Reply::Failed(Errno::from_raw_os_error(refused.errno)),
        SpaceError::BadRange | SpaceError::NotMapped => Reply::Failed(Errno::INVAL),
    }
}

fn answer<T>(to: &Sender<T>, answer: T) {
    // A client's thread that no longer waits needs no answer.
    let _ = to.send(answer);
}

impl FrontEnd for NvmeDevice {
    type Order = Order;

    fn order(&mut self, order: Order, memory: &mut dyn MemoryListener) {
        match order {
            Order::Connected(session) => self.connected(session),
            Order::Restored(alone) => {
                self.is_paused = false;
                // Where nothing could be waiting, nothing did.
                self.alone = if self.controller.live_vqs() == 0 { Nanos(0) } else { alone };
                let taken_over = self.controller.taken_over();
                self.log.info(&format!("{}: its controller goes on, {taken_over} commands taken over", self.name));
                self.controller.resume();
                self.notify();
            }
            Order::Left(done) => {
                self.is_paused = true;
                self.waiting.push(Waiting::Left(done));
            }
            Order::Request(request, done) => self.request(request, done, memory),
            Order::Gone(done) => self.client_gone(Some(done)),
            Order::Recorded(record, is_durable) => {
                self.controller.format_recorded(record, is_durable);
                self.notify();
            }
            Order::Attach(nsid, config, extents) => {
                let attached = self.controller.attach(nsid, config);
                self.place(nsid, extents, attached);
            }
            Order::Grow(nsid, size_bytes, extents) => {
                let grown = self.controller.grow(nsid, size_bytes);
                self.place(nsid, extents, grown);
            }
            Order::Elsewhere(nsid, elsewhere) => {
                // One that could not be attached was logged then.
                let _ = self.controller.set_elsewhere(nsid, elsewhere);
            }
            Order::Detach(nsid, done) => self.detach(nsid, done),
        }
    }

    fn leave(&mut self) {
        self.client_gone(None);
    }

    fn part(&mut self) {
        if self.lasting.is_none() || self.session.is_none() {
            return self.leave();
        }
        self.is_paused = true;
        self.controller.leave();
    }

    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
        while let Some(quiet) = self.controller.take_unmapped(memory) {
            let told = |waiting: &Waiting| matches!(waiting, Waiting::Unmap(range, _) if *range == Some(quiet));
            if let Some(at) = self.waiting.iter().position(told)
                && let Waiting::Unmap(_, done) = self.waiting.remove(at)
            {
                self.controller.record();
                answer(&done, Reply::Done);
            }
        }
        let (is_idle, is_unmapped) = (self.controller.is_idle(), self.controller.unmaps_pending() == 0);
        let controller = &mut self.controller;
        self.waiting.retain_mut(|waiting| match waiting {
            Waiting::Unmap(None, done) if is_unmapped => {
                controller.record();
                answer(done, Reply::Done);
                false
            }
            Waiting::Reset(done) if is_idle => {
                controller.record();
                answer(done, Reply::Done);
                false
            }
            Waiting::Gone(done) if is_idle && is_unmapped => {
                // Whoever comes next must not find what this client left.
                controller.record();
                done.iter().for_each(|done| answer(done, ()));
                false
            }
            Waiting::Left(done) if is_idle => {
                controller.leave();
                answer(done, ());
                false
            }
            Waiting::Detach(nsid, done) if controller.is_detached(*nsid) => {
                controller.set_disk(disk_of(*nsid), Extents::new([]));
                std::mem::replace(done, Box::new(|| ()))();
                false
            }
            _ => true,
        });
        !self.waiting.is_empty()
    }

    fn has_client(&self) -> bool {
        self.session.is_some()
    }

    fn check_health(&mut self) {
        if let Some(session) = self.session.as_ref().filter(|_| self.controller.memory_is_lost()) {
            session.cut_off(super::LOST);
        }
        if let Some(session) = self.session.as_ref().filter(|_| self.controller.interrupts_mut().held_up) {
            session.cut_off(super::HELD_UP);
        }
    }

    fn doorbells(&self, out: &mut Vec<(MappedU32, u32)>) {
        self.controller.doorbells(out);
    }
}

impl Source for NvmeDevice {
    fn live_vqs(&self) -> u128 {
        if self.is_paused { 0 } else { self.controller.live_vqs() }
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        self.controller.priority(vq)
    }

    #[inline]
    fn service(&mut self) -> u32 {
        if self.is_paused { 0 } else { self.controller.service() }
    }

    #[inline]
    fn rung(&mut self) -> u128 {
        self.controller.rung()
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        self.controller.backlog(vq)
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        self.controller.fetch(vq)
    }

    fn take_waited_before(&mut self) -> Nanos {
        std::mem::take(&mut self.alone)
    }

    #[inline]
    fn take_work(&mut self) -> u32 {
        self.controller.take_work()
    }

    #[inline]
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        self.controller.complete(token, outcome, buf);
    }

    fn notify(&mut self) {
        self.controller.notify();
        while let Some(event) = self.controller.take_event() {
            match event {
                Event::Format(record) => (self.on_format)(record),
                Event::FlushFailed(error) => self.log.warn(&super::not_flushed(&self.name, error)),
            }
        }
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.controller.set_wakeup(wanted);
    }
}

#[cfg(test)]
mod tests;
