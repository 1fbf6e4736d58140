//! An NVMe host over vfio-user that sends what it likes, and whose memory is a file that it may do anything with.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_memory::{MappedU32, Mapping};
use nvme_spec::data::{SglDescriptor, psdt, sgl_type};
use nvme_spec::opcode::{create, nvm};
use nvme_spec::regs::{Aqa, Cc, Csts, Reg};
use nvme_spec::{Sqe, Status};
use rustix::io::Errno;

use crate::rings::{Cq, Sq, create_cq, create_sq};
use crate::socket::{is_closed, memory, patiently};
use crate::vfio::{Client, NO_REPLY, dma_map, get_region_info, region_read, region_write, set_irqs};

/// Where the queues' memory begins in the device's addresses.
pub const QUEUES_IOVA: u64 = 1 << 32;
/// Bytes of queue memory: the four queues, one page each, and what else an attack keeps there.
pub const QUEUES_BYTES: u64 = 1 << 20;
/// Free for attacks, behind the queues.
pub const FREE_AT: u64 = 0x1_0000;
/// Entries of each queue.
pub const ENTRIES: u16 = 32;

const PAGE: u64 = 4096;
const DOORBELLS: u64 = 0x1000;
/// How long a command of ours is waited for.
const COMMAND_LIMIT: Duration = Duration::from_secs(3);

/// MSI-X, with eventfds.
const MSIX: u32 = 2;
const IRQ_EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;

/// A connection with a version agreed on, and soon a controller.
pub struct Nvme {
    /// The connection.
    pub client: Client,
    /// Queues, lists and small data.
    pub memory: File,
    doorbells: Option<Arc<Mapping>>,
    /// By number.
    queues: [(Sq, Cq); 2],
}

impl Nvme {
    /// Agrees on a version.
    pub fn greet(directory: &Path) -> io::Result<Self> {
        let client = Client::greet(&directory.join("cntrl"), COMMAND_LIMIT)?;
        let queues = [0, 1].map(|number| {
            let at = u64::from(number) * 2 * PAGE;
            (Sq::new(at, ENTRIES, number), Cq::new(at + PAGE, ENTRIES))
        });
        Ok(Self { client, memory: memory(QUEUES_BYTES)?, doorbells: None, queues })
    }

    /// As [`Nvme::greet`], but the previous client may still be leaving.
    pub fn greet_patiently(directory: &Path) -> io::Result<Self> {
        patiently(COMMAND_LIMIT, || Self::greet(directory))
    }

    /// A controller that runs, with one I/O queue pair; its doorbells are mapped if asked for.
    pub fn start(directory: &Path, mapped_doorbells: bool) -> io::Result<Self> {
        let mut this = Self::greet_patiently(directory)?;
        let memory = this.memory.try_clone()?;
        this.map(QUEUES_IOVA, &memory, QUEUES_BYTES)??;
        if mapped_doorbells {
            this.map_doorbells()?;
        }
        this.enable()?;
        let (sq, cq) = this.queues[1];
        let cq = create_cq(1, ENTRIES, QUEUES_IOVA + cq.at, create::PC | create::IEN);
        let sq = create_sq(1, ENTRIES, QUEUES_IOVA + sq.at, 1);
        for sqe in [cq, sq] {
            let status = this.run(0, sqe)?;
            if !status.is_success() {
                return Err(io::Error::other(format!("no queue: {status}")));
            }
        }
        Ok(this)
    }

    /// Maps the start of `file` at `iova`; says whether that was granted.
    pub fn map(&self, iova: u64, file: &File, len_bytes: u64) -> io::Result<Result<(), Errno>> {
        Ok(self.client.ask(&dma_map(1, 3, 0, iova, len_bytes), &[file.as_fd()])?.map(drop))
    }

    /// Has MSI-X vector 0 signal `event`.
    pub fn set_interrupt(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        let message = set_irqs(1, IRQ_EVENTFD_TRIGGER, MSIX, 0, 1, &[]);
        self.client.ask(&message, &[event])?.map(drop).map_err(io::Error::from)
    }

    fn map_doorbells(&mut self) -> io::Result<()> {
        self.client.send(&get_region_info(1, 4096, 0), &[])?;
        let (payload, fd) = self.client.answer_with_fd()?;
        let (payload, fd) = (payload?, fd.ok_or(io::ErrorKind::InvalidData)?);
        let offset = payload.get(24..32).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
        let offset = offset.ok_or(io::ErrorKind::InvalidData)? + DOORBELLS;
        self.doorbells = Some(Mapping::shared(fd.as_fd(), offset, PAGE, true).map_err(io::Error::other)?);
        Ok(())
    }

    fn write_register(&self, reg: Reg, value: &[u8]) -> io::Result<()> {
        self.client.ask(&region_write(1, 0, 0, reg.offset(), value), &[])?.map(drop).map_err(io::Error::from)
    }

