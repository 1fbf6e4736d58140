//! A tenant's NVMe controller at its poller: the controller, its interrupts as eventfds, and what its client asks.

mod eventfds;
mod making;
mod promise_log;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use client_socket::Log;
use guest_memory::{MappedU32, Mapping, MemoryListener, SpaceError};
use io_model::{Extents, Fetch, IoBuf, Nanos, Outcome, Placed, QueuePriority, Source, Token, Witness};
use nvme_controller::{
    Controller, EraseRecord, Event, Interrupts, NamespaceConfig, NamespaceError, PartMessage, StateError,
};
use vfio_user::{Errno, IrqChange, Reply, Request, Session, SetIrqs};

use self::eventfds::EventFds;
pub use self::making::{attach, build};
pub use self::promise_log::OwnPromise;
use super::{FrontEnd, OnErase, Port};
use crate::panics;

/// Region indexes of a PCI device (VFIO).
pub const BAR0: u32 = 0;
/// The MSI-X table and its pending bits.
pub const BAR4: u32 = 4;
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

/// Requests of the thread of the controller's client.
pub enum Order {
    /// A client attached.
    Connected(Session),
    /// The client's request; answered when it is done, or not at all if the daemon ends first.
    Request(Request, Sender<Reply>),
    /// The client has repeated its messages to an earlier process, after this time without one.
    Restored(Nanos),
    /// This process ends, and the client goes on with the next one; answered when nothing of it is in flight here.
    Left(Sender<()>),
    /// The client left; answered when no command of it is in flight and its memory is released.
    Gone(Sender<()>),
    /// A step of a Format or Sanitize is in the layout. `false`: it could not be written.
    Recorded(EraseRecord, bool),
    /// There is a namespace more from now on, which lies there. What is there is the tenant's own.
    Attach(u32, NamespaceConfig, Extents),
    /// A namespace has this many bytes from now on, in these extents. What is new is zeroed.
    Grow(u32, u64, Extents),
    /// Another controller has a namespace too, or no more.
    Elsewhere(u32, bool),
    /// A namespace goes; called when nothing of it is in flight, so that its place may be used for something else.
    Detach(u32, OnDetached),
    /// One of these about namespaces, which all parts of the controller get: see [`for_parts`].
    InTurn(Box<Order>, Turn),
    /// Where the other parts of the controller are: to the first, all of them in their order; to others, the first.
    Parts(Vec<Port<Order>>),
    /// Another part tells something.
    Hear(PartMessage),
}

/// Held by each part that has not carried out an order.
pub type Turn = Arc<()>;

/// An order about namespaces for each part of a controller, the first part's first. That one, which tells the guest,
/// carries it out once all others have.
pub fn for_parts(order: Order, parts: usize) -> Vec<Order> {
    if parts <= 1 {
        return vec![order];
    }
    let turn = Turn::default();
    let others: Vec<Order> = (1..parts).filter_map(|_| for_other(&order, Arc::clone(&turn))).collect();
    std::iter::once(Order::InTurn(Box::new(order), turn)).chain(others).collect()
}

/// The order for a part that is not the first. `None`: it is not about namespaces.
fn for_other(order: &Order, turn: Turn) -> Option<Order> {
    let same = match order {
        Order::Attach(nsid, config, extents) => Order::Attach(*nsid, config.clone(), extents.clone()),
        Order::Grow(nsid, size_bytes, extents) => Order::Grow(*nsid, *size_bytes, extents.clone()),
        Order::Elsewhere(nsid, elsewhere) => Order::Elsewhere(*nsid, *elsewhere),
        Order::Detach(nsid, _) => return Some(Order::Detach(*nsid, Box::new(move || drop(turn)))),
        _ => return None,
    };
    Some(Order::InTurn(Box::new(same), turn))
}

/// Hears that a controller has released a namespace.
pub type OnDetached = Box<dyn FnOnce() + Send>;

/// An answer that waits for the drive.
enum Waiting {
    /// For memory to be quiet: a range, or all that was taken away.
    Unmap(Option<(u64, u64)>, Sender<Reply>),
    /// For commands in flight to end.
    Reset(Sender<Reply>),
    /// For both, after the client left.
    Gone(Option<Sender<()>>),
    /// For commands of a namespace in flight to end.
    Detach(u32, OnDetached),
    /// For commands in flight to end, before the next process goes on.
    Left(Sender<()>),
    /// For the guest to serve a pin interrupt, until then.
    Pin(Instant),
}

/// How long a guest may take from a pin interrupt to its first register write, before it is interrupted again.
const PIN_HOLD: Duration = Duration::from_millis(10);

