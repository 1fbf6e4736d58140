//! A client of one tenant, with one command in flight: of an NVMe controller with all its namespaces, or of a virtio
//! disk.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use load::VhostDisk;
use load::disk::{Disk, DiskQueue, Failure, QueueShape, Request};
use load::{Direction, VhostQueue};
use nvme_driver::{Blocks, Controller, Data, DmaMemory, QueuePair, VfioUserDevice};

use super::HANG;

/// The most that is moved at a time.
pub const MOST_BYTES: u64 = 64 << 10;
/// The number of a tenant's own disk.
pub const OWN: u32 = 1;
/// How long a command is waited for that may have lost its disk.
const GIVEN_UP: Duration = Duration::from_millis(100);
/// Between two looks for a completion.
const POLL_PAUSE: Duration = Duration::from_micros(20);
/// How long a place at a tenant's socket is waited for.
const PLACE_LIMIT: Duration = Duration::from_secs(5);
/// What nobody formats has blocks of this.
const LBA_BYTES: u64 = 512;

/// A client.
pub enum Client {
    /// With all namespaces of a controller.
    Nvme(Box<Nvme>),
    /// With the one disk of a virtio tenant. The queue goes before the disk does.
    Virtio(Box<VhostQueue>, Box<VhostDisk>),
}

/// A controller with one queue. Queue and memory go before the connection does.
pub struct Nvme {
    queue: QueuePair,
    data: DmaMemory,
    controller: Controller<VfioUserDevice>,
}

/// A piece of a disk of a client's.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Which disk: [`OWN`], or another namespace.
    pub nsid: u32,
    /// Its first byte there.
    pub offset_bytes: u64,
}

impl Client {
    /// Attaches to whatever listens in a tenant's directory. Given up once `stop` is set.
    pub fn attach(directory: &Path, stop: &AtomicBool) -> Result<Self> {
        let start = Instant::now();
        loop {
            match Self::try_attach(directory) {
                // The previous client may still be leaving.
                Err(_) if !stop.load(Relaxed) && start.elapsed() < PLACE_LIMIT => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                attached => return attached,
            }
        }
    }

    fn try_attach(directory: &Path) -> Result<Self> {
        let vhost = directory.join("vhost.sock");
        if vhost.exists() {
            let mut disk = VhostDisk::connect(&vhost)?;
            let shape = QueueShape { depth: 1, buffer_bytes: MOST_BYTES, priority: None };
            let queue = disk.open_queues(&[shape])?.pop().context("it has no queue")?;
            return Ok(Self::Virtio(Box::new(queue), Box::new(disk)));
        }
        let mut controller = Controller::start(VfioUserDevice::connect(directory)?)?;
        let queue = controller.create_queue_pair(2, None)?;
        let data = controller.allocate_dma(MOST_BYTES as usize)?;
        Ok(Self::Nvme(Box::new(Nvme { queue, data, controller })))
    }

    /// The size of a disk as this client sees it; 0: it is not there.
    pub fn size_bytes(&mut self, nsid: u32) -> Result<u64> {
        match self {
            Self::Virtio(_, disk) => Ok(if nsid == OWN { disk.geometry().size_bytes } else { 0 }),
            Self::Nvme(nvme) => match nvme.controller.admin().identify_namespace(nsid) {
                Ok(found) if u64::from(found.block_bytes) == LBA_BYTES => Ok(found.size_bytes()),
                Ok(found) => bail!("namespace {nsid} has blocks of {} bytes", found.block_bytes),
                // All zeros, or a status: it is not there.
                Err(nvme_driver::Error::Unsuitable(_) | nvme_driver::Error::Command { .. }) => Ok(0),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Runs one command, and returns how it ended. Gives up if it does not end after `stop` was set: the disk may have
    /// been taken away.
    pub fn run(
        &mut self,
        direction: Direction,
        piece: Piece,
        data: &mut [u8],
        stop: &AtomicBool,
    ) -> Result<Result<(), Failure>> {
        if direction == Direction::Write {
            self.copy_in(data).context("the buffer is too small")?;
        }
        self.send(direction, piece, data.len() as u64)?;
        let start = Instant::now();
        let ended = loop {
            if let Some(ended) = self.poll()? {
                break ended;
            }
            if start.elapsed() > Duration::from_millis(20) {
                self.check()?;
            }
            if start.elapsed() > if stop.load(Relaxed) { GIVEN_UP } else { HANG } {
                bail!("a command never completed");
            }
            // Not spinning: what serves it may be waiting for this CPU.
            std::thread::sleep(POLL_PAUSE);
        };
        if direction == Direction::Read && ended.is_ok() {
            self.copy_out(data).context("the buffer is too small")?;
        }
        Ok(ended)
    }

    fn copy_in(&self, data: &[u8]) -> Option<()> {
        match self {
            Self::Nvme(nvme) => nvme.data.write(0, data),
            Self::Virtio(queue, _) => queue.buffers().write(queue.next_tag()?, data),
        }
    }

    fn copy_out(&self, data: &mut [u8]) -> Option<()> {
        match self {
            Self::Nvme(nvme) => nvme.data.read(0, data),
            // The only tag that there is.
            Self::Virtio(queue, _) => queue.buffers().read(queue.next_tag()?, data),
        }
    }

    fn send(&mut self, direction: Direction, piece: Piece, len_bytes: u64) -> Result<()> {
        let Piece { nsid, offset_bytes } = piece;
        match self {
            Self::Nvme(nvme) => {
                let (lba, count) = (offset_bytes / LBA_BYTES, (len_bytes / LBA_BYTES) as u32);
                let (blocks, data) = (Blocks { nsid, lba, count }, Data { iova: nvme.data.iova(), len_bytes });
                match direction {
                    Direction::Write => nvme.queue.write(blocks, data, false)?,
                    _ => nvme.queue.read(blocks, data)?,
                };
                nvme.queue.ring()?;
            }
            Self::Virtio(queue, _) => {
                queue.send(Request { direction, offset_bytes, len_bytes, durable: false })?;
                queue.ring()?;
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Result<(), Failure>>> {
        let mut ended = None;
        match self {
            Self::Nvme(nvme) => nvme.queue.poll(&mut |done| {
                let status = done.status;
                ended = Some(if status.is_success() { Ok(()) } else { Err(Failure::Nvme(status)) });
            })?,
            Self::Virtio(queue, _) => queue.poll(&mut |done| ended = Some(done.outcome))?,
        };
        Ok(ended)
    }

    fn check(&mut self) -> Result<()> {
        match self {
            Self::Nvme(nvme) => nvme.controller.check()?,
            Self::Virtio(_, disk) => disk.check()?,
        }
        Ok(())
    }
}
