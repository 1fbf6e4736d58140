//! Queues over a kernel that the test plays.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use guest_memory::Mapping;
use io_model::{Command, DeviceError, Fetch, IoBuf, Op, Place, Source, TenantId, Token};

use super::Queues;
use crate::queue::{Kernel, Queue, buffers};
use crate::shape::Shape;
use crate::spec::{IoDesc, io_op};

const DEPTH: u16 = 4;

/// What the kernel knows of a queue.
#[derive(Default)]
struct Known {
    descriptors: Vec<IoDesc>,
    /// For us, in order.
    coming: VecDeque<(u16, i32)>,
    /// Tags that the kernel has.
    fetched: Vec<u16>,
    /// Answers that were handed over, and those that were not yet.
    answers: Vec<(u16, i32)>,
    pushed: Vec<(u16, Option<i32>)>,
    submits: u32,
}

#[derive(Clone)]
struct Fake(Arc<Mutex<Known>>);

impl Fake {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Known { descriptors: vec![IoDesc::default(); DEPTH.into()], ..Known::default() })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Known) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    /// A request arrives.
    fn request(&self, tag: u16, op_flags: u32, start_sector: u64, nr_sectors: u32) {
        self.with(|known| {
            let at = known.fetched.iter().position(|it| *it == tag).expect("the kernel has that tag");
            known.fetched.swap_remove(at);
            known.descriptors[usize::from(tag)] = IoDesc { op_flags, nr_sectors, start_sector, addr: 0 };
            known.coming.push_back((tag, 0));
        });
    }

    fn answers(&self) -> Vec<(u16, i32)> {
        self.with(|known| std::mem::take(&mut known.answers))
    }
}

impl Kernel for Fake {
    fn descriptor(&self, tag: u16) -> IoDesc {
        self.with(|known| known.descriptors[usize::from(tag)])
    }

    fn fetch(&mut self, tag: u16, _addr: u64) {
        self.with(|known| known.pushed.push((tag, None)));
    }

    fn commit(&mut self, tag: u16, result: i32, _addr: u64) {
        self.with(|known| known.pushed.push((tag, Some(result))));
    }

    fn submit(&mut self) {
        self.with(|known| {
            known.submits += 1;
            for (tag, result) in std::mem::take(&mut known.pushed) {
                known.fetched.push(tag);
                known.answers.extend(result.map(|result| (tag, result)));
            }
        });
    }

    fn next(&mut self) -> Option<(u16, i32)> {
        self.with(|known| known.coming.pop_front())
    }
}

fn shape() -> Shape {
    Shape {
        size_bytes: 1 << 20,
        block_bytes: 512,
        queues: 2,
        depth: DEPTH,
        read_only: false,
        discard: true,
        write_cache: true,
    }
}

/// Queues 2 and 3 of a device, and the kernel of the latter.
fn queues() -> (Queues<Fake>, Fake) {
    let (first, second) = (Fake::new(), Fake::new());
    let mut queues = Queues::new(shape(), Place::whole_drive(TenantId(1)), 2..4);
    assert_eq!(queues.live_vqs(), 0, "not started");
    let of = |fake: &Fake| Queue::new(fake.clone(), buffers(&shape()).unwrap(), &shape());
    queues.start(vec![of(&first), of(&second)], false, &mut ()).unwrap();
    assert_eq!(queues.live_vqs(), 0b11000, "VQ n + 1 is queue n");
    assert_eq!(second.with(|known| (known.fetched.len(), known.submits)), (4, 1), "all tags at once");
    (queues, second)
}

