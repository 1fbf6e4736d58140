//! Flash chips: dies that sense, program and erase, on channels that they share, behind a write buffer.
//!
//! A read senses in its die, then waits for the channel; the die holds the page until it is transferred. A program is
//! transferred first. Each die and each channel takes what comes in the order in which it comes, except that reads may
//! suspend programs ([`Nand::reads_wait_for_programs`]). Writes gather in the buffer until a page is full; pages go to
//! the dies in turn. Their room in the buffer is free again when they are programmed. The rest of a page waits for
//! more.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::units::{pieces, unit_of};
use crate::{Nand, Profile};

/// Most reads that pass one program or erasure where [`Nand::reads_wait_for_programs`] is off.
pub const READS_PER_PROGRAM: u32 = 8;

const BLOCK_BYTES: u64 = 4096;
/// Write amplification is counted in millionths of a page.
const MILLION: u64 = 1_000_000;

/// What a step brought about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Out {
    /// All of a read is in the controller now; its first piece was at `first_ns`.
    Read { slot: u16, first_ns: u64 },
    /// All of a write is in the buffer now.
    Admitted { slot: u16 },
}

/// What a die does for someone.
#[derive(Debug, Clone, Copy)]
enum Op {
    Read {
        slot: u16,
        sense_ns: u64,
        transfer_ns: u64,
    },
    /// Garbage collection's.
    CopyOut,
    CopyIn,
    /// A page out of the buffer.
    Program,
    Erase,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Idle,
    /// Sensing, programming or erasing.
    Array {
        op: Op,
        until_ns: u64,
    },
    /// Waiting for the channel, or using it.
    Channel {
        op: Op,
    },
}

#[derive(Debug)]
struct Die {
    phase: Phase,
    /// In the order of arrival; without the reads where those may pass.
    queue: VecDeque<Op>,
    /// Reads that may pass.
    reads: VecDeque<Op>,
    suspended: Option<(Op, u64)>,
    /// Reads that passed since a program or an erasure last ended.
    passed: u32,
    /// Tells an event of a suspended phase from that of the present one.
    generation: u32,
    /// Pages that garbage collection owes, in millionths.
    copies_due: u64,
    programmed_in_block: u32,
}

#[derive(Debug, Default)]
struct Channel {
    is_busy: bool,
    waiting: VecDeque<u16>,
}

/// The end of a die's phase: time, order, die and generation.
type End = (u64, u64, u16, u32);

/// Where a read stands.
#[derive(Debug, Clone, Copy, Default)]
struct Pieces {
    left: u32,
    first_ns: u64,
}

/// A read on its way through the controller.
#[derive(Debug, Clone, Copy)]
struct ReadArrival {
    at_ns: u64,
    slot: u16,
    offset_bytes: u64,
    len_bytes: u64,
}

/// A write on its way over the link.
#[derive(Debug, Clone, Copy)]
struct WriteArrival {
    at_ns: u64,
    slot: u16,
    len_bytes: u64,
}

/// The chips and the buffer in front of them.
#[derive(Debug)]
pub(crate) struct Flash {
    nand: Nand,
    stripe_bytes: u64,
    read_ns: u64,
    further_ns: u64,
    dies: Vec<Die>,
    channels: Vec<Channel>,
    ends: BinaryHeap<Reverse<End>>,
    sequence: u64,
    /// By slot.
    pieces: Vec<Pieces>,
    reads_arriving: VecDeque<ReadArrival>,
    writes_arriving: VecDeque<WriteArrival>,
    /// Writes that the buffer has no room for, with what is left of them, first in, first out.
    waiting: VecDeque<(u16, u64)>,
    free_bytes: u64,
    /// In the buffer, in a page that is not full.
    gathered_bytes: u64,
    next_die: usize,
    /// Copies for each page of the host, in millionths; `None` without garbage collection.
    copies_per_page: Option<u64>,
}

