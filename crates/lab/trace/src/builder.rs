//! Turns requests as a trace has them into entries: the rules about imperfect input.

use io_model::Op;

use crate::formats::Request;
use crate::read::Limits;
use crate::trace::{BLOCK_BYTES, Counts, Entry};

/// Ranges end below this, as Linux's file offsets do.
const MAX_END_BYTES: u64 = i64::MAX as u64 & !(BLOCK_BYTES - 1);

/// Discards and write zeroes move nothing over a link and are split only to fit an entry.
const MAX_PIECE_BYTES: u64 = u32::MAX as u64 & !(BLOCK_BYTES - 1);

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// It is impossible; what it should be instead.
    Impossible(&'static str),
    /// It would go over [`Limits::max_entries`].
    Full,
}

/// Entries so far.
pub(crate) struct Builder {
    limits: Limits,
    /// Requests come in any order, and are sorted at the end.
    is_unsorted: bool,
    entries: Vec<Entry>,
    pub counts: Counts,
    clock: Clock,
    /// The first request's; further ones are compared with it.
    device: Option<Vec<u8>>,
}

impl Builder {
    pub(crate) fn new(limits: Limits, is_unsorted: bool) -> Self {
        let (entries, counts, clock) = (Vec::new(), Counts::default(), Clock::default());
        Self { limits, is_unsorted, entries, counts, clock, device: None }
    }

    /// All entries in order, and what was applied to them.
    pub(crate) fn finish(mut self) -> (Vec<Entry>, Counts) {
        if self.is_unsorted {
            self.entries.sort_by_key(|entry| entry.time_ns);
            let origin_ns = self.entries.first().map_or(0, |first| first.time_ns);
            self.entries.iter_mut().for_each(|entry| entry.time_ns -= origin_ns);
        }
        self.entries.shrink_to_fit();
        (self.entries, self.counts)
    }

    /// Forgets all entries, which came from `lines` lines: these count as skipped now.
    pub(crate) fn start_over(&mut self, lines: u64) {
        let Counts { lines: all, blank, comments, skipped, malformed, .. } = self.counts;
        *self = Self::new(self.limits, self.is_unsorted);
        self.counts = Counts { lines: all, blank, comments, skipped: skipped + lines, malformed, ..Counts::default() };
    }

    /// Takes one request.
    pub(crate) fn push(&mut self, request: &Request) -> Result<(), Rejected> {
        let range = Range::of(request).map_err(Rejected::Impossible)?;
        let piece_bytes = self.piece_bytes(request.op);
        let pieces = range.len_bytes.div_ceil(piece_bytes).max(1) + u64::from(request.flush_first);
        if pieces > self.limits.max_entries.saturating_sub(self.entries.len()) as u64 {
            return Err(Rejected::Full);
        }

        self.note_device(request.device);
        let time_ns = match self.is_unsorted {
            true => request.time_ns,
            false => self.clock.place(request.time_ns, self.limits.reorder_ns, &mut self.counts),
        };
        if request.flush_first {
            self.entries.push(Entry { time_ns, offset_bytes: 0, len_bytes: 0, op: Op::Flush });
        }
        if request.op == Op::Flush {
            self.entries.push(Entry { time_ns, offset_bytes: 0, len_bytes: 0, op: Op::Flush });
            return Ok(());
        }
        self.counts.zero_length += u64::from(request.len_bytes == 0);
        self.counts.unaligned += u64::from(range.rounded);
        self.counts.split += u64::from(range.len_bytes > piece_bytes);
        let Range { mut offset_bytes, mut len_bytes, .. } = range;
        while len_bytes > 0 {
            let piece = len_bytes.min(piece_bytes);
            // Pieces are at most `MAX_PIECE_BYTES`.
            self.entries.push(Entry { time_ns, offset_bytes, len_bytes: piece as u32, op: request.op });
            offset_bytes += piece;
            len_bytes -= piece;
        }
        Ok(())
    }

    fn piece_bytes(&self, op: Op) -> u64 {
        match op {
            Op::Read | Op::Write => (u64::from(self.limits.max_len_bytes) & !(BLOCK_BYTES - 1)).max(BLOCK_BYTES),
            Op::Flush | Op::WriteZeroes | Op::Discard => MAX_PIECE_BYTES,
        }
    }

    fn note_device(&mut self, device: &[u8]) {
        match &self.device {
            Some(first) => {
                self.counts.other_devices += u64::from(first != device);
            }
            None => self.device = Some(device.to_vec()),
        }
    }
}

/// A request's range in whole blocks. Empty for a flush.
struct Range {
    offset_bytes: u64,
    len_bytes: u64,
    rounded: bool,
}

impl Range {
    /// Refused with what was expected.
    fn of(request: &Request) -> Result<Self, &'static str> {
        if request.op == Op::Flush {
            return Ok(Self { offset_bytes: 0, len_bytes: 0, rounded: false });
        }
        if matches!(request.op, Op::Read | Op::Write) && request.len_bytes > u64::from(u32::MAX) {
            return Err("a read or write below 4 GiB");
        }
        let start = request.offset_bytes & !(BLOCK_BYTES - 1);
        let end = request
            .offset_bytes
            .checked_add(request.len_bytes.max(1))
            .and_then(|end| end.checked_next_multiple_of(BLOCK_BYTES))
            .filter(|&end| end <= MAX_END_BYTES)
            .ok_or("a range that ends below 8 EiB")?;
        let rounded =
            !request.offset_bytes.is_multiple_of(BLOCK_BYTES) || !request.len_bytes.is_multiple_of(BLOCK_BYTES);
        Ok(Self { offset_bytes: start, len_bytes: end - start, rounded })
    }
}

/// Maps a trace's clock to one that starts at 0 and never goes back.
#[derive(Default)]
struct Clock {
    /// Where the trace's clock started, or last jumped to; `None` before the first request.
    origin_ns: Option<u64>,
    /// What our clock said then.
    shift_ns: u64,
    /// The greatest time on the trace's clock since then.
    latest_raw_ns: u64,
    /// The greatest time on our clock since then.
    latest_ns: u64,
}

impl Clock {
    fn place(&mut self, raw_ns: u64, reorder_ns: u64, counts: &mut Counts) -> u64 {
        let origin_ns = *self.origin_ns.get_or_insert(raw_ns);
        if raw_ns >= self.latest_raw_ns {
            self.latest_raw_ns = raw_ns;
            self.latest_ns = self.shift_ns.saturating_add(raw_ns - origin_ns);
        } else if self.latest_raw_ns - raw_ns <= reorder_ns {
            counts.out_of_order += 1;
        } else {
            counts.jumps_back += 1;
            (self.origin_ns, self.latest_raw_ns) = (Some(raw_ns), raw_ns);
            self.shift_ns = self.latest_ns;
        }
        self.latest_ns
    }
}
