//! Where a guest and its poller meet: submission and completion queues in memory that both see.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use io_model::{Command, DeviceError, Fetch, IoBuf, Nanos, Op, Outcome, Place, QueuePriority, Source, Token};
use policy::Bound;
use poller::Probe;

use crate::check::{Ledger, Queue};
use crate::host::{Kick, PathCosts};
use crate::job::Shape;
use crate::sabotage::Sabotage;

/// The time that a poller has spent within the step that it is in: its operations happen one after another.
#[derive(Debug)]
pub(crate) struct Meter {
    /// What operations take. All sources share it: pollers look at many of them, which must stay small.
    pub(crate) costs: PathCosts,
    now_ns: Cell<u64>,
    /// Tenants for which interrupts were raised in this step.
    pub(crate) raised: RefCell<Vec<u16>>,
}

impl Meter {
    pub(crate) fn new(costs: PathCosts) -> Self {
        Self { costs, now_ns: Cell::default(), raised: RefCell::default() }
    }

    pub(crate) fn set(&self, now_ns: u64) {
        self.now_ns.set(now_ns);
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(crate) fn spend(&self, cost_ns: u64) {
        self.now_ns.set(self.now_ns.get() + cost_ns);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Waiting,
    Fetched,
    Posted,
    /// Fetched when the guest's driver reset the controller: it ends with the drive, without a completion.
    Orphaned,
}

/// One I/O of the guest, from its submission until its completion was handled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Io {
    pub(crate) shape: Shape,
    pub(crate) job: u32,
    pub(crate) vcpu: u16,
    vq: u16,
    /// Which of the port's fetches it was, once it is fetched.
    serial: u64,
    state: State,
    pub(crate) since_ns: u64,
    fetched_ns: u64,
    posted_ns: u64,
    /// What was vouched for when it was fetched; `u64::MAX`: nothing.
    pub(crate) bound_ns: u64,
    pub(crate) outcome: Outcome,
}

impl Io {
    fn blocks(&self) -> u64 {
        u64::from(self.shape.len_bytes >> 12).max(1)
    }

    /// From its fetch to its completion, as the poller sees it.
    pub(crate) fn served_ns(&self) -> u64 {
        self.posted_ns.saturating_sub(self.fetched_ns)
    }
}

/// What a poller looks at in every step, for every VQ: beside the port, whose borrow would cost more than the look.
#[derive(Debug, Default)]
pub(crate) struct Doorbell {
    /// Commands that wait in the VQ.
    waiting: Cell<u32>,
    /// Of these, how many the poller knows of.
    seen: Cell<u32>,
    /// Commands that aren't there and that a rogue rings for.
    claimed: Cell<u32>,
    /// The last values of these two that the poller saw.
    told: Cell<u32>,
    /// Whether the poller may fetch from the VQ.
    live: Cell<bool>,
    /// Every ring must be an exit.
    always_exits: bool,
    /// From this time on the guest must ring by an exit, once. `u64::MAX`: the poller sees it by itself.
    exits_from_ns: Cell<u64>,
}

impl Doorbell {
    /// Whether there are commands that the poller has not seen.
    pub(crate) fn has_unseen(&self) -> bool {
        self.waiting != self.seen
    }

    /// What it says of how many commands wait.
    fn says(&self) -> u32 {
        self.waiting.get() + self.claimed.get()
    }

