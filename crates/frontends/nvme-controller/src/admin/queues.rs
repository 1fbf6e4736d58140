//! Creating and deleting I/O queues (NVMe Base 2.0, 5.4 to 5.7).

use nvme_spec::opcode::create;
use nvme_spec::{PAGE_BYTES, Sqe, Status};

use super::Reply;
use crate::Controller;
use crate::dbbuf::Doorbell;
use crate::msix::{Interrupts, VECTORS};
use crate::parts::{Ask, CqSpec, SqSpec};
use crate::queue::{Cq, Geometry, Sq};

/// CC.IOSQES and CC.IOCQES: entries of 64 and 16 bytes, as powers of two.
const IOSQES: u8 = 6;
const IOCQES: u8 = 4;

impl<I: Interrupts> Controller<I> {
    /// What both Create commands have in common, once the identifier was checked.
    fn geometry(&self, sqe: &Sqe) -> Result<Geometry, Status> {
        let (qid, size) = (sqe.cdw10 as u16, (sqe.cdw10 >> 16) as u16);
        if size == 0 || size > self.regs.cap.mqes() {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        // CAP.CQR: queues are contiguous.
        if sqe.cdw11 & create::PC == 0 {
            return Err(Status::INVALID_FIELD);
        }
        let [iova, _] = sqe.dptr;
        if !iova.is_multiple_of(PAGE_BYTES) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        Ok(Geometry { qid, entries: size + 1, iova })
    }

    fn is_io_qid(&self, qid: u16) -> bool {
        (1..=self.config.max_io_queues).contains(&qid)
    }

    pub(super) fn create_cq(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let qid = sqe.cdw10 as u16;
        if !self.is_io_qid(qid) || self.has_cq(qid) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if self.regs.cc.iocqes() != IOCQES {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        let at = self.geometry(sqe)?;
        let (interrupts, vector) = (sqe.cdw11 & create::IEN != 0, (sqe.cdw11 >> 16) as u16);
        if vector >= VECTORS {
            return Err(Status::INVALID_INTERRUPT_VECTOR);
        }
        self.ask_about(qid, sqe, Ask::CreateCq(CqSpec { at, vector, interrupts }))
    }

    pub(crate) fn open_cq(&mut self, CqSpec { at, vector, interrupts }: CqSpec) -> Result<(), Status> {
        let qid = at.qid;
        let view =
            self.queues.doorbells.view(&mut self.memory, qid, Doorbell::CqHead, at.iova, Cq::ring_bytes(at.entries));
        let view = view.ok_or(Status::DATA_TRANSFER_ERROR)?;
        self.queues.doorbells.clear(&view, qid, Doorbell::CqHead);
        let cq = Cq::new(at, vector, interrupts, Some(view));
        cq.set_wakeup(!self.queues.awake);
        if let Some(journal) = &self.queues.journal {
            journal.posted(&cq, (0, 0, 0));
        }
        self.queues.insert_cq(cq);
        Ok(())
    }

    pub(super) fn create_sq(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let (qid, cqid) = (sqe.cdw10 as u16, (sqe.cdw11 >> 16) as u16);
        if !self.is_io_qid(qid) || !self.is_io_qid(cqid) || self.has_sq(qid) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if !self.has_cq(cqid) {
            return Err(Status::COMPLETION_QUEUE_INVALID);
        }
        if self.regs.cc.iosqes() != IOSQES {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        let at = self.geometry(sqe)?;
        let priority = (sqe.cdw11 >> create::QPRIO_SHIFT) as u8 & 3;
        self.ask_about(cqid, sqe, Ask::CreateSq(SqSpec { at, cqid, priority }))
    }

    pub(crate) fn open_sq(&mut self, SqSpec { at, cqid, priority }: SqSpec) -> Result<(), Status> {
        let qid = at.qid;
        let view =
            self.queues.doorbells.view(&mut self.memory, qid, Doorbell::SqTail, at.iova, Sq::ring_bytes(at.entries));
        let view = view.ok_or(Status::DATA_TRANSFER_ERROR)?;
        self.queues.doorbells.clear(&view, qid, Doorbell::SqTail);
        let sq = Sq::new(at, cqid, priority, self.next_generation(), Some(view));
        if let Some(journal) = &self.queues.journal {
            journal.clear(qid, at.entries);
        }
        self.queues.forget_last(cqid);
        self.work.charge(sq.table_bytes());
        sq.set_wakeup(!self.queues.awake);
        self.queues.insert_sq(sq);
        Ok(())
    }

    pub(super) fn delete_cq(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let qid = sqe.cdw10 as u16;
        match self.users_of(qid) {
            Some(users) if qid > 0 && users > 0 => Err(Status::INVALID_QUEUE_DELETION),
            Some(_) if qid > 0 => self.ask_about(qid, sqe, Ask::DeleteCq(qid)),
            _ => Err(Status::INVALID_QUEUE_ID),
        }
    }

    /// Nothing more is fetched from the queue; the command completes when what is in flight has ended.
    pub(super) fn delete_sq(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let qid = sqe.cdw10 as u16;
        if self.queues.sq(qid).is_some_and(|sq| qid > 0 && sq.deleting.is_none()) {
            self.begin_deletion(qid, sqe.cid);
        } else if !self.delete_far_sq(qid, sqe.cid) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        Ok(Reply::Later)
    }

    pub(crate) fn begin_deletion(&mut self, qid: u16, cid: u16) {
        let Some(sq) = self.queues.sq(qid) else { return };
        sq.deleting = Some(cid);
        let stream = sq.stream.take();
        self.queues.retire_sq(qid);
        self.give_up_deleted(qid);
        match stream {
            // Ranges that were not handed out never will be; this ends the command if none is in flight,
            // and with it perhaps the deletion.
            Some(stream) => {
                (0..stream.left()).for_each(|_| self.end_part(qid, stream.slot().into(), Status::ABORTED_SQ_DELETION));
            }
            None => self.finish_deletion(qid),
        }
    }

    /// Completes a Delete command once its queue has nothing in flight.
    #[inline]
    pub(crate) fn finish_deletion(&mut self, qid: u16) {
        let Some(sq) = self.queues.sq(qid) else { return };
        let Some(cid) = sq.deleting.filter(|_| sq.in_flight() == 0) else { return };
        self.queues.remove_sq(qid);
        if !self.config.part.is_first() {
            return self.tell_deleted(qid);
        }
        self.queues.complete_admin(cid, 0, Status::SUCCESS);
        self.post_admin();
    }
}
