//! Guest memory and drive, each with a model, around the virtqueues under test.

use std::collections::VecDeque;
use std::sync::Arc;

use guest_memory::Mapping;
use io_model::{Command, DeviceError, Fetch, IoBuf, Op, Source, Token};
use vhost_blk::{Disk, DiskConfig, Queues, RingSetup, inflight_bytes, inflight_region};

use super::driver::{self, Step};
use super::meaning::{BASE_BYTES, Meaning, Mode, PLACE, Ram, SIZE, SIZE_BYTES, meaning, ring};

const QUEUES: u16 = 2;
const SERIAL: &str = "fuzz";
const GUARD_BYTES: u64 = BASE_BYTES;

const EVENT_IDX: u64 = 1 << 29;
const INDIRECT_DESC: u64 = 1 << 28;

/// A bug, planted to see that the oracle sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A write goes on for one block.
    WritesTooFar,
    /// A read returns the block after.
    ReadsElsewhere,
    /// The log loses a request.
    ForgetsOneInFlight,
    /// A used element comes twice.
    CompletesTwice,
}

/// A request that was fetched.
#[derive(Debug)]
struct Open {
    head: u16,
    meaning: Meaning,
    /// Commands handed out, and commands that came back.
    handed: usize,
    ended: usize,
    status: u8,
    /// Done, not published.
    done: bool,
}

/// One virtqueue as it must be.
#[derive(Debug, Default)]
struct Vq {
    next_avail: u16,
    seen: u16,
    used: u16,
    enabled: bool,
    /// In the order of fetching.
    open: Vec<Open>,
    /// Heads that are done and not published, in the order of completion.
    done: Vec<(u16, u32)>,
    resubmit: VecDeque<u16>,
}

struct Flight {
    queue: u16,
    head: u16,
    command: Command,
    token: Token,
    buf: IoBuf,
}

pub struct World {
    ram: Ram,
    content: Vec<u8>,
    model: Vec<u8>,
    disk: Arc<Disk>,
    queues: Queues,
    vqs: Vec<Vq>,
    flights: Vec<Flight>,
    log: Arc<Mapping>,
    features: u64,
    awake: bool,
    writeback: bool,
    bug: Option<Bug>,
}

fn config() -> DiskConfig {
    DiskConfig {
        place: PLACE,
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        serial: SERIAL.into(),
        queues: QUEUES,
        read_only: false,
        discard: true,
        write_cache: true,
        by_priority: false,
    }
}

fn new_log() -> Arc<Mapping> {
    Mapping::anonymous(inflight_bytes(QUEUES, SIZE) as usize).expect("memory")
}

impl World {
    pub fn new(features: u8, bug: Option<Bug>) -> Self {
        let disk = Arc::new(Disk::new(config()).expect("a good configuration"));
        let content: Vec<u8> = (0..2 * GUARD_BYTES + SIZE_BYTES).map(|at| (at / 256 * 7) as u8).collect();
        let without = |bit: u8, feature: u64| if features & bit != 0 { feature } else { 0 };
        let mut world = Self {
            ram: Ram::new(),
            model: content.clone(),
            content,
            queues: Queues::new(Arc::clone(&disk), 0..QUEUES),
            disk,
            vqs: Vec::new(),
            flights: Vec::new(),
            log: new_log(),
            features: !(without(1, EVENT_IDX) | without(2, INDIRECT_DESC)),
            awake: true,
            writeback: true,
            bug,
        };
        world.bring_up();
        world
    }

    /// A driver starts with fresh rings, and a VMM with a fresh log.
    fn bring_up(&mut self) {
        self.queues.client_gone();
        for Flight { token, command, buf, .. } in self.flights.drain(..) {
            // To nobody: what it does is not looked at.
            let _ = command;
            self.queues.complete(token, Ok(()), buf);
        }
        assert!(self.queues.is_idle() && !self.disk.is_broken());
        self.log = new_log();
        self.disk.reset();
        self.writeback = true;
        self.queues.set_memory(self.ram.memory(), &mut ()).expect("nobody refuses");
        self.vqs = (0..QUEUES).map(|_| Vq::default()).collect();
        for queue in 0..QUEUES {
            self.ram.write(ring(queue).desc, &[0; 0x200]);
            assert!(self.start(queue), "fresh rings");
        }
        self.check();
    }

