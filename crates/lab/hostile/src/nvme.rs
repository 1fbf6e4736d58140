//! An NVMe host over vfio-user that sends what it likes, and whose memory is a file that it may do anything with.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bytemuck::{Zeroable, bytes_of, bytes_of_mut};
use guest_memory::{MappedU32, Mapping};
use nvme_spec::data::{SglDescriptor, psdt, sgl_type};
use nvme_spec::opcode::{admin, create, nvm};
use nvme_spec::regs::{Aqa, Cc, Csts, Reg};
use nvme_spec::{Cqe, Sqe, Status};
use rustix::io::Errno;

use crate::fuse::Stuck;
use crate::wire::vfio::{NO_REPLY, dma_map, get_region_info, region_read, region_write, set_irqs, version};
use crate::wire::{connect, receive, send};

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

/// A submission queue with its completion queue.
#[derive(Debug, Clone, Copy)]
struct Pair {
    id: u16,
    tail: u16,
    head: u16,
    phase: bool,
}

impl Pair {
    fn new(id: u16) -> Self {
        Self { id, tail: 0, head: 0, phase: true }
    }

    fn sq_at(&self) -> u64 {
        u64::from(self.id) * 2 * PAGE
    }

    fn cq_at(&self) -> u64 {
        self.sq_at() + PAGE
    }
}

/// A connection with a version agreed on, and soon a controller.
pub struct Nvme {
    stream: UnixStream,
    /// Queues, lists and small data.
    pub memory: File,
    doorbells: Option<std::sync::Arc<Mapping>>,
    pairs: [Pair; 2],
}

impl Nvme {
    /// Agrees on a version.
    pub fn greet(directory: &Path) -> io::Result<Self> {
        let stream = connect(&directory.join("cntrl"))?;
        let memory = crate::wire::memory(QUEUES_BYTES)?;
        let this = Self { stream, memory, doorbells: None, pairs: [Pair::new(0), Pair::new(1)] };
        this.send(&version("{}"), &[])?;
        this.answer()?.map_err(io::Error::from)?;
        Ok(this)
    }

