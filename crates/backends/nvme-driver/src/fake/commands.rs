//! What the fake does with commands.

use bytemuck::{Zeroable, bytes_of};
use nvme_spec::data::DsmRange;
use nvme_spec::data::{SglDescriptor, psdt, sgl_type};
use nvme_spec::feature::fid;
use nvme_spec::identify::{IDENTIFY_BYTES, IdentifyController, cns, oacs, oncs};
use nvme_spec::log::{SanitizeLog, lid, sstat};
use nvme_spec::namespace::{IdentifyNamespace, LbaFormat};
use nvme_spec::opcode::{admin, create, nvm};
use nvme_spec::vendor::SIGNATURE;
use nvme_spec::{PAGE_BYTES, Sqe, Status};

use super::{Cq, Sq, State};

impl State {
    pub(super) fn admin(&mut self, sqe: &Sqe) -> (Status, u32) {
        let qid = sqe.cdw10 as u16;
        let entries = ((sqe.cdw10 >> 16) as u16).saturating_add(1);
        let status = match sqe.opc {
            admin::IDENTIFY => self.identify(sqe),
            admin::SET_FEATURES if sqe.cdw10 == u32::from(fid::NUMBER_OF_QUEUES) => {
                let last = u32::from(self.queues) - 1;
                return (Status::SUCCESS, last | last << 16);
            }
            admin::SET_FEATURES => {
                self.features.insert(sqe.cdw10 as u8, sqe.cdw11);
                Status::SUCCESS
            }
            admin::GET_FEATURES => {
                return (Status::SUCCESS, self.features.get(&(sqe.cdw10 as u8)).copied().unwrap_or(0));
            }
            admin::CREATE_CQ => {
                let vector = (sqe.cdw11 & create::IEN != 0).then_some((sqe.cdw11 >> 16) as u16);
                self.cqs.insert(qid, Cq { base: sqe.dptr[0], entries, tail: 0, phase: true, vector });
                Status::SUCCESS
            }
            admin::CREATE_SQ => {
                let cqid = (sqe.cdw11 >> 16) as u16;
                if !self.cqs.contains_key(&cqid) {
                    return (Status::COMPLETION_QUEUE_INVALID.dnr(), 0);
                }
                self.qprios.insert(qid, (sqe.cdw11 >> create::QPRIO_SHIFT) as u8 & 3);
                self.sqs.insert(qid, Sq { base: sqe.dptr[0], entries, cqid, head: 0, tail: 0 });
                Status::SUCCESS
            }
            admin::ABORT => return (Status::SUCCESS, u32::from(!self.abort(qid, (sqe.cdw10 >> 16) as u16))),
            admin::DELETE_SQ if self.refuses.delete => Status::INTERNAL_ERROR,
            admin::DELETE_SQ if self.sqs.remove(&qid).is_some() => {
                self.held.retain(|(of, _)| *of != qid);
                Status::SUCCESS
            }
            admin::DELETE_CQ if self.sqs.values().any(|sq| sq.cqid == qid) => Status::INVALID_QUEUE_DELETION.dnr(),
            admin::DELETE_CQ if self.cqs.remove(&qid).is_some() => Status::SUCCESS,
            admin::DELETE_SQ | admin::DELETE_CQ => Status::INVALID_QUEUE_ID,
            admin::DOORBELL_BUFFER_CONFIG => {
                self.shadow = Some((sqe.dptr[0], sqe.dptr[1]));
                Status::SUCCESS
            }
            admin::FORMAT_NVM if self.oacs & oacs::FORMAT != 0 && sqe.nsid == 1 => {
                self.disk.fill(0);
                Status::SUCCESS
            }
            admin::SANITIZE if self.sanicap != 0 => {
                self.sanitizing = Some(2);
                Status::SUCCESS
            }
            admin::GET_LOG_PAGE if sqe.cdw10 as u8 == lid::SANITIZE_STATUS => {
                let log = self.sanitize_log();
                self.put(sqe, bytes_of(&log))
            }
            admin::GET_LOG_PAGE if sqe.cdw10 as u8 == lid::SMART && self.refuses.health => Status::INTERNAL_ERROR,
            admin::GET_LOG_PAGE if sqe.cdw10 as u8 == lid::SMART => {
                let smart = self.smart;
                self.put(sqe, bytes_of(&smart))
            }
            admin::GET_LOG_PAGE => {
                let len = ((sqe.cdw10 >> 16) + 1) * 4;
                self.put(sqe, &vec![0; len as usize])
            }
            _ => Status::INVALID_OPCODE.dnr(),
        };
        (status, 0)
    }