    /// Whether to ring by an exit at `now_ns`; the others need not any more, where once is enough.
    pub(crate) fn take_exit(&self, now_ns: u64) -> bool {
        let exits = now_ns >= self.exits_from_ns.get();
        if exits {
            self.exits_from_ns.set(u64::MAX);
        }
        exits || self.always_exits
    }
}

#[derive(Debug, Default)]
struct Vq {
    waiting: VecDeque<u32>,
    /// Fetched since the start.
    fetched: u64,
    /// Completed by the poller since the start.
    completed: u64,
    /// Commands of this VQ from submission to completion.
    held: u32,
    /// Completed in this step, not announced yet.
    posting: Vec<u32>,
    /// The vCPU of the command that was fetched last.
    last_vcpu: u16,
    /// See [`Queue::ahead_blocks`].
    ahead_blocks: u64,
}

/// One tenant's queues. VQ 0 is the admin queue and is not used here.
#[derive(Debug)]
pub(crate) struct Port {
    vqs: Vec<Vq>,
    /// Each VQ's.
    pub(crate) doorbells: Rc<[Doorbell]>,
    /// Each vCPU's.
    vq_of: Vec<u16>,
    ios: Vec<Io>,
    free: Vec<u32>,
    depth: u32,
    /// What each vCPU will find, and from when.
    pub(crate) done: Vec<VecDeque<(u64, u32)>>,
    /// vCPUs that an interrupt was raised for in this step, and when it arrives.
    pub(crate) raised: Vec<(u16, u64)>,
    /// Rings doorbells for commands that aren't there.
    pub(crate) rogue: bool,
    /// Commands fetched since the start.
    fetched: u64,
    /// Waiting commands that the poller knows of, in all VQs.
    seen: u32,
    /// Since when there are any without a break.
    pub(crate) seen_since_ns: Option<u64>,
}

impl Port {
    pub(crate) fn new(vcpus: u16, vqs: u16, depth: u32, kick: Kick) -> Self {
        let (vcpus, vqs) = (vcpus.max(1), vqs.max(1));
        let doorbell = || Doorbell {
            live: Cell::new(true),
            always_exits: kick == Kick::Always,
            // A loop sleeps until it is rung for the first time.
            exits_from_ns: Cell::new(if kick == Kick::Asleep { 0 } else { u64::MAX }),
            ..Doorbell::default()
        };
        Self {
            vqs: (0..=vqs).map(|_| Vq::default()).collect(),
            doorbells: (0..=vqs).map(|_| doorbell()).collect(),
            vq_of: (0..vcpus).map(|vcpu| vcpu % vqs + 1).collect(),
            ios: Vec::new(),
            free: Vec::new(),
            depth: depth.max(1),
            done: vec![VecDeque::new(); usize::from(vcpus)],
            raised: Vec::new(),
            rogue: false,
            fetched: 0,
            seen: 0,
            seen_since_ns: None,
        }
    }

    /// Whether the poller may fetch.
    pub(crate) fn is_live(&self) -> bool {
        self.doorbells[0].live.get()
    }

    pub(crate) fn set_live(&self, live: bool) {
        self.doorbells.iter().for_each(|doorbell| doorbell.live.set(live));
    }

    /// The VQ that each vCPU submits to.
    pub(crate) fn vqs_of_vcpus(&self) -> &[u16] {
        &self.vq_of
    }

    pub(crate) fn has_room(&self, vcpu: u16) -> bool {
        self.vqs[usize::from(self.vq_of[usize::from(vcpu)])].held < self.depth
    }

    /// Puts a command into the vCPU's queue and rings.
    pub(crate) fn submit(&mut self, vcpu: u16, job: u32, shape: Shape, since_ns: u64) {
        let vq = self.vq_of[usize::from(vcpu)];
        let id = self.enter(Io {
            shape,
            job,
            vcpu,
            vq,
            serial: 0,
            state: State::Waiting,
            since_ns,
            fetched_ns: 0,
            posted_ns: 0,
            bound_ns: u64::MAX,
            outcome: Ok(()),
        });
        let queue = &mut self.vqs[usize::from(vq)];
        queue.waiting.push_back(id);
        queue.held += 1;
        self.doorbells[usize::from(vq)].waiting.set(queue.waiting.len() as u32);
    }

    fn enter(&mut self, io: Io) -> u32 {
        if let Some(id) = self.free.pop() {
            self.ios[id as usize] = io;
            return id;
        }
        self.ios.push(io);
        (self.ios.len() - 1) as u32
    }

    /// Takes a completion that the vCPU can see.
    pub(crate) fn take_done(&mut self, vcpu: u16, now_ns: u64) -> Option<Io> {
        let queue = &mut self.done[usize::from(vcpu)];
        let &(at_ns, id) = queue.front()?;
        if at_ns > now_ns {
            return None;
        }
        queue.pop_front();
        let io = &mut self.ios[id as usize];
        io.state = State::Free;
        self.free.push(id);
        self.vqs[usize::from(io.vq)].held -= 1;
        Some(*io)
    }

    /// Fails everything under way (the guest's driver reset the controller); the guest learns of it at `at_ns`. What
    /// was fetched goes on, for nobody.
    pub(crate) fn abort(&mut self, at_ns: u64) {
        self.forget();
        let waiting: Vec<u32> = self.vqs.iter_mut().flat_map(|vq| vq.waiting.drain(..)).collect();
        self.doorbells.iter().for_each(|doorbell| doorbell.waiting.set(0));
        waiting.into_iter().for_each(|id| self.fail(id, at_ns));
        for id in 0..self.ios.len() as u32 {
            let io = self.ios[id as usize];
            if io.state == State::Fetched {
                self.ios[id as usize].state = State::Orphaned;
                let failed = self.enter(io);
                self.fail(failed, at_ns);
            }
        }
    }

    fn fail(&mut self, id: u32, at_ns: u64) {
        let io = &mut self.ios[id as usize];
        io.state = State::Posted;
        io.outcome = Err(DeviceError::Gone);
        self.done[usize::from(io.vcpu)].push_back((at_ns, id));
        self.raised.push((io.vcpu, at_ns));
    }

