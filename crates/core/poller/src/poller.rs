//! The poll iteration.

mod interval;
mod look;
mod vq;

use std::sync::Arc;

use guest_memory::{Mapping, MemoryListener, Refused};
use io_model::{Backend, Done, Fetch, HwqId, Io, Nanos, Source, TenantId, VqId};
use policy::{Bound, Next, Policy, TenantSlot, Terms, VqSlot};

use self::look::Patrol;
pub use self::look::REST_AFTER;
use self::vq::Vq;
use crate::board::Reports;
use crate::flights::{Flight, Flights};
use crate::probe::Times;
use crate::shared::Shared;
use crate::{Board, INTERVAL, INTERVALS_PER_PERIOD, Inside, Iterations, Probe, Recorded, Recorder};

/// Commands sent per iteration at most, if not said otherwise, so that completions never wait behind a long burst.
const SEND_BUDGET: u32 = 64;

/// Descriptors beyond the usual that one look fetches for a tenant: a few microseconds. What a command costs above
/// that, its tenant works off by fetching nothing at the next looks.
const WORK_PER_LOOK: u32 = 256;

/// Most tenants, and most VQs, that a poller can have at a time.
const MOST: usize = u16::MAX as usize;

/// What an iteration's commands may cost: so much each, and a copy at 1 GB/s. One that is long beyond that stood still.
const WORK_PER_COMMAND: Nanos = Nanos(2_000);
const WORK_PER_BYTE: Nanos = Nanos(1);

/// What one iteration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Commands handed to the device.
    pub sent: u32,
    /// Commands consumed without device work.
    pub handled: u32,
    /// Commands that the device finished.
    pub completed: u32,
    /// Their bytes.
    pub completed_bytes: u64,
}

impl Progress {
    /// Whether anything moved.
    pub fn any(&self) -> bool {
        self.sent + self.handled + self.completed > 0
    }
}

struct Tenant<S> {
    source: S,
    probe: Arc<Probe>,
    terms: Terms,
    /// VQs that the policy knows, as of the last look.
    live: u128,
    /// How many.
    vqs: u32,
    /// VQs that do something: they are asked for their backlog in each iteration.
    active: u128,
    /// VQs to be asked at the next look, whatever they do.
    ask: u128,
    /// VQs that operators were told of.
    told: u128,
    /// The policy's slot of each VQ.
    slots: Vec<VqSlot>,
    /// Commands with the device.
    inflight: u32,
    /// Is in [`Poller::touched`].
    touched: bool,
    /// Is in [`Poller::busy`].
    is_busy: bool,
    /// When it last had something to do.
    stirred_at: Nanos,
    /// Is in [`Poller::stirring`].
    stirs: bool,
    hwqs_used: u64,
    /// The bound that the probe shows while the tenant stirs; none: none of these terms.
    shown: Option<Option<Bound>>,
    /// See [`WORK_PER_LOOK`].
    work: u32,
    /// Present while the tenant's commands are recorded.
    recorder: Option<Recorder>,
}

impl<S> Tenant<S> {
    /// It has completions to announce.
    #[inline]
    fn touch(&mut self, slot: TenantSlot, touched: &mut Vec<TenantSlot>) {
        if !self.touched {
            self.touched = true;
            touched.push(slot);
        }
    }
}

/// How long before a time another one was that may be [`before`] the clock's zero.
fn since(earlier: Nanos, time: Nanos) -> Nanos {
    Nanos(time.0.wrapping_sub(earlier.0))
}

/// A poller's back end, as a tenant's front end sees it: the listener to the tenant's memory.
pub struct TenantMemory<'p, B> {
    backend: &'p mut B,
    tenant: TenantId,
}

impl<B: Backend> MemoryListener for TenantMemory<'_, B> {
    fn map(&mut self, mapping: &Mapping) -> Result<(), Refused> {
        self.backend.map_memory(self.tenant, mapping)
    }

    fn unmap(&mut self, mapping: &Mapping) {
        self.backend.unmap_memory(self.tenant, mapping);
    }
}

