//! What writes tell: their latency, whether they occupy units, the buffer and what is behind it.

use io_model::Backend;

use crate::clock::Clock;
use crate::estimate::Estimate;
use crate::read_stages::{BY_ADDRESS, points, within_lens};
use crate::rig::{Failure, Loop, Shot};
use crate::seen::{Beside, Point, Sustained, WriteTimes};
use crate::session::{BLOCK_BYTES, Session, median};

/// Commands of a burst: few, so that any buffer takes them.
const BURST: usize = 16;

/// Large writes of a burst, and their size.
const LARGE: usize = 8;
const LARGE_BYTES: u64 = 32 << 10;

/// For a buffer to empty.
const PAUSE_NS: u64 = 20_000_000;

/// Sustained writes.
const SUSTAINED: usize = 32_768;

/// Of how many of them the time is kept: every 64th.
const KEPT: usize = 64;

impl<B: Backend, C: Clock> Session<'_, B, C> {
    pub(crate) fn write_times(&mut self) -> Result<WriteTimes, Failure> {
        let (_, range_bytes) = self.rig.facts().overwrite.unwrap_or_default();
        let (stripe_bytes, units) = (self.stripe_bytes(), u64::from(self.unit_count()));
        let within: Vec<u64> = within_lens(stripe_bytes).into_iter().filter(|len| *len <= range_bytes).collect();
        let beyond = [1, 2, 4, 8].into_iter().filter(|n| *n <= units).map(|n| n * stripe_bytes);
        let beyond: Vec<u64> = beyond.filter(|len| 2 * len <= range_bytes).collect();
        let (mut lone, mut stripes) = (vec![vec![]; within.len()], vec![vec![]; beyond.len()]);
        let (mut large, mut apart, mut same) = (vec![], vec![], vec![]);
        for _ in 0..self.effort.rounds {
            for (samples, len) in lone.iter_mut().zip(&within) {
                let at = self.place_to_write(stripe_bytes, *len);
                samples.push(self.lone_write(Shot::write(at, *len))?);
            }
            for (samples, len) in stripes.iter_mut().zip(&beyond) {
                let group_bytes = units * stripe_bytes;
                let step_bytes = if 2 * group_bytes <= range_bytes { group_bytes } else { stripe_bytes };
                let at = self.place_to_write(step_bytes, *len);
                samples.push(self.lone_write(Shot::write(at, *len))?);
            }
            let at = self.place_to_write(BLOCK_BYTES, BLOCK_BYTES);
            same.push(self.write_spacing(&[Shot::write(at, BLOCK_BYTES); BURST])?);
            let spread: Vec<Shot> =
                (0..BURST).map(|_| Shot::write(self.place_to_write(BLOCK_BYTES, BLOCK_BYTES), BLOCK_BYTES)).collect();
            apart.push(self.write_spacing(&spread)?);
            let spread: Vec<Shot> =
                (0..LARGE).map(|_| Shot::write(self.place_to_write(BLOCK_BYTES, LARGE_BYTES), LARGE_BYTES)).collect();
            large.push(self.write_spacing(&spread)?);
        }
        let (same_spacing, apart_spacing) = (median(same), median(apart));
        Ok(WriteTimes {
            within: points(&within, lone),
            beyond: points(&beyond, stripes),
            large_spacing: Point { len_bytes: LARGE_BYTES, ns: median(large) },
            apart_spacing,
            same_spacing,
            by_address: same_spacing.value > BY_ADDRESS * apart_spacing.value,
        })
    }

    /// Then waits until a buffer that drains half as fast as it is filled is empty.
    fn lone_write(&mut self, shot: Shot) -> Result<f64, Failure> {
        let latency_ns = self.rig.lone(shot)?;
        self.rig.pause(2 * latency_ns as u64 + 20_000)?;
        Ok(latency_ns)
    }

    fn write_spacing(&mut self, shots: &[Shot]) -> Result<f64, Failure> {
        let spacing_ns = self.spacing(shots)?;
        self.rig.pause(2 * (spacing_ns * shots.len() as f64) as u64 + 500_000)?;
        Ok(spacing_ns)
    }

    /// Writes fill the drive; do reads notice?
    pub(crate) fn beside(&mut self) -> Result<Beside, Failure> {
        let window = self.seen.window.and_then(|window| window.commands).map_or(f64::MAX, |commands| commands.value);
        // Enough that every unit has several, and few enough that the drive has room for the read.
        let write_depth = (4 * self.unit_count()).clamp(32, 256).min((window / 2.0) as u32).max(1);
        self.rig.pause(PAUSE_NS)?;
        let (mut latencies, mut finished) = (vec![], vec![]);
        let start_ns = self.rig.now_ns();
        let (mut sent_ns, mut writes) = (None, 0_u64);
        let mut now_ns = start_ns;
        for id in 0..write_depth as usize {
            let shot = Shot::write(self.place_to_write(BLOCK_BYTES, BLOCK_BYTES), BLOCK_BYTES).on(1);
            self.rig.submit(shot, id, start_ns);
        }
        // A buffer must be full before it tells.
        let (wanted, warm) = (4 * self.effort.rounds, SUSTAINED as u64 / 4);
        while latencies.len() < wanted && now_ns - start_ns < self.effort.sustained_ns {
            if let Err(failure) = self.rig.finish_some(&mut finished) {
                self.rig.drain()?;
                return Err(failure);
            }
            now_ns = self.rig.now_ns();
            for finish in std::mem::take(&mut finished) {
                if finish.id == usize::MAX {
                    latencies.extend(sent_ns.take().map(|at_ns: u64| finish.at_ns.saturating_sub(at_ns) as f64));
                    continue;
                }
                writes += 1;
                let shot = Shot::write(self.place_to_write(BLOCK_BYTES, BLOCK_BYTES), BLOCK_BYTES).on(1);
                self.rig.submit(shot, finish.id, now_ns);
            }
            let is_warm = writes > warm || now_ns - start_ns > self.effort.sustained_ns / 2;
            if sent_ns.is_none() && is_warm {
                let shot = Shot::read(self.place(BLOCK_BYTES, BLOCK_BYTES), BLOCK_BYTES);
                self.rig.submit(shot, usize::MAX, now_ns);
                sent_ns = Some(now_ns);
            }
        }
        self.rig.drain()?;
        let own_ns = self.rig.facts().own_ns.0;
        // Without the longest eighth: a host that is late now and then must not look like a drive whose reads wait.
        latencies.sort_by(f64::total_cmp);
        let counted = &latencies[..latencies.len() - latencies.len() / 8];
        let read_mean_ns = counted.iter().sum::<f64>() / counted.len().max(1) as f64 - own_ns;
        Ok(Beside { write_depth, read: median(latencies), read_mean_ns })
    }

    pub(crate) fn sustained(&mut self) -> Result<Sustained, Failure> {
        // The smallest writes fill a buffer most quickly: the link holds them up least.
        let len_bytes = self.rig.facts().block_bytes.min(BLOCK_BYTES);
        let (start, range_bytes) = self.rig.facts().overwrite.unwrap_or_default();
        let places = (range_bytes / BLOCK_BYTES).max(1);
        let depth = 256;
        self.rig.pause(5 * PAUSE_NS)?;
        let limit_ns = self.effort.sustained_ns;
        let seen = self.rig.closed_loop(depth, SUSTAINED, limit_ns, |rng| {
            Shot::write(start + rng.u64(..places) * BLOCK_BYTES, len_bytes)
        })?;
        Ok(sustained(&seen, len_bytes, depth as u32))
    }
}

