//! All that is not zeros, from an image to a disk or back.

use std::time::{Duration, Instant};

use anyhow::Result;
use images::{Sink, Source};
use io_model::units::Size;

use super::attached::Attached;
use super::stop::Stop;
use crate::progress::Progress;

/// Bytes read at a time.
const WINDOW_BYTES: u64 = 1 << 20;

/// What is skipped if it is all zeros: the largest block of a disk.
const BLOCK_BYTES: usize = 4096;

/// How often progress is shown.
const PERIOD: Duration = Duration::from_millis(200);

/// How far a copy is.
struct Far<'a> {
    name: &'a str,
    what: &'static str,
    all_bytes: u64,
    begun: Instant,
    shown: Instant,
    line: Progress,
}

impl<'a> Far<'a> {
    fn new(name: &'a str, what: &'static str, all_bytes: u64) -> Self {
        Self { name, what, all_bytes, begun: Instant::now(), shown: Instant::now(), line: Progress::new() }
    }

    fn show(&mut self, done_bytes: u64) {
        if self.shown.elapsed() < PERIOD {
            return;
        }
        self.shown = Instant::now();
        let Self { name, what, all_bytes, begun, .. } = self;
        let rate = done_bytes as f64 / begun.elapsed().as_secs_f64();
        let left_s = (*all_bytes - done_bytes) as f64 / rate.max(1.0);
        let percent = done_bytes * 100 / (*all_bytes).max(1);
        self.line.show(&format!("{what} {name}: {percent} % of {}, {left_s:.0} s left", Size(*all_bytes)));
    }
}

impl Drop for Far<'_> {
    fn drop(&mut self) {
        self.line.end();
    }
}

/// Copies an image to a disk that reads as zeros.
pub(super) fn import(source: &Source, disk: &mut Attached, name: &str, stop: &Stop) -> Result<()> {
    let all_bytes = source.size_bytes();
    let mut far = Far::new(name, "import", all_bytes);
    let mut data = vec![0; WINDOW_BYTES as usize];
    let mut at = 0;
    while at < all_bytes {
        stop.check()?;
        let zeros = source.zeros_from(at)?;
        let skipped = if at + zeros >= all_bytes { all_bytes - at } else { zeros - zeros % WINDOW_BYTES };
        if skipped > 0 {
            at += skipped;
            continue;
        }
        // Up to a whole block: a disk takes no less.
        let len = (all_bytes - at).min(WINDOW_BYTES).next_multiple_of(BLOCK_BYTES as u64) as usize;
        source.read(at, &mut data[..len])?;
        runs(&data[..len], |skip, run| disk.write(at + skip as u64, run))?;
        at += len as u64;
        far.show(at.min(all_bytes));
    }
    Ok(())
}

/// Copies a disk of `size_bytes` to a new image.
pub(super) fn export(disk: &mut Attached, size_bytes: u64, to: &Sink, name: &str, stop: &Stop) -> Result<()> {
    let mut far = Far::new(name, "export", size_bytes);
    let mut data = vec![0; WINDOW_BYTES as usize];
    for at in (0..size_bytes).step_by(WINDOW_BYTES as usize) {
        stop.check()?;
        let len = (size_bytes - at).min(WINDOW_BYTES) as usize;
        disk.read(at, &mut data[..len])?;
        runs(&data[..len], |skip, run| Ok(to.write(at + skip as u64, run)?))?;
        far.show(at + len as u64);
    }
    Ok(())
}

/// The runs of blocks that are not all zeros, each with its place in `data`.
fn runs(data: &[u8], mut each: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let mut start = None;
    for (at, block) in (0..).step_by(BLOCK_BYTES).zip(data.chunks(BLOCK_BYTES)) {
        match (start, is_zero(block)) {
            (None, false) => start = Some(at),
            (Some(from), true) => {
                each(from, &data[from..at])?;
                start = None;
            }
            _ => {}
        }
    }
    start.map_or(Ok(()), |from| each(from, &data[from..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_all_that_is_not_zeros() {
        let mut data = vec![0; 10 * BLOCK_BYTES + 100];
        for block in [1, 2, 5, 10] {
            data[block * BLOCK_BYTES + 50] = 1;
        }
        let mut seen = Vec::new();
        runs(&data, |at, run| {
            seen.push((at / BLOCK_BYTES, run.len()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(1, 2 * BLOCK_BYTES), (5, BLOCK_BYTES), (10, 100)]);
    }
}
