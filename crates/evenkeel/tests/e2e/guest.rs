//! A tenant's guest: an NVMe driver with one queue pair, and its memory.

use std::path::Path;
use std::time::Instant;

use crate::harness::wait_for;
use nvme_driver::{Blocks, Controller, Data, DmaMemory, Namespace, QueuePair, Status, VfioUserDevice};
use nvme_spec::Sqe;
use nvme_spec::data::DsmRange;
use nvme_spec::opcode::{admin, dsm, nvm};

use crate::harness::HANG;

/// The largest transfer that [`Guest`] makes.
pub const DATA_BYTES: usize = 1 << 20;

pub struct Guest {
    // Queues and memory go before the connection does.
    pub queue: QueuePair,
    pub data: DmaMemory,
    pub ns: Namespace,
    pub controller: Controller<VfioUserDevice>,
}

impl Guest {
    /// A process that another test is just starting may hold the client before this one open for an instant, and
    /// this one is then refused: so it tries again.
    pub fn attach(directory: &Path) -> Self {
        Self::on(wait_for("a place at the tenant's socket", || VfioUserDevice::connect(directory).ok()))
    }

    pub fn on(device: VfioUserDevice) -> Self {
        let mut controller = Controller::start(device).unwrap();
        let ns = controller.first_namespace().unwrap();
        let queue = controller.create_queue_pair(64, None).unwrap();
        let data = controller.allocate_dma(DATA_BYTES).unwrap();
        Self { queue, data, ns, controller }
    }

    /// One command from its submission to its completion.
    pub fn run(&mut self, sqe: Sqe, data_bytes: u64) -> Result<(), Status> {
        let data = (data_bytes > 0).then_some(Data { iova: self.data.iova(), len_bytes: data_bytes });
        let cid = self.queue.submit(sqe, data).unwrap();
        self.queue.ring().unwrap();
        let (start, mut status) = (Instant::now(), None);
        while status.is_none() {
            let found = &mut status;
            self.queue.poll(&mut |done| *found = Some((done.cid, done.status))).unwrap();
            assert!(start.elapsed() < HANG, "a command never completed");
            std::thread::yield_now();
        }
        let (done, status) = status.unwrap();
        assert_eq!(done, cid);
        if status.is_success() { Ok(()) } else { Err(status.code()) }
    }

    /// Blocks of this namespace, for a command.
    pub fn blocks(&self, lba: u64, count: u32) -> Blocks {
        Blocks { nsid: self.ns.nsid, lba, count }
    }

    /// A read, write or the like: 16 bits of `count`, which the command holds less one.
    pub fn command(&self, opc: u8, lba: u64, count: u32) -> Sqe {
        let (cdw10, cdw11) = (lba as u32, (lba >> 32) as u32);
        Sqe { opc, nsid: self.ns.nsid, cdw10, cdw11, cdw12: count - 1, ..Sqe::default() }
    }

    pub fn write(&mut self, lba: u64, content: &[u8]) -> Result<(), Status> {
        self.data.write(0, content).unwrap();
        let count = content.len() as u32 / self.ns.block_bytes;
        self.run(self.command(nvm::WRITE, lba, count), content.len() as u64)
    }

    pub fn read(&mut self, lba: u64, count: u32) -> Result<Vec<u8>, Status> {
        let mut content = vec![0; (count * self.ns.block_bytes) as usize];
        self.data.write(0, &vec![0xee; content.len()]).unwrap();
        self.run(self.command(nvm::READ, lba, count), content.len() as u64)?;
        self.data.read(0, &mut content).unwrap();
        Ok(content)
    }

    pub fn flush(&mut self) -> Result<(), Status> {
        self.run(Sqe { opc: nvm::FLUSH, nsid: self.ns.nsid, ..Sqe::default() }, 0)
    }

    /// Dataset Management, deallocate.
    pub fn deallocate(&mut self, lba: u64, count: u32) -> Result<(), Status> {
        let range = DsmRange { nlb: count, slba: lba, ..DsmRange::default() };
        self.data.write(0, bytemuck::bytes_of(&range)).unwrap();
        let sqe = Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: self.ns.nsid, cdw11: dsm::AD, ..Sqe::default() };
        self.run(sqe, size_of::<DsmRange>() as u64)
    }

    /// Format NVM to the LBA format with this index.
    pub fn format(&mut self, lbaf: u32) -> Result<u32, nvme_driver::Error> {
        let sqe = Sqe { opc: admin::FORMAT_NVM, nsid: self.ns.nsid, cdw10: lbaf, ..Sqe::default() };
        self.controller.admin().run("Format NVM", sqe, None)
    }
}

/// Bytes that follow from `seed`, different in every 8 of them.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |n: u64| (seed << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len as u64 / 8).flat_map(word).collect()
}
