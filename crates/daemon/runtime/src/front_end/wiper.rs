//! Overwrites what deleted disks left, as a tenant among the others: the policy divides the drive between it and them.
//!
//! A pass goes in segments. Each is written, flushed, in some cases read back and compared, and reported: what was
//! reported is never done again. Where the drive makes the zeros itself they are always read back: one that only says
//! so would have the next owner read what the former one wrote. Of a file only what may hold data is written: a hole
//! reads as zeros, and the flush makes it durable like what is written.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use config::WipeBy;
use guest_memory::{MappedU32, Mapping, MemoryListener};
use io_model::{DeviceError, Fetch, IoBuf, Op, Outcome, Place, Source, TenantId, Token};
use layout::{WipeMethod, Wiping};

use super::FrontEnd;
use crate::happening::{WipeError, WipeStep};

/// Bytes of a command: as much as every policy lets through at once.
const CHUNK_BYTES: u64 = 128 << 10;

/// Commands at a time, each with a buffer of its own for what is read back.
const DEPTH: usize = 4;

/// Bytes between two reports.
const SEGMENT_BYTES: u64 = 64 << 20;

/// Its only queue.
const VQ: u16 = 1;

/// Called for each step; it must not wait.
pub type OnWipeStep = Box<dyn Fn(WipeStep) + Send>;

/// Overwrite this range from now on, or what of it may hold data: pieces of the drive, in order. There is none at
/// present.
pub struct Order(pub Wiping, pub WipeBy, pub Vec<Range<u64>>);

/// What is done with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Write,
    Flush,
    ReadBack,
}

/// A range that is being overwritten.
struct Run {
    at_bytes: u64,
    size_bytes: u64,
    method: WipeMethod,
    by: WipeBy,
    /// Passes that are over.
    passes: u8,
    /// The present segment, from and to.
    segment: (u64, u64),
    phase: Phase,
    /// What is written, in order, from the range's start.
    pieces: Vec<Range<u64>>,
    /// The piece that `next_bytes` lies in or before.
    piece: usize,
    /// What of the segment was handed out, or needs nothing.
    next_bytes: u64,
    error: Option<WipeError>,
}

impl Run {
    /// What holds no data up to the next piece belongs to its segment.
    fn segment_after(&mut self, from: u64) {
        self.begin(Phase::Write, from);
        let start = self.pieces.get(self.piece).map_or(self.size_bytes, |piece| piece.start.max(from));
        self.segment = (from, (start + SEGMENT_BYTES).min(self.size_bytes));
    }

    fn begin(&mut self, phase: Phase, from: u64) {
        (self.phase, self.next_bytes) = (phase, from);
        self.piece = self.pieces.partition_point(|piece| piece.end <= from);
    }

    /// What the next command is for, unless the segment has nothing more to be written.
    fn next_chunk(&self) -> Option<Range<u64>> {
        let piece = self.pieces.get(self.piece)?;
        let start = piece.start.max(self.next_bytes);
        let end = piece.end.min(self.segment.1).min(start + CHUNK_BYTES);
        (start < end).then_some(start..end)
    }

    fn handed_out(&mut self, chunk: &Range<u64>) {
        self.next_bytes = chunk.end;
        self.piece += usize::from(self.pieces[self.piece].end <= chunk.end);
    }

    /// Commands that the phase still has to hand out, or a few of them.
    fn left(&self) -> u64 {
        match self.phase {
            _ if self.error.is_some() => 0,
            Phase::Flush => u64::from(self.next_bytes < self.segment.1),
            Phase::Write | Phase::ReadBack => {
                let piece_end = self.pieces.get(self.piece).map_or(0, |piece| piece.end.min(self.segment.1));
                self.next_chunk().map_or(0, |next| (piece_end - next.start).div_ceil(CHUNK_BYTES))
            }
        }
    }

    /// What comes once all commands of a phase are back. `Some`: a step to report.
    fn advance(&mut self) -> Option<(u8, u64)> {
        let (from, to) = self.segment;
        match self.phase {
            Phase::Write => self.begin(Phase::Flush, from),
            Phase::Flush if self.is_read_back() => self.begin(Phase::ReadBack, from),
            Phase::Flush | Phase::ReadBack => {
                if to < self.size_bytes {
                    self.segment_after(to);
                    return Some((self.passes, to));
                }
                self.passes += 1;
                self.segment_after(0);
                return Some((self.passes, 0));
            }
        }
        None
    }

    fn is_read_back(&self) -> bool {
        self.method == WipeMethod::ThreePasses || self.by == WipeBy::WriteZeroes
    }

    fn is_over(&self) -> bool {
        self.passes >= self.method.passes()
    }
}

/// The wiper at its poller.
pub struct Wiper {
    place: Place,
    /// What is written, and a buffer for each command that reads.
    memory: Arc<Mapping>,
    is_mapped: bool,
    /// What the present pass writes.
    pattern: Vec<u8>,
    read_back: Vec<u8>,
    free_buffers: Vec<usize>,
    run: Option<Run>,
    in_flight: u32,
    is_leaving: bool,
    on_step: OnWipeStep,
}

