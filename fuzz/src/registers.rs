//! Register accesses, configuration space, resets and DMA maps, over rings full of garbage.
//!
//! What must hold: reading changes nothing and gives the same in any pieces; read-only registers stay;
//! CSTS.RDY only while CC.EN, CSTS.CFS until a reset, a shutdown ends; what is ignored leaves no trace; a
//! saved state restores to itself; and from wherever the program led, a reset and a bring-up lead to a
//! controller that answers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use bytemuck::Zeroable;
use guest_memory::{IoBuf, Mapping};
use io_model::{DeviceError, Fetch, Source, TenantId, Token};
use nvme_controller::{
    BAR0_BYTES, BAR4_BYTES, Controller, ControllerConfig, ControllerState, Doorbells, Interrupts, NamespaceConfig,
    VECTORS, journal_bytes,
};
use nvme_spec::opcode::admin;
use nvme_spec::regs::{Aqa, Cc, Csts, NSSR_RESET, Reg};
use nvme_spec::{Cqe, Sqe, Status};

/// Steps of one run at most.
const MAX_STEPS: usize = 200;

const RAM_BYTES: u64 = 64 << 10;
const CONFIG_BYTES: usize = 256;
/// The register page as far as anything is in it.
const REGS_BYTES: usize = 0x80;

/// Registers that nothing changes: CAP, VS and CRTO, by offset and length in bytes.
const CONSTANT: [(usize, usize); 3] = [(0x00, 8), (0x08, 4), (0x68, 4)];

#[derive(Debug, Arbitrary)]
enum Step {
    /// Anything anywhere.
    Write {
        bar: u8,
        offset: Offset,
        data: Vec<u8>,
    },
    /// One of the registers.
    Register {
        which: u8,
        value: Value,
    },
    Config {
        offset: u16,
        data: Vec<u8>,
    },
    Read {
        bar: u8,
        offset: Offset,
        len_bytes: u8,
    },
    Doorbell {
        queue: u8,
        head: bool,
        value: u16,
        loudly: bool,
    },
    /// Garbage for the rings to hold; most commands of it are admin commands.
    Fill {
        at: u16,
        words: [u32; 16],
    },
    Poll {
        queue: u8,
    },
    Finish {
        which: u8,
        fails: bool,
    },
    Map {
        at: u8,
        hole: bool,
    },
    Unmap {
        at: u8,
    },
    Reset {
        gone: bool,
    },
    Mask {
        vector: u16,
        masked: bool,
    },
    Arm(bool),
    Sleep(bool),
    Save,
}

#[derive(Debug, Arbitrary)]
enum Offset {
    Low(u8),
    Some(u16),
    Any(u64),
}

#[derive(Debug, Arbitrary)]
enum Value {
    Enable,
    EnableWith(u32),
    ShutDown,
    Small(u8),
    Page(u8),
    Reset,
    Any(u32),
}

struct Wires;

impl Interrupts for Wires {
    fn raise(&mut self, vector: u16) {
        assert!(vector < VECTORS, "vector {vector}");
    }
}

struct World {
    controller: Controller<Wires>,
    bells: Arc<Mapping>,
    journal: Arc<Mapping>,
    /// The guest's view of its memory, and what the VMM shares of it.
    ram: Arc<Mapping>,
    ram_fd: OwnedFd,
    flights: Vec<(Token, IoBuf)>,
    constant: Vec<u8>,
    /// A shutdown was asked for since the last reset.
    shut_down: bool,
}

fn namespace(base_bytes: u64, lba_bytes: u32) -> NamespaceConfig {
    NamespaceConfig {
        base_bytes,
        size_bytes: 1 << 20,
        lba_bytes,
        lba_sizes: vec![512, 4096],
        read_only: false,
        shared: false,
        elsewhere: false,
        nguid: None,
        format_cut_short: false,
        erases_by_key: false,
    }
}

fn config() -> ControllerConfig {
    ControllerConfig {
        serial: "1".into(),
        model: "fuzz".into(),
        firmware: "1".into(),
        subnqn: "nqn.2026-01.io.evenkeel:fuzz".into(),
        tenant: TenantId(0),
        namespaces: vec![(1, namespace(1 << 20, 512)), (7, namespace(2 << 20, 4096))],
        sanitize: None,
        discard: true,
        write_zeroes: true,
        volatile_write_cache: true,
        max_io_queues: 8,
        max_depth: 128,
        max_transfer_bytes: 64 << 10,
        doorbells: Doorbells::Trapped,
        queues_singly: false,
        part: nvme_controller::Part::WHOLE,
    }
}

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    let mut world = World::new();
    // Running out of input ends the program.
    let _ = world.play(&mut Unstructured::new(data));
    world.finish();
}

