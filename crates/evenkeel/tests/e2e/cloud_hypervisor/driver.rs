//! The guest: an NVMe driver with one I/O queue pair, which looks at completions after an interrupt alone.
//!
//! Between its reads and writes it reads registers, resets, changes its interrupts and gets more memory, so that a kill
//! finds any of these messages unanswered.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail, ensure};
use hostile::victim::{Lane, MAX_BYTES, Plan};
use nvme_spec::identify::IDENTIFY_BYTES;
use nvme_spec::opcode::{admin, create};
use nvme_spec::pci::{command, header};
use nvme_spec::regs::{Aqa, Cc, Csts, Reg};
use nvme_spec::{PAGE_BYTES, Sqe};
use test_clients::nvme::{read, write};
use test_clients::rings::{Cq, Sq, create_cq, create_sq};
use test_clients::socket;

use super::vmm::{BAR0, CONFIG, HIGH_BYTES, HIGH_GPA, LOW_BYTES, PLUGGED_GPA, Vmm};

/// Commands in flight.
pub const DEPTH: u16 = 16;
const ENTRIES: u16 = 32;
/// Four queues, one page each, in low memory, whose addresses are those of the file.
const QUEUES: u64 = 0x1_0000;
/// The I/O queues' interrupt.
const VECTOR: usize = 1;
/// CNS: the controller.
const IDENTIFY_CONTROLLER: u32 = 1;

const _: () = assert!(DEPTH as u64 * MAX_BYTES <= HIGH_BYTES);

pub struct Driver {
    vmm: Vmm,
    queues: [(Sq, Cq); 2],
    /// The newest command's identifier: long unused, so that a second answer is noticed.
    cid: u16,
    /// With their tags.
    in_flight: BTreeMap<u16, (u16, Sqe)>,
    /// Completions may have come without an interrupt.
    looks: bool,
    random: fastrand::Rng,
    identity: Vec<u8>,
}

impl Driver {
    pub fn attach(plan: &Plan) -> Result<Self> {
        let vmm = Vmm::attach(&plan.directory.join("cntrl"))?;
        let random = fastrand::Rng::with_seed(plan.seed);
        let (in_flight, identity) = (BTreeMap::new(), Vec::new());
        let mut this = Self { vmm, queues: new_queues(), cid: 0, in_flight, looks: false, random, identity };
        this.begin()?;
        this.identity = this.identify()?;
        Ok(this)
    }

    /// After power on or a reset of the function.
    fn begin(&mut self) -> Result<()> {
        let enabled = command::MEMORY | command::BUS_MASTER;
        self.vmm.write(CONFIG, header::COMMAND as u64, enabled.to_le_bytes())?;
        self.vmm.enable_msix()?;
        self.enable()
    }

    /// Brings the controller up, and sends again what was in flight.
    fn enable(&mut self) -> Result<()> {
        self.queues = new_queues();
        self.vmm.memory.write_all_at(&[0; 4 * PAGE_BYTES as usize], QUEUES)?;
        let [(sq, cq), (io_sq, io_cq)] = self.queues;
        self.vmm.write(BAR0, Reg::Aqa.offset(), Aqa::new(ENTRIES - 1, ENTRIES - 1).0.to_le_bytes())?;
        self.vmm.write(BAR0, Reg::Asq.offset(), sq.at.to_le_bytes())?;
        self.vmm.write(BAR0, Reg::Acq.offset(), cq.at.to_le_bytes())?;
        self.vmm.write(BAR0, Reg::Cc.offset(), Cc::enable_nvm().0.to_le_bytes())?;
        self.wait_ready(true)?;
        self.admin(create_cq(1, ENTRIES, io_cq.at, create::PC | create::IEN | (VECTOR as u32) << 16))?;
        self.admin(create_sq(1, ENTRIES, io_sq.at, 1))?;
        for (tag, sqe) in std::mem::take(&mut self.in_flight).into_values() {
            self.push(tag, sqe)?;
        }
        self.ring()
    }

    fn status(&self) -> Result<Csts> {
        let status = Csts(u32::from_le_bytes(self.vmm.read(BAR0, Reg::Csts.offset())?));
        ensure!(!status.cfs(), "the controller reports a fatal status");
        Ok(status)
    }

    fn wait_ready(&self, ready: bool) -> Result<()> {
        /// Reads of the register, each a message and its answer: many times what a reset takes.
        const LOOKS: u32 = 1_000_000;
        for _ in 0..LOOKS {
            if self.status()?.rdy() == ready {
                return Ok(());
            }
        }
        bail!("CSTS.RDY never became {ready}")
    }

    fn next_cid(&mut self) -> u16 {
        // FFFFh is no command's (Base 4.2.3).
        self.cid = (self.cid + 1) % u16::MAX;
        self.cid
    }

