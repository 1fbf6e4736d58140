//! What the fake does with commands.

use bytemuck::{Zeroable, bytes_of};
use nvme_spec::data::DsmRange;
use nvme_spec::feature::fid;
use nvme_spec::identify::{IDENTIFY_BYTES, IdentifyController, cns, oacs};
use nvme_spec::namespace::{IdentifyNamespace, LbaFormat};
use nvme_spec::opcode::{admin, create, nvm};
use nvme_spec::vendor::SIGNATURE;
use nvme_spec::{PAGE_BYTES, Sqe, Status};

use super::{BLOCK_BYTES, Cq, Sq, State};

/// I/O queue pairs that the fake grants.
const QUEUES: u32 = 8;

impl State {
    pub(super) fn admin(&mut self, sqe: &Sqe) -> (Status, u32) {
        let qid = sqe.cdw10 as u16;
        let entries = (sqe.cdw10 >> 16) as u16 + 1;
        let status = match sqe.opc {
            admin::IDENTIFY => self.identify(sqe),
            admin::SET_FEATURES if sqe.cdw10 == u32::from(fid::NUMBER_OF_QUEUES) => {
                return (Status::SUCCESS, (QUEUES - 1) | (QUEUES - 1) << 16);
            }
            admin::SET_FEATURES => {
                self.features.insert(sqe.cdw10 as u8, sqe.cdw11);
                Status::SUCCESS
            }
            admin::GET_FEATURES => {
                return (Status::SUCCESS, self.features.get(&(sqe.cdw10 as u8)).copied().unwrap_or(0));
            }
            admin::CREATE_CQ => {
                self.cqs.insert(qid, Cq { base: sqe.dptr[0], entries, tail: 0, phase: true });
                Status::SUCCESS
            }
            admin::CREATE_SQ => {
                let cqid = (sqe.cdw11 >> 16) as u16;
                self.qprios.insert(qid, (sqe.cdw11 >> create::QPRIO_SHIFT) as u8 & 3);
                self.sqs.insert(qid, Sq { base: sqe.dptr[0], entries, cqid, head: 0, tail: 0 });
                Status::SUCCESS
            }
            admin::DELETE_SQ if self.sqs.remove(&qid).is_some() => Status::SUCCESS,
            admin::DELETE_CQ if self.cqs.remove(&qid).is_some() => Status::SUCCESS,
            admin::DELETE_SQ | admin::DELETE_CQ => Status::INVALID_QUEUE_ID,
            admin::DOORBELL_BUFFER_CONFIG => {
                self.shadow = Some((sqe.dptr[0], sqe.dptr[1]));
                Status::SUCCESS
            }
            admin::GET_LOG_PAGE => {
                let len = ((sqe.cdw10 >> 16) + 1) * 4;
                self.put(sqe, &vec![0; len as usize])
            }
            _ => Status::INVALID_OPCODE.dnr(),
        };
        (status, 0)
    }

    fn identify(&mut self, sqe: &Sqe) -> Status {
        match sqe.cdw10 as u8 {
            cns::CONTROLLER => {
                let mut identity = IdentifyController::zeroed();
                identity.mdts = 8;
                identity.nn = 1;
                if self.offers_arbitration {
                    identity.vendor[..SIGNATURE.len()].copy_from_slice(SIGNATURE);
                }
                identity.oacs = if self.offers_shadow { oacs::DOORBELL_BUFFER } else { 0 };
                self.put(sqe, bytes_of(&identity))
            }
            cns::ACTIVE_NAMESPACES => {
                let mut list = [0; IDENTIFY_BYTES];
                list[0] = 1;
                self.put(sqe, &list)
            }
            cns::NAMESPACE if sqe.nsid == 1 => {
                let mut ns = IdentifyNamespace::zeroed();
                ns.nsze = self.disk.len() as u64 / BLOCK_BYTES;
                ns.lbaf[0] = LbaFormat { ms: 0, lbads: 9, rp: 0 };
                self.put(sqe, bytes_of(&ns))
            }
            _ => Status::INVALID_NAMESPACE.dnr(),
        }
    }