impl World {
    fn new() -> Self {
        let (bells, _) = Mapping::memfd("doorbells", 4096).expect("a memfd");
        let (ram, ram_fd) = Mapping::memfd("ram", RAM_BYTES as usize).expect("a memfd");
        let mut controller = Controller::new(config(), Arc::clone(&bells), Wires).expect("a good configuration");
        let (journal, _) = Mapping::memfd("journal", journal_bytes(&config()) as usize).expect("a memfd");
        controller.keep_journal(&journal).expect("long enough");
        let (flights, constant) = (Vec::new(), Vec::new());
        let mut world = Self { controller, bells, journal, ram, ram_fd, flights, constant, shut_down: false };
        world.constant = world.constants();
        world
    }

    fn play(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..MAX_STEPS {
            if u.is_empty() {
                break;
            }
            self.step(Step::arbitrary(u)?);
            self.check();
        }
        Ok(())
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { bar, offset, data } => self.write(bar % 6, offset.value(), &data),
            Step::Register { which, value } => self.register(which, &value),
            Step::Config { offset, data } => self.config_write(offset.into(), &data),
            Step::Read { bar, offset, len_bytes } => self.read(bar % 6, offset.value(), len_bytes.into()),
            Step::Doorbell { queue, head, value, loudly } => self.ring(queue % 9, head, value.into(), loudly),
            Step::Fill { at, words } => {
                let at = u64::from(at) * 64 % RAM_BYTES;
                self.ram.write_at(at, bytemuck::cast_slice(&words)).expect("inside");
            }
            Step::Poll { queue } => self.poll(u16::from(queue % 9)),
            Step::Finish { which, fails } => self.finish_one(which.into(), fails),
            Step::Map { at, hole } => {
                let mapping = (!hole).then(|| self.mapping());
                // A range over another one is refused; nothing else can be wrong.
                let _ = self.controller.dma_map(u64::from(at % 2) * RAM_BYTES, RAM_BYTES, mapping, &mut ());
            }
            Step::Unmap { at } => {
                let _ = self.controller.dma_unmap(u64::from(at % 2) * RAM_BYTES, RAM_BYTES);
            }
            Step::Reset { gone } => {
                if gone {
                    self.controller.client_gone();
                } else {
                    self.controller.reset();
                }
                self.was_reset();
            }
            Step::Mask { vector, masked } => self.controller.set_vector_masked(vector, masked),
            Step::Arm(armed) => self.controller.set_msix_armed(armed),
            Step::Sleep(wanted) => self.controller.set_wakeup(wanted),
            Step::Save => self.save(),
        }
    }

    fn mapping(&self) -> Arc<Mapping> {
        Mapping::shared(self.ram_fd.as_fd(), 0, RAM_BYTES, true).expect("mappable")
    }

    fn was_reset(&mut self) {
        self.shut_down = false;
        assert_eq!(self.reg32(Reg::Cc), 0, "CC after a reset");
        assert_eq!(self.csts().0 & (Csts::RDY | Csts::CFS), 0, "CSTS after a reset");
    }

    /// A write to BAR0 is that of its dwords; everything that is not dwords, and other BARs, is ignored.
    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        let dwords = bar == 0 && offset.is_multiple_of(4) && data.len().is_multiple_of(4);
        if dwords && offset < BAR0_BYTES {
            for (at, dword) in (offset..).step_by(4).zip(data.chunks_exact(4)) {
                self.write_dword(at, u32::from_le_bytes([dword[0], dword[1], dword[2], dword[3]]));
            }
            return;
        }
        let before = self.snapshot();
        self.controller.bar_write(bar, offset, data);
        if bar != 4 || offset >= BAR4_BYTES {
            assert!(before == self.snapshot(), "a write of {} bytes at {offset:#x} of BAR{bar} is seen", data.len());
        }
    }

    fn write_dword(&mut self, at: u64, value: u32) {
        let (cc, csts) = (Cc(self.reg32(Reg::Cc)), self.csts());
        self.controller.bar_write(0, at, &value.to_le_bytes());
        let new = Cc(self.reg32(Reg::Cc));
        if at == Reg::Cc.offset() {
            let asks = cc.en() && new.en() && new.shn() != Cc::SHN_NONE && csts.shst() == Csts::SHST_NONE;
            self.shut_down = new.en() && (self.shut_down || asks);
            // What a shutdown of a disabled controller means, the specification leaves open.
            self.shut_down &= cc.en();
        } else if at == Reg::Nssr.offset() && value == NSSR_RESET {
            self.was_reset();
        } else {
            assert_eq!(cc, new, "a write at {at:#x} changed CC");
        }
        let is_reset = cc.en() && !new.en();
        assert!(is_reset || !csts.cfs() || self.csts().cfs(), "a fatal status went away without a reset");
    }

    fn register(&mut self, which: u8, value: &Value) {
        let regs = [
            Reg::Cc,
            Reg::Cc,
            Reg::Cc,
            Reg::Aqa,
            Reg::Aqa,
            Reg::Asq,
            Reg::Acq,
            Reg::Csts,
            Reg::Nssr,
            Reg::Intms,
            Reg::Intmc,
            Reg::Cap,
            Reg::Vs,
            Reg::Crto,
        ];
        let value = match *value {
            Value::Enable => Cc::enable_nvm().0,
            Value::EnableWith(flags) => Cc::enable_nvm().0 | flags & 0x00ff_fff0,
            Value::ShutDown => Cc::enable_nvm().with_shn(Cc::SHN_NORMAL).0,
            Value::Small(value) => u32::from(value) << 16 | u32::from(value),
            Value::Page(page) => u32::from(page % 34) << 12,
            Value::Reset => NSSR_RESET,
            Value::Any(value) => value,
        };
        self.write_dword(regs[usize::from(which) % regs.len()].offset(), value);
    }

    fn config_write(&mut self, offset: u64, data: &[u8]) {
        let before = self.config_space();
        self.controller.config_write(offset, data);
        let after = self.config_space();
        let touched = |at: u64| at >= offset && at - offset < data.len() as u64;
        for (at, (old, new)) in before.iter().zip(&after).enumerate() {
            // Initiate FLR resets every writable bit.
            let flr = touched(0x59) && data[(0x59 - offset) as usize] & 0x80 != 0;
            assert!(old == new || touched(at as u64) || flr, "byte {at:#x} of configuration space changed");
        }
        // Vendor, device, class and the capability chain.
        for fixed in [0..4, 8..12, 0x34..0x35, 0x40..0x44] {
            assert_eq!(before[fixed.clone()], after[fixed], "configuration space");
        }
        if Cc(self.reg32(Reg::Cc)).0 == 0 {
            self.shut_down = false;
        }
    }

    /// In one piece and byte by byte, reading gives the same, and changes nothing.
    fn read(&mut self, bar: u8, offset: u64, len_bytes: usize) {
        let before = self.snapshot();
        let mut whole = vec![0x5a; len_bytes];
        self.controller.bar_read(bar, offset, &mut whole);
        for (at, byte) in whole.iter().enumerate() {
            let mut one = [0x5a];
            let at = offset.wrapping_add(at as u64);
            if at < offset {
                break;
            }
            self.controller.bar_read(bar, at, &mut one);
            assert_eq!(one[0], *byte, "byte {at:#x} of BAR{bar}");
        }
        assert!(before == self.snapshot(), "reading BAR{bar} changed something");
    }

    fn ring(&mut self, queue: u8, head: bool, value: u32, loudly: bool) {
        let at = 8 * u64::from(queue) + if head { 4 } else { 0 };
        if loudly {
            self.write_dword(0x1000 + at, value);
        } else {
            self.bells.write_at(at, &value.to_le_bytes()).expect("in the page");
        }
    }

    fn poll(&mut self, vq: u16) {
        for _ in 0..8 {
            self.controller.service();
            let backlog = self.controller.backlog(vq);
            match self.controller.fetch(vq) {
                Fetch::Command(command, buf, token) => {
                    let end = command.offset_bytes + command.len_bytes;
                    let start = if command.disk == 0 { 1 << 20 } else { 2 << 20 };
                    let inside = command.offset_bytes >= start && end <= start + (1 << 20);
                    assert!(inside || command.len_bytes == 0, "outside of its namespace: {command:?}");
                    self.flights.push((token, buf));
                }
                Fetch::Handled => {}
                Fetch::Empty => {
                    assert!(backlog == 0 || !self.flights.is_empty(), "a backlog of {backlog}, nothing to fetch");
                    break;
                }
            }
        }
        self.controller.notify();
    }

    fn finish_one(&mut self, which: usize, fails: bool) {
        if !self.flights.is_empty() {
            let (token, buf) = self.flights.swap_remove(which % self.flights.len());
            self.controller.complete(token, if fails { Err(DeviceError::Medium) } else { Ok(()) }, buf);
        }
    }

    /// A successor that takes over the recorded state has an equal state.
    fn save(&mut self) {
        let state = self.controller.snapshot();
        self.controller.record();
        if !state.is_at_rest() {
            return;
        }
        let mut bytes = vec![0; self.journal.len_bytes() as usize];
        self.journal.read_at(0, &mut bytes).expect("all of it");
        let (copy, _) = Mapping::memfd("journal", bytes.len()).expect("a memfd");
        copy.write_at(0, &bytes).expect("as long");
        let taken = Controller::take_over(config(), Arc::clone(&self.bells), Wires, &copy);
        assert!(state == taken.expect("what was recorded").snapshot(), "who took over has another state");
    }

    fn check(&mut self) {
        while self.controller.take_unmapped(&mut ()).is_some() {}
        while self.controller.take_event().is_some() {}
        let (cc, csts) = (Cc(self.reg32(Reg::Cc)), self.csts());
        assert_eq!(self.constants(), self.constant, "read-only registers");
        if self.controller.is_idle() {
            assert!(cc.en() || !csts.rdy(), "ready, and not enabled");
            assert!(!cc.en() || csts.rdy() != csts.cfs(), "enabled: {csts:?}");
            assert_ne!(csts.shst(), Csts::SHST_BUSY, "a shutdown does not end");
            assert!(!self.shut_down || csts.shst() == Csts::SHST_DONE, "a shutdown was forgotten");
        }
        assert_eq!(self.controller.is_idle(), self.flights.is_empty(), "what is in flight");
    }

    fn reg32(&self, reg: Reg) -> u32 {
        let mut out = [0; 4];
        self.controller.bar_read(0, reg.offset(), &mut out);
        u32::from_le_bytes(out)
    }

    fn csts(&self) -> Csts {
        Csts(self.reg32(Reg::Csts))
    }

    fn constants(&self) -> Vec<u8> {
        let mut regs = [0; REGS_BYTES];
        self.controller.bar_read(0, 0, &mut regs);
        CONSTANT.iter().flat_map(|(at, len_bytes)| regs[*at..at + len_bytes].to_vec()).collect()
    }

    fn config_space(&self) -> [u8; CONFIG_BYTES] {
        let mut out = [0; CONFIG_BYTES];
        self.controller.config_read(0, &mut out);
        out
    }

    /// All that a guest can see, and what is kept behind it.
    fn snapshot(&self) -> ([u8; REGS_BYTES], [u8; CONFIG_BYTES], Box<ControllerState>) {
        let mut regs = [0; REGS_BYTES];
        self.controller.bar_read(0, 0, &mut regs);
        (regs, self.config_space(), Box::new(self.controller.snapshot()))
    }

    /// From here a reset and a bring-up must lead to a controller that answers.
    fn finish(&mut self) {
        while !self.flights.is_empty() {
            self.finish_one(0, false);
        }
        self.controller.client_gone();
        self.was_reset();
        self.controller.dma_map(0, RAM_BYTES, Some(self.mapping()), &mut ()).expect("nothing is mapped");
        self.ram.write_at(0, &vec![0; RAM_BYTES as usize]).expect("inside");
        let asq = 0x1000_u64;
        let identify = Sqe { opc: admin::IDENTIFY, cid: 77, dptr: [0x4000, 0], cdw10: 1, ..Sqe::zeroed() };
        self.ram.write_at(asq, bytemuck::bytes_of(&identify)).expect("inside");
        for (reg, value) in [(Reg::Aqa, u64::from(Aqa::new(7, 7).0)), (Reg::Asq, asq), (Reg::Acq, 0x2000)] {
            let bytes = if reg == Reg::Aqa { 4 } else { 8 };
            self.controller.bar_write(0, reg.offset(), &value.to_le_bytes()[..bytes]);
        }
        self.controller.bar_write(0, Reg::Cc.offset(), &Cc::enable_nvm().0.to_le_bytes());
        assert!(self.csts().rdy(), "a reset controller does not come up: {:?}", self.csts());
        self.ring(0, false, 1, true);
        assert_eq!(self.controller.live_vqs(), 1, "live queues after a reset");
        self.poll(0);
        let mut raw = [0; 16];
        self.ram.read_at(0x2000, &mut raw).expect("inside");
        let cqe: Cqe = bytemuck::cast(raw);
        assert_eq!((cqe.cid, cqe.status(), cqe.phase()), (77, Status::SUCCESS, true), "{cqe:?}");
        self.check();
        assert_eq!(self.controller.unmaps_pending(), 0, "an unmapped range is still in use");
    }
}

impl Drop for World {
    /// A harness that failed leaves commands in flight; they are not the controller's to lose.
    fn drop(&mut self) {
        self.flights.drain(..).for_each(|(token, _)| {
            token.spend();
        });
    }
}

impl Offset {
    fn value(&self) -> u64 {
        match *self {
            Self::Low(offset) => offset.into(),
            Self::Some(offset) => offset.into(),
            Self::Any(offset) => offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::seeds::run_seeds;

    #[test]
    fn random_inputs() {
        run_seeds(1000, 4000, super::run);
    }
}