impl Wiper {
    /// With nothing to do.
    ///
    /// # Errors
    /// There is no memory for its buffers.
    pub fn new(id: TenantId, on_step: OnWipeStep) -> Result<Self> {
        let memory = Mapping::anonymous((1 + DEPTH) * CHUNK_BYTES as usize)?;
        Ok(Self {
            place: Place::whole_drive(id),
            memory,
            is_mapped: false,
            pattern: vec![0; CHUNK_BYTES as usize],
            read_back: vec![0; CHUNK_BYTES as usize],
            free_buffers: (1..=DEPTH).collect(),
            run: None,
            in_flight: 0,
            is_leaving: false,
            on_step,
        })
    }

    /// The last pass leaves zeros, which the range's next owner sees.
    fn prepare_pass(&mut self) {
        let Some(run) = &self.run else { return };
        match run.method.passes() - run.passes.min(run.method.passes()) {
            3 => self.pattern.fill(0xff),
            2 => fastrand::Rng::new().fill(&mut self.pattern),
            _ => self.pattern.fill(0),
        }
        // It is ours, and can't go.
        let _ = self.memory.write_at(0, &self.pattern);
    }

    /// The next phase, once all commands of a phase are back.
    fn go_on(&mut self) {
        while let Some(run) = self.run.as_mut().filter(|run| self.in_flight == 0 && run.left() == 0) {
            let step = match run.error {
                Some(error) => Some(Err(error)),
                None => run.advance().map(Ok),
            };
            let Some(result) = step else { continue };
            (self.on_step)(WipeStep { offset_bytes: run.at_bytes, result });
            if run.error.is_some() || run.is_over() {
                self.run = None;
            } else if matches!(result, Ok((_, 0))) {
                self.prepare_pass();
            }
        }
    }

    fn is_as_written(&mut self, buffer: usize, len: usize) -> bool {
        let read = self.memory.read_at(buffer as u64 * CHUNK_BYTES, &mut self.read_back[..len]);
        read.is_some() && self.read_back[..len] == self.pattern[..len]
    }
}

impl Source for Wiper {
    fn live_vqs(&self) -> u128 {
        // A thread that waits for the wiper to leave, or ends the daemon, waits only for commands in flight. The rest
        // of the range is left for the next start.
        let has_more = self.run.is_some() && !self.is_leaving;
        u128::from(has_more || self.in_flight > 0) << VQ
    }

    fn backlog(&mut self, _vq: u16) -> u32 {
        let left = self.run.as_ref().map_or(0, Run::left).min(self.free_buffers.len() as u64);
        if self.is_leaving { 0 } else { left as u32 }
    }

    fn fetch(&mut self, vq: u16) -> Fetch {
        let Some(run) = self.run.as_mut().filter(|run| run.left() > 0 && !self.is_leaving) else { return Fetch::Empty };
        let Some(buffer) = self.free_buffers.pop() else { return Fetch::Empty };
        let mut buf = IoBuf::default();
        let chunk = run.next_chunk().unwrap_or_default();
        let len = chunk.end - chunk.start;
        let command = match run.phase {
            Phase::Flush => {
                run.next_bytes = run.segment.1;
                self.place.flush()
            }
            Phase::Write if run.by == WipeBy::WriteZeroes => {
                run.handed_out(&chunk);
                self.place.command(Op::WriteZeroes, run.at_bytes + chunk.start, len)
            }
            Phase::Write | Phase::ReadBack => {
                let (op, from) = if run.phase == Phase::Write { (Op::Write, 0) } else { (Op::Read, buffer as u64) };
                if !buf.push(&self.memory, from * CHUNK_BYTES, len) {
                    run.error = Some(WipeError::Drive(DeviceError::Memory));
                    self.free_buffers.push(buffer);
                    self.go_on();
                    return Fetch::Empty;
                }
                run.handed_out(&chunk);
                self.place.command(op, run.at_bytes + chunk.start, len)
            }
        };
        self.in_flight += 1;
        // Which buffer, and how much of it.
        Fetch::Command(command, buf, Token::new(vq, (command.len_bytes / 512) as u16, buffer as u32))
    }

    fn complete(&mut self, token: Token, outcome: Outcome, _buf: IoBuf) {
        let (_, blocks, buffer) = token.spend();
        self.in_flight -= 1;
        self.free_buffers.push(buffer as usize);
        let is_read_back = self.run.as_ref().is_some_and(|run| run.phase == Phase::ReadBack);
        let differs =
            outcome.is_ok() && is_read_back && !self.is_as_written(buffer as usize, usize::from(blocks) * 512);
        let error = outcome.err().map(WipeError::Drive).or(differs.then_some(WipeError::Differs));
        if let (Some(run), Some(error)) = (&mut self.run, error) {
            run.error.get_or_insert(error);
        }
        self.go_on();
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _wanted: bool) {}
}

impl FrontEnd for Wiper {
    type Order = Order;

