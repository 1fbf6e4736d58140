//! Jobs on an NVMe controller's first namespace.

use io_model::QueuePriority;
use nvme_driver::{
    Arbitration, Blocks, Controller, Data, DmaMemory, Error as DriverError, Namespace, PciDevice, QueuePair,
    SubmitError, priority_of_this_thread,
};
use nvme_spec::data::DsmRange;

use crate::Error;
use crate::disk::{Buffers, Disk, DiskQueue, Done, Failure, Geometry, QueueShape, Request};
use crate::stats::Direction;

/// The first namespace of a controller.
pub struct NvmeDisk<D: PciDevice> {
    controller: Controller<D>,
    ns: Namespace,
    /// All queues' buffers in one: a server allows few mappings.
    buffers: Option<DmaMemory>,
    /// Queues that use them.
    open: usize,
}

impl<D: PciDevice> NvmeDisk<D> {
    /// Brings the controller behind `device` up, with weighted round robin among its queues if it has that.
    pub fn start(device: D) -> Result<Self, Error> {
        Self::start_with(device, None)
    }

    /// As [`NvmeDisk::start`], with a certain arbitration among its queues.
    pub fn start_with(device: D, arbitration: Option<Arbitration>) -> Result<Self, Error> {
        let mut controller = Controller::start_with(device, arbitration)?;
        let ns = controller.first_namespace()?;
        Ok(Self { controller, ns, buffers: None, open: 0 })
    }
}

impl<D: PciDevice> Disk for NvmeDisk<D> {
    type Queue = NvmeQueue;

    fn geometry(&self) -> Geometry {
        Geometry {
            block_bytes: self.ns.block_bytes,
            size_bytes: self.ns.size_bytes(),
            max_transfer_bytes: self.controller.max_transfer_bytes(),
            // A deallocated range counts its blocks in 32 bits.
            max_trim_bytes: u64::from(u32::MAX) * u64::from(self.ns.block_bytes),
            max_depth: self.controller.max_entries() - 1,
        }
    }

    fn open_queues(&mut self, shapes: &[QueueShape]) -> Result<Vec<NvmeQueue>, Error> {
        let weighted = self.controller.has_priorities();
        if !weighted && shapes.iter().any(|shape| shape.priority.is_some()) {
            return Err(Error::Spec("queues have priorities under --arbitration wrr or drr alone".into()));
        }
        let (wanted, left) = (shapes.len(), self.controller.queues_left());
        if wanted > left {
            let what = format!(
                "jobs and idle queues need a queue each: {wanted} are asked for, the controller has {left} left"
            );
            return Err(Error::Spec(what));
        }
        let own = priority_of_this_thread();
        let len_bytes = |shape: &QueueShape| u64::from(shape.depth) * shape.buffer_bytes;
        let all_bytes = shapes.iter().map(len_bytes).sum::<u64>();
        let all = self.controller.allocate_dma(usize::try_from(all_bytes).unwrap_or(usize::MAX))?;
        self.buffers = Some(all.clone());
        let mut next_bytes = 0;
        let open = |shape: &QueueShape| {
            let priority = shape.priority.unwrap_or(own);
            // A full queue has one entry free.
            let pair = self.controller.create_queue_pair_with(shape.depth.saturating_add(1), None, priority)?;
            let memory =
                all.slice(next_bytes, len_bytes(shape)).ok_or(DriverError::Invalid("too little DMA memory"))?;
            next_bytes += len_bytes(shape);
            let buffers = Buffers::new(memory, shape.buffer_bytes);
            self.open += 1;
            Ok(NvmeQueue { pair, ns: self.ns, buffers, priority: weighted.then_some(priority) })
        };
        shapes.iter().map(open).collect()
    }

    fn close_queue(&mut self, queue: NvmeQueue) -> Result<(), Error> {
        // A controller that is in trouble keeps its queues until it is reset; the job's error says why.
        if self.controller.delete_queue_pair(queue.pair).is_ok() {
            self.open -= 1;
        }
        if self.open == 0
            && let Some(buffers) = self.buffers.take()
        {
            self.controller.release_dma(buffers)?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Error> {
        Ok(self.controller.check()?)
    }
}

/// A queue pair with its buffers.
pub struct NvmeQueue {
    pair: QueuePair,
    ns: Namespace,
    buffers: Buffers,
    priority: Option<QueuePriority>,
}

impl DiskQueue for NvmeQueue {
    fn depth(&self) -> u16 {
        self.pair.depth()
    }

    #[inline]
    fn in_flight(&self) -> u16 {
        self.pair.in_flight()
    }

    #[inline]
    fn next_tag(&self) -> Option<u16> {
        self.pair.next_cid()
    }

    fn priority(&self) -> Option<QueuePriority> {
        self.priority
    }

    fn buffers(&self) -> Buffers {
        self.buffers.clone()
    }

    #[inline]
    fn send(&mut self, request: Request) -> Result<(), Error> {
        let tag = self.pair.next_cid().ok_or(SubmitError::Full)?;
        let (nsid, block) = (self.ns.nsid, u64::from(self.ns.block_bytes));
        let blocks = Blocks { nsid, lba: request.offset_bytes / block, count: (request.len_bytes / block) as u32 };
        let data = Data { iova: self.buffers.iova(tag), len_bytes: request.len_bytes };
        match request.direction {
            Direction::Read => self.pair.read(blocks, data)?,
            Direction::Write => self.pair.write(blocks, data, request.durable)?,
            Direction::Trim => {
                let range = DsmRange { cattr: 0, nlb: blocks.count, slba: blocks.lba };
                self.pair.deallocate(nsid, &[range])?
            }
        };
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), Error> {
        Ok(self.pair.ring()?)
    }

    #[inline]
    fn poll(&mut self, done: &mut impl FnMut(Done)) -> Result<u32, Error> {
        let reaped = self.pair.poll(&mut |completion| {
            let success = completion.status.is_success();
            let outcome = if success { Ok(()) } else { Err(Failure::Nvme(completion.status)) };
            done(Done { tag: completion.cid, outcome });
        })?;
        Ok(reaped)
    }
}
