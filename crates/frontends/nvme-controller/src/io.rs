//! I/O commands of the NVM command set: checked and turned into device commands, and ended.

use guest_memory::{Access, IoBuf};
use io_model::{Command, DeviceError, Fetch, Op, Outcome, Place, Token};
use nvme_spec::opcode::{nvm, rw};
use nvme_spec::{NSID_ALL, PAGE_BYTES, Sqe, Status};

use crate::bounce::Bounce;
use crate::controller::Event;
use crate::msix::Interrupts;
use crate::namespace::{Blocks, not_attached};
use crate::queue::{Kind, Slot, Sq};
use crate::{Controller, data, strikes};

/// Buffers with long segment lists that are kept for reuse.
const POOL: usize = 256;

/// The token's identifier of the flush for a guest that ended, among VQ 0's. A Format's steps have their NSID.
const PARTING_FLUSH: u32 = 0;

/// A command that passed its checks.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// One device command, its data in guest memory.
    Device { kind: Kind, command: Command, slba: u64, buf: IoBuf },
    /// One device read into memory of our own.
    Bounced { kind: Kind, command: Command, slba: u64, buf: IoBuf, bounce: Box<Bounce> },
    /// Ranges to be handed out; already in the table.
    Stream,
    /// Nothing to do.
    Done,
}

impl<I: Interrupts> Controller<I> {
    #[inline]
    pub(crate) fn fetch_io(&mut self, vq: u16) -> Fetch {
        let awake = self.queues.awake;
        let bounce_is_full = self.bounce_is_full();
        if self.memory_is_lost() {
            return Fetch::Empty;
        }
        let Some((sq, cq)) = self.queues.pair(vq) else { return Fetch::Empty };
        if sq.deleting.is_some() || self.stopped {
            return Fetch::Empty;
        }
        if sq.stream.is_some() {
            return self.next_range(vq);
        }
        if cq.view().is_none() {
            return Fetch::Empty;
        }
        if let Some(sqe) = sq.take_again_unless(bounce_is_full) {
            let claimed = sq.claimed;
            return self.take_in(vq, &sqe, claimed);
        }
        if !sq.again.is_empty() {
            return Fetch::Empty;
        }
        if sq.waiting() == 0 && sq.refresh(awake).is_err() {
            self.invalid_doorbell();
            return Fetch::Empty;
        }
        if sq.waiting() == 0 || !sq.has_room() {
            return Fetch::Empty;
        }
        // The head doorbell is read only when the entries known to be free are used up.
        if cq.free == 0 && cq.refresh(awake).is_err() {
            self.invalid_doorbell();
            return Fetch::Empty;
        }
        if cq.free == 0 {
            return Fetch::Empty;
        }
        let Some(sqe) = sq.peek() else { return Fetch::Empty };
        if bounce_is_full && matches!(sqe.opc, nvm::COMPARE | nvm::VERIFY) {
            sq.waits_for_bounce = true;
            return Fetch::Empty;
        }
        cq.reserve();
        let claimed = sq.advance();
        self.stats.commands += 1;
        if let (Some(journal), Some((slot, number))) = (&self.queues.journal, claimed) {
            journal.fetched(vq, slot, &sqe, number);
        }
        self.take_in(vq, &sqe, claimed)
    }

    /// A command that has a place in its queue's table, and a completion entry reserved. It is in hand until the poller
    /// has given it to the device, and asks for [`take_work`](io_model::Source::take_work).
    #[inline]
    fn take_in(&mut self, vq: u16, sqe: &Sqe, claimed: Option<(u16, u64)>) -> Fetch {
        if let (Some(journal), Some((slot, _))) = (&self.queues.journal, claimed) {
            journal.take_in_hand(vq, slot);
        }
        match self.admit(vq, sqe) {
            Ok(admitted) => self.start(vq, sqe, admitted),
            Err(status) => {
                self.reject(vq, sqe, status);
                Fetch::Handled
            }
        }
    }

    /// Completes a command that needs no place in its queue's table.
    pub(crate) fn handled(&mut self, vq: u16, sqe: &Sqe, status: Status) {
        let claimed = self.queues.sq(vq).and_then(Sq::unclaim);
        self.queues.post(vq, claimed.unwrap_or_default(), sqe.cid, status);
    }

