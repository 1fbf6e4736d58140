//! A trace in memory.

use std::fmt;

use io_model::Op;

use crate::Format;

/// Offsets and lengths of entries are multiples of this, in bytes.
pub const BLOCK_BYTES: u64 = 512;

/// [`Trace::fit`] moves entries by multiples of this, so that what was aligned to a page stays so.
const PAGE_BYTES: u64 = 4096;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// When it was sent, from the trace's first request. Never less than the entry before's.
    pub time_ns: u64,
    /// Start on the disk, a multiple of [`BLOCK_BYTES`]. 0 for [`Op::Flush`].
    pub offset_bytes: u64,
    /// A multiple of [`BLOCK_BYTES`], not 0. 0 for [`Op::Flush`].
    pub len_bytes: u32,
    /// What it does.
    pub op: Op,
}

impl Entry {
    /// The end of its range.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(u64::from(self.len_bytes))
    }
}

// A trace of 20 million requests has to stay below half a gigabyte.
const _: () = assert!(size_of::<Entry>() <= 24);

/// How often each rule about imperfect input was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// All lines of the file.
    pub lines: u64,
    /// Of these: blank ones.
    pub blank: u64,
    /// Of these: comments, headings.
    pub comments: u64,
    /// Of these: of kinds that move no data.
    pub skipped: u64,
    /// Of these: malformed. 0 unless read leniently.
    pub malformed: u64,
    /// Requests that its recorder could not keep, as it says itself.
    pub lost: u64,
    /// 1: it has no last line that says how many it has, as its format should: its end is missing.
    pub cut_off: u64,
    /// Requests logged slightly late, set to the latest time before.
    pub out_of_order: u64,
    /// Requests at which the trace's clock jumped back; time ran on from the latest before.
    pub jumps_back: u64,
    /// Requests of no length, made one block long.
    pub zero_length: u64,
    /// Requests not made of whole blocks, rounded out.
    pub unaligned: u64,
    /// Requests longer than the limit, split.
    pub split: u64,
    /// Requests to another device or file than the first request's, laid over it.
    pub other_devices: u64,
    /// Entries past the end of the disk, moved by [`Trace::fit`].
    pub moved: u64,
    /// Entries longer than the disk, shortened by [`Trace::fit`].
    pub shortened: u64,
}

/// [`Trace::fit`] needs room for a block and the page that it moves by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a disk of at least 8192 bytes to replay a trace on, found {disk_bytes}; give it a larger one")]
pub struct DiskTooSmall {
    /// The disk that was asked for.
    pub disk_bytes: u64,
}

/// What a trace holds, in figures.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// All entries.
    pub entries: u64,
    /// Of these: reads.
    pub reads: u64,
    /// Of these: writes.
    pub writes: u64,
    /// Of these: flushes, discards and write zeroes.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, without write zeroes.
    pub written_bytes: u64,
    /// The greatest end of any entry: the smallest disk that holds the trace.
    pub end_bytes: u64,
    /// From the first entry to the last.
    pub span_ns: u64,
    /// Entries per second over the span; 0 where the span is.
    pub mean_iops: f64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const MIB: f64 = (1 << 20) as f64;
        write!(
            f,
            "{} requests over {:.3} s ({:.1} IOPS): {} reads of {:.1} MiB, {} writes of {:.1} MiB, {} others, \
             on the first {:.1} MiB",
            self.entries,
            self.span_ns as f64 / 1e9,
            self.mean_iops,
            self.reads,
            self.read_bytes as f64 / MIB,
            self.writes,
            self.written_bytes as f64 / MIB,
            self.others,
            self.end_bytes as f64 / MIB,
        )
    }
}

/// A trace, sorted by time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    entries: Vec<Entry>,
    counts: Counts,
    format: Format,
}

impl Trace {
    pub(crate) fn new(entries: Vec<Entry>, counts: Counts, format: Format) -> Self {
        Self { entries, counts, format }
    }

    /// Its requests, in the order in which they were sent.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How often each rule about imperfect input was applied.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What it was read as.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What it holds, in figures. Goes through all entries.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary { entries: self.entries.len() as u64, ..Summary::default() };
        for entry in &self.entries {
            let len_bytes = u64::from(entry.len_bytes);
            match entry.op {
                Op::Read => {
                    summary.reads += 1;
                    summary.read_bytes = summary.read_bytes.saturating_add(len_bytes);
                }
                Op::Write => {
                    summary.writes += 1;
                    summary.written_bytes = summary.written_bytes.saturating_add(len_bytes);
                }
                Op::Flush | Op::WriteZeroes | Op::Discard => summary.others += 1,
            }
            summary.end_bytes = summary.end_bytes.max(entry.end_bytes());
        }
        // Sorted, and time counts from the first.
        summary.span_ns = self.entries.last().map_or(0, |last| last.time_ns);
        if summary.span_ns > 0 {
            summary.mean_iops = summary.entries as f64 * 1e9 / summary.span_ns as f64;
        }
        summary
    }

    /// Moves every entry onto a disk of `disk_bytes`, rounded down to whole pages of 4096 bytes.
    ///
    /// Offsets past the end wrap around (modulo the disk). An entry that would then hang over the end moves back
    /// by whole pages. Both keep its length and its place within a page. Only an entry longer than the disk less
    /// one page is shortened. [`Counts::moved`] and [`Counts::shortened`] say how many.
    ///
    /// # Errors
    ///
    /// A disk of less than two pages; the trace is then as before.
    pub fn fit(&mut self, disk_bytes: u64) -> Result<(), DiskTooSmall> {
        let usable_bytes = disk_bytes / PAGE_BYTES * PAGE_BYTES;
        if usable_bytes < 2 * PAGE_BYTES {
            return Err(DiskTooSmall { disk_bytes });
        }
        let longest_bytes = u32::try_from(usable_bytes - PAGE_BYTES).unwrap_or(u32::MAX);
        for entry in self.entries.iter_mut().filter(|entry| entry.end_bytes() > usable_bytes) {
            if entry.len_bytes > longest_bytes {
                entry.len_bytes = longest_bytes;
                self.counts.shortened += 1;
            }
            let old_bytes = entry.offset_bytes;
            entry.offset_bytes %= usable_bytes;
            let overhang_bytes = entry.end_bytes().saturating_sub(usable_bytes);
            entry.offset_bytes = entry.offset_bytes.saturating_sub(overhang_bytes.next_multiple_of(PAGE_BYTES));
            self.counts.moved += u64::from(entry.offset_bytes != old_bytes);
        }
        Ok(())
    }
}
