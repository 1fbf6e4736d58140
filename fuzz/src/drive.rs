//! An NVMe initiator over a controller that lies: registers that read as ones or as anything, memory that it shares and
//! writes where and when it likes, doorbells that it takes no notice of.
//!
//! What must hold: nothing panics or waits for ever; a command is ended once, and only one that is in flight; how many
//! those are is known exactly until a queue reports a lie; and nothing is ever written outside of the memory that the
//! initiator made.
//!
//! Beneath the lies is the fake of the driver's own tests, so that what is told is mostly plausible.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use fake_device::{Fake, FakeDevice};
use nvme_driver::{Blocks, Controller, Data, DmaMemory, Doorbell, Error, PciDevice, QueuePair, Ring};
use nvme_spec::data::DsmRange;
use nvme_spec::regs::Reg;

const MAX_STEPS: usize = 200;
const BLOCKS: u64 = 4096;
const ENTRIES: u16 = 8;
const DATA_BYTES: u64 = 64 << 10;
/// How often in a row CSTS is read before the controller is gone: what waits for it ends by that, not by its limit of
/// seconds.
const LOOKS: u32 = 2;
/// What the fake answers it answers at once.
const LIMIT: Duration = Duration::from_millis(2);
const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Arbitrary)]
enum Step {
    Io { queue: u8, op: u8, lba: u64, blocks: u32, at: u64, len_bytes: u64, fua: bool },
    Ring { queue: u8 },
    Poll { queue: u8 },
    Admin { which: u8, value: u32 },
    Create { entries: u16 },
    Delete { queue: u8 },
    Restart { function: bool },
}

/// What the controller does wrong, by the rest of the input.
struct Lies {
    script: Vec<u8>,
    at: usize,
    memory: Vec<DmaMemory>,
    looks: u32,
    is_gone: bool,
}

impl Lies {
    /// 0 once the script is over: the truth from then on.
    fn byte(&mut self) -> u8 {
        let byte = self.script.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// What a register reads as.
    fn told(&mut self, offset: u64, truth: u64) -> u64 {
        self.looks = if offset == Reg::Csts.offset() { self.looks + 1 } else { 0 };
        self.is_gone |= self.looks > LOOKS;
        match self.byte() % 64 {
            _ if self.is_gone => u64::MAX,
            1 => u64::MAX,
            2 => self.number(),
            3 => truth ^ 1 << (self.byte() % 64),
            _ => truth,
        }
    }

    /// Writes into memory that it was given, mostly something like a completion: of a queue pair's memory into its
    /// completion queue, the second page. The initiator reads nothing back of submission queues and PRP lists, and
    /// changing those would lead the fake astray.
    fn scribble(&mut self) {
        let (which, place) = (usize::from(self.byte()), self.number());
        if self.memory.is_empty() {
            return;
        }
        let at = which % self.memory.len();
        let mut entry: [u8; 16] = std::array::from_fn(|_| self.byte());
        if !entry[0].is_multiple_of(4) {
            // Of a queue and a command that there may be, with a phase and mostly without an error.
            (entry[10], entry[11]) = (entry[10] % 3, 0);
            (entry[12], entry[13]) = (entry[12] % ENTRIES as u8, 0);
            (entry[14], entry[15]) = (entry[14] & 3, 0);
        }
        let first = if self.memory[at].len_bytes() > PAGE_BYTES { PAGE_BYTES } else { 0 };
        self.memory[at].write(first + place % (PAGE_BYTES / 16) * 16, &entry).expect("it is inside");
    }
}

#[derive(Clone)]
struct Liar(Arc<Mutex<Lies>>);

impl Liar {
    fn lock(&self) -> MutexGuard<'_, Lies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct LyingDevice {
    truth: FakeDevice,
    liar: Liar,
}

impl PciDevice for LyingDevice {
    fn read_u32(&mut self, offset: u64) -> Result<u32, Error> {
        let truth = self.truth.read_u32(offset)?;
        Ok(self.liar.lock().told(offset, truth.into()) as u32)
    }

    fn read_u64(&mut self, offset: u64) -> Result<u64, Error> {
        let truth = self.truth.read_u64(offset)?;
        Ok(self.liar.lock().told(offset, truth))
    }

    fn write_u32(&mut self, offset: u64, value: u32) -> Result<(), Error> {
        self.liar.lock().looks = 0;
        self.truth.write_u32(offset, value)
    }

    fn write_u64(&mut self, offset: u64, value: u64) -> Result<(), Error> {
        self.liar.lock().looks = 0;
        self.truth.write_u64(offset, value)
    }

    fn doorbell(&mut self, offset: u64) -> Result<Doorbell, Error> {
        let truth = self.truth.doorbell(offset)?;
        Ok(Doorbell::Sent(Box::new(LyingRing { truth, liar: self.liar.clone() })))
    }

    fn allocate_dma(&mut self, len_bytes: usize) -> Result<DmaMemory, Error> {
        let memory = self.truth.allocate_dma(len_bytes)?;
        self.liar.lock().memory.push(memory.clone());
        Ok(memory)
    }

    fn release_dma(&mut self, memory: DmaMemory) -> Result<(), Error> {
        self.liar.lock().memory.retain(|known| known.iova() != memory.iova());
        self.truth.release_dma(memory)
    }