/// What outlives this process, for the next one to go on with.
#[derive(Clone)]
struct Lasting {
    doorbells: Arc<Mapping>,
    journal: Arc<Mapping>,
    /// An earlier process's journal that can't be gone on with, and says why.
    earlier: Option<Arc<Mapping>>,
    /// An earlier process's client is to go on.
    is_held: bool,
}

/// A tenant's controller, or the part of it that one poller has.
pub struct NvmeDevice {
    controller: Placed<Controller<EventFds>>,
    session: Option<Session>,
    waiting: Vec<Waiting>,
    /// Where clients are kept.
    lasting: Option<Lasting>,
    /// Nothing is done for the guest: its memory is not there yet, or the next process goes on with it.
    is_paused: bool,
    /// How long the client that was taken over was not served, until the poller has heard of it.
    alone: Nanos,
    /// Where its other parts are: see [`Order::Parts`].
    parts: Vec<Port<Order>>,
    /// What other parts are to do before this one does.
    turns: VecDeque<(Order, Turn)>,
    name: String,
    log: Log,
    on_erase: OnErase,
}

impl NvmeDevice {
    fn new(
        name: String,
        controller: Placed<Controller<EventFds>>,
        lasting: Option<Lasting>,
        log: Log,
        on_erase: OnErase,
    ) -> Self {
        // An earlier process's client brings its own state.
        let is_paused = lasting.as_ref().is_some_and(|it| it.is_held);
        Self {
            controller,
            session: None,
            waiting: Vec::new(),
            lasting,
            is_paused,
            alone: Nanos(0),
            parts: Vec::new(),
            turns: VecDeque::new(),
            name,
            log,
            on_erase,
        }
    }

    fn is_first(&self) -> bool {
        self.controller.part().is_first()
    }

    /// Sends other parts what there is for them, once it is known where they are.
    fn tell_parts(&mut self) {
        if self.parts.is_empty() {
            return;
        }
        while let Some((to, message)) = self.controller.take_message() {
            let at = if self.is_first() { usize::from(to).wrapping_sub(1) } else { 0 };
            if let Some(part) = self.parts.get(at) {
                part.order(Order::Hear(message));
            }
        }
    }

    /// Acts on what the controller tells its wiring.
    fn tell_events(&mut self) {
        while let Some(event) = self.controller.take_event() {
            match event {
                Event::Fatal(why) => self.log.warn(&format!("{}: the controller can't start: {why}", self.name)),
                Event::Erase(record) => (self.on_erase)(record),
                Event::GivenUp(command) => {
                    let report = "please report it with the daemon's log before each end";
                    self.log.warn(&format!("{}: {command}; {report}", self.name));
                }
                Event::FlushFailed(error) => self.log.warn(&super::not_flushed(&self.name, error)),
            }
        }
    }

    /// Carries out what all other parts have.
    fn take_turns(&mut self, memory: &mut dyn MemoryListener) {
        while self.turns.front().is_some_and(|(_, turn)| Arc::strong_count(turn) == 1) {
            if let Some((order, _)) = self.turns.pop_front() {
                self.order(order, memory);
            }
        }
    }

    fn connected(&mut self, session: Session) {
        if let Some(Lasting { doorbells, journal, earlier, .. }) = &self.lasting {
            let (is_held, mut error) = (session.is_held(), None);
            if is_held {
                let (config, journal) = (self.controller.config(), earlier.as_ref().unwrap_or(journal));
                let taken = Controller::take_over(config, Arc::clone(doorbells), EventFds::default(), journal);
                match taken {
                    Ok(mut controller) => {
                        controller.show_promise(self.controller.promise().cloned());
                        *self.controller = controller;
                        // Before anything is done: this process may end by what it does.
                        self.tell_events();
                    }
                    Err(why) => error = Some(why),
                }
            } else {
                error = self.controller.keep_journal(journal).err();
            }
            self.is_paused = is_held && error.is_none();
            if let Some(error) = error {
                let remedy = match error {
                    StateError::Queues { .. } => "; restart its VM, and change `queues` only while the VM is off",
                    _ => "",
                };
                session.disconnect(&format!(
                    "an earlier process's state of its controller can't be taken over: {error}{remedy}"
                ));
            }
        }
        self.session = Some(session);
    }

