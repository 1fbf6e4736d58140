//! Three tenants behind one poller, with either policy, on a drive that answers out of order.
//!
//! What must hold: every completion is of a command that is open in the queue it comes back to; no HWQ gets
//! more than it holds; no command points into memory that the drive was not told of; no tenant's command leaves its
//! part of the drive; and once the device answers everything, everything that was submitted completes within bounded
//! time.

mod guest;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use backend_wrappers::Checked;
use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos, Op, Source, TenantId};
use nvme_controller::Controller;
use policy::{AnyPolicy, Class, Lpns, LpnsConfig, Passthrough};
use poller::{Board, Poller, Probe, TenantSlot};

use guest::{Guest, SIZE_BYTES, Wires};

/// Steps of one run at most.
const MAX_STEPS: usize = 300;

const TENANTS: usize = 3;
const HWQS: u16 = 4;
const HWQ_DEPTH: u32 = 8;

/// By when everything must have completed that the device answers at once: several LPNS periods.
const PATIENCE: Nanos = Nanos::from_millis(3_000);

#[derive(Debug, Arbitrary)]
enum Step {
    Submit {
        tenant: u8,
        queue: u8,
        write: bool,
        lba: u16,
    },
    Burst {
        tenant: u8,
        queue: u8,
        count: u8,
    },
    Consume {
        tenant: u8,
    },
    Poll {
        advance_us: u16,
    },
    /// Many iterations, so that intervals and periods pass.
    Pass {
        advance_ms: u8,
    },
    Answer {
        which: u8,
        fails: bool,
    },
    Reset {
        tenant: u8,
    },
    Sleep(bool),
}

/// Requests that the device has, and those that it has answered.
#[derive(Debug, Default)]
struct Shelf {
    taken: Vec<(HwqId, Io)>,
    answered: Vec<(HwqId, Done)>,
}

/// A drive that answers when it is told to.
struct Drive(Rc<RefCell<Shelf>>);

impl Backend for Drive {
    fn hwqs(&self) -> u16 {
        HWQS
    }

    fn depth(&self) -> u32 {
        HWQ_DEPTH
    }

    fn submit(&mut self, hwq: HwqId, io: Io, _now: Nanos) {
        let mut shelf = self.0.borrow_mut();
        assert!(hwq.0 < HWQS, "{hwq:?}");
        let inside = io.command.offset_bytes + io.command.len_bytes <= TENANTS as u64 * SIZE_BYTES;
        assert!(inside, "outside of the drive: {:?}", io.command);
        shelf.taken.push((hwq, io));
    }

    fn kick(&mut self) {}

    fn reap(&mut self, _now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        let answered = std::mem::take(&mut self.0.borrow_mut().answered);
        answered.into_iter().for_each(|(hwq, one)| done(hwq, one));
    }
}

impl Shelf {
    /// Answers one request. A read tells whose part of the drive it came from.
    fn answer(&mut self, which: usize, fails: bool) {
        if self.taken.is_empty() {
            return;
        }
        let (hwq, io) = self.taken.swap_remove(which % self.taken.len());
        if io.command.op == Op::Read {
            let owner = (io.command.offset_bytes / SIZE_BYTES) as u8;
            let mark = vec![guest::mark(owner); io.command.len_bytes as usize];
            assert_eq!(io.buf.copy_from(&mark), mark.len(), "nobody took memory away");
        }
        let outcome = if fails { Err(DeviceError::Medium) } else { Ok(()) };
        self.answered.push((hwq, io.done(outcome)));
    }
}

struct World {
    poller: Poller<Controller<Wires>, Checked<Drive>, AnyPolicy>,
    shelf: Rc<RefCell<Shelf>>,
    guests: Vec<(TenantSlot, Guest)>,
    now: Nanos,
}

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let mut world = World::new(u.arbitrary().unwrap_or(false));
    // Running out of input ends the program.
    let _ = world.play(&mut u);
    world.finish();
}