    fn order(&mut self, Order(range, by, mut pieces): Order, memory: &mut dyn MemoryListener) {
        self.is_mapped = self.is_mapped || memory.map(&self.memory).is_ok();
        let Wiping { offset_bytes: at_bytes, size_bytes, method, passes, wiped_bytes, .. } = range;
        pieces.iter_mut().for_each(|piece| *piece = piece.start - at_bytes..piece.end - at_bytes);
        let mut run = Run {
            at_bytes,
            size_bytes,
            method,
            // The other passes are no zeros.
            by: if method == WipeMethod::Zeros { by } else { WipeBy::Overwrite },
            passes,
            segment: (0, 0),
            phase: Phase::Write,
            pieces,
            piece: 0,
            next_bytes: 0,
            error: (!self.is_mapped).then_some(WipeError::Drive(DeviceError::Memory)),
        };
        run.segment_after(wiped_bytes);
        self.run = Some(run);
        self.prepare_pass();
        self.go_on();
    }

    fn leave(&mut self) {
        self.is_leaving = true;
    }

    fn settle(&mut self, memory: &mut dyn MemoryListener) -> bool {
        if !self.is_leaving {
            return false;
        }
        if self.in_flight == 0 && std::mem::take(&mut self.is_mapped) {
            memory.unmap(&self.memory);
        }
        self.in_flight > 0
    }

    fn has_client(&self) -> bool {
        self.run.is_some()
    }

    fn check_health(&mut self) {}

    fn doorbells(&self, _out: &mut Vec<(MappedU32, u32)>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE_BYTES: u64 = 2 * SEGMENT_BYTES;

    fn order() -> Order {
        let range = Wiping {
            former: "gone".to_owned(),
            offset_bytes: 0,
            size_bytes: RANGE_BYTES,
            method: WipeMethod::Zeros,
            passes: 0,
            wiped_bytes: 0,
        };
        Order(range, WipeBy::Overwrite, std::iter::once(0..RANGE_BYTES).collect())
    }

    /// An operation, and the range that it is for.
    type Sent = (Op, u64, u64);

    /// What a wipe of these pieces sends, and the steps that it tells.
    fn wiped(pieces: Vec<Range<u64>>) -> (Vec<Sent>, Vec<(u8, u64)>) {
        let steps = Arc::new(std::sync::Mutex::new(Vec::new()));
        let told = Arc::clone(&steps);
        let on_step = move |step: WipeStep| told.lock().expect("steps").push(step.result.expect("a step"));
        let mut wiper = Wiper::new(TenantId(1), Box::new(on_step)).expect("memory");
        let Order(range, by, _) = order();
        wiper.order(Order(Wiping { offset_bytes: 4096, ..range }, by, pieces), &mut ());
        let mut seen = Vec::new();
        while wiper.has_client() {
            assert!(wiper.backlog(VQ) > 0, "a wiper that nobody asks never ends");
            let Fetch::Command(command, buf, token) = wiper.fetch(VQ) else { panic!("a backlog of nothing") };
            seen.push((command.op, command.offset_bytes, command.len_bytes));
            wiper.complete(token, Ok(()), buf);
        }
        drop(wiper);
        (seen, Arc::try_unwrap(steps).expect("no wiper").into_inner().expect("steps"))
    }

    #[test]
    fn holes_are_flushed_and_never_written() {
        assert_eq!(wiped(Vec::new()), (vec![(Op::Flush, 0, 0)], vec![(1, 0)]));
        let far = SEGMENT_BYTES + 4096 + 8192;
        let (seen, steps) = wiped(vec![8192..8192 + CHUNK_BYTES + 512, far..far + 4096]);
        let written =
            [(8192, CHUNK_BYTES), (8192 + CHUNK_BYTES, 512), (far, 4096)].map(|(at, len)| (Op::Write, at, len));
        let expected = [&written[..2], &[(Op::Flush, 0, 0)], &written[2..], &[(Op::Flush, 0, 0)]].concat();
        assert_eq!((seen, steps), (expected, vec![(0, SEGMENT_BYTES + 4096), (1, 0)]));
    }

    #[test]
    fn who_leaves_amid_a_range_ends_what_is_in_flight_and_no_more() {
        let mut wiper = Wiper::new(TenantId(1), Box::new(|step| panic!("{step:?}"))).expect("memory");
        wiper.order(order(), &mut ());
        let mut in_flight = Vec::new();
        while let Fetch::Command(_, buf, token) = wiper.fetch(VQ) {
            in_flight.push((token, buf));
        }
        assert_eq!((in_flight.len(), wiper.live_vqs()), (DEPTH, 1 << VQ));
        wiper.leave();
        assert_eq!((wiper.live_vqs(), wiper.settle(&mut ())), (1 << VQ, true), "they are the drive's");
        for (token, buf) in in_flight {
            wiper.complete(token, Ok(()), buf);
        }
        assert!(matches!(wiper.fetch(VQ), Fetch::Empty));
        assert_eq!((wiper.live_vqs(), wiper.settle(&mut ())), (0, false), "nobody waits for the rest of the range");
    }
}