    fn set_interrupt(&mut self, vector: u16, event: BorrowedFd<'_>) -> Result<(), Error> {
        self.truth.set_interrupt(vector, event)
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.truth.reset()
    }
}

struct LyingRing {
    truth: Doorbell,
    liar: Liar,
}

impl Ring for LyingRing {
    fn ring(&mut self, value: u32) -> Result<(), Error> {
        let lie = self.liar.lock().byte() % 32;
        match lie {
            // It hears nothing.
            1 => return Ok(()),
            2 => self.liar.lock().scribble(),
            3 => return Err(Error::Removed),
            _ => {}
        }
        self.truth.write(value)?;
        if lie == 4 {
            self.liar.lock().scribble();
        }
        Ok(())
    }
}

/// A queue pair, and what is known of it.
struct Known {
    pair: QueuePair,
    flying: BTreeSet<u16>,
    /// It told of a lie: what is in flight is anybody's guess.
    is_doubtful: bool,
}

impl Known {
    fn poll(&mut self) {
        let Self { pair, flying, is_doubtful } = self;
        let doubted = *is_doubtful;
        let polled = pair.poll(&mut |done| {
            let was_in_flight = flying.remove(&done.cid);
            assert!(was_in_flight || doubted, "command {} ended, and was not in flight", done.cid);
        });
        *is_doubtful |= polled.is_err();
        assert!(*is_doubtful || flying.len() == usize::from(pair.in_flight()), "{flying:?}");
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    // It is over when the bytes are.
    let _ = try_run(&mut Unstructured::new(input));
}

fn try_run(input: &mut Unstructured<'_>) -> Result<()> {
    let steps: usize = input.int_in_range(0..=MAX_STEPS)?;
    let script_bytes = input.len() / 2;
    let script = input.bytes(script_bytes)?.to_vec();
    let fake = Fake::new(BLOCKS).with_arbitration().with_deceived_driver();
    let fake = if script.first().is_some_and(|byte| byte % 2 == 1) { fake.with_shadow_doorbells() } else { fake };
    let lies = Lies { script, at: 0, memory: Vec::new(), looks: 0, is_gone: false };
    let liar = Liar(Arc::new(Mutex::new(lies)));
    let device = LyingDevice { truth: fake.device(), liar: liar.clone() };
    let Ok(mut controller) = Controller::start(device) else { return Ok(()) };
    let Ok(data) = controller.allocate_dma(DATA_BYTES as usize) else { return Ok(()) };
    // Whatever Identify says.
    let _ = controller.first_namespace();
    assert!(controller.max_entries() >= 2 && controller.max_transfer_bytes() > 0);
    let mut queues: Vec<Known> = Vec::new();
    for _ in 0..steps {
        step(input.arbitrary()?, &mut controller, &mut queues, &data);
    }
    Ok(())
}

fn step(step: Step, controller: &mut Controller<LyingDevice>, queues: &mut Vec<Known>, data: &DmaMemory) {
    let count = queues.len().max(1);
    let of = |queue: u8| usize::from(queue) % count;
    match step {
        Step::Io { queue, op, lba, blocks, at, len_bytes, fua } => {
            let Some(known) = queues.get_mut(of(queue)) else { return };
            // Mostly what one command can carry.
            let count = if blocks & 15 == 0 { blocks } else { blocks % 128 };
            let blocks = Blocks { nsid: 1, lba, count };
            let len_bytes = if len_bytes & 15 == 0 { len_bytes } else { len_bytes % DATA_BYTES / 4 * 4 };
            let data = Data { iova: data.iova() + at % PAGE_BYTES / 4 * 4, len_bytes };
            let pair = &mut known.pair;
            let submitted = match op % 6 {
                0 => pair.read(blocks, data),
                1 => pair.write(blocks, data, fua),
                2 => pair.compare(blocks, data),
                3 => pair.write_zeroes(blocks, fua),
                4 => pair.flush(1),
                _ => pair.deallocate(1, &vec![DsmRange::default(); usize::from(op)]),
            };
            if let Ok(cid) = submitted {
                assert!(known.flying.insert(cid) || known.is_doubtful, "command {cid} is in flight already");
            }
        }
        Step::Ring { queue } => {
            if let Some(known) = queues.get_mut(of(queue)) {
                let _ = known.pair.ring();
            }
        }
        Step::Poll { queue } => queues.get_mut(of(queue)).into_iter().for_each(Known::poll),
        Step::Admin { which, value } => {
            let mut admin = controller.admin().within(LIMIT);
            let _ = match which % 6 {
                0 => admin.abort(value as u16, (value >> 16) as u16),
                1 => admin.feature(value as u8).map(drop),
                2 => admin.request_event(),
                3 => admin.take_event().map(drop),
                4 => admin.identify_namespace(value).map(drop),
                _ => admin.active_namespaces().map(drop),
            };
        }
        Step::Create { entries } => {
            if let Ok(pair) = controller.create_queue_pair(entries % ENTRIES + 1, None) {
                queues.push(Known { pair, flying: BTreeSet::new(), is_doubtful: false });
            }
        }
        Step::Delete { queue } => {
            if !queues.is_empty() {
                let _ = controller.delete_queue_pair(queues.swap_remove(of(queue)).pair);
            }
        }
        Step::Restart { function } => {
            if controller.halt(function).is_ok() {
                queues.clear();
                let _ = controller.restart();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_inputs_hold() {
        crate::seeds::run_seeds(40, 4096, super::run);
    }
}