/// What the finish times of sustained writes say.
pub(crate) fn sustained(seen: &Loop, len_bytes: u64, depth: u32) -> Sustained {
    let times = &seen.finished_ns;
    let count = times.len();
    let half = &times[count / 2..];
    // Sixteen parts of the second half, each with a rate of its own.
    let part = (half.len() / 16).max(2);
    let mut spacings: Vec<f64> =
        half.chunks_exact(part).map(|part| (part[part.len() - 1] - part[0]) as f64 / (part.len() - 1) as f64).collect();
    let all = half.last().zip(half.first()).map_or(0.0, |(last, first)| (last - first) as f64);
    let value = all / (half.len().max(2) - 1) as f64;
    let spread = Estimate::median(&mut spacings).unwrap_or(Estimate::exact(value));
    let spacing = Estimate { value, low: spread.low.min(value), high: spread.high.max(value) };
    let first = count.min(48);
    let first_ns = times.first().copied().unwrap_or_default();
    let first_spacing_ns =
        times.get(first.saturating_sub(1)).map_or(0.0, |at| (at - first_ns) as f64) / first.max(2) as f64;
    let points = times.iter().enumerate().step_by(KEPT).map(|(index, at_ns)| (index as u32, at_ns - first_ns));
    Sustained {
        len_bytes,
        depth,
        count: count as u32,
        spacing,
        first_spacing_ns,
        lump: lump(half, value),
        points: points.collect(),
    }
}

/// How many finish together: the median size of groups that longer gaps than a quarter of the mean divide.
fn lump(times: &[u64], spacing_ns: f64) -> u32 {
    let together = |a: &u64, b: &u64| ((b - a) as f64) < spacing_ns / 4.0;
    let mut sizes: Vec<usize> = times.chunk_by(together).map(<[u64]>::len).collect();
    sizes.sort_unstable();
    sizes.get(sizes.len() / 2).copied().unwrap_or(1) as u32
}
