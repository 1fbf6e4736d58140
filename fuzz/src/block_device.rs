//! A block device's queues over a kernel that hands over any descriptor, and any tag at any time.
//!
//! What must hold:
//!
//! * A tag that the kernel has is taken once, and no other tag ever.
//! * A descriptor becomes exactly the command that it names, or fails with the right error.
//! * Every request that was taken is answered once, with its bytes or its error, and nothing else is.
//! * No two commands in flight share memory.
//! * Nothing is handed over before the batch ends.
//! * A tenant that leaves is asked for the flush that is owed, and for no more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arbitrary::{Arbitrary, Result, Unstructured};
use guest_memory::IoBuf;
use io_model::{DeviceError, Fetch, Op, Place, Source, TenantId, Token};
use ublk::spec::{IO_F_FUA, IoDesc};
use ublk::{Kernel, Queue, Queues, Shape, buffers};

const MAX_STEPS: usize = 300;
const DEPTH: u16 = 8;
const QUEUES: u16 = 2;
const SIZE_BYTES: u64 = 1 << 20;

#[derive(Debug, Arbitrary)]
enum Step {
    /// The kernel hands a tag over, whether it has it or not; mostly a sound one.
    Come {
        queue: bool,
        tag: u8,
        any_tag: bool,
        op: u8,
        flags: u32,
        start: u16,
        wild: bool,
        sectors: u16,
    },
    /// It takes a tag away for good.
    Abort {
        queue: bool,
        tag: u8,
        result: u8,
    },
    Fetch {
        queue: bool,
    },
    /// The drive answers.
    End {
        which: u8,
        error: u8,
    },
    Notify,
    Stop,
}

/// What the kernel of one queue knows.
#[derive(Default)]
struct Known {
    descriptors: Vec<IoDesc>,
    coming: VecDeque<(u16, i32)>,
    has: Vec<bool>,
    pushed: Vec<(u16, Option<i32>)>,
    answered: Vec<(u16, i32)>,
}

impl Known {
    /// Not even this kernel ends a command that it was not given yet.
    fn is_on_its_way(&self, tag: u16) -> bool {
        self.pushed.iter().any(|(pushed, _)| *pushed == tag)
    }
}

#[derive(Clone, Default)]
struct Hostile(Arc<Mutex<Known>>);

impl Hostile {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for Hostile {
    fn descriptor(&self, tag: u16) -> IoDesc {
        self.lock().descriptors[usize::from(tag)]
    }

    fn fetch(&mut self, tag: u16, _addr: u64) {
        self.lock().pushed.push((tag, None));
    }

    fn commit(&mut self, tag: u16, result: i32, _addr: u64) {
        self.lock().pushed.push((tag, Some(result)));
    }

    fn submit(&mut self) {
        let mut known = self.lock();
        for (tag, result) in std::mem::take(&mut known.pushed) {
            assert!(!known.has[usize::from(tag)], "tag {tag} is handed over twice");
            known.has[usize::from(tag)] = true;
            known.answered.extend(result.map(|result| (tag, result)));
        }
    }

    fn next(&mut self) -> Option<(u16, i32)> {
        self.lock().coming.pop_front()
    }
}

/// What a request of the model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Command(Op, u64, u64, bool),
    Error(i32),
}

/// Written from the interface's description alone.
fn wanted(desc: &IoDesc, shape: &Shape) -> Wanted {
    let op = match desc.op_flags & 0xff {
        0 => Op::Read,
        1 => Op::Write,
        2 => return Wanted::Command(Op::Flush, 0, 0, false),
        3 if shape.discard => Op::Discard,
        5 => Op::WriteZeroes,
        _ => return Wanted::Error(-libc::EOPNOTSUPP),
    };
    if shape.read_only && op != Op::Read {
        return Wanted::Error(-libc::EPERM);
    }
    let (start, len) = (u128::from(desc.start_sector) * 512, u128::from(desc.nr_sectors) * 512);
    let block = u128::from(shape.block_bytes);
    let is_data = op == Op::Read || op == Op::Write;
    let is_good = len > 0
        && start % block == 0
        && len % block == 0
        && start + len <= u128::from(shape.size_bytes)
        && !(is_data && len > 128 << 10);
    if !is_good {
        return Wanted::Error(-libc::EIO);
    }
    let fua = desc.op_flags & IO_F_FUA != 0 && (op == Op::Write || op == Op::WriteZeroes);
    Wanted::Command(op, start as u64, len as u64, fua)
}