    fn push(&mut self, tag: u16, sqe: Sqe) -> Result<()> {
        let sqe = Sqe { cid: self.next_cid(), ..sqe };
        ensure!(self.in_flight.insert(sqe.cid, (tag, sqe)).is_none(), "a command is in flight for ever");
        Ok(self.queues[1].0.push(&self.vmm.memory, &sqe)?)
    }

    /// An admin command from its submission to its completion.
    fn admin(&mut self, sqe: Sqe) -> Result<()> {
        let sqe = Sqe { cid: self.next_cid(), ..sqe };
        let (sq, cq) = &mut self.queues[0];
        sq.push(&self.vmm.memory, &sqe)?;
        self.vmm.ring(0, sq.tail)?;
        let cqe = loop {
            self.vmm.wait(0).with_context(|| format!("admin command {:#04x}", sqe.opc))?;
            if let Some(cqe) = cq.take(&self.vmm.memory)? {
                break cqe;
            }
        };
        ensure!(cqe.cid == sqe.cid, "admin command {} completed, not {}", cqe.cid, sqe.cid);
        ensure!(cqe.status().is_success(), "admin command {:#04x}: {}", sqe.opc, cqe.status());
        self.vmm.ring(4, cq.head)
    }

    /// Identify Controller, into memory that is plugged in for it.
    fn identify(&mut self) -> Result<Vec<u8>> {
        let memory = socket::memory(PAGE_BYTES)?;
        let fd = memory.as_raw_fd();
        self.vmm.call("DMA map", move |client| client.dma_map(0, PLUGGED_GPA, PAGE_BYTES, fd))?;
        let (opc, cdw10) = (admin::IDENTIFY, IDENTIFY_CONTROLLER);
        self.admin(Sqe { opc, cdw10, dptr: [PLUGGED_GPA, 0], ..Sqe::default() })?;
        self.vmm.call("DMA unmap", |client| client.dma_unmap(PLUGGED_GPA, PAGE_BYTES))?;
        let mut identity = vec![0; IDENTIFY_BYTES];
        memory.read_exact_at(&mut identity, 0)?;
        Ok(identity)
    }

    /// Something other than reads and writes, drawn.
    fn disturb(&mut self) -> Result<()> {
        match self.random.u32(..1000) {
            0..2 => {
                self.vmm.call("reset", vfio_user::Client::reset)?;
                ensure!(!self.status()?.rdy(), "ready after a reset");
                self.begin()
            }
            2..4 => {
                self.vmm.write(BAR0, Reg::Cc.offset(), 0u32.to_le_bytes())?;
                self.wait_ready(false)?;
                self.enable()
            }
            4..12 => {
                self.vmm.disable_msix()?;
                self.vmm.enable_msix()?;
                self.looks = true;
                Ok(())
            }
            12..50 => {
                let identity = self.identify()?;
                ensure!(identity == self.identity, "the controller is another one");
                Ok(())
            }
            50..500 => {
                ensure!(self.status()?.rdy(), "no longer ready");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Lane for Driver {
    fn send(&mut self, tag: u16, offset_bytes: u64, len_bytes: u64, data: Option<&[u8]>) -> Result<()> {
        let at = u64::from(tag) * MAX_BYTES;
        let command = if data.is_some() { write } else { read };
        data.map_or(Ok(()), |data| self.vmm.memory.write_all_at(data, LOW_BYTES + at))?;
        self.push(tag, command(0, offset_bytes / 512, HIGH_GPA + at, len_bytes))
    }

    fn ring(&mut self) -> Result<()> {
        self.vmm.ring(8, self.queues[1].0.tail)
    }

    fn take_done(&mut self) -> Result<Vec<(u16, Result<()>)>> {
        self.disturb()?;
        let mut done = Vec::new();
        if !self.vmm.was_interrupted(VECTOR) && !std::mem::take(&mut self.looks) {
            return Ok(done);
        }
        let cq = &mut self.queues[1].1;
        while let Some(cqe) = cq.take(&self.vmm.memory)? {
            let (tag, _) = self.in_flight.remove(&cqe.cid).context("a completion of no command in flight")?;
            let status = cqe.status();
            done.push((tag, if status.is_success() { Ok(()) } else { Err(anyhow::anyhow!("{status}")) }));
        }
        self.vmm.ring(12, cq.head)?;
        Ok(done)
    }

    fn data(&self, tag: u16, out: &mut [u8]) -> Result<()> {
        Ok(self.vmm.memory.read_exact_at(out, LOW_BYTES + u64::from(tag) * MAX_BYTES)?)
    }

    fn attach_again(&mut self, _plan: &Plan) -> Result<bool> {
        bail!("it does not know of another daemon")
    }
}

fn new_queues() -> [(Sq, Cq); 2] {
    [0, 1].map(|number| {
        let at = QUEUES + u64::from(number) * 2 * PAGE_BYTES;
        (Sq::new(at, ENTRIES, number), Cq::new(at + PAGE_BYTES, ENTRIES))
    })
}