/// Moves commands from its tenants' VQs to its HWQs and completions back.
pub struct Poller<S, B, P> {
    // First, so that it is dropped first: it knows of the tenants' memory.
    backend: B,
    policy: P,
    /// Takes over once nothing is in flight.
    next_policy: Option<P>,
    board: Arc<Board>,
    inside: Arc<Inside>,
    shared: Arc<Shared>,
    tenants: Vec<Option<Tenant<S>>>,
    /// Tenants that are looked at in each iteration.
    busy: Vec<TenantSlot>,
    /// At all of them it looks in turn.
    patrol: Patrol,
    /// Tenants with completions to announce.
    touched: Vec<TenantSlot>,
    /// Tenants with commands with the device, or that had some in one of the last two intervals: the end of an interval
    /// is about them alone.
    stirring: Vec<TenantSlot>,
    vqs: Vec<Vq>,
    free_vqs: Vec<VqSlot>,
    flights: Flights,
    reports: Reports,
    next_interval: Nanos,
    /// Number of the tenants that woke up on the drive of which the policy was told.
    awoken: u32,
    /// Intervals that ended.
    intervals: usize,
    last_progress: Nanos,
    /// What ends now may have ended so much earlier, had it been looked at.
    stalled: Nanos,
    wait_until: Nanos,
    unknown_completions: u64,
    send_budget: u32,
}

impl<S: Source, B: Backend, P: Policy> Poller<S, B, P> {
    /// A poller without tenants.
    pub fn new(backend: B, policy: P, board: Arc<Board>, now: Nanos) -> Self {
        let awoken = board.awoken.count();
        let inside = Arc::new(Inside::new(backend.hwqs(), backend.depth()));
        Self {
            backend,
            policy,
            next_policy: None,
            board,
            inside,
            shared: Arc::default(),
            tenants: Vec::new(),
            busy: Vec::new(),
            patrol: Patrol::default(),
            touched: Vec::new(),
            stirring: Vec::new(),
            vqs: Vec::new(),
            free_vqs: Vec::new(),
            flights: Flights::default(),
            reports: Reports::default(),
            next_interval: now + INTERVAL,
            awoken,
            intervals: 0,
            last_progress: now,
            stalled: Nanos(0),
            wait_until: Nanos::MAX,
            unknown_completions: 0,
            send_budget: SEND_BUDGET,
        }
    }

    /// Limits the commands sent per iteration, instead of 64.
    pub fn set_send_budget(&mut self, commands: u32) {
        self.send_budget = commands.max(1);
    }

    /// Takes a tenant on under these terms, and puts its probe on the board. A poller has at most 65535 tenants, and
    /// fetches from the first 65535 VQs that appear.
    ///
    /// # Errors
    /// The source, if the poller has as many tenants as it can have.
    pub fn add(&mut self, source: S, probe: Arc<Probe>, terms: &Terms) -> Result<TenantSlot, S> {
        let free = self.tenants.iter().position(Option::is_none);
        let at = free.unwrap_or(self.tenants.len());
        if at >= MOST {
            return Err(source);
        }
        if at == self.tenants.len() {
            self.tenants.push(None);
        }
        let slot = TenantSlot(at as u16);
        probe.set_class(terms.class);
        probe.belongs_to(&self.shared);
        self.shared.make_room(slot);
        for list in [&mut self.stirring, &mut self.busy, &mut self.touched] {
            list.reserve(self.tenants.len() - list.len());
        }
        self.busy.push(slot);
        self.patrol.round.push(slot);
        self.board.add(Arc::clone(&probe), Arc::clone(&self.shared), slot);
        self.tenants[at] = Some(Tenant {
            source,
            probe,
            terms: *terms,
            live: 0,
            vqs: 0,
            active: 0,
            ask: 0,
            told: 0,
            slots: vec![VqSlot(0); 128],
            inflight: 0,
            touched: false,
            is_busy: true,
            stirred_at: Nanos(0),
            stirs: false,
            hwqs_used: 0,
            shown: None,
            work: 0,
            recorder: None,
        });
        Ok(slot)
    }

    /// Other terms from now on, while commands wait and are in flight; see [`Policy::change_terms`]. The probe, and so
    /// every other poller, shows the class at once. A tenant with several pollers is told at each. `false`: no such
    /// tenant.
    pub fn change_terms(&mut self, slot: TenantSlot, terms: &Terms, now: Nanos) -> bool {
        let Some(Some(tenant)) = self.tenants.get_mut(usize::from(slot.0)) else { return false };
        tenant.terms = *terms;
        tenant.shown = None;
        tenant.probe.set_class(terms.class);
        self.shared.changed(slot);
        self.policy.change_terms(slot, terms, now);
        self.wake(slot);
        true
    }