    /// Starts a ring with its log; the model already says what must be in flight.
    fn start(&mut self, queue: u16) -> bool {
        let place = ring(queue);
        let setup = RingSetup {
            size: SIZE,
            desc: place.desc,
            avail: place.avail,
            used: place.used,
            next_avail: 0,
            features: self.features,
            call: None,
            err: None,
            inflight: inflight_region(&self.log, queue, SIZE),
            log_is_own: false,
        };
        let vq = &mut self.vqs[usize::from(queue)];
        let count = vq.resubmit.len() as u16;
        let available = self.ram.u16(place.avail + 2).wrapping_sub(vq.used);
        let ahead = self.ram.u16(place.used + 2).wrapping_sub(vq.used);
        let good = ahead == 0 && (count..=SIZE).contains(&available);
        let Ok(started) = self.queues.start(queue, setup) else {
            assert!(!good, "virtqueue {queue} was refused");
            return false;
        };
        // A guest that moves its used index on makes a batch look published that was not: what it loses is its own.
        if (1..=SIZE).contains(&ahead) {
            return false;
        }
        assert!(good, "a ring that contradicts its log was started");
        assert_eq!(started.resubmitted, count, "requests to do again");
        vq.next_avail = vq.used.wrapping_add(count);
        vq.seen = vq.next_avail;
        self.queues.enable(queue, true);
        vq.enabled = true;
        self.expect_wakeup(queue);
        true
    }

    pub fn step(&mut self, step: Step) {
        match step {
            Step::Offer { queue, request } => request.offer(&mut self.ram, u16::from(queue) % QUEUES),
            Step::OfferHead { queue, head } => {
                driver::offer(&mut self.ram, u16::from(queue) % QUEUES, u16::from(head) % (SIZE + 2));
            }
            Step::Poke { at, word } => self.ram.write(u64::from(at % 0x3_8000), &word.to_le_bytes()),
            Step::PokeRing { queue, at, word } => {
                let at = ring(u16::from(queue) % QUEUES).desc + u64::from(at) % 0x200;
                self.ram.write(at, &word.to_le_bytes());
            }
            Step::Fetch { queue, count } => {
                for _ in 0..=count % 8 {
                    if !self.fetch(u16::from(queue) % QUEUES) {
                        break;
                    }
                }
            }
            Step::Complete { which, fails } => self.complete(which.into(), fails),
            Step::Notify => self.notify(),
            Step::Sleep(sleep) => {
                self.queues.set_wakeup(sleep);
                self.awake = !sleep;
                (0..QUEUES).for_each(|queue| self.expect_wakeup(queue));
            }
            Step::Enable { queue, enabled } => {
                let queue = u16::from(queue) % QUEUES;
                self.queues.enable(queue, enabled);
                self.vqs[usize::from(queue)].enabled = enabled;
            }
            Step::SetMemory => {
                self.queues.set_memory(self.ram.memory(), &mut ()).expect("nobody refuses");
                (0..QUEUES).for_each(|queue| {
                    self.expect_wakeup(queue);
                    self.expect_published(queue);
                });
            }
            Step::WriteCache(on) => {
                self.disk.write_config(32, &[u8::from(on)], self.features).expect("writable");
                self.queues.note_write_cache();
                self.writeback = on;
            }
            Step::Kill => self.kill(),
        }
        if self.disk.is_broken() {
            assert_eq!(self.queues.live_vqs(), 0);
            self.bring_up();
        }
        self.check();
    }

    fn check(&self) {
        self.ram.check();
        assert!(self.content == self.model, "the drive is not what the commands made of it");
    }

    /// What a ring asks its driver for.
    fn expect_wakeup(&mut self, queue: u16) {
        let (vq, place) = (&self.vqs[usize::from(queue)], ring(queue));
        if self.features & EVENT_IDX != 0 {
            let event = if self.awake { vq.seen.wrapping_sub(1) } else { vq.seen };
            self.ram.expect(place.used + 4 + 8 * u64::from(SIZE), &event.to_le_bytes());
        } else {
            self.ram.expect(place.used, &u16::from(self.awake).to_le_bytes());
        }
    }

    fn expect_published(&mut self, queue: u16) {
        let (vq, place) = (&mut self.vqs[usize::from(queue)], ring(queue));
        if vq.done.is_empty() {
            return;
        }
        for (head, written) in vq.done.drain(..) {
            let element = u64::from(head) | u64::from(written) << 32;
            self.ram.expect(place.used + 4 + 8 * u64::from(vq.used % SIZE), &element.to_le_bytes());
            vq.used = vq.used.wrapping_add(1);
        }
        vq.open.retain(|open| !open.done);
        self.ram.expect(place.used + 2, &vq.used.to_le_bytes());
        if self.bug == Some(Bug::CompletesTwice) && vq.used == 5 {
            vq.used += 1;
        }
    }

