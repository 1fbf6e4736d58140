//! One poller's part of a disk.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use eventfd::EventFd;
use guest_memory::{Access, GuestMemory, MemoryListener, Refused};
use io_model::{CacheDebt, Command, DeviceError, Fetch, IoBuf, Outcome, Place, QueuePriority, Token};

use crate::chain::Chain;
use crate::disk::Disk;
use crate::fault::{Fault, FaultKind, StartError};
use crate::lanes::Lane;
use crate::queue::{HeldUp, Queue, RingSetup, Started};
use crate::request::{Admitted, Pool, Rules, Status};
use crate::spec::feature;
use crate::stats::Stats;

/// Some of a disk's virtqueues and the guest's memory, owned by one poller. See the crate's documentation.
///
/// `queue` is always the index of a virtqueue in the whole disk.
///
/// A client that comes back after its commands were resubmitted from the log must not find old ones still on their
/// way to the drive. So before any ring of a new client starts, every `Queues` of the disk must be
/// [idle](Queues::is_idle); [`Queues::start`] refuses for those of its own.
#[derive(Debug)]
pub struct Queues {
    disk: Arc<Disk>,
    /// The disk's, at hand for each doorbell.
    by_priority: bool,
    first: u16,
    // Boxed: a poller's part may be 64 virtqueues that no guest uses.
    queues: Box<[Option<Box<Queue>>]>,
    memory: GuestMemory,
    /// Kept, so that a walk does not allocate.
    chain: Chain,
    pool: Pool,
    /// VQs that may be fetched from.
    live: u128,
    /// VQs with requests done since the last interrupts.
    dirty: u128,
    awake: bool,
    generation: u16,
    /// Device commands whose ring is gone.
    orphans: u32,
    fault: Option<Fault>,
    /// The client kept an eventfd of its own from being signalled: none is any more.
    held_up: bool,
    cache: CacheDebt,
    flush_error: Option<DeviceError>,
    stats: Stats,
}

impl Queues {
    /// The virtqueues `queues` of the disk, none of them started. What lies past the disk's last is left out.
    pub fn new(disk: Arc<Disk>, queues: Range<u16>) -> Self {
        let end = queues.end.min(disk.config().queues);
        let by_priority = disk.config().by_priority;
        let cache = CacheDebt::new(disk.config().write_cache);
        Self {
            first: queues.start,
            queues: (queues.start..end).map(|_| None).collect(),
            disk,
            by_priority,
            memory: GuestMemory::default(),
            chain: Chain::default(),
            pool: Pool::default(),
            live: 0,
            dirty: 0,
            awake: true,
            generation: 0,
            orphans: 0,
            fault: None,
            held_up: false,
            cache,
            flush_error: None,
            stats: Stats::default(),
        }
    }

    /// The disk that these are queues of.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Indexes of the virtqueues here.
    pub fn range(&self) -> Range<u16> {
        self.first..self.first + self.queues.len() as u16
    }

    #[inline]
    fn queue(&mut self, queue: u16) -> Option<&mut Queue> {
        self.queues.get_mut(usize::from(queue.checked_sub(self.first)?))?.as_deref_mut()
    }

    fn queue_ref(&self, queue: u16) -> Option<&Queue> {
        self.queues.get(usize::from(queue.checked_sub(self.first)?))?.as_deref()
    }

    fn started(&mut self) -> impl Iterator<Item = (u16, &mut Queue)> {
        let queues = (self.first..).zip(&mut self.queues);
        queues.filter_map(|(index, queue)| Some((index, queue.as_deref_mut()?)))
    }