struct Flying {
    queue: usize,
    tag: u16,
    bytes: i32,
    token: Token,
    buf: IoBuf,
}

struct Run {
    shape: Shape,
    queues: Queues<Hostile>,
    kernels: [Hostile; QUEUES as usize],
    /// Of each queue, what waits in order.
    waiting: [VecDeque<u16>; QUEUES as usize],
    flying: Vec<Flying>,
    /// Answers that the next batch must hand over, each queue's.
    due: [BTreeMap<u16, i32>; QUEUES as usize],
    is_stopped: bool,
    owes_flush: bool,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let shape = Shape {
        size_bytes: SIZE_BYTES,
        block_bytes: if input.arbitrary()? { 4096 } else { 512 },
        queues: QUEUES,
        depth: DEPTH,
        read_only: input.ratio(1, 8)?,
        discard: input.arbitrary()?,
        write_cache: input.arbitrary()?,
    };
    let mut run = Run::new(shape);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        run.step(input.arbitrary()?);
    }
    run.finish();
    Ok(())
}

impl Run {
    fn new(shape: Shape) -> Self {
        let kernels: [Hostile; 2] = Default::default();
        for kernel in &kernels {
            let mut known = kernel.lock();
            known.descriptors = vec![IoDesc::default(); DEPTH.into()];
            known.has = vec![false; DEPTH.into()];
        }
        let mut queues = Queues::new(shape, Place::whole_drive(TenantId(1)), 0..QUEUES);
        let of = |kernel: &Hostile| Queue::new(kernel.clone(), buffers(&shape).expect("memory"), &shape);
        queues.start(kernels.iter().map(of).collect(), false, &mut ()).expect("started");
        Self {
            shape,
            queues,
            kernels,
            waiting: Default::default(),
            flying: Vec::new(),
            due: Default::default(),
            is_stopped: false,
            owes_flush: false,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Come { queue, tag, any_tag, op, flags, start, wild, sectors } => {
                let tag = if any_tag { u16::from(tag) } else { u16::from(tag) % DEPTH };
                let start_sector =
                    if wild { u64::from(start) << 48 | u64::from(start) } else { u64::from(start) % 2100 };
                let op_flags = flags << 8 | u32::from(op % 8);
                self.come(queue.into(), tag, IoDesc { op_flags, nr_sectors: sectors.into(), start_sector, addr: 7 });
            }
            Step::Abort { queue, tag, result } => {
                let (queue, tag) = (usize::from(queue), u16::from(tag) % DEPTH);
                let mut known = self.kernels[queue].lock();
                if known.is_on_its_way(tag) {
                    return;
                }
                known.has[usize::from(tag)] = false;
                known.coming.push_back((tag, -1 - i32::from(result)));
                drop(known);
                self.look(queue);
            }
            Step::Fetch { queue } => self.fetch(queue.into()),
            Step::End { which, error } => self.end(which.into(), error),
            Step::Notify => self.notify(),
            Step::Stop => {
                self.queues.stop();
                self.is_stopped = true;
            }
        }
    }

    fn come(&mut self, queue: usize, tag: u16, desc: IoDesc) {
        let mut known = self.kernels[queue].lock();
        if known.is_on_its_way(tag) {
            return;
        }
        let is_the_kernels = known.has.get(usize::from(tag)).copied().unwrap_or(false);
        if is_the_kernels {
            known.has[usize::from(tag)] = false;
            known.descriptors[usize::from(tag)] = desc;
            self.waiting[queue].push_back(tag);
        }
        known.coming.push_back((tag, 0));
        drop(known);
        self.look(queue);
    }

    fn look(&mut self, queue: usize) {
        let expected = if self.is_stopped { 0 } else { self.waiting[queue].len() as u32 };
        assert_eq!(self.queues.backlog(queue as u16 + 1), expected, "what waits in queue {queue}");
    }