    /// Has a tenant's commands recorded as they end, or no more. `false`: no such tenant.
    pub fn record(&mut self, slot: TenantSlot, recorder: Option<Recorder>) -> bool {
        let Some(Some(tenant)) = self.tenants.get_mut(usize::from(slot.0)) else { return false };
        tenant.recorder = recorder;
        true
    }

    /// Another policy decides from now on: as soon as what is in flight is done, and until then nothing more is
    /// fetched. What waits goes on waiting in its queues, with the time that it waited. A device that never answers
    /// keeps it from taking over.
    pub fn change_policy(&mut self, policy: P) {
        self.next_policy = Some(policy);
    }

    /// Tells the policy that takes over which tenants and VQs there are, and their backlogs.
    fn take_over(&mut self, policy: P, now: Nanos) {
        self.policy = policy;
        for (at, tenant) in self.tenants.iter().enumerate() {
            let Some(tenant) = tenant else { continue };
            for index in (0..128_u16).filter(|index| tenant.live & (1 << index) != 0) {
                let slot = tenant.slots[usize::from(index)];
                let id = VqId { tenant: tenant.probe.tenant(), index };
                self.policy.attach(slot, id, TenantSlot(at as u16), &tenant.terms, now);
                self.policy.asked_priority(slot, tenant.source.priority(index));
                let backlog = self.vqs[usize::from(slot.0)].backlog;
                if backlog > 0 {
                    self.policy.arrived(slot, backlog, now);
                }
            }
        }
    }

    /// Lets a tenant go, whose memory was let go before: the board, the policy and this poller forget it, and its slot
    /// may be another's. `None`: no such tenant, or its commands are still with the device.
    pub fn remove(&mut self, slot: TenantSlot, now: Nanos) -> Option<S> {
        let at = usize::from(slot.0);
        if self.tenants.get(at)?.as_ref()?.inflight > 0 {
            return None;
        }
        self.set_live(at, 0, now);
        self.busy.retain(|other| *other != slot);
        self.patrol.forget(slot);
        self.touched.retain(|other| *other != slot);
        let Tenant { source, probe, stirs, .. } = self.tenants[at].take()?;
        if stirs {
            self.stirring.retain(|other| *other != slot);
            self.shared.turn(slot);
        }
        self.policy.forget(slot);
        self.board.remove(&probe);
        Some(source)
    }

    /// Lengths of the tables of tenants and of VQs: the most that there were at a time.
    pub fn table_lengths(&self) -> (usize, usize) {
        (self.tenants.len(), self.vqs.len())
    }

    /// A tenant's front end, for what does not go through queues (registers, DMA maps). The next iteration looks at it.
    pub fn source_mut(&mut self, slot: TenantSlot) -> Option<&mut S> {
        self.wake(slot);
        Some(&mut self.tenants.get_mut(usize::from(slot.0))?.as_mut()?.source)
    }

    /// A tenant's front end with the listener for what maps and unmaps memory, or finds that an unmapping is over.
    pub fn source_and_memory(&mut self, slot: TenantSlot) -> Option<(&mut S, TenantMemory<'_, B>)> {
        self.wake(slot);
        let tenant = self.tenants.get_mut(usize::from(slot.0))?.as_mut()?;
        let memory = TenantMemory { backend: &mut self.backend, tenant: tenant.probe.tenant() };
        Some((&mut tenant.source, memory))
    }