    /// Replaces the guest's memory, a [replica](GuestMemory::replica) of each poller's own, after telling `listener`
    /// what is new in it. What is not in it any more stays mapped while commands in flight use it: see
    /// [`Queues::take_unmapped`]. A ring that is not in the new memory is served no more, and says so
    /// ([`Queues::take_fault`]), until it is in it again.
    ///
    /// # Errors
    /// See [`GuestMemory::replace`]. All is as before.
    pub fn set_memory(&mut self, memory: GuestMemory, listener: &mut dyn MemoryListener) -> Result<(), Refused> {
        self.memory.replace(memory, listener)?;
        let awake = self.awake;
        for index in self.range() {
            let Some(queue) = self.queues[usize::from(index - self.first)].as_deref_mut() else { continue };
            if !queue.attach(&mut self.memory, awake) {
                self.fail(index, FaultKind::RingMemory);
            }
            self.look_again(index);
            self.dirty |= bit(index);
        }
        // What was completed while a ring was out of reach.
        self.announce();
        Ok(())
    }

    /// Guest memory that was replaced, or whose client is gone, and that nothing uses any more, `listener` included:
    /// its guest address and length in bytes, each once.
    pub fn take_unmapped(&mut self, listener: &mut dyn MemoryListener) -> Option<(u64, u64)> {
        self.memory.take_unmapped(listener)
    }

    /// Ranges of such memory that something may still use.
    pub fn unmaps_pending(&self) -> usize {
        self.memory.unmaps_pending()
    }

    /// Whether the client took memory away that it had shared. Nothing is fetched then, and nothing succeeds.
    pub fn memory_is_lost(&mut self) -> bool {
        self.memory.is_lost()
    }

    /// Starts a ring that is not running; it is fetched from once it is [enabled](Queues::enable). Its driver is
    /// interrupted once, in case that an interrupt was lost with an earlier process. The write cache is as the driver
    /// of an earlier process left it: no VMM tells us again.
    ///
    /// # Errors
    /// See [`StartError`]; the virtqueue is then as before.
    pub fn start(&mut self, queue: u16, setup: RingSetup) -> Result<Started, StartError> {
        if !self.range().contains(&queue) {
            return Err(StartError::NoQueue);
        }
        let is_stopped = self.queue_ref(queue).is_none_or(|ring| ring.stopping);
        if !is_stopped || !self.is_quiet(queue) || self.orphans > 0 {
            return Err(StartError::Busy);
        }
        let generation = self.generation.wrapping_add(1);
        let (ring, started) = Queue::start(setup, &mut self.memory, generation, self.awake, self.by_priority)?;
        self.generation = generation;
        if let Some(on) = ring.noted_write_cache() {
            self.disk.set_writeback(on);
        }
        ring.note_write_cache(self.disk.writeback());
        if started.resumed {
            self.cache.assume_unflushed();
        }
        self.queues[usize::from(queue - self.first)] = Some(Box::new(ring));
        self.disk.ring_started();
        self.interrupt(queue);
        self.look_again(queue);
        Ok(started)
    }

    /// Lets a started ring be fetched from, or not (VHOST_USER_SET_VRING_ENABLE).
    pub fn enable(&mut self, queue: u16, enabled: bool) {
        if let Some(ring) = self.queue(queue) {
            ring.enabled = enabled;
            self.look_again(queue);
        }
    }

    /// Fetches nothing new from a ring. What was fetched before still completes: see [`Queues::is_quiet`].
    pub fn stop(&mut self, queue: u16) {
        if let Some(ring) = self.queue(queue)
            && !ring.stopping
        {
            ring.stopping = true;
            self.disk.ring_stopped();
            self.look_again(queue);
        }
    }

    /// Whether everything that was fetched from a ring is completed and published. True for one that was never started.
    pub fn is_quiet(&self, queue: u16) -> bool {
        self.queue_ref(queue).is_none_or(|ring| ring.in_flight == 0 && (ring.is_quiet() || self.disk.is_broken()))
    }

    /// Whether no command of any ring here is with the drive, those of a client that is gone included.
    pub fn is_idle(&self) -> bool {
        let mut queues = self.queues.iter().flatten();
        self.orphans == 0 && !self.cache.is_parting() && queues.all(|queue| queue.in_flight == 0)
    }