    fn fetch(&mut self, queue: usize) {
        let vq = queue as u16 + 1;
        let fetched = self.queues.fetch(vq);
        let next = if self.is_stopped { None } else { self.waiting[queue].pop_front() };
        let Some(tag) = next else {
            assert!(matches!(fetched, Fetch::Empty), "nothing waits: {fetched:?}");
            return;
        };
        let desc = self.kernels[queue].lock().descriptors[usize::from(tag)];
        match (fetched, wanted(&desc, &self.shape)) {
            (Fetch::Handled, Wanted::Error(errno)) => {
                self.due[queue].insert(tag, errno);
            }
            (Fetch::Command(command, buf, token), Wanted::Command(op, offset, len, fua)) => {
                let found = (command.op, command.tenant_offset_bytes, command.len_bytes, command.fua);
                assert_eq!(found, (op, offset, len, fua), "{desc:?}");
                let is_data = op == Op::Read || op == Op::Write;
                assert_eq!(buf.len_bytes(), if is_data { len } else { 0 });
                self.apart_from_others(&buf);
                self.owes_flush |= self.shape.write_cache && matches!(op, Op::Write | Op::WriteZeroes);
                if op == Op::Flush && self.flying.is_empty() {
                    self.owes_flush = false;
                }
                let bytes = if is_data { len as i32 } else { 0 };
                self.flying.push(Flying { queue, tag, bytes, token, buf });
            }
            (fetched, wanted) => panic!("{desc:?}: {fetched:?} where {wanted:?} is right"),
        }
    }

    fn apart_from_others(&self, buf: &IoBuf) {
        let range = |buf: &IoBuf| {
            let segment = buf.segments().first()?;
            let start = segment.as_ptr() as usize;
            Some(start..start + segment.len_bytes())
        };
        let Some(new) = range(buf) else { return };
        for other in self.flying.iter().filter_map(|flying| range(&flying.buf)) {
            assert!(new.end <= other.start || other.end <= new.start, "two commands share memory");
        }
    }

    fn end(&mut self, which: usize, error: u8) {
        if self.flying.is_empty() {
            return;
        }
        let Flying { queue, tag, bytes, token, buf } = self.flying.swap_remove(which % self.flying.len());
        let (outcome, result) = match error % 8 {
            0 => (Err(DeviceError::Medium), -libc::ENODATA),
            1 => (Err(DeviceError::NoSpace), -libc::ENOSPC),
            2 => (Err(DeviceError::Gone), -libc::EIO),
            _ => (Ok(()), bytes),
        };
        self.owes_flush |= outcome.is_err() && self.shape.write_cache;
        self.queues.complete(token, outcome, buf);
        assert!(self.due[queue].insert(tag, result).is_none(), "one tag twice in a batch");
    }

    fn notify(&mut self) {
        self.queues.notify();
        for (kernel, due) in self.kernels.iter().zip(&mut self.due) {
            let answered: Vec<_> = std::mem::take(&mut kernel.lock().answered);
            let count = answered.len();
            let answered: BTreeMap<u16, i32> = answered.into_iter().collect();
            assert_eq!(count, answered.len(), "a tag is answered twice");
            assert_eq!(answered, std::mem::take(due), "what was taken is answered");
        }
    }

    fn finish(mut self) {
        self.queues.stop();
        while !self.flying.is_empty() {
            assert!(!self.queues.is_flushed(), "commands are in flight");
            self.end(0, 7);
        }
        assert_eq!(!self.queues.is_flushed(), self.owes_flush, "the flush that is owed");
        if self.owes_flush {
            assert_eq!((self.queues.live_vqs(), self.queues.backlog(0)), (1, 1));
            let Fetch::Command(command, buf, token) = self.queues.fetch(0) else { panic!("no flush") };
            assert_eq!(command.op, Op::Flush);
            self.queues.complete(token, Ok(()), buf);
            assert!(self.queues.is_flushed());
        }
        self.notify();
        self.queues.let_go(&mut ());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_inputs_hold() {
        crate::seeds::run_seeds(2000, 2048, super::run);
    }
}