    #[inline]
    fn admit(&mut self, vq: u16, sqe: &Sqe) -> Result<Admitted, Status> {
        if sqe.fuse() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if let Some(status) = self.sanitize_refusal() {
            return Err(status);
        }
        let Some(namespace) = self.namespaces.get(sqe.nsid) else {
            return match (sqe.nsid, sqe.opc) {
                // One device is behind all of them.
                (NSID_ALL, nvm::FLUSH) => Ok(self.admit_flush()),
                _ => Err(not_attached(sqe.nsid)),
            };
        };
        if namespace.format.is_some() {
            return Err(Status::FORMAT_IN_PROGRESS);
        }
        if namespace.config().format_cut_short {
            return Err(Status::NAMESPACE_NOT_READY);
        }
        let blocks = namespace.blocks;
        match sqe.opc {
            nvm::READ => self.admit_transfer(sqe, &blocks, Kind::Read),
            nvm::WRITE if sqe.cdw12 & rw::DTYPE != 0 => Err(Status::INVALID_FIELD),
            nvm::WRITE => self.admit_transfer(sqe, &blocks, Kind::Write),
            nvm::FLUSH => Ok(self.admit_flush()),
            nvm::WRITE_ZEROES if self.config.write_zeroes => self.admit_write_zeroes(sqe, &blocks),
            nvm::DATASET_MANAGEMENT => self.admit_dsm(vq, sqe, &blocks),
            nvm::COMPARE => self.admit_bounced(sqe, &blocks, Kind::Compare),
            nvm::VERIFY => self.admit_bounced(sqe, &blocks, Kind::Verify),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    #[inline]
    fn admit_transfer(&mut self, sqe: &Sqe, blocks: &Blocks, kind: Kind) -> Result<Admitted, Status> {
        if kind == Kind::Write {
            blocks.check_writable()?;
        }
        let count = u64::from(sqe.nlb()) + 1;
        if count << blocks.shift > u64::from(self.config.max_transfer_bytes) {
            return Err(Status::INVALID_FIELD);
        }
        let (offset_bytes, len_bytes) = blocks.range(sqe.slba(), count)?;
        // One page has at most two pieces; longer lists come from the pool, so as not to allocate.
        let mut buf = if len_bytes > PAGE_BYTES { self.pool.pop().unwrap_or_default() } else { IoBuf::default() };
        let (op, access) = match kind {
            Kind::Write => (Op::Write, Access::Read),
            _ => (Op::Read, Access::Write),
        };
        if let Err(status) = data::translate(&mut self.memory, sqe, len_bytes, access, &mut buf, &mut self.extra_work) {
            self.recycle(buf);
            return Err(status);
        }
        let command = blocks.place.command(op, offset_bytes, len_bytes);
        let command = command.with_fua(op == Op::Write && self.is_fua(sqe));
        Ok(Admitted::Device { kind, command, slba: sqe.slba(), buf })
    }

    /// With the write cache disabled every write must be durable when it completes.
    fn is_fua(&self, sqe: &Sqe) -> bool {
        self.config.volatile_write_cache && (sqe.cdw12 & rw::FUA != 0 || self.features.write_cache == 0)
    }

    fn admit_flush(&self) -> Admitted {
        // Also with the cache turned off: a write of before may still be in it.
        if !self.config.volatile_write_cache {
            return Admitted::Done;
        }
        Admitted::Device { kind: Kind::Flush, command: self.flush(), slba: 0, buf: IoBuf::default() }
    }

    fn flush(&self) -> Command {
        Place::whole_drive(self.config.tenant).flush()
    }

    /// The flush for a guest that ended.
    pub(crate) fn next_parting_flush(&mut self) -> Option<Fetch> {
        if !self.cache.take() {
            return None;
        }
        self.in_flight += 1;
        let token = Token::new(0, 0, PARTING_FLUSH);
        Some(Fetch::Command(self.flush(), IoBuf::default(), token))
    }

    #[cold]
    fn end_parting_flush(&mut self, outcome: Outcome) {
        self.cache.parted();
        if let Err(error) = outcome {
            self.wiring_events.push_back(Event::FlushFailed(error));
        }
    }

    /// The Deallocate bit is a permission; zeroes are written all the same.
    fn admit_write_zeroes(&self, sqe: &Sqe, blocks: &Blocks) -> Result<Admitted, Status> {
        blocks.check_writable()?;
        let (offset_bytes, len_bytes) = blocks.range(sqe.slba(), u64::from(sqe.nlb()) + 1)?;
        let command = blocks.place.command(Op::WriteZeroes, offset_bytes, len_bytes);
        let command = command.with_fua(self.is_fua(sqe));
        Ok(Admitted::Device { kind: Kind::WriteZeroes, command, slba: sqe.slba(), buf: IoBuf::default() })
    }

    /// Enters an admitted command into the queue's table.
    #[inline]
    fn start(&mut self, vq: u16, sqe: &Sqe, admitted: Admitted) -> Fetch {
        let (kind, command, slba, buf, bounce) = match admitted {
            Admitted::Device { kind, command, slba, buf } => (kind, command, slba, buf, None),
            Admitted::Bounced { kind, command, slba, buf, bounce } => (kind, command, slba, buf, Some(bounce)),
            Admitted::Stream => return self.next_range(vq),
            Admitted::Done => {
                self.handled(vq, sqe, Status::SUCCESS);
                return Fetch::Handled;
            }
        };
        let Some(sq) = self.queues.sq(vq) else { return Fetch::Empty };
        let generation = sq.generation;
        let Some(id) = sq.start(sqe, kind, slba, command.len_bytes) else { return Fetch::Empty };
        if bounce.is_some()
            && let Some(slot) = sq.slot(id.into())
        {
            slot.bounce = bounce;
        }
        self.cache.sent(command.op, || self.in_flight == 0);
        self.in_flight += 1;
        Fetch::Command(command, buf, Token::new(vq, generation, id.into()))
    }

    /// Ends one device command.
    #[inline]
    pub(crate) fn end(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        let (vq, generation, id) = token.spend();
        self.recycle(buf);
        self.in_flight = self.in_flight.saturating_sub(1);
        // What is not of VQ 0 was for guest memory.
        let outcome = if vq > 0 && self.memory_is_lost() { Err(DeviceError::Memory) } else { outcome };
        let kind = match self.queues.sq(vq) {
            Some(sq) if sq.generation == generation => sq.slot(id).map(|slot| slot.kind),
            // Its queue went with a reset.
            _ => None,
        };
        if let (Some(journal), Some(_)) = (&self.queues.journal, kind) {
            journal.take_in_hand(vq, id as u16);
        }
        match (vq, kind, outcome) {
            (0, ..) if id == PARTING_FLUSH => self.end_parting_flush(outcome),
            (0, ..) => self.end_format_chunk(id, outcome),
            (_, None, _) => self.cache.came_back(outcome),
            (_, Some(_), Ok(())) => self.end_part(vq, id, Status::SUCCESS),
            (_, Some(kind), Err(error)) => {
                self.cache.came_back(outcome);
                let status = self.device_status(kind, error);
                self.end_part(vq, id, status);
            }
        }
        strikes::let_go();
        if self.in_flight == 0 {
            self.settle();
        }
    }

    pub(crate) fn device_status(&mut self, kind: Kind, error: DeviceError) -> Status {
        let writes = matches!(kind, Kind::Write | Kind::WriteZeroes | Kind::Discard | Kind::Flush);
        match error {
            DeviceError::Medium => {
                self.health.media_errors += 1;
                if writes { Status::WRITE_FAULT } else { Status::UNRECOVERED_READ }
            }
            DeviceError::NoSpace => Status::CAPACITY_EXCEEDED,
            DeviceError::OutOfRange => Status::LBA_OUT_OF_RANGE,
            DeviceError::Memory => Status::DATA_TRANSFER_ERROR,
            DeviceError::Unsupported => Status::INVALID_OPCODE,
            // May come back: the host is allowed to try again.
            DeviceError::Gone => Status::NAMESPACE_NOT_READY,
        }
    }

    /// Ends one part of a command; with its last part, the command.
    #[inline]
    pub(crate) fn end_part(&mut self, vq: u16, id: u32, status: Status) {
        let Some(sq) = self.queues.sq(vq) else { return };
        let Some(slot) = sq.slot(id) else { return };
        if slot.status.is_success() {
            slot.status = status;
        }
        slot.pending = slot.pending.saturating_sub(1);
        if slot.pending > 0 {
            return;
        }
        let Slot { cid, kind, nsid, mut status, len_bytes, slba, number, .. } = *slot;
        let bounce = slot.bounce.take();
        if let Some(bounce) = bounce {
            self.bounce_bytes -= bounce.size_bytes();
            if kind == Kind::Compare && status.is_success() && !bounce.is_equal() {
                status = Status::COMPARE_FAILURE;
            }
        }
        sq.finish(id);
        self.queues.post(vq, (id as u16, number), cid, status);
        self.health.count(kind, len_bytes);
        if !status.is_success() {
            self.log_error(vq, cid, status, slba, nsid);
        }
        if !self.leaving.is_empty() {
            self.ended_of_leaving(nsid);
        }
        self.finish_deletion(vq);
    }

    /// Takes a buffer back, and keeps its lists.
    #[inline]
    pub(crate) fn recycle(&mut self, mut buf: IoBuf) {
        self.memory.release(&mut buf);
        if buf.has_spill() && self.pool.len() < POOL {
            self.pool.push(buf);
        }
    }
}
