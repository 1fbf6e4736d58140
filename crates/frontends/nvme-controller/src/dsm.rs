//! Dataset Management: one guest command, one discard per range (NVM Command Set 1.0, 3.2.3).

use guest_memory::{Access, IoBuf};
use io_model::{Fetch, Op, Place, Token};
use nvme_spec::data::DsmRange;
use nvme_spec::opcode::dsm;
use nvme_spec::{Sqe, Status};

use crate::Controller;
use crate::data;
use crate::io::Admitted;
use crate::msix::Interrupts;
use crate::namespace::Blocks;
use crate::queue::Kind;

/// A command whose ranges are handed out one per fetch.
#[derive(Debug)]
pub(crate) struct RangeStream {
    slot: u16,
    place: Place,
    /// Offset in the disk and length in bytes: a Format may change the blocks meanwhile.
    ranges: Vec<(u64, u64)>,
    next: usize,
}

impl RangeStream {
    /// Ranges not handed out yet.
    pub fn left(&self) -> u32 {
        (self.ranges.len() - self.next) as u32
    }

    pub fn slot(&self) -> u16 {
        self.slot
    }
}

impl<I: Interrupts> Controller<I> {
    /// Reads and checks all ranges before the first is discarded.
    pub(crate) fn admit_dsm(&mut self, sqid: u16, sqe: &Sqe, blocks: &Blocks) -> Result<Admitted, Status> {
        if !self.config.discard {
            return Err(Status::INVALID_OPCODE);
        }
        // The other attributes are hints that nothing here acts on.
        let deallocates = sqe.cdw11 & dsm::AD != 0;
        if deallocates {
            blocks.check_writable()?;
        }
        let count = (sqe.cdw10 as usize & 0xff) + 1;
        // Allocates: the command is rare, and one range alone costs the device more than this.
        let mut ranges = vec![DsmRange::default(); count];
        let mut buf = IoBuf::default();
        let len_bytes = std::mem::size_of_val(&ranges[..]) as u64;
        data::translate(&mut self.memory, sqe, len_bytes, Access::Read, &mut buf, &mut self.extra_work)?;
        data::whole(buf.copy_to(bytemuck::must_cast_slice_mut(&mut ranges)) as u64 == len_bytes)?;
        let first = ranges.iter().find(|range| range.nlb > 0).map_or(0, |range| range.slba);
        let ranges = ranges.iter().map(|range| blocks.range(range.slba, range.nlb.into()));
        let mut ranges = ranges.collect::<Result<Vec<_>, Status>>()?;
        ranges.retain(|(_, len_bytes)| *len_bytes > 0);
        if !deallocates || ranges.is_empty() {
            return Ok(Admitted::Done);
        }
        let sq = self.queues.sq(sqid).ok_or(Status::INTERNAL_ERROR)?;
        let slot = sq.start(sqe, Kind::Discard, first, 0).ok_or(Status::INTERNAL_ERROR)?;
        if let Some(slot) = sq.slot(slot.into()) {
            slot.pending = ranges.len() as u16;
        }
        sq.stream = Some(RangeStream { slot, place: blocks.place, ranges, next: 0 });
        Ok(Admitted::Stream)
    }

    /// The next range of the command whose ranges are being handed out.
    pub(crate) fn next_range(&mut self, sqid: u16) -> Fetch {
        let Some(sq) = self.queues.sq(sqid) else { return Fetch::Empty };
        let generation = sq.generation;
        let Some(stream) = &mut sq.stream else { return Fetch::Empty };
        let Some((offset_bytes, len_bytes)) = stream.ranges.get(stream.next).copied() else { return Fetch::Empty };
        let (id, place) = (stream.slot, stream.place);
        stream.next += 1;
        if stream.left() == 0 {
            sq.stream = None;
        }
        if let Some(journal) = &self.queues.journal {
            journal.take_in_hand(sqid, id);
        }
        self.in_flight += 1;
        let command = place.command(Op::Discard, offset_bytes, len_bytes);
        Fetch::Command(command, IoBuf::default(), Token::new(sqid, generation, id.into()))
    }
}