    /// Looks and fetches once. `false`: nothing came of it.
    fn fetch(&mut self, queue: u16) -> bool {
        let live = self.queues.live_vqs() & 2 << queue != 0;
        let vq = &self.vqs[usize::from(queue)];
        let streaming = vq.open.iter().position(|open| open.handed < open.meaning.commands.len());
        assert_eq!(live, vq.enabled || streaming.is_some() || !vq.resubmit.is_empty());
        if !live {
            assert!(matches!(self.queues.fetch(queue + 1), Fetch::Empty));
            return false;
        }
        self.look(queue);
        if self.disk.is_broken() {
            return false;
        }
        if let Some(at) = streaming {
            self.take_command(queue, at);
            return true;
        }
        let vq = &self.vqs[usize::from(queue)];
        let place = ring(queue);
        let head = match vq.resubmit.front() {
            Some(head) => *head,
            None if !vq.enabled || vq.seen == vq.next_avail => {
                assert!(matches!(self.queues.fetch(queue + 1), Fetch::Empty));
                return false;
            }
            None => self.ram.u16(place.avail + 4 + 2 * u64::from(vq.next_avail % SIZE)),
        };
        let busy = vq.open.iter().any(|open| open.head == head);
        let mode = Mode { indirect: self.features & INDIRECT_DESC != 0, fua: !self.writeback };
        let good = head < SIZE && !busy;
        match good.then(|| meaning(&self.ram, queue, head, mode)).flatten() {
            Some(meaning) => self.take(queue, head, meaning),
            None => {
                assert!(matches!(self.queues.fetch(queue + 1), Fetch::Empty), "a bad request at {head}");
                assert!(self.disk.is_broken() && self.queues.take_fault().is_some());
                return false;
            }
        }
        true
    }

    /// The backlog is what it must be; looking publishes.
    fn look(&mut self, queue: u16) {
        self.expect_published(queue);
        let vq = &mut self.vqs[usize::from(queue)];
        let ranges: usize = vq.open.iter().map(|open| open.meaning.commands.len() - open.handed).sum();
        let before = (ranges + vq.resubmit.len()) as u32;
        let avail = self.ram.u16(ring(queue).avail + 2);
        let waiting = if vq.enabled { avail.wrapping_sub(vq.next_avail) } else { 0 };
        let backlog = self.queues.backlog(queue + 1);
        if waiting > SIZE {
            assert!(self.disk.is_broken() && self.queues.take_fault().is_some());
            return;
        }
        if vq.enabled {
            vq.seen = avail;
        }
        assert_eq!(backlog, before + u32::from(waiting));
    }

    /// Fetches a request that means this.
    fn take(&mut self, queue: u16, head: u16, meaning: Meaning) {
        let vq = &mut self.vqs[usize::from(queue)];
        if vq.resubmit.pop_front().is_none() {
            vq.next_avail = vq.next_avail.wrapping_add(1);
        }
        vq.open.push(Open { head, meaning, handed: 0, ended: 0, status: 0, done: false });
        let at = vq.open.len() - 1;
        if !vq.open[at].meaning.commands.is_empty() {
            self.take_command(queue, at);
            return;
        }
        assert!(matches!(self.queues.fetch(queue + 1), Fetch::Handled), "answered at once");
        let open = &mut self.vqs[usize::from(queue)].open[at];
        open.status = open.meaning.status;
        if open.status == 0 {
            let mut serial = [0; 20];
            serial[..SERIAL.len()].copy_from_slice(SERIAL.as_bytes());
            let (writable, len) = (open.meaning.chain.writable.clone(), open.meaning.identity as usize);
            scatter(&mut self.ram, &writable, &serial[..len]);
        }
        self.done(queue, at);
    }

    fn take_command(&mut self, queue: u16, at: usize) {
        let Fetch::Command(command, buf, token) = self.queues.fetch(queue + 1) else { panic!("a command was due") };
        let open = &mut self.vqs[usize::from(queue)].open[at];
        assert_eq!(command, open.meaning.commands[open.handed]);
        open.handed += 1;
        self.flights.push(Flight { queue, head: open.head, command, token, buf });
    }