impl Flash {
    pub(crate) fn new(profile: &Profile, nand: Nand, buffer_bytes: u64, window: usize) -> Self {
        let dies = usize::from(u16::try_from(profile.units.max(1)).unwrap_or(u16::MAX));
        let nand = Nand { page_bytes: nand.page_bytes.max(BLOCK_BYTES), channels: nand.channels.max(1), ..nand };
        let copies = |amplification: f64| ((amplification - 1.0) * MILLION as f64).round() as u64;
        Self {
            nand,
            stripe_bytes: profile.stripe_bytes.max(BLOCK_BYTES),
            read_ns: profile.read_ns,
            further_ns: profile.further_ns,
            dies: (0..dies).map(|_| Die::new()).collect(),
            channels: (0..nand.channels).map(|_| Channel::default()).collect(),
            ends: BinaryHeap::with_capacity(dies),
            sequence: 0,
            pieces: vec![Pieces::default(); window],
            reads_arriving: VecDeque::with_capacity(window),
            writes_arriving: VecDeque::with_capacity(window),
            waiting: VecDeque::with_capacity(window),
            free_bytes: buffer_bytes.max(nand.page_bytes),
            gathered_bytes: 0,
            next_die: 0,
            copies_per_page: profile.active_gc().map(|gc| copies(gc.write_amplification())),
        }
    }

    /// When something happens next; `u64::MAX`: nothing will.
    pub(crate) fn next_ns(&self) -> u64 {
        self.end_ns().min(self.write_arrival_ns()).min(self.read_arrival_ns())
    }