    /// The poller forgets this tenant's backlog.
    pub(crate) fn forget(&mut self) {
        self.doorbells.iter().for_each(|doorbell| doorbell.seen.set(0));
        self.seen = 0;
        self.seen_since_ns = None;
    }

    /// From now on this tenant rings its doorbells for commands that aren't there.
    pub(crate) fn turn_rogue(&mut self) {
        self.rogue = true;
        self.doorbells.iter().for_each(|doorbell| doorbell.claimed.set(ROGUE_CLAIM));
    }

    /// I/Os under way for longer than `limit_ns`.
    pub(crate) fn overdue(&self, limit_ns: u64, now_ns: u64) -> u64 {
        let late = |io: &&Io| io.state != State::Free && now_ns.saturating_sub(io.since_ns) > limit_ns;
        self.ios.iter().filter(late).count() as u64
    }

    /// I/Os that were fetched and never came back.
    pub(crate) fn lost(&self) -> usize {
        self.ios.iter().filter(|io| matches!(io.state, State::Fetched | State::Orphaned)).count()
    }

    /// For the check of starvation.
    pub(crate) fn queues(&self) -> impl Iterator<Item = Queue> {
        let is_live = self.is_live();
        self.vqs.iter().map(move |vq| {
            let next_blocks = vq.waiting.front().filter(|_| is_live).map_or(0, |&id| self.ios[id as usize].blocks());
            Queue { next_blocks, ahead_blocks: vq.ahead_blocks, served: vq.fetched + vq.completed }
        })
    }
}

/// The poller's side of a [`Port`].
#[derive(Debug)]
pub(crate) struct SimSource {
    pub(crate) port: Rc<RefCell<Port>>,
    pub(crate) doorbells: Rc<[Doorbell]>,
    pub(crate) meter: Rc<Meter>,
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    pub(crate) tenant: u16,
    pub(crate) place: Place,
    pub(crate) poller: u16,
    /// Where its poller publishes its bound.
    pub(crate) probe: Arc<Probe>,
    /// The VQs that its poller serves.
    pub(crate) vqs: RangeInclusive<u16>,
    /// A bit for each of them: asked for at every look.
    pub(crate) vq_bits: u128,
    /// What the client asked for, from VQ 1 on; medium beyond the end.
    pub(crate) priorities: Vec<QueuePriority>,
    /// The cipher's time for 4 KiB.
    pub(crate) cipher_ns: u64,
    pub(crate) sabotage: Sabotage,
}

impl SimSource {
    /// What its policy says of it now, if it is promised anything.
    pub(crate) fn bound(&self) -> Option<Bound> {
        if self.probe.class().is_guaranteed() { self.probe.bound() } else { None }
    }

    /// The poller takes a completion.
    pub(crate) fn spend_completion(&self) {
        self.meter.spend(self.meter.costs.complete_ns);
    }

    /// The poller decrypts what a command has read.
    pub(crate) fn decrypt(&self, command: &Command) {
        if command.op == Op::Read {
            self.meter.spend(self.cipher_ns_of(command.len_bytes));
        }
    }

    fn cipher_ns_of(&self, len_bytes: u64) -> u64 {
        self.cipher_ns * len_bytes / 4096
    }
}

/// Entries that a rogue's doorbell claims beyond what there is.
const ROGUE_CLAIM: u32 = 1_000;

impl Source for SimSource {
    #[inline]
    fn live_vqs(&self) -> u128 {
        if self.doorbells[0].live.get() { self.vq_bits } else { 0 }
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        let asked = vq.checked_sub(1).and_then(|at| self.priorities.get(usize::from(at)));
        asked.copied().unwrap_or(QueuePriority::Medium)
    }