    /// For a client that goes: whether nothing of it is in flight, nor in the drive's cache. If there may be something
    /// in the cache, a flush is fetched as VQ 0; ask again.
    pub fn is_flushed(&mut self) -> bool {
        self.is_idle() && !self.cache.must_flush()
    }

    /// How that flush failed, once: what was written last may be lost.
    pub fn take_flush_error(&mut self) -> Option<DeviceError> {
        self.flush_error.take()
    }

    /// The next available entry that would be fetched, modulo 2^16 (VHOST_USER_GET_VRING_BASE). `None`: never started.
    pub fn next_avail(&self, queue: u16) -> Option<u16> {
        Some(self.queue_ref(queue)?.ring.next_avail)
    }

    /// The used index of a started ring: how many requests it has completed, modulo 2^16.
    pub fn used_idx(&self, queue: u16) -> Option<u16> {
        Some(self.queue_ref(queue)?.ring.used)
    }

    /// Changes where a ring interrupts its driver, and does so once: an interrupt may have been lost in between.
    pub fn set_call(&mut self, queue: u16, call: Option<OwnedFd>) {
        if let Some(ring) = self.queue(queue) {
            ring.call = call.map(EventFd::new);
            self.interrupt(queue);
        }
    }

    /// Interrupts a ring's driver, if there is a way to. Returns whether there was.
    fn interrupt(&mut self, queue: u16) -> bool {
        if self.held_up {
            return false;
        }
        match self.queue(queue).map(|ring| ring.interrupt()) {
            Some(Ok(raised)) => raised,
            Some(Err(HeldUp)) => {
                self.held_up = true;
                false
            }
            None => false,
        }
    }

    /// Whether the client kept an eventfd of its own from being signalled, for a millisecond: it is to be cut off.
    pub fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Changes where a ring says that it stopped by a fault.
    pub fn set_err(&mut self, queue: u16, err: Option<OwnedFd>) {
        if let Some(ring) = self.queue(queue) {
            ring.err = err.map(EventFd::new);
        }
    }

    /// Notes in the logs whether the driver has the write cache on, so that the next process knows it
    /// ([`Disk::write_config`]).
    pub fn note_write_cache(&mut self) {
        let on = self.disk.writeback();
        self.started().for_each(|(_, ring)| ring.note_write_cache(on));
    }

    /// The client is gone: rings and descriptors are dropped, guest memory once nothing uses it
    /// ([`Queues::take_unmapped`]). Commands with the drive complete to nobody; their requests are in the log.
    pub fn client_gone(&mut self) {
        for queue in self.queues.iter_mut().filter_map(Option::take) {
            self.orphans += queue.in_flight;
            if !queue.stopping {
                self.disk.ring_stopped();
            }
        }
        self.memory.unmap_all();
        self.live = 0;
        self.dirty = 0;
        self.fault = None;
        self.held_up = false;
    }

    /// What stopped a ring or the device since the last call, once.
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// What was counted so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Whether a VQ is live may have changed.
    fn look_again(&mut self, queue: u16) {
        let live = self.queue_ref(queue).is_some_and(Queue::is_live);
        let bits = Lane::bits(queue, self.by_priority);
        self.live = self.live & !bits | if live { bits } else { 0 };
    }

    fn fail(&mut self, queue: u16, kind: FaultKind) {
        self.fault.get_or_insert(Fault { queue, kind });
        if kind.breaks_device() {
            self.disk.set_broken();
        }
        let err = self.queue_ref(queue).filter(|_| !self.held_up).and_then(|ring| ring.err.as_ref());
        self.held_up |= err.is_some_and(|err| !err.raise());
    }

    #[inline]
    pub(crate) fn live(&self) -> u128 {
        let live = if self.disk.is_broken() { 0 } else { self.live };
        live | u128::from(self.cache.is_wanted())
    }

    /// Whether the flush for a client that goes is to be fetched.
    #[inline]
    pub(crate) fn wants_flush(&self) -> u32 {
        self.cache.is_wanted().into()
    }