    /// A request's last part is done: its status byte is written.
    fn done(&mut self, queue: u16, at: usize) {
        let vq = &mut self.vqs[usize::from(queue)];
        let Open { head, meaning, status, done, .. } = &mut vq.open[at];
        *done = true;
        self.ram.expect(meaning.status_at, &[*status]);
        let writable = meaning.chain.write_bytes();
        let before = match (&meaning.commands[..], *status) {
            ([Command { op: Op::Read, len_bytes, .. }], 0) => *len_bytes,
            (_, 0) => meaning.identity.into(),
            _ => 0,
        };
        let written = if before + 1 == writable { before + 1 } else { before };
        vq.done.push((*head, written as u32));
    }

    fn complete(&mut self, which: usize, fails: bool) {
        if self.flights.is_empty() {
            return;
        }
        let Flight { queue, head, command, token, buf } = self.flights.swap_remove(which % self.flights.len());
        let vq = &mut self.vqs[usize::from(queue)];
        let at = vq.open.iter().position(|open| open.head == head && !open.done).expect("open");
        if fails {
            vq.open[at].status = 1;
        } else {
            self.execute(queue, at, &command, &buf);
        }
        let outcome = if fails { Err(DeviceError::Medium) } else { Ok(()) };
        self.queues.complete(token, outcome, buf);
        let open = &mut self.vqs[usize::from(queue)].open[at];
        open.ended += 1;
        if open.ended == open.meaning.commands.len() {
            self.done(queue, at);
        }
    }

    /// The drive does a command, and the model what it means.
    fn execute(&mut self, queue: u16, at: usize, command: &Command, buf: &IoBuf) {
        let (start, len) = (command.offset_bytes as usize, command.len_bytes as usize);
        let meaning = &self.vqs[usize::from(queue)].open[at].meaning;
        match command.op {
            Op::Read => {
                let writable = meaning.chain.writable.clone();
                let elsewhere = if self.bug == Some(Bug::ReadsElsewhere) { 512 } else { 0 };
                let copied = buf.copy_from(&self.content[start + elsewhere..start + elsewhere + len]);
                assert_eq!(copied, len, "nobody took memory away");
                let data = self.model[start..start + len].to_vec();
                scatter(&mut self.ram, &writable, &data);
            }
            Op::Write => {
                let data = meaning.chain.input(&self.ram);
                let copied = buf.copy_to(&mut self.content[start..start + len]);
                assert_eq!(copied, len, "nobody took memory away");
                if let Some(data) = data {
                    self.model[start..start + len].copy_from_slice(&data[16..]);
                } else {
                    // The header alone is nowhere by now: memory does not go away here.
                    panic!("a write's memory is gone");
                }
                if self.bug == Some(Bug::WritesTooFar) {
                    self.content[start + len] ^= 1;
                }
            }
            Op::WriteZeroes | Op::Discard => {
                self.content[start..start + len].fill(0);
                self.model[start..start + len].fill(0);
            }
            Op::Flush => {}
        }
    }

    fn notify(&mut self) {
        self.queues.notify();
        (0..QUEUES).for_each(|queue| self.expect_published(queue));
    }

    /// The process ends where it stands; another one reads the log.
    fn kill(&mut self) {
        self.flights.drain(..).for_each(|flight| {
            flight.token.spend();
        });
        self.disk = Arc::new(Disk::new(config()).expect("a good configuration"));
        self.queues = Queues::new(Arc::clone(&self.disk), 0..QUEUES);
        self.queues.set_memory(self.ram.memory(), &mut ()).expect("nobody refuses");
        // The write cache is in the log.
        self.awake = true;
        for vq in &mut self.vqs {
            let first = vq.open.drain(..).map(|open| open.head);
            // What was fetched again comes before what was not.
            let rest = std::mem::take(&mut vq.resubmit);
            vq.resubmit = first.chain(rest).collect();
            vq.done.clear();
            if self.bug == Some(Bug::ForgetsOneInFlight) {
                vq.resubmit.pop_back();
            }
        }
        if !(0..QUEUES).all(|queue| self.start(queue)) {
            // A ring that its guest wrote over: the driver starts again.
            self.bring_up();
        }
    }

    /// Everything ends.
    pub fn finish(&mut self) {
        while !self.flights.is_empty() {
            self.complete(0, false);
        }
        self.notify();
        self.check();
        assert!(self.queues.is_idle());
    }
}

/// What the device must write, from the first byte that it may.
fn scatter(ram: &mut Ram, pieces: &[(u64, u32)], data: &[u8]) {
    let mut rest = data;
    for (address, len_bytes) in pieces {
        let (now, later) = rest.split_at((*len_bytes as usize).min(rest.len()));
        if !now.is_empty() {
            ram.expect(*address, now);
        }
        rest = later;
    }
}