    /// CSTS.
    pub fn status_register(&self) -> io::Result<Csts> {
        let reply = self.client.ask(&region_read(1, 0, Reg::Csts.offset(), 4), &[])?.map_err(io::Error::from)?;
        let value = reply.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        Ok(Csts(value.ok_or(io::ErrorKind::InvalidData)?))
    }

    fn enable(&self) -> io::Result<()> {
        match self.comes_up()? {
            true => Ok(()),
            false => Err(io::Error::other("the controller reports a fatal status")),
        }
    }

    /// Whether it runs once it is enabled, with its queues where they are; else it reports a fatal status.
    pub fn comes_up(&self) -> io::Result<bool> {
        // Memory space and bus mastering.
        self.client.ask(&region_write(1, 0, 7, 4, &6_u16.to_le_bytes()), &[])?.map_err(io::Error::from)?;
        let (sq, cq) = self.queues[0];
        self.write_register(Reg::Aqa, &Aqa::new(ENTRIES - 1, ENTRIES - 1).0.to_le_bytes())?;
        self.write_register(Reg::Asq, &(QUEUES_IOVA + sq.at).to_le_bytes())?;
        self.write_register(Reg::Acq, &(QUEUES_IOVA + cq.at).to_le_bytes())?;
        self.write_register(Reg::Cc, &Cc::enable_nvm().0.to_le_bytes())?;
        let start = Instant::now();
        loop {
            let status = self.status_register()?;
            if status.rdy() || status.0 & Csts::CFS != 0 {
                return Ok(status.rdy());
            }
            if start.elapsed() > COMMAND_LIMIT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Puts a command into queue 0 or 1, under an identifier that the caller chose.
    pub fn submit(&mut self, queue: usize, sqe: Sqe) -> io::Result<()> {
        self.queues[queue].0.push(&self.memory, &sqe)
    }

    /// Rings a submission queue's doorbell.
    pub fn ring(&self, queue: usize) -> io::Result<()> {
        self.doorbell(queue as u64 * 8, self.queues[queue].0.tail.into())
    }

    /// Writes the doorbell at this offset.
    pub fn doorbell(&self, offset: u64, value: u32) -> io::Result<()> {
        match self.doorbells.as_ref().and_then(|page| MappedU32::new(page, offset)) {
            Some(cell) => {
                cell.store(value);
                Ok(())
            }
            None => self.client.send(&region_write(1, NO_REPLY, 0, DOORBELLS + offset, &value.to_le_bytes()), &[]),
        }
    }

    /// What completed: identifiers and statuses.
    pub fn poll(&mut self, queue: usize) -> io::Result<Vec<(u16, Status)>> {
        let mut done = Vec::new();
        let cq = &mut self.queues[queue].1;
        while done.len() < ENTRIES.into()
            && let Some(cqe) = cq.take(&self.memory)?
        {
            done.push((cqe.cid, cqe.status()));
        }
        let head = cq.head;
        if !done.is_empty() {
            self.doorbell(queue as u64 * 8 + 4, head.into())?;
        }
        Ok(done)
    }

    /// One command from its submission to its completion.
    pub fn run(&mut self, queue: usize, sqe: Sqe) -> io::Result<Status> {
        self.submit(queue, sqe)?;
        self.ring(queue)?;
        let start = Instant::now();
        loop {
            if let Some(&(_, status)) = self.poll(queue)?.first() {
                return Ok(status);
            }
            if start.elapsed() > COMMAND_LIMIT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether the daemon closed the connection. Reads what is unread.
    pub fn is_closed(&self) -> bool {
        self.status_register().is_err_and(|error| is_closed(&error))
    }
}

/// A read or write of `len_bytes` (blocks of 512) with `data`.
pub fn transfer(opc: u8, cid: u16, lba: u64, len_bytes: u64, data: SglDescriptor) -> Sqe {
    Sqe {
        opc,
        flags: psdt::SGL << 6,
        cid,
        nsid: 1,
        dptr: bytemuck::cast(data),
        cdw10: lba as u32,
        cdw11: (lba >> 32) as u32,
        cdw12: (len_bytes / 512) as u32 - 1,
        ..Sqe::default()
    }
}

/// A read of `len_bytes` to one address.
pub fn read(cid: u16, lba: u64, iova: u64, len_bytes: u64) -> Sqe {
    transfer(nvm::READ, cid, lba, len_bytes, SglDescriptor::new(sgl_type::DATA_BLOCK, iova, len_bytes as u32))
}

/// A write of `len_bytes` from one address.
pub fn write(cid: u16, lba: u64, iova: u64, len_bytes: u64) -> Sqe {
    transfer(nvm::WRITE, cid, lba, len_bytes, SglDescriptor::new(sgl_type::DATA_BLOCK, iova, len_bytes as u32))
}