    fn end_ns(&self) -> u64 {
        self.ends.peek().map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns)
    }

    fn write_arrival_ns(&self) -> u64 {
        self.writes_arriving.front().map_or(u64::MAX, |write| write.at_ns)
    }

    fn read_arrival_ns(&self) -> u64 {
        self.reads_arriving.front().map_or(u64::MAX, |read| read.at_ns)
    }

    /// A read whose command is through the controller at `at_ns`; not before the last one.
    pub(crate) fn read(&mut self, at_ns: u64, slot: u16, offset_bytes: u64, len_bytes: u64) {
        self.reads_arriving.push_back(ReadArrival { at_ns, slot, offset_bytes, len_bytes });
    }

    /// A write whose data is through the link at `at_ns`; not before the last one.
    pub(crate) fn write(&mut self, at_ns: u64, slot: u16, len_bytes: u64) {
        self.writes_arriving.push_back(WriteArrival { at_ns, slot, len_bytes });
    }

    /// Does one thing that happens at [`Flash::next_ns`]. Of several at one time, ends come first: they make room.
    pub(crate) fn step(&mut self, out: &mut Vec<Out>) {
        let now_ns = self.next_ns();
        if self.end_ns() == now_ns {
            if let Some(Reverse((_, _, die, generation))) = self.ends.pop() {
                self.end_phase(now_ns, die, generation, out);
            }
        } else if self.write_arrival_ns() == now_ns {
            if let Some(WriteArrival { slot, len_bytes, .. }) = self.writes_arriving.pop_front() {
                let blocks = len_bytes.div_ceil(BLOCK_BYTES).max(1);
                self.waiting.push_back((slot, blocks * BLOCK_BYTES));
                self.admit(now_ns, out);
            }
        } else if let Some(read) = self.reads_arriving.pop_front() {
            self.start_read(now_ns, read);
        }
    }

    fn start_read(&mut self, now_ns: u64, read: ReadArrival) {
        let dies = self.dies.len() as u64;
        let mut count = 0;
        for piece in pieces(self.stripe_bytes, read.offset_bytes, read.len_bytes) {
            let sense_ns = self.sense_ns(piece.len_bytes);
            let op = Op::Read { slot: read.slot, sense_ns, transfer_ns: self.transfer_ns(piece.len_bytes) };
            self.enqueue(now_ns, unit_of(piece.stripe, dies), op);
            count += 1;
        }
        // Nothing ends before the next step.
        self.pieces[usize::from(read.slot)] = Pieces { left: count, first_ns: u64::MAX };
    }

    fn sense_ns(&self, len_bytes: u64) -> u64 {
        self.read_ns + (len_bytes.div_ceil(BLOCK_BYTES).max(1) - 1) * self.further_ns
    }

    fn transfer_ns(&self, len_bytes: u64) -> u64 {
        len_bytes * 1_000 / u64::from(self.nand.channel_mb_s.max(1))
    }

    /// Takes what waits into the buffer as far as there is room, and sends full pages to the dies.
    fn admit(&mut self, now_ns: u64, out: &mut Vec<Out>) {
        while let Some((slot, left_bytes)) = self.waiting.front_mut() {
            let taken = self.free_bytes.min(*left_bytes);
            *left_bytes -= taken;
            self.free_bytes -= taken;
            self.gathered_bytes += taken;
            if *left_bytes > 0 {
                break;
            }
            out.push(Out::Admitted { slot: *slot });
            self.waiting.pop_front();
        }
        while self.gathered_bytes >= self.nand.page_bytes {
            self.gathered_bytes -= self.nand.page_bytes;
            self.program_page(now_ns);
        }
    }

    fn program_page(&mut self, now_ns: u64) {
        let die = self.next_die;
        self.next_die = (die + 1) % self.dies.len();
        if let Some(copies_per_page) = self.copies_per_page {
            self.dies[die].copies_due += copies_per_page;
            while self.dies[die].copies_due >= MILLION {
                self.dies[die].copies_due -= MILLION;
                self.enqueue(now_ns, die, Op::CopyOut);
                self.enqueue(now_ns, die, Op::CopyIn);
                self.count_programmed(now_ns, die);
            }
            self.count_programmed(now_ns, die);
        }
        self.enqueue(now_ns, die, Op::Program);
    }

    /// In the steady state a block is erased for each that is filled.
    fn count_programmed(&mut self, now_ns: u64, die: usize) {
        self.dies[die].programmed_in_block += 1;
        if self.dies[die].programmed_in_block >= self.nand.pages_per_block {
            self.dies[die].programmed_in_block = 0;
            self.enqueue(now_ns, die, Op::Erase);
        }
    }

    fn enqueue(&mut self, now_ns: u64, index: usize, op: Op) {
        let die = &mut self.dies[index];
        match op {
            Op::Read { .. } if !self.nand.reads_wait_for_programs => {
                die.reads.push_back(op);
                die.suspend(now_ns);
            }
            _ => die.queue.push_back(op),
        }
        self.start_next(now_ns, index);
    }

    fn start_next(&mut self, now_ns: u64, index: usize) {
        let die = &mut self.dies[index];
        if !matches!(die.phase, Phase::Idle) {
            return;
        }
        match die.next() {
            None => {}
            Some(Next::Resume(op, left_ns)) => self.work_array(now_ns, index, op, left_ns),
            Some(Next::Begin(op)) => match op {
                Op::Read { sense_ns, .. } => self.work_array(now_ns, index, op, sense_ns),
                Op::CopyOut => self.work_array(now_ns, index, op, self.sense_ns(self.nand.page_bytes)),
                Op::Erase => self.work_array(now_ns, index, op, self.nand.erase_ns),
                Op::Program | Op::CopyIn => self.want_channel(now_ns, index, op),
            },
        }
    }

    fn work_array(&mut self, now_ns: u64, index: usize, op: Op, work_ns: u64) {
        let until_ns = now_ns + work_ns;
        self.dies[index].phase = Phase::Array { op, until_ns };
        self.end_at(until_ns, index);
    }

    fn want_channel(&mut self, now_ns: u64, index: usize, op: Op) {
        self.dies[index].phase = Phase::Channel { op };
        let channel = index % self.channels.len();
        self.channels[channel].waiting.push_back(index as u16);
        self.use_channel(now_ns, channel);
    }

    fn use_channel(&mut self, now_ns: u64, channel: usize) {
        if self.channels[channel].is_busy {
            return;
        }
        let Some(index) = self.channels[channel].waiting.pop_front().map(usize::from) else { return };
        self.channels[channel].is_busy = true;
        let transfer_ns = match self.dies[index].phase {
            Phase::Channel { op: Op::Read { transfer_ns, .. } } => transfer_ns,
            _ => self.transfer_ns(self.nand.page_bytes),
        };
        self.end_at(now_ns + transfer_ns, index);
    }

    fn end_at(&mut self, at_ns: u64, index: usize) {
        self.sequence += 1;
        self.ends.push(Reverse((at_ns, self.sequence, index as u16, self.dies[index].generation)));
    }

    fn end_phase(&mut self, now_ns: u64, die: u16, generation: u32, out: &mut Vec<Out>) {
        let index = usize::from(die);
        if self.dies[index].generation != generation {
            return;
        }
        match self.dies[index].phase {
            Phase::Idle => {}
            Phase::Array { op: op @ (Op::Read { .. } | Op::CopyOut), .. } => self.want_channel(now_ns, index, op),
            Phase::Array { op, .. } => {
                self.dies[index].phase = Phase::Idle;
                self.dies[index].passed = 0;
                self.start_next(now_ns, index);
                if matches!(op, Op::Program) {
                    self.free_bytes += self.nand.page_bytes;
                    self.admit(now_ns, out);
                }
            }
            Phase::Channel { op } => self.end_transfer(now_ns, index, op, out),
        }
    }

    fn end_transfer(&mut self, now_ns: u64, index: usize, op: Op, out: &mut Vec<Out>) {
        let channel = index % self.channels.len();
        self.channels[channel].is_busy = false;
        self.dies[index].phase = Phase::Idle;
        match op {
            Op::Read { slot, .. } => self.end_piece(now_ns, slot, out),
            Op::Program | Op::CopyIn => {
                self.work_array(now_ns, index, op, self.nand.program_ns);
                if !self.dies[index].reads.is_empty() {
                    self.dies[index].suspend(now_ns);
                }
            }
            Op::CopyOut | Op::Erase => {}
        }
        self.use_channel(now_ns, channel);
        self.start_next(now_ns, index);
    }

    fn end_piece(&mut self, now_ns: u64, slot: u16, out: &mut Vec<Out>) {
        let pieces = &mut self.pieces[usize::from(slot)];
        pieces.left -= 1;
        pieces.first_ns = pieces.first_ns.min(now_ns);
        if pieces.left == 0 {
            out.push(Out::Read { slot, first_ns: pieces.first_ns });
        }
    }
}