    /// Carries out a client's request, or begins it.
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
                mapped.map_or_else(refusal, |()| Reply::Done)
            }
            Request::DmaUnmap { iova, len_bytes } => match self.controller.dma_unmap(iova, len_bytes) {
                Ok(()) => return self.waiting.push(Waiting::Unmap(Some((iova, len_bytes)), done)),
                Err(error) => refusal(error),
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

    /// The client left: its memory is released once no command in flight uses it; the controller is reset.
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
        // A namespace that is not attached may be leaving already. If it has left, this is done.
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
        let is_new_pin = index == INTX && matches!(change, IrqChange::Assign(_));
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
                if self.controller.pin_is_held() {
                    self.waiting.retain(|waiting| !matches!(waiting, Waiting::Pin(_)));
                    self.waiting.push(Waiting::Pin(Instant::now() + PIN_HOLD));
                }
            }
        }
        let armed = self.controller.interrupts_mut().has_msix();
        self.controller.set_msix_armed(armed);
        if is_new_pin {
            // It begins unmasked, and is raised for what waits.
            self.controller.set_vector_masked(0, false);
        }
    }
}

/// A namespace as [`Placed`] knows it.
fn disk_of(nsid: u32) -> u16 {
    (nsid - 1) as u16
}

/// The answer to a DMA map or unmap that failed.
fn refusal(error: SpaceError) -> Reply {
    match error {
        SpaceError::Overlap => Reply::Failed(Errno::EXIST),
        SpaceError::TooMany => Reply::Failed(Errno::NOSPC),
        SpaceError::Refused(refused) => Reply::Failed(Errno::from_raw_os_error(refused.errno)),
        SpaceError::BadRange | SpaceError::Part => Reply::Failed(Errno::INVAL),
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
                if self.is_first() {
                    self.log.info(&format!("{}: its controller goes on, {taken_over} commands taken over", self.name));
                } else if taken_over > 0 {
                    self.log.info(&format!("{}: {taken_over} commands more taken over at another poller", self.name));
                }
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
                self.controller.recorded(record, is_durable);
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
                // A namespace that could not be attached was logged then.
                let _ = self.controller.set_elsewhere(nsid, elsewhere);
            }
            Order::Detach(nsid, done) => self.detach(nsid, done),
            Order::InTurn(order, turn) if self.is_first() => self.turns.push_back((*order, turn)),
            Order::InTurn(order, _turn) => self.order(*order, memory),
            Order::Parts(parts) => self.parts = parts,
            Order::Hear(message) => {
                self.controller.hear(message);
                self.notify();
            }
        }
        self.tell_parts();
    }

    fn leave(&mut self) {
        self.controller.halt();
        self.client_gone(None);
    }

    fn part(&mut self) {
        if self.lasting.is_none() || self.session.is_none() {
            return self.leave();
        }
        self.is_paused = true;
        self.controller.record();
    }

    fn drop_when_quiet(&mut self, witness: Witness) {
        self.controller.drop_when_quiet(witness);
    }

    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
        self.take_turns(memory);
        while self.controller.take_unmapped(memory).is_some() {}
        let (is_idle, is_unmapped) = (self.controller.is_idle(), self.controller.unmaps_pending() == 0);
        let is_reset = self.controller.is_reset();
        let controller = &mut self.controller;
        self.waiting.retain_mut(|waiting| match waiting {
            Waiting::Unmap(range, done)
                if range.map_or(is_unmapped, |(iova, len_bytes)| !controller.is_in_use(iova, len_bytes)) =>
            {
                controller.record();
                answer(done, Reply::Done);
                false
            }
            Waiting::Reset(done) if is_reset => {
                controller.record();
                answer(done, Reply::Done);
                false
            }
            Waiting::Gone(done) if is_reset && is_unmapped => {
                // The next client must not find this client's data.
                controller.record();
                done.iter().for_each(|done| answer(done, ()));
                false
            }
            Waiting::Left(done) if is_idle => {
                controller.record();
                answer(done, ());
                false
            }
            Waiting::Detach(nsid, done) if controller.is_detached(*nsid) => {
                controller.set_disk(disk_of(*nsid), Extents::new([]));
                std::mem::replace(done, Box::new(|| ()))();
                false
            }
            Waiting::Pin(until) if !controller.pin_is_held() || Instant::now() >= *until => {
                controller.release_pin();
                false
            }
            _ => true,
        });
        self.tell_parts();
        self.controller.settle() || !self.waiting.is_empty() || !self.turns.is_empty()
    }

    fn is_polled(&self) -> bool {
        self.controller.waits()
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
        let fetched = self.controller.fetch(vq);
        panics::command_drill(&fetched);
        fetched
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
        self.tell_parts();
        self.tell_events();
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.controller.set_wakeup(wanted);
        self.tell_parts();
    }
}

#[cfg(test)]
mod tests;