    /// As [`Nvme::greet`], but the previous client may still be leaving.
    pub fn greet_patiently(directory: &Path) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            match Self::greet(directory) {
                Err(error) if start.elapsed() > COMMAND_LIMIT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
                greeted => return greeted,
            }
        }
    }

    /// Leaves a file whose close never ends with the process that receives for the controller.
    ///
    /// # Errors
    /// The file can't be sent.
    pub fn leave(&self, stuck: &Stuck) -> io::Result<()> {
        stuck.hand_over(|fd| self.send(&dma_map(1, 3, 0, 1 << 40, 4096), &[fd]))
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
        let pages = |pair: Pair| (QUEUES_IOVA + pair.cq_at(), QUEUES_IOVA + pair.sq_at());
        let (cq, sq) = pages(this.pairs[1]);
        let size = u32::from(ENTRIES - 1) << 16 | 1;
        let cq = Sqe {
            opc: admin::CREATE_CQ,
            dptr: [cq, 0],
            cdw10: size,
            cdw11: create::PC | create::IEN,
            ..Sqe::default()
        };
        let sq =
            Sqe { opc: admin::CREATE_SQ, dptr: [sq, 0], cdw10: size, cdw11: create::PC | 1 << 16, ..Sqe::default() };
        for sqe in [cq, sq] {
            let status = this.run(0, sqe)?;
            if !status.is_success() {
                return Err(io::Error::other(format!("no queue: {status}")));
            }
        }
        Ok(this)
    }

    /// Sends a message.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.stream, bytes, fds)
    }

    /// Reads the next reply's payload.
    pub fn answer(&self) -> io::Result<Result<Vec<u8>, Errno>> {
        let mut header = [0; 16];
        receive(&self.stream, &mut header)?;
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut payload = vec![0; (word(4) as usize).saturating_sub(header.len())];
        receive(&self.stream, &mut payload)?;
        Ok(if word(8) & 0x20 == 0 { Ok(payload) } else { Err(Errno::from_raw_os_error(word(12) as i32)) })
    }

    /// Sends a message and reads its reply's payload.
    pub fn ask(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Result<Vec<u8>, Errno>> {
        self.send(bytes, fds)?;
        self.answer()
    }

    /// Maps the start of `file` at `iova`; says whether that was granted.
    pub fn map(&self, iova: u64, file: &File, len_bytes: u64) -> io::Result<Result<(), Errno>> {
        Ok(self.ask(&dma_map(1, 3, 0, iova, len_bytes), &[file.as_fd()])?.map(drop))
    }

    /// Has MSI-X vector 0 signal `event`.
    pub fn set_interrupt(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        let message = set_irqs(1, IRQ_EVENTFD_TRIGGER, MSIX, 0, 1, &[]);
        self.ask(&message, &[event])?.map(drop).map_err(io::Error::from)
    }

    fn map_doorbells(&mut self) -> io::Result<()> {
        self.send(&get_region_info(1, 4096, 0), &[])?;
        let mut header = [0; 16];
        let fd = receive(&self.stream, &mut header)?;
        let size = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let mut payload = vec![0; size.saturating_sub(header.len())];
        let fd = fd.or(receive(&self.stream, &mut payload)?).ok_or(io::ErrorKind::InvalidData)?;
        let offset = payload.get(24..32).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
        let offset = offset.ok_or(io::ErrorKind::InvalidData)? + DOORBELLS;
        self.doorbells = Some(Mapping::shared(fd.as_fd(), offset, PAGE, true).map_err(io::Error::other)?);
        Ok(())
    }

    fn write_register(&self, reg: Reg, value: &[u8]) -> io::Result<()> {
        self.ask(&region_write(1, 0, 0, reg.offset(), value), &[])?.map(drop).map_err(io::Error::from)
    }

    /// CSTS.
    pub fn status_register(&self) -> io::Result<Csts> {
        let reply = self.ask(&region_read(1, 0, Reg::Csts.offset(), 4), &[])?.map_err(io::Error::from)?;
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
        self.ask(&region_write(1, 0, 7, 4, &6_u16.to_le_bytes()), &[])?.map_err(io::Error::from)?;
        let pair = self.pairs[0];
        self.write_register(Reg::Aqa, &Aqa::new(ENTRIES - 1, ENTRIES - 1).0.to_le_bytes())?;
        self.write_register(Reg::Asq, &(QUEUES_IOVA + pair.sq_at()).to_le_bytes())?;
        self.write_register(Reg::Acq, &(QUEUES_IOVA + pair.cq_at()).to_le_bytes())?;
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
        let pair = &mut self.pairs[queue];
        self.memory.write_all_at(bytes_of(&sqe), pair.sq_at() + u64::from(pair.tail) * 64)?;
        pair.tail = (pair.tail + 1) % ENTRIES;
        Ok(())
    }

    /// Rings a submission queue's doorbell.
    pub fn ring(&self, queue: usize) -> io::Result<()> {
        let pair = self.pairs[queue];
        self.doorbell(u64::from(pair.id) * 8, pair.tail.into())
    }

    /// Writes the doorbell at this offset.
    pub fn doorbell(&self, offset: u64, value: u32) -> io::Result<()> {
        match self.doorbells.as_ref().and_then(|page| MappedU32::new(page, offset)) {
            Some(cell) => {
                cell.store(value);
                Ok(())
            }
            None => self.send(&region_write(1, NO_REPLY, 0, DOORBELLS + offset, &value.to_le_bytes()), &[]),
        }
    }

    /// What completed: identifiers and statuses.
    pub fn poll(&mut self, queue: usize) -> io::Result<Vec<(u16, Status)>> {
        let mut done = Vec::new();
        let pair = &mut self.pairs[queue];
        while done.len() < ENTRIES.into() {
            let mut cqe = Cqe::zeroed();
            self.memory.read_exact_at(bytes_of_mut(&mut cqe), pair.cq_at() + u64::from(pair.head) * 16)?;
            if cqe.phase() != pair.phase {
                break;
            }
            done.push((cqe.cid, cqe.status()));
            pair.head = (pair.head + 1) % ENTRIES;
            pair.phase ^= pair.head == 0;
        }
        let (at, head) = (u64::from(pair.id) * 8 + 4, pair.head);
        if !done.is_empty() {
            self.doorbell(at, head.into())?;
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
        self.status_register().is_err_and(|error| crate::wire::is_closed(&error))
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
