//! Copies pieces that thin disks share and want to write, and overwrites pieces that they gave back with zeros: as a
//! tenant among the others.
//!
//! It takes a few pieces at a time. Of pieces to copy it writes what is not zeros, since a new piece is zero. Then it
//! flushes, and says that they are done. Copies come first: commands wait for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use guest_memory::{MappedU32, Mapping, MemoryListener};
use io_model::{DeviceError, Fetch, IoBuf, Op, Outcome, Place, Source, TenantId, Token};
use pieces::Job;

use super::FrontEnd;

/// Bytes of a command: as much as every policy lets through at once.
const CHUNK_BYTES: u64 = 128 << 10;

/// Pieces at a time.
const PIECES: usize = 4;

/// Its only queue.
const VQ: u16 = 1;

/// Called with pieces that are done, durably, or not; it must not wait.
pub type OnMoved = Box<dyn Fn(&[Job], Result<(), DeviceError>) + Send>;

/// Do these too.
pub struct Order(pub Vec<Job>);

/// What is done with the present pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Read,
    Write,
    Flush,
}

/// The mover at its poller.
pub struct Mover {
    place: Place,
    piece_bytes: u64,
    /// The present pieces, one behind the other.
    memory: Arc<Mapping>,
    is_mapped: bool,
    /// Copies before others.
    waiting: VecDeque<Job>,
    present: Vec<Job>,
    phase: Phase,
    /// What the phase has still to hand out, from the start of the memory.
    chunks: VecDeque<Range<u64>>,
    /// The flush was handed out.
    is_flushed: bool,
    in_flight: u32,
    error: Option<DeviceError>,
    is_leaving: bool,
    on_moved: OnMoved,
}

impl Mover {
    /// With nothing to do. `piece_bytes`: a multiple of 4096.
    ///
    /// # Errors
    /// There is no memory for pieces.
    pub fn new(id: TenantId, piece_bytes: u64, on_moved: OnMoved) -> Result<Self> {
        Ok(Self {
            place: Place::whole_drive(id),
            piece_bytes,
            memory: Mapping::anonymous(PIECES * piece_bytes as usize)?,
            is_mapped: false,
            waiting: VecDeque::new(),
            present: Vec::new(),
            phase: Phase::Read,
            chunks: VecDeque::new(),
            is_flushed: false,
            in_flight: 0,
            error: None,
            is_leaving: false,
            on_moved,
        })
    }

    /// Commands that the phase has still to hand out.
    fn left(&self) -> usize {
        match self.phase {
            _ if self.error.is_some() || self.present.is_empty() => 0,
            Phase::Flush => usize::from(!self.is_flushed),
            Phase::Read | Phase::Write => self.chunks.len(),
        }
    }

    /// The next phase, or the next pieces, once all commands of a phase are back.
    fn go_on(&mut self) {
        while self.in_flight == 0 && self.left() == 0 {
            match (self.present.is_empty(), self.error.take(), self.phase) {
                (true, ..) if self.waiting.is_empty() || self.is_leaving => return,
                (true, ..) => self.begin(),
                (false, None, Phase::Read) => self.write(),
                (false, None, Phase::Write) => (self.phase, self.is_flushed) = (Phase::Flush, false),
                (false, None, Phase::Flush) => self.end(Ok(())),
                (false, Some(error), _) => self.end(Err(error)),
            }
        }
    }

    fn begin(&mut self) {
        let count = self.waiting.len().min(PIECES);
        self.present.extend(self.waiting.drain(..count));
        self.phase = Phase::Read;
        let piece_bytes = self.piece_bytes;
        for (start, job) in (0..).step_by(piece_bytes as usize).zip(&self.present) {
            match job.from_bytes {
                Some(_) => self.chunks.extend(chunks(start..start + piece_bytes)),
                // What the last pieces left.
                None if self.memory.write_at(start, &vec![0; piece_bytes as usize]).is_none() => {
                    self.error = Some(DeviceError::Memory);
                }
                None => {}
            }
        }
        if !self.is_mapped {
            self.error = Some(DeviceError::Memory);
        }
    }