/// What a die turns to.
#[derive(Debug)]
enum Next {
    Begin(Op),
    /// A suspended one, with what is left of it.
    Resume(Op, u64),
}

impl Die {
    fn new() -> Self {
        Self {
            phase: Phase::Idle,
            queue: VecDeque::new(),
            reads: VecDeque::new(),
            suspended: None,
            passed: 0,
            generation: 0,
            copies_due: 0,
            programmed_in_block: 0,
        }
    }

    /// Suspends a program or an erasure that is at work, for reads that wait.
    fn suspend(&mut self, now_ns: u64) {
        if let Phase::Array { op: op @ (Op::Program | Op::CopyIn | Op::Erase), until_ns } = self.phase
            && self.passed < READS_PER_PROGRAM
        {
            self.suspended = Some((op, until_ns.saturating_sub(now_ns)));
            self.phase = Phase::Idle;
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Reads that may pass first, then what was suspended, then the queue.
    fn next(&mut self) -> Option<Next> {
        let others_wait = self.suspended.is_some() || !self.queue.is_empty();
        if (self.passed < READS_PER_PROGRAM || !others_wait)
            && let Some(read) = self.reads.pop_front()
        {
            self.passed += u32::from(others_wait);
            return Some(Next::Begin(read));
        }
        if let Some((op, left_ns)) = self.suspended.take() {
            return Some(Next::Resume(op, left_ns));
        }
        self.queue.pop_front().map(Next::Begin)
    }
}