    /// Fetches it.
    pub(crate) fn fetch_flush(&mut self) -> Fetch {
        if !self.cache.take() {
            return Fetch::Empty;
        }
        Fetch::Command(self.disk.config().place.flush(), IoBuf::default(), Token::new(0, 0, 0))
    }

    /// What a VQ is part of; `None`: VQ 0.
    #[inline]
    pub(crate) fn lane(&self, vq: u16) -> Option<Lane> {
        Lane::of_vq(vq, self.by_priority)
    }

    /// What a VQ counts for.
    pub(crate) fn priority_of(&self, lane: Lane) -> QueuePriority {
        if self.by_priority { lane.priority() } else { QueuePriority::Medium }
    }

    /// VQs whose backlog may be another one than it was.
    #[inline]
    pub(crate) fn rung(&mut self) -> u128 {
        // A ring is sorted into lanes when one of them is asked.
        if self.by_priority || self.memory.is_lost() {
            return u128::MAX;
        }
        let mut rung = 1;
        for (at, ring) in self.queues.iter().enumerate() {
            if ring.as_ref().is_some_and(|ring| ring.is_rung()) {
                rung |= bit(self.first + at as u16);
            }
        }
        rung
    }

    #[inline]
    pub(crate) fn waiting(&mut self, lane: Lane) -> u32 {
        if self.memory.is_lost() {
            self.fail(lane.queue, FaultKind::MemoryLost);
            return 0;
        }
        let at = usize::from(lane.queue.wrapping_sub(self.first));
        let Some(ring) = self.queues.get_mut(at).and_then(Option::as_deref_mut) else { return 0 };
        match ring.backlog(lane, &mut self.memory) {
            Ok(backlog) => backlog,
            Err(kind) => {
                self.fail(lane.queue, kind);
                0
            }
        }
    }

    #[inline]
    pub(crate) fn fetch_from(&mut self, lane: Lane) -> Fetch {
        let queue = lane.queue;
        if self.disk.is_broken() || self.memory.is_lost() {
            return Fetch::Empty;
        }
        let fetched = self.next_request(lane);
        if let Ok(Fetch::Command(command, ..)) = &fetched {
            let queues = self.queues.iter().flatten();
            // The command itself is counted already.
            self.cache.sent(command.op, || queues.map(|queue| queue.in_flight).sum::<u32>() + self.orphans == 1);
        }
        if self.queue_ref(queue).is_some_and(|ring| ring.stopping || !ring.enabled) {
            self.look_again(queue);
        }
        match fetched {
            Ok(fetch) => fetch,
            Err(kind) => {
                self.fail(queue, kind);
                Fetch::Empty
            }
        }
    }

    /// See [`io_model::Source::take_work`].
    #[inline]
    pub(crate) fn chain_work(&mut self) -> u32 {
        self.chain.take_work()
    }

    /// Fetches a request and checks it. On an error it stays in its ring: a driver that is told may take it back.
    #[inline]
    fn next_request(&mut self, lane: Lane) -> Result<Fetch, FaultKind> {
        let at = usize::from(lane.queue.wrapping_sub(self.first));
        let Self { queues, memory, chain, pool, disk, stats, .. } = self;
        let Some(ring) = queues.get_mut(at).and_then(Option::as_deref_mut) else { return Ok(Fetch::Empty) };
        if ring.ranges_left() > 0 {
            return Ok(next_range(ring, lane, &disk.config().place));
        }
        let Some((head, is_off)) = ring.peek(lane)? else { return Ok(Fetch::Empty) };
        let Some(view) = &ring.ring.view else { return Ok(Fetch::Empty) };
        let indirect = ring.features & feature::INDIRECT_DESC != 0;
        chain.walk(&view.desc, ring.ring.place.size, head, indirect, memory)?;
        let address = chain.status.ok_or(FaultKind::NoStatus { head })?;
        memory.check(address, 1, Access::Write).map_err(|_| FaultKind::StatusMemory { head, address })?;
        // The status is the last byte: bytes before it count only if all of them were written.
        let only_status = u32::from(chain.write_bytes == 1);
        ring.take(lane, (head, is_off), address, (only_status, only_status));
        stats.requests += 1;
        let writethrough = ring.features & (feature::FLUSH | feature::CONFIG_WCE) == 0;
        let mut buf = pool.take(chain.is_plain());
        match (Rules { disk, writethrough }).admit(chain, memory, &mut buf, &mut ring.ranges) {
            Ok(Admitted::Device(command)) => {
                if command.op == io_model::Op::Read {
                    ring.set_written(head, chain.write_bytes as u32);
                }
                Ok(hand_out(ring, lane, head, command, buf))
            }
            Ok(Admitted::Ranges) => {
                pool.give(buf, memory);
                ring.start_ranges(lane, head);
                Ok(next_range(ring, lane, &disk.config().place))
            }
            Ok(Admitted::Done { written }) => {
                pool.give(buf, memory);
                let all = u64::from(written) + 1 == chain.write_bytes;
                ring.set_written(head, written + u32::from(all));
                self.answer(lane.queue, head, Status::Ok)
            }
            Err(status) => {
                pool.give(buf, memory);
                stats.rejected += 1;
                self.answer(lane.queue, head, status)
            }
        }
    }

