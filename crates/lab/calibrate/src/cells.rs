//! Loads of several sizes at several depths: what a profile is judged by.

use io_model::Backend;

use crate::clock::Clock;
use crate::rig::{Failure, Loop, Shot};
use crate::seen::Cell;
use crate::session::{BLOCK_BYTES, Session};

/// Sizes of commands.
const LENS: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 128 << 10];

/// Commands in flight.
const DEPTHS: [u32; 5] = [1, 4, 16, 64, 256];

/// Between two loads that write, for buffers to empty.
const PAUSE_NS: u64 = 10_000_000;

impl<B: Backend, C: Clock> Session<'_, B, C> {
    pub(crate) fn read_cells(&mut self) -> Result<Vec<Cell>, Failure> {
        self.cells(&[100], self.rig.facts().size_bytes)
    }

    pub(crate) fn write_cells(&mut self) -> Result<Vec<Cell>, Failure> {
        let (_, range_bytes) = self.rig.facts().overwrite.unwrap_or_default();
        self.cells(&[0, 50], range_bytes)
    }

    fn cells(&mut self, read_percents: &[u8], range_bytes: u64) -> Result<Vec<Cell>, Failure> {
        let mut cells = Vec::new();
        for &read_percent in read_percents {
            for len_bytes in LENS.into_iter().filter(|len| *len <= range_bytes) {
                for depth in DEPTHS {
                    cells.extend(self.cell(read_percent, len_bytes, depth)?);
                }
            }
        }
        Ok(cells)
    }

    /// One load; again, up to three times in all, if the host was elsewhere for more than 2 % of it, and the best of
    /// those. `None`: too few commands finished in time to say anything.
    pub(crate) fn cell(&mut self, read_percent: u8, len_bytes: u64, depth: u32) -> Result<Option<Cell>, Failure> {
        let mut best: Option<(f64, Cell)> = None;
        for _ in 0..3 {
            let (started_ns, lost_ns) = (self.rig.now_ns(), self.rig.lost_ns());
            let Some(cell) = self.cell_once(read_percent, len_bytes, depth)? else { return Ok(None) };
            let took_ns = self.rig.now_ns().saturating_sub(started_ns).max(1);
            let lost = (self.rig.lost_ns() - lost_ns) as f64 / took_ns as f64;
            if best.is_none_or(|(least, _)| lost < least) {
                best = Some((lost, cell));
            }
            if lost < 0.02 {
                break;
            }
        }
        Ok(best.map(|(_, cell)| cell))
    }

    fn cell_once(&mut self, read_percent: u8, len_bytes: u64, depth: u32) -> Result<Option<Cell>, Failure> {
        let facts = self.rig.facts();
        if read_percent < 100 {
            self.rig.pause(PAUSE_NS)?;
        }
        let (start, range_bytes) = facts.overwrite.unwrap_or_default();
        let reads = (facts.size_bytes - len_bytes) / BLOCK_BYTES + 1;
        let writes = range_bytes.saturating_sub(len_bytes) / BLOCK_BYTES + 1;
        // Loads with equal parameters use equal addresses: what differs is the drive's doing.
        self.rig.rng = fastrand::Rng::with_seed(u64::from(read_percent) << 56 | len_bytes << 16 | u64::from(depth));
        // Large commands cost a model more, and need fewer to tell.
        let count = (self.effort.cell_commands / (len_bytes / (16 << 10)).max(1) as usize).max(16 * depth as usize);
        let seen = self.rig.closed_loop(depth as usize, count, self.effort.cell_ns, |rng| {
            if rng.u64(..100) < u64::from(read_percent) {
                Shot::read(rng.u64(..reads) * BLOCK_BYTES, len_bytes)
            } else {
                Shot::write(start + rng.u64(..writes) * BLOCK_BYTES, len_bytes)
            }
        })?;
        Ok(summary(&seen, facts.own_ns.0).map(|[iops, mean_ns, p50_ns, p99_ns]| Cell {
            read_percent,
            len_bytes,
            depth,
            iops,
            mean_ns,
            p50_ns,
            p99_ns,
        }))
    }
}

/// Rate, mean, median and 99th percentile of all but the first eighth.
fn summary(seen: &Loop, own_ns: f64) -> Option<[f64; 4]> {
    let warm = seen.finished_ns.len() / 8;
    let (from_ns, to_ns) = (*seen.finished_ns.get(warm)?, *seen.finished_ns.last()?);
    let mut latencies: Vec<u64> = seen.latency_ns[warm..].to_vec();
    let count = latencies.len();
    if count < 16 || to_ns <= from_ns {
        return None;
    }
    latencies.sort_unstable();
    let at = |part: usize| (latencies[count * part / 100] as f64 - own_ns).max(0.0);
    let mean_ns = latencies.iter().sum::<u64>() as f64 / count as f64 - own_ns;
    Some([(count - 1) as f64 * 1e9 / (to_ns - from_ns) as f64, mean_ns.max(0.0), at(50), at(99)])
}