    /// Its last reading ends a Sanitize.
    fn sanitize_log(&mut self) -> SanitizeLog {
        let mut log = SanitizeLog::zeroed();
        log.sstat = match self.sanitizing {
            None => 0,
            Some(0) => sstat::COMPLETED,
            Some(left) => {
                self.sanitizing = Some(left - 1);
                if left == 1 {
                    self.disk.fill(0);
                }
                sstat::IN_PROGRESS
            }
        };
        log
    }

    /// Aborts a command that is held; whether there was one.
    fn abort(&mut self, qid: u16, cid: u16) -> bool {
        let at = self.held.iter().position(|(of, sqe)| (*of, sqe.cid) == (qid, cid));
        let Some(at) = at.filter(|_| !self.refuses.abort) else { return false };
        self.held.remove(at);
        self.answer(qid, cid, Status::ABORT_REQUESTED, 0);
        true
    }

    fn identify(&mut self, sqe: &Sqe) -> Status {
        match sqe.cdw10 as u8 {
            cns::CONTROLLER => {
                let mut identity = IdentifyController::zeroed();
                identity.sn[..8].copy_from_slice(b"FAKE0001");
                (identity.mdts, identity.oncs, identity.vwc, identity.sgls) =
                    (self.mdts, self.oncs, self.vwc, self.sgls);
                identity.nn = 1;
                if self.offers_arbitration {
                    identity.vendor[..SIGNATURE.len()].copy_from_slice(SIGNATURE);
                }
                identity.oacs = self.oacs | if self.offers_shadow { oacs::DOORBELL_BUFFER } else { 0 };
                (identity.sanicap, identity.fna, identity.cmic) = (self.sanicap, self.fna, self.cmic);
                self.put(sqe, bytes_of(&identity))
            }
            cns::ACTIVE_NAMESPACES => {
                let mut list = [0; IDENTIFY_BYTES];
                list[0] = 1;
                self.put(sqe, &list)
            }
            cns::NAMESPACE if sqe.nsid == 1 => {
                let mut ns = IdentifyNamespace::zeroed();
                ns.nsze = self.disk.len() as u64 / self.block_bytes;
                ns.lbaf[0] = LbaFormat { ms: 0, lbads: self.block_bytes.trailing_zeros() as u8, rp: 0 };
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
        let start = sqe.slba().saturating_mul(self.block_bytes);
        let len = (u64::from(sqe.nlb()) + 1) * self.block_bytes;
        if matches!(sqe.opc, nvm::READ | nvm::WRITE) && self.mdts > 0 && len > PAGE_BYTES << self.mdts {
            return (Status::INVALID_FIELD.dnr(), 0);
        }
        let is_offered = match sqe.opc {
            nvm::WRITE_ZEROES => self.oncs & oncs::WRITE_ZEROES != 0,
            nvm::DATASET_MANAGEMENT => self.oncs & oncs::DATASET_MANAGEMENT != 0,
            _ => true,
        };
        if !is_offered {
            return (Status::INVALID_OPCODE.dnr(), 0);
        }
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
            nvm::WRITE => match self.take(sqe, len) {
                Ok(data) => {
                    self.disk[place].copy_from_slice(&data);
                    Status::SUCCESS
                }
                Err(status) => status,
            },
            nvm::COMPARE => match self.take(sqe, len) {
                Ok(data) if data == self.disk[place] => Status::SUCCESS,
                Ok(_) => Status::COMPARE_FAILURE,
                Err(status) => status,
            },
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
        let ranges = match self.take(sqe, (u64::from(sqe.cdw10 & 0xff) + 1) * size_of::<DsmRange>() as u64) {
            Ok(ranges) => ranges,
            Err(status) => return status,
        };
        for range in ranges.chunks_exact(size_of::<DsmRange>()) {
            let range: DsmRange = bytemuck::pod_read_unaligned(range);
            let start = range.slba.saturating_mul(self.block_bytes);
            let end = start.saturating_add(u64::from(range.nlb) * self.block_bytes);
            if end > self.disk.len() as u64 {
                return Status::LBA_OUT_OF_RANGE.dnr();
            }
            self.disk[start as usize..end as usize].fill(0);
        }
        Status::SUCCESS
    }

    fn read_host(&mut self, iova: u64, out: &mut [u8]) -> bool {
        let lent = self.lent.as_ref().and_then(|lent| lent.read(iova, out));
        lent.is_some() || self.memory.read(iova, out).is_ok()
    }

    fn write_host(&mut self, iova: u64, data: &[u8]) -> bool {
        let lent = self.lent.as_ref().and_then(|lent| lent.write(iova, data));
        lent.is_some() || self.memory.write(iova, data).is_ok()
    }

    /// The pieces of an SGL: one data block, or a last segment of them.
    fn sgl_pieces(&mut self, sqe: &Sqe) -> Result<Vec<(u64, u64)>, Status> {
        self.expect(self.sgls != 0, "no SGLs were offered")?;
        let first: SglDescriptor = bytemuck::cast(sqe.dptr);
        self.expect(first.sub_type() == 0, "addresses only")?;
        if first.sgl_type() == sgl_type::DATA_BLOCK {
            return Ok(vec![(first.address, first.length.into())]);
        }
        self.expect(first.sgl_type() == sgl_type::LAST_SEGMENT, "one segment")?;
        let mut segment = vec![0; first.length as usize];
        let is_mapped = self.read_host(first.address, &mut segment);
        self.expect(is_mapped, "the segment is mapped")?;
        let mut pieces = Vec::new();
        for block in segment.chunks_exact(size_of::<SglDescriptor>()) {
            let block: SglDescriptor = bytemuck::pod_read_unaligned(block);
            self.expect((block.sgl_type(), block.sub_type()) == (sgl_type::DATA_BLOCK, 0), "data blocks")?;
            pieces.push((block.address, u64::from(block.length)));
        }
        Ok(pieces)
    }

    /// Pieces of host memory that a command's PRPs describe, in order.
    fn pieces(&mut self, sqe: &Sqe, len: u64) -> Result<Vec<(u64, u64)>, Status> {
        if sqe.psdt() == psdt::SGL {
            let pieces = self.sgl_pieces(sqe)?;
            let described = pieces.iter().map(|(_, len)| len).sum::<u64>();
            self.expect(described == len, "an SGL describes all data and no more")?;
            return Ok(pieces);
        }
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
                let is_mapped = self.memory.read(list, &mut entry).is_ok();
                self.expect(is_mapped, "the PRP list is mapped")?;
                list += 8;
                u64::from_le_bytes(entry)
            };
            self.expect(page.is_multiple_of(PAGE_BYTES), "PRP entries after the first have no offset")?;
            pieces.push((page, left.min(PAGE_BYTES)));
            left -= left.min(PAGE_BYTES);
        }
        Ok(pieces)
    }

    /// Data from the device to the host.
    fn put(&mut self, sqe: &Sqe, data: &[u8]) -> Status {
        let pieces = match self.pieces(sqe, data.len() as u64) {
            Ok(pieces) => pieces,
            Err(status) => return status,
        };
        let mut rest = data;
        for (iova, len) in pieces {
            let (head, tail) = rest.split_at(len as usize);
            if !self.write_host(iova, head) {
                return Status::DATA_TRANSFER_ERROR;
            }
            rest = tail;
        }
        Status::SUCCESS
    }

    /// Data from the host to the device.
    fn take(&mut self, sqe: &Sqe, len: u64) -> Result<Vec<u8>, Status> {
        let mut data = vec![0; len as usize];
        let mut at = 0;
        for (iova, len) in self.pieces(sqe, len)? {
            let end = at + len as usize;
            let is_mapped = self.read_host(iova, &mut data[at..end]);
            self.expect(is_mapped, "the data is mapped")?;
            at = end;
        }
        Ok(data)
    }
}