    /// Ends a request that needs no device.
    fn answer(&mut self, queue: u16, head: u16, status: Status) -> Result<Fetch, FaultKind> {
        let at = usize::from(queue - self.first);
        if let Some(ring) = self.queues.get_mut(at).and_then(Option::as_deref_mut) {
            ring.end_part(head, status, &mut self.memory)?;
        }
        self.dirty |= bit(queue);
        Ok(Fetch::Handled)
    }

    #[inline]
    pub(crate) fn end(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        let (vq, generation, head) = token.spend();
        self.pool.give(buf, &mut self.memory);
        let Some(Lane { queue, .. }) = self.lane(vq) else {
            self.cache.parted();
            self.flush_error = outcome.err();
            return;
        };
        self.cache.came_back(outcome);
        let at = usize::from(queue.wrapping_sub(self.first));
        let Some(ring) = self.queues.get_mut(at).and_then(Option::as_deref_mut) else {
            self.orphans = self.orphans.saturating_sub(1);
            return;
        };
        if ring.generation != generation {
            self.orphans = self.orphans.saturating_sub(1);
            return;
        }
        ring.in_flight -= 1;
        let outcome = if self.memory.is_lost() { Err(DeviceError::Memory) } else { outcome };
        let status = outcome.map_or_else(Status::from, |()| Status::Ok);
        let ended = ring.end_part(head as u16, status, &mut self.memory);
        self.dirty |= bit(queue);
        if let Err(kind) = ended {
            self.fail(queue, kind);
        }
    }

    pub(crate) fn announce(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        while dirty != 0 {
            let queue = dirty.trailing_zeros() as u16 - 1;
            dirty &= dirty - 1;
            let Some(ring) = self.queue(queue) else { continue };
            ring.publish();
            if ring.ring.wants_interrupt() && self.interrupt(queue) {
                self.stats.interrupts += 1;
            }
        }
    }

    pub(crate) fn arm(&mut self, wanted: bool) {
        self.awake = !wanted;
        self.started().for_each(|(_, ring)| ring.set_wakeup(wanted));
    }
}

/// A virtqueue's bit: VQ `n + 1` is virtqueue `n`.
#[inline]
fn bit(queue: u16) -> u128 {
    2 << queue
}

fn hand_out(ring: &mut Queue, lane: Lane, head: u16, command: Command, buf: IoBuf) -> Fetch {
    ring.in_flight += 1;
    Fetch::Command(command, buf, Token::new(lane.vq, ring.generation, head.into()))
}

/// Whichever lane is fetched from: the ring has one request at a time in ranges.
fn next_range(ring: &mut Queue, lane: Lane, place: &Place) -> Fetch {
    match ring.next_range(place) {
        Some((head, command)) => hand_out(ring, lane, head, command, IoBuf::default()),
        None => Fetch::Empty,
    }
}