    /// Calls `visit` with every tenant, as [`Poller::source_and_memory`] would give it.
    pub fn for_each_with_memory(&mut self, mut visit: impl FnMut(TenantSlot, &mut S, &mut TenantMemory<'_, B>)) {
        for (at, tenant) in self.tenants.iter_mut().enumerate() {
            let Some(tenant) = tenant else { continue };
            let mut memory = TenantMemory { backend: &mut self.backend, tenant: tenant.probe.tenant() };
            visit(TenantSlot(at as u16), &mut tenant.source, &mut memory);
        }
    }

    /// All tenants.
    pub fn sources_mut(&mut self) -> impl Iterator<Item = (TenantSlot, &mut S)> {
        let slots = self.tenants.iter_mut().enumerate();
        slots.filter_map(|(at, tenant)| Some((TenantSlot(at as u16), &mut tenant.as_mut()?.source)))
    }

    /// Where its tenants' probes are.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Its HWQs and its policy's figures.
    pub fn inside(&self) -> &Arc<Inside> {
        &self.inside
    }

    /// The policy, for bounds and statistics.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The back end, for its counters.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The back end, for what wakes a sleeper.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Commands with the device.
    pub fn inflight(&self) -> u32 {
        self.flights.live()
    }

    /// When something last moved.
    pub fn last_progress(&self) -> Nanos {
        self.last_progress
    }

    /// Completions for commands that were not in flight: a broken back end. They are dropped.
    pub fn unknown_completions(&self) -> u64 {
        self.unknown_completions
    }

    /// When this poller next has something to do by itself. [`Nanos::MAX`]: only a doorbell can tell.
    pub fn next_event(&self) -> Nanos {
        let device = if self.inflight() > 0 { self.backend.next_event().unwrap_or(Nanos(0)) } else { Nanos::MAX };
        device.min(self.wait_until)
    }

    /// Like [`Poller::next_event`], for a caller that sleeps until then and that the back end wakes
    /// ([`wake_fd`](io_model::Backend::wake_fd)). Events that only the device knows are left out. For two periods after
    /// the last command each interval still ends in time, until the published figures have settled.
    pub fn next_timer(&self) -> Nanos {
        let device = if self.inflight() > 0 { self.backend.next_event().unwrap_or(Nanos::MAX) } else { Nanos::MAX };
        let settled = self.last_progress + Nanos(INTERVAL.0 * 2 * INTERVALS_PER_PERIOD as u64);
        let interval = if self.next_interval <= settled { self.next_interval } else { Nanos::MAX };
        device.min(self.wait_until).min(interval)
    }

    /// The iteration before took so long and did that. If it did little for that, the poller was without its CPU, or
    /// waited for a page of memory: what ended meanwhile was not late for what others sent.
    #[inline]
    pub fn took(&mut self, time: Nanos, did: Progress) {
        if time <= Iterations::LONG {
            return;
        }
        let moved = u64::from(did.sent) + u64::from(did.handled) + u64::from(did.completed);
        let work_ns = moved * WORK_PER_COMMAND.0 + did.completed_bytes * WORK_PER_BYTE.0;
        if time.0 > Iterations::LONG.0 + work_ns {
            self.stalled = time;
        }
    }

    /// One iteration.
    pub fn step(&mut self, now: Nanos) -> Progress {
        let mut progress = self.reap(now);
        progress.handled = self.look(now, progress.completed > 0);
        if self.flights.live() == 0
            && let Some(policy) = self.next_policy.take()
        {
            self.take_over(policy, now);
        }
        while let Some(tenant) = self.board.awoken.next(&mut self.awoken) {
            self.policy.awoken(tenant, now);
        }
        match self.next_policy {
            None => self.dispatch(now, &mut progress),
            // Completions are all that it waits for.
            Some(_) => self.wait_until = Nanos::MAX,
        }
        // Always: a back end may have queued the next part of a command while it was reaped.
        self.backend.kick();
        if progress.any() {
            self.last_progress = now;
            self.announce();
        }
        if now >= self.next_interval {
            self.end_interval(now);
        }
        progress
    }

    /// Half an iteration, for winding down: completes what the device finished, fetches nothing.
    pub fn finish(&mut self, now: Nanos) -> Progress {
        let progress = self.reap(now);
        self.backend.kick();
        self.announce();
        progress
    }

    /// Tells every guest whether its doorbells must notify, because the poller is about to sleep
    /// (`true`) or has woken up (`false`).
    pub fn set_wakeup(&mut self, wanted: bool) {
        // A poller that sleeps must have looked at all tenants.
        self.patrol.everybody |= wanted;
        self.tenants.iter_mut().flatten().for_each(|tenant| tenant.source.set_wakeup(wanted));
    }

    fn reap(&mut self, now: Nanos) -> Progress {
        let stalled = std::mem::take(&mut self.stalled);
        let Self { backend, policy, tenants, vqs, touched, flights, inside, unknown_completions, .. } = self;
        let mut progress = Progress::default();
        backend.reap(now, &mut |_, Done { tag, outcome, buf }| {
            let Some(flight) = flights.remove(tag) else {
                *unknown_completions += 1;
                return;
            };
            let Flight { token, tenant: tenant_slot, slot, hwq, op, len_bytes, arrived, fetched, .. } = flight;
            // A tenant with commands in flight is never removed, so it is there.
            let Some(Some(tenant)) = tenants.get_mut(usize::from(tenant_slot.0)) else { return };
            inside.completed(hwq);
            tenant.inflight -= 1;
            tenant.stirred_at = now;
            // Unless it left, and its place is another's.
            if let Some(vq) = vqs.get_mut(usize::from(slot.0)).filter(|vq| vq.tenant == tenant_slot) {
                tenant.active |= vq.bit;
                vq.stirred_at = now;
            }
            tenant.touch(tenant_slot, touched);
            let (waited, served) = (since(arrived, fetched), now - fetched);
            tenant.probe.completed(op, len_bytes, outcome, Times { waited, served, stalled });
            if let Some(recorder) = &mut tenant.recorder {
                let Flight { offset_bytes, disk, .. } = flight;
                let failed = outcome.is_err();
                // A trace has no time before the clock's zero.
                let arrived = arrived.min(fetched);
                recorder.record(Recorded { arrived, op, disk, failed, offset_bytes, len_bytes, waited, served });
            }
            policy.completed(slot, hwq, tenant_slot, op, len_bytes, served, now);
            tenant.source.complete(token, outcome, buf);
            progress.completed += 1;
            progress.completed_bytes += len_bytes;
        });
        progress
    }

    fn dispatch(&mut self, now: Nanos, progress: &mut Progress) {
        let (mut wait_until, mut held_back) = (now, false);
        while progress.sent + progress.handled < self.send_budget {
            match self.policy.next(now) {
                Next::Send { vq, hwq } => held_back |= self.send(vq, hwq, now, progress),
                Next::WaitUntil(at) => {
                    wait_until = at;
                    break;
                }
                Next::Idle => {
                    wait_until = Nanos::MAX;
                    break;
                }
            }
        }
        // A source that works something off has commands that nothing else announces.
        self.wait_until = if held_back { now } else { wait_until };
    }

    /// `true`: the tenant has to work off what it fetched before, and its VQ waits for the next look.
    fn send(&mut self, slot: VqSlot, hwq: HwqId, now: Nanos, progress: &mut Progress) -> bool {
        let vq = &mut self.vqs[usize::from(slot.0)];
        let Some(Some(tenant)) = self.tenants.get_mut(usize::from(vq.tenant.0)) else { return false };
        if tenant.work >= WORK_PER_LOOK {
            // As below, so that the next look tells the policy again.
            vq.backlog = 0;
            tenant.ask |= vq.bit;
            self.policy.refused(slot, false, now);
            return true;
        }
        tenant.ask |= vq.bit;
        match tenant.source.fetch(vq.index) {
            Fetch::Command(command, buf, token) => {
                let arrived = vq.took(now);
                let (op, len_bytes) = (command.op, command.len_bytes);
                debug_assert_eq!(command.tenant, tenant.probe.tenant(), "a front end made for another tenant");
                let tag = self.flights.insert(Flight {
                    token,
                    tenant: vq.tenant,
                    slot,
                    hwq,
                    op,
                    len_bytes,
                    offset_bytes: command.tenant_offset_bytes,
                    disk: command.disk,
                    arrived,
                    fetched: now,
                });
                self.backend.submit(hwq, Io { tag, command, buf }, now);
                self.policy.sent(slot, hwq, op, len_bytes, now);
                self.inside.submitted(hwq);
                tenant.inflight += 1;
                tenant.hwqs_used |= 1 << hwq.0.min(63);
                if !tenant.stirs {
                    tenant.stirs = true;
                    self.stirring.push(vq.tenant);
                    self.shared.turn(vq.tenant);
                    if tenant.terms.class.promise().is_some() {
                        self.board.awoken.tell(tenant.probe.tenant());
                    }
                }
                tenant.probe.submitted();
                progress.sent += 1;
            }
            Fetch::Handled => {
                vq.took(now);
                self.policy.refused(slot, true, now);
                tenant.touch(vq.tenant, &mut self.touched);
                progress.handled += 1;
            }
            Fetch::Empty => {
                // Forget the backlog, so that the next look tells the policy again.
                vq.backlog = 0;
                self.policy.refused(slot, false, now);
            }
        }
        tenant.work += tenant.source.take_work();
        false
    }

    fn announce(&mut self) {
        for slot in self.touched.drain(..) {
            let Some(tenant) = &mut self.tenants[usize::from(slot.0)] else { continue };
            tenant.touched = false;
            tenant.source.notify();
        }
    }
}