fn command(fetch: Fetch) -> (Command, IoBuf, Token) {
    match fetch {
        Fetch::Command(command, buf, token) => (command, buf, token),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_waits_until_it_is_fetched_and_is_answered_in_a_batch() {
    let (mut queues, kernel) = queues();
    kernel.request(3, io_op::WRITE, 8, 16);
    kernel.request(0, io_op::READ, 0, 8);
    assert_eq!(queues.backlog(4), 2);
    assert_eq!(queues.backlog(3), 0);
    let (write, data, first) = command(queues.fetch(4));
    assert_eq!((write.op, write.offset_bytes, write.len_bytes), (Op::Write, 4096, 8192));
    let mapping: &Mapping = data.mappings().next().unwrap();
    let at = data.segments()[0].as_ptr() as usize - mapping.addresses().start;
    assert_eq!(at, 3 * Shape::MAX_IO_BYTES as usize, "each tag has its own memory");
    assert_eq!(queues.backlog(4), 1, "the other one is still the kernel's to take back");
    let (_, more, second) = command(queues.fetch(4));
    assert!(matches!(queues.fetch(4), Fetch::Empty));
    queues.complete(second, Ok(()), more);
    queues.complete(first, Ok(()), data);
    assert_eq!(kernel.answers(), [], "not before the batch ends");
    queues.notify();
    assert_eq!(kernel.answers(), [(0, 4096), (3, 8192)]);
    queues.notify();
    assert_eq!(kernel.with(|known| known.submits), 2, "no system call for nothing");
}

#[test]
fn failures_are_answered_as_the_block_layer_knows_them() {
    let (mut queues, kernel) = queues();
    kernel.request(1, io_op::READ, 1 << 40, 8);
    assert_eq!(queues.backlog(4), 1);
    assert!(matches!(queues.fetch(4), Fetch::Handled));
    kernel.request(2, io_op::FLUSH, 0, 0);
    assert_eq!(queues.backlog(4), 1);
    let (flush, buf, token) = command(queues.fetch(4));
    assert_eq!(flush.op, Op::Flush);
    queues.complete(token, Err(DeviceError::Medium), buf);
    queues.notify();
    assert_eq!(kernel.answers(), [(1, -libc::EIO), (2, -libc::ENODATA)]);
}

#[test]
fn what_the_kernel_did_not_have_is_not_believed() {
    let (mut queues, kernel) = queues();
    kernel.request(1, io_op::READ, 0, 8);
    kernel.with(|known| known.coming.extend([(1, 0), (99, 0)]));
    assert_eq!(queues.backlog(4), 1, "once");
    assert!(queues.take_fault().is_some_and(|fault| fault.contains("tag 1")));
    assert!(queues.take_fault().is_none(), "told once");
}

#[test]
fn who_leaves_flushes_and_what_waits_stays_the_kernels() {
    let (mut queues, kernel) = queues();
    kernel.request(0, io_op::WRITE, 0, 8);
    kernel.request(1, io_op::WRITE, 8, 8);
    assert_eq!(queues.backlog(4), 2);
    let (_, buf, token) = command(queues.fetch(4));
    queues.stop();
    assert_eq!(queues.backlog(4), 0);
    assert!(!queues.is_flushed(), "one is with the drive");
    queues.complete(token, Ok(()), buf);
    assert!(!queues.is_flushed());
    assert_eq!((queues.live_vqs(), queues.backlog(0)), (1, 1), "the flush");
    let (flush, buf, token) = command(queues.fetch(0));
    assert_eq!(flush.op, Op::Flush);
    queues.complete(token, Ok(()), buf);
    assert!(queues.is_flushed());
    queues.let_go(&mut ());
    assert_eq!(kernel.answers(), [(0, 4096)], "the other one is the next server's");
}

#[test]
fn a_device_that_is_taken_away_is_noticed() {
    let (mut queues, _) = queues();
    let kernels: Vec<Fake> = (0..2).map(|_| Fake::new()).collect();
    let of = |fake: &Fake| Queue::new(fake.clone(), buffers(&shape()).unwrap(), &shape());
    queues.start(kernels.iter().map(of).collect(), true, &mut ()).unwrap();
    for kernel in &kernels {
        assert!(!queues.is_gone());
        kernel.with(|known| known.coming.extend((0..DEPTH).map(|tag| (tag, -libc::ENODEV))));
        assert_eq!((queues.backlog(3), queues.backlog(4)), (0, 0));
    }
    assert!(queues.is_gone() && queues.take_fault().is_none());
    queues.stop();
    assert!(!queues.is_flushed(), "the former server may have left something in the cache");
}