    #[inline]
    fn rung(&mut self) -> u128 {
        self.meter.spend(self.meter.costs.look_ns);
        let rung = |doorbell: &Doorbell| doorbell.says() != doorbell.told.get();
        let vqs = self.vqs.clone().filter(|vq| rung(&self.doorbells[usize::from(*vq)]));
        vqs.fold(0, |bits, vq| bits | 1 << vq)
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        let doorbell = &self.doorbells[usize::from(vq)];
        let Doorbell { waiting, seen, told, .. } = doorbell;
        if waiting != seen {
            let mut port = self.port.borrow_mut();
            port.seen = port.seen - seen.get() + waiting.get();
            port.seen_since_ns.get_or_insert(self.meter.now_ns());
            seen.set(waiting.get());
        }
        told.set(doorbell.says());
        told.get()
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        let mut port = self.port.borrow_mut();
        let Port { vqs, ios, doorbells, fetched, seen, seen_since_ns, .. } = &mut *port;
        if !doorbells[0].live.get() {
            // A command in parts keeps a VQ that left.
            return Fetch::Empty;
        }
        let Some(queue) = vqs.get_mut(usize::from(vq)) else { return Fetch::Empty };
        let Some(id) = queue.waiting.pop_front() else { return Fetch::Empty };
        queue.fetched += 1;
        let doorbell = &doorbells[usize::from(vq)];
        doorbell.waiting.set(queue.waiting.len() as u32);
        // A policy may fetch what nobody told it of, after a false doorbell.
        if doorbell.seen.get() > 0 {
            doorbell.seen.set(doorbell.seen.get() - 1);
            *seen -= 1;
            if *seen == 0 {
                *seen_since_ns = None;
            }
        }
        let blocks = ios[id as usize].blocks();
        queue.ahead_blocks = 0;
        vqs.iter_mut().for_each(|vq| vq.ahead_blocks = vq.ahead_blocks.max(blocks));
        let queue = &mut vqs[usize::from(vq)];
        let io = &mut ios[id as usize];
        let write_ns = match io.shape.op {
            Op::Write => self.meter.costs.write_ns + self.cipher_ns_of(io.shape.len_bytes.into()),
            _ => 0,
        };
        let bounce_ns = if io.vcpu == queue.last_vcpu { 0 } else { self.meter.costs.bounce_ns };
        queue.last_vcpu = io.vcpu;
        self.meter.spend(self.meter.costs.fetch_ns + write_ns + bounce_ns);
        let command = match io.shape.op {
            Op::Flush => self.place.flush(),
            op => self.place.command(op, io.shape.offset_bytes, io.shape.len_bytes.into()),
        };
        io.state = State::Fetched;
        io.fetched_ns = self.meter.now_ns();
        io.bound_ns = self.bound().and_then(|bound| bound.vouched).map_or(u64::MAX, |vouched| vouched.0);
        *fetched += 1;
        io.serial = *fetched;
        self.ledger.borrow_mut().asked(self.tenant, command.len_bytes);
        Fetch::Command(command, IoBuf::default(), Token::new(vq, io.serial as u16, id))
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _: IoBuf) {
        let (mut vq, generation, id) = token.spend();
        if self.sabotage == Sabotage::ForeignVq {
            vq += 1;
        }
        let mut port = self.port.borrow_mut();
        let Port { vqs, ios, free, .. } = &mut *port;
        let known = ios.get_mut(id as usize).filter(|io| io.vq == vq && io.serial as u16 == generation);
        match known {
            Some(io) if io.state == State::Fetched => {
                io.state = State::Posted;
                io.posted_ns = self.meter.now_ns();
                io.outcome = outcome;
                vqs[usize::from(vq)].completed += 1;
                vqs[usize::from(vq)].posting.push(id);
            }
            Some(io) if io.state == State::Orphaned => {
                io.state = State::Free;
                free.push(id);
            }
            _ => self.ledger.borrow_mut().wrong_completion(self.tenant, vq, id),
        }
    }

    fn notify(&mut self) {
        let mut port = self.port.borrow_mut();
        let Port { vqs, ios, done, raised, .. } = &mut *port;
        let (first, last) = (usize::from(*self.vqs.start()), usize::from(*self.vqs.end()));
        let was_empty = raised.is_empty();
        for vq in vqs[first..=last].iter_mut().filter(|vq| !vq.posting.is_empty()) {
            let at_ns = self.meter.now_ns() + self.meter.costs.delivery_ns;
            self.meter.spend(self.meter.costs.interrupt_ns);
            for id in vq.posting.drain(..) {
                let vcpu = ios[id as usize].vcpu;
                done[usize::from(vcpu)].push_back((at_ns, id));
                if raised.last() != Some(&(vcpu, at_ns)) {
                    raised.push((vcpu, at_ns));
                }
            }
        }
        if was_empty && !raised.is_empty() {
            self.meter.raised.borrow_mut().push(self.tenant);
        }
    }

    fn set_wakeup(&mut self, wanted: bool) {
        // It sleeps once its pass is over.
        let sleeps_ns = self.meter.now_ns() + self.meter.costs.pass_ns;
        let exits_from_ns = if wanted { sleeps_ns } else { u64::MAX };
        for vq in self.vqs.clone() {
            self.doorbells[usize::from(vq)].exits_from_ns.set(exits_from_ns);
        }
    }
}

/// Latency of an I/O that is over at `now_ns`.
pub(crate) fn latency(io: &Io, now_ns: u64) -> Nanos {
    Nanos(now_ns.saturating_sub(io.since_ns))
}
