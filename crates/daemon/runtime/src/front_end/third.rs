//! A third front end, to show what one takes: what is in this file, and its line in the list of variants. It has one
//! queue, which its client's thread fills by orders.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use backend_memory::MemoryDrive;
use guest_memory::{Mapping, MemoryListener};
use io_model::{Fetch, IoBuf, Nanos, Op, Outcome, Place, QueuePriority, Source, TenantId, Token, Witness};
use policy::{PolicyConfig, PollerShape, Terms};
use poller::{Board, Poller, Probe};

use super::{FrontEnd, MappedU32, Port, nvme, virtio};
use crate::doorbell_scanner::DoorbellScanner;
use crate::poller_thread::{self, Addition, Behaviour, Message, Start};
use crate::poller_watchdog::Pulses;
use observe::clock::Clock;

/// Bytes of each of its commands.
const BLOCK_BYTES: u64 = 4096;

/// Its client's requests.
pub enum Order {
    /// Memory to do I/O with, from now on.
    Memory(Arc<Mapping>, Sender<()>),
    /// A block of the disk, to or from the start of the memory; answered when it is done.
    Io(Op, u64, Sender<Outcome>),
    /// The client is gone.
    Gone(Sender<()>),
}

/// One queue.
pub struct Tiny {
    place: Place,
    memory: Option<Arc<Mapping>>,
    waiting: VecDeque<(Op, u64, Sender<Outcome>)>,
    in_flight: Vec<(u32, Sender<Outcome>)>,
    next: u32,
    gone: Option<Sender<()>>,
}

impl Source for Tiny {
    fn live_vqs(&self) -> u128 {
        self.memory.is_some().into()
    }

    fn backlog(&mut self, _vq: u16) -> u32 {
        self.waiting.len() as u32
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        let (Some(memory), Some((op, block, done))) = (&self.memory, self.waiting.pop_front()) else {
            return Fetch::Empty;
        };
        let mut buf = IoBuf::default();
        assert!(buf.push(memory, 0, BLOCK_BYTES));
        self.next += 1;
        self.in_flight.push((self.next, done));
        Fetch::Command(self.place.command(op, block * BLOCK_BYTES, BLOCK_BYTES), buf, Token::new(vq, 0, self.next))
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _buf: IoBuf) {
        let (_, _, id) = token.spend();
        let at = self.in_flight.iter().position(|(of, _)| *of == id).unwrap();
        self.in_flight.swap_remove(at).1.send(outcome).unwrap();
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _wanted: bool) {}
}

impl FrontEnd for Tiny {
    type Order = Order;

    fn order(&mut self, order: Order, memory: &mut dyn MemoryListener) {
        match order {
            Order::Memory(mapping, done) => {
                memory.map(&mapping).unwrap();
                self.memory = Some(mapping);
                done.send(()).unwrap();
            }
            Order::Io(op, block, done) => self.waiting.push_back((op, block, done)),
            Order::Gone(done) => self.gone = Some(done),
        }
    }

    fn leave(&mut self) {
        self.waiting.clear();
        self.gone = Some(channel().0);
    }

    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
        if self.gone.is_none() || !self.waiting.is_empty() || !self.in_flight.is_empty() {
            return self.gone.is_some();
        }
        if let Some(mapping) = self.memory.take() {
            memory.unmap(&mapping);
        }
        // A client that left needs no answer.
        self.gone.take().map(|done| done.send(()));
        false
    }

    fn has_client(&self) -> bool {
        self.memory.is_some()
    }

    fn check_health(&mut self) {}
}

front_ends! {
    /// The daemon's front ends and one more.
    Three, ThreeOrder {
        /// As in [`super::Served`].
        Nvme(nvme::NvmeDevice),
        /// As in [`super::Served`].
        Virtio(virtio::VirtioQueues),
        /// The third one.
        Tiny(Tiny),
    }
}

#[test]
fn a_third_front_end_reads_what_it_wrote() {
    let clock = Clock::start();
    let drive = backend_wrappers::Checked::new(MemoryDrive::new(1 << 20).unwrap().open_queues(2, 64));
    let shape = PollerShape { hwqs: 2, hwq_depth: 64, guaranteed_vqs: 0, weighted: false };
    let policy = PolicyConfig::Passthrough.build(&shape).unwrap();
    let behaviour = Behaviour { mode: config::Mode::Adaptive, idle_after: Nanos::from_millis(1), naps: true };
    let (poller, thread) = poller_thread::start::<Three, _>(Start {
        number: 0,
        poller: Poller::new(
            backend_cipher::Encrypted::new(drive, Arc::default()),
            policy,
            Arc::new(Board::default()),
            clock.now(),
        ),
        set_weights: None,
        behaviour,
        drive_on_cpus: false,
        cpus: Vec::new(),
        clock,
        scanner: DoorbellScanner::start(clock).unwrap(),
        pulses: Pulses::default(),
    })
    .unwrap();

    let (id, terms) = (TenantId(7), Terms::best_effort(1));
    let place = Place { tenant: id, disk: 0, base_bytes: 64 << 10 };
    let front_end =
        Tiny { place, memory: None, waiting: VecDeque::new(), in_flight: Vec::new(), next: 0, gone: None }.into();
    let probe = Arc::new(Probe::new(id, terms.class));
    poller.send(Message::Add(Box::new(Addition { front_end, probe, terms })));
    let port: Port<Order> = Port::new(0..1, poller.clone(), id);

    let memory = Mapping::anonymous(BLOCK_BYTES as usize).unwrap();
    let (done, mapped) = channel();
    port.order(Order::Memory(Arc::clone(&memory), done));
    mapped.recv().unwrap();
    let io = |op, block| {
        let (done, outcome) = channel();
        port.order(Order::Io(op, block, done));
        outcome.recv().unwrap().unwrap();
    };
    for block in 0..100 {
        memory.write_at(0, &[block as u8; 4096]).unwrap();
        io(Op::Write, block);
    }
    for block in 0..100 {
        io(Op::Read, block);
        let mut read = [0xff; 4096];
        memory.read_at(0, &mut read).unwrap();
        assert_eq!(read, [block as u8; 4096], "block {block}");
    }

    let (gone, told) = channel();
    port.order(Order::Gone(gone));
    told.recv().unwrap();
    let (gone, told) = channel();
    poller.send(Message::Remove(id, Box::new(move || gone.send(()).unwrap())));
    told.recv().unwrap();
    assert_eq!(Arc::strong_count(&memory), 1, "nothing of it is left at the poller");
    let (done, outcome) = channel();
    port.order(Order::Io(Op::Read, 0, done));
    assert!(outcome.recv().is_err(), "an order to a tenant that left is dropped");
    poller.send(Message::Drain);
    assert_eq!(thread.join().unwrap(), 0);
}