impl World {
    fn new(lpns: bool) -> Self {
        let policy: AnyPolicy = if lpns {
            let config = LpnsConfig::p5800x().with_hwqs(HWQS, 2, HWQ_DEPTH);
            Lpns::new(config).expect("a good configuration").into()
        } else {
            Passthrough::new(HWQS, HWQ_DEPTH).into()
        };
        let shelf = Rc::new(RefCell::new(Shelf::default()));
        let board = Arc::new(Board::default());
        let mut poller = Poller::new(Checked::new(Drive(Rc::clone(&shelf))), policy, Arc::clone(&board), Nanos(0));
        let guests = (0..TENANTS as u16).map(|number| {
            let class = match number {
                0 => Class::guaranteed(Some(Nanos::from_micros(50))),
                weight => Class::BestEffort { weight: weight.into() },
            };
            let probe = Arc::new(Probe::new(TenantId(number.into()), class));
            let (guest, controller) = Guest::new(number as u8);
            (poller.add(controller, probe, &class.into()).ok().expect("there is room"), guest)
        });
        let guests = guests.collect();
        let mut world = Self { poller, shelf, guests, now: Nanos(0) };
        (0..TENANTS).for_each(|tenant| world.bring_up(tenant));
        world
    }

    fn play(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..MAX_STEPS {
            if u.is_empty() {
                break;
            }
            match Step::arbitrary(u)? {
                Step::Submit { tenant, queue, write, lba } => {
                    self.guest(tenant).submit(queue, write, lba);
                }
                Step::Burst { tenant, queue, count } => {
                    (0..count % 32).for_each(|lba| {
                        self.guest(tenant).submit(queue, false, lba.into());
                    });
                }
                Step::Consume { tenant } => self.guest(tenant).consume(),
                Step::Poll { advance_us } => self.poll(Nanos::from_micros(advance_us.into())),
                Step::Pass { advance_ms } => (0..advance_ms % 64).for_each(|_| self.poll(Nanos::from_millis(7))),
                Step::Answer { which, fails } => self.shelf.borrow_mut().answer(which.into(), fails),
                Step::Reset { tenant } => {
                    let tenant = usize::from(tenant) % TENANTS;
                    self.source(tenant).reset();
                    self.bring_up(tenant);
                }
                Step::Sleep(wanted) => self.poller.set_wakeup(wanted),
            }
        }
        Ok(())
    }

    fn guest(&mut self, tenant: u8) -> &mut Guest {
        &mut self.guests[usize::from(tenant) % TENANTS].1
    }

    fn source(&mut self, tenant: usize) -> &mut Controller<Wires> {
        self.poller.source_mut(self.guests[tenant].0).expect("a tenant")
    }

    fn poll(&mut self, advance: Nanos) {
        self.now += advance;
        self.poller.step(self.now);
        for (_, guest) in &mut self.guests {
            guest.look();
        }
        assert_eq!(self.poller.unknown_completions(), 0, "a completion of nothing");
    }

    /// Polls and lets the device answer until `is_done`.
    fn poll_until(&mut self, what: &str, is_done: impl Fn(&mut Self) -> bool) {
        let end = self.now + PATIENCE;
        while !is_done(self) {
            assert!(self.now < end, "{what} takes more than {PATIENCE}");
            let taken = self.shelf.borrow().taken.len();
            (0..taken).for_each(|_| self.shelf.borrow_mut().answer(0, false));
            self.poll(Nanos::from_micros(500));
        }
    }

    /// The tenant's driver starts over; what the device has of it must come back first.
    fn bring_up(&mut self, tenant: usize) {
        self.poll_until("a reset", |world| world.source(tenant).is_idle());
        let Self { poller, guests, .. } = self;
        let (slot, guest) = &mut guests[tenant];
        let (controller, mut memory) = poller.source_and_memory(*slot).expect("a tenant");
        guest.bring_up(controller, &mut memory);
        self.poll_until("creating queues", |world| world.guests[tenant].1.is_settled());
    }

    /// Everything that was submitted completes.
    fn finish(&mut self) {
        self.poller.set_wakeup(false);
        self.poll_until("the rest", |world| {
            world.guests.iter_mut().for_each(|(_, guest)| guest.consume());
            world.guests.iter().all(|(_, guest)| guest.is_settled())
        });
        assert_eq!(self.poller.inflight(), 0, "in flight, and nobody waits for it");
        for (slot, _) in std::mem::take(&mut self.guests) {
            let (controller, mut memory) = self.poller.source_and_memory(slot).expect("a tenant");
            controller.client_gone();
            while controller.take_unmapped(&mut memory).is_some() {}
            assert!(self.poller.remove(slot, self.now).is_some_and(|mut gone| gone.backlog(1) == 0), "a tenant stays");
        }
        assert_eq!(self.poller.backend().mappings(), 0, "the drive still knows memory of tenants that left");
    }
}

#[cfg(test)]
mod tests {
    use crate::seeds::run_seeds;

    #[test]
    fn random_inputs() {
        run_seeds(300, 1500, super::run);
    }
}