    pub(super) fn io(&mut self, sqe: &Sqe) -> (Status, u32) {
        self.log.push(*sqe);
        if let Some(status) = self.failures.pop_front() {
            return (status, 0);
        }
        let start = sqe.slba().saturating_mul(BLOCK_BYTES);
        let len = (u64::from(sqe.nlb()) + 1) * BLOCK_BYTES;
        let has_range = !matches!(sqe.opc, nvm::FLUSH | nvm::DATASET_MANAGEMENT);
        if has_range && start.saturating_add(len) > self.disk.len() as u64 {
            return (Status::LBA_OUT_OF_RANGE.dnr(), 0);
        }
        let place = start as usize..(start + len) as usize;
        let status = match sqe.opc {
            nvm::FLUSH => Status::SUCCESS,
            nvm::READ => {
                let mut data = self.disk[place].to_vec();
                data[0] ^= std::mem::take(&mut self.corrupt_next_read);
                self.put(sqe, &data)
            }
            nvm::WRITE => {
                let data = self.take(sqe, len);
                self.disk[place].copy_from_slice(&data);
                Status::SUCCESS
            }
            nvm::COMPARE => {
                let equal = self.take(sqe, len) == self.disk[place];
                if equal { Status::SUCCESS } else { Status::COMPARE_FAILURE }
            }
            nvm::WRITE_ZEROES => {
                self.disk[place].fill(0);
                Status::SUCCESS
            }
            nvm::DATASET_MANAGEMENT => self.deallocate(sqe),
            _ => Status::INVALID_OPCODE.dnr(),
        };
        (status, 0)
    }

    fn deallocate(&mut self, sqe: &Sqe) -> Status {
        let ranges = self.take(sqe, (u64::from(sqe.cdw10 & 0xff) + 1) * size_of::<DsmRange>() as u64);
        for range in ranges.chunks_exact(size_of::<DsmRange>()) {
            let range: DsmRange = bytemuck::pod_read_unaligned(range);
            let start = (range.slba * BLOCK_BYTES) as usize;
            self.disk[start..start + (u64::from(range.nlb) * BLOCK_BYTES) as usize].fill(0);
        }
        Status::SUCCESS
    }

    /// Pieces of host memory that a command's PRPs describe, in order.
    fn pieces(&mut self, sqe: &Sqe, len: u64) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        let mut left = len;
        let first = left.min(PAGE_BYTES - sqe.dptr[0] % PAGE_BYTES);
        pieces.push((sqe.dptr[0], first));
        left -= first;
        let mut list = sqe.dptr[1];
        while left > 0 {
            let page = if pieces.len() == 1 && left <= PAGE_BYTES {
                sqe.dptr[1]
            } else {
                let mut entry = [0; 8];
                self.memory.read(list, &mut entry).expect("the PRP list is mapped");
                list += 8;
                u64::from_le_bytes(entry)
            };
            assert_eq!(page % PAGE_BYTES, 0, "PRP entries after the first have no offset");
            pieces.push((page, left.min(PAGE_BYTES)));
            left -= left.min(PAGE_BYTES);
        }
        pieces
    }

    /// Data from the device to the host.
    fn put(&mut self, sqe: &Sqe, data: &[u8]) -> Status {
        let mut rest = data;
        for (iova, len) in self.pieces(sqe, data.len() as u64) {
            let (head, tail) = rest.split_at(len as usize);
            if self.memory.write(iova, head).is_err() {
                return Status::DATA_TRANSFER_ERROR;
            }
            rest = tail;
        }
        Status::SUCCESS
    }

    /// Data from the host to the device.
    fn take(&mut self, sqe: &Sqe, len: u64) -> Vec<u8> {
        let mut data = vec![0; len as usize];
        let mut at = 0;
        for (iova, len) in self.pieces(sqe, len) {
            let end = at + len as usize;
            self.memory.read(iova, &mut data[at..end]).expect("the data is mapped");
            at = end;
        }
        data
    }
}