    fn write(&mut self) {
        self.phase = Phase::Write;
        let mut data = vec![0; CHUNK_BYTES as usize];
        for (start, job) in (0..).step_by(self.piece_bytes as usize).zip(&self.present) {
            for chunk in chunks(start..start + self.piece_bytes) {
                let data = &mut data[..(chunk.end - chunk.start) as usize];
                let is_read = job.from_bytes.is_none() || self.memory.read_at(chunk.start, data).is_some();
                if !is_read {
                    self.error = Some(DeviceError::Memory);
                } else if job.from_bytes.is_none() || data.iter().any(|byte| *byte != 0) {
                    self.chunks.push_back(chunk);
                }
            }
        }
    }

    fn end(&mut self, result: Result<(), DeviceError>) {
        self.chunks.clear();
        (self.on_moved)(&self.present, result);
        self.present.clear();
    }
}

/// The commands for a piece.
fn chunks(piece: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    piece.clone().step_by(CHUNK_BYTES as usize).map(move |at| at..(at + CHUNK_BYTES).min(piece.end))
}

impl Source for Mover {
    fn live_vqs(&self) -> u128 {
        u128::from(!self.present.is_empty()) << VQ
    }

    fn backlog(&mut self, _vq: u16) -> u32 {
        self.left() as u32
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        if self.left() == 0 {
            return Fetch::Empty;
        }
        let mut buf = IoBuf::default();
        let command = match self.chunks.pop_front() {
            None => {
                self.is_flushed = true;
                self.place.flush()
            }
            Some(chunk) => {
                let (piece, within) = (chunk.start / self.piece_bytes, chunk.start % self.piece_bytes);
                let len_bytes = chunk.end - chunk.start;
                let job = self.present.get(piece as usize).filter(|_| buf.push(&self.memory, chunk.start, len_bytes));
                let Some(Job { from_bytes, to_bytes }) = job.copied() else {
                    self.error = Some(DeviceError::Memory);
                    self.go_on();
                    return Fetch::Empty;
                };
                match (self.phase, from_bytes) {
                    (Phase::Read, Some(from_bytes)) => self.place.command(Op::Read, from_bytes + within, len_bytes),
                    _ => self.place.command(Op::Write, to_bytes + within, len_bytes),
                }
            }
        };
        self.in_flight += 1;
        Fetch::Command(command, buf, Token::new(vq, 0, 0))
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _buf: IoBuf) {
        token.spend();
        self.in_flight -= 1;
        if let Err(error) = outcome {
            self.error.get_or_insert(error);
        }
        self.go_on();
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _wanted: bool) {}
}

impl FrontEnd for Mover {
    type Order = Order;

    fn order(&mut self, Order(jobs): Order, memory: &mut dyn MemoryListener) {
        self.is_mapped = self.is_mapped || memory.map(&self.memory).is_ok();
        let (copies, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.from_bytes.is_some());
        let copies_end = self.waiting.iter().take_while(|job| job.from_bytes.is_some()).count();
        copies.into_iter().enumerate().for_each(|(at, job)| self.waiting.insert(copies_end + at, job));
        self.waiting.extend(others);
        self.go_on();
    }

    /// It ends the present pieces: commands wait for them.
    fn leave(&mut self) {
        self.is_leaving = true;
        self.waiting.clear();
    }

    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
        let is_over = self.present.is_empty();
        if self.is_leaving && is_over && std::mem::take(&mut self.is_mapped) {
            memory.unmap(&self.memory);
        }
        self.is_leaving && !is_over
    }

    fn has_client(&self) -> bool {
        !self.present.is_empty()
    }

    fn check_health(&mut self) {}

    fn doorbells(&self, _out: &mut Vec<(MappedU32, u32)>) {}
}
