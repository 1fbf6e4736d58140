//! What reads and flushes tell: latencies, units, channels.

use io_model::Backend;

use crate::clock::Clock;
use crate::estimate::Estimate;
use crate::fit::per_block;
use crate::rig::{Failure, MAX_LEN_BYTES, Shot};
use crate::seen::{Basics, Channels, Point, Reads, Units};
use crate::session::{BLOCK_BYTES, Session, least, median};

/// Commands of a burst.
const BURST: usize = 16;

/// One address must be slower than many by this factor to be a unit of its own.
pub(crate) const BY_ADDRESS: f64 = 1.4;

/// More units than this are not counted.
const UNITS_MAX: usize = 1024;

/// Bursts that counting the units may take.
const UNIT_BURSTS_MAX: usize = 60_000;

impl<B: Backend, C: Clock> Session<'_, B, C> {
    pub(crate) fn basics(&mut self) -> Result<Basics, Failure> {
        let block_bytes = self.rig.facts().block_bytes;
        let (mut read, mut small, mut apart, mut same) = (vec![], vec![], vec![], vec![]);
        for _ in 0..self.effort.rounds {
            let at = self.place(BLOCK_BYTES, BLOCK_BYTES);
            read.push(self.rig.lone(Shot::read(at, BLOCK_BYTES))?);
            same.push(self.spacing(&[Shot::read(at, BLOCK_BYTES); BURST])?);
            let spread = self.spread(BURST, BLOCK_BYTES);
            apart.push(self.spacing(&spread)?);
            let spread = self.spread(BURST, block_bytes);
            small.push(self.spacing(&spread)?);
        }
        let (flush, flush_spacing) = self.flushes()?;
        let (same_spacing, apart_median) = (median(same), median(apart.clone()));
        Ok(Basics {
            flush,
            read: median(read),
            flush_spacing,
            small_spacing: least(small),
            apart_spacing: least(apart),
            same_spacing,
            by_address: same_spacing.value > BY_ADDRESS * apart_median.value,
        })
    }

    /// Lone flushes, and between two of many. A drive may have none, or take milliseconds for each.
    fn flushes(&mut self) -> Result<(Option<Estimate>, Option<Estimate>), Failure> {
        let (mut lone, mut spacing) = (vec![], vec![]);
        let started_ns = self.rig.now_ns();
        while lone.len() < self.effort.rounds && self.rig.now_ns() - started_ns < self.effort.cell_ns {
            match self.rig.lone(Shot::FLUSH) {
                Err(Failure::Device { .. }) => return Ok((None, None)),
                latency => lone.push(latency?),
            }
            spacing.push(self.spacing(&[Shot::FLUSH; 4 * BURST])?);
        }
        Ok((Estimate::median(&mut lone), Estimate::median(&mut spacing)))
    }

    /// Reads at random addresses.
    fn spread(&mut self, count: usize, len_bytes: u64) -> Vec<Shot> {
        (0..count).map(|_| Shot::read(self.place(BLOCK_BYTES, len_bytes), len_bytes)).collect()
    }

    /// A read of 4 KiB that is later than this had to wait for another one.
    fn late_ns(&self) -> f64 {
        let own_ns = self.rig.facts().own_ns.0;
        self.seen.basics.map_or(0.0, |basics| own_ns + basics.read.value + basics.same_spacing.value / 2.0)
    }

    /// The first address that does not wait for address 0.
    pub(crate) fn stripe(&mut self) -> Result<Option<u64>, Failure> {
        let Some(basics) = self.seen.basics else { return Ok(None) };
        if !basics.by_address {
            return self.stripe_by_split(basics);
        }
        let (late_ns, size_bytes) = (self.late_ns(), self.rig.facts().size_bytes);
        let mut collides = |blocks: u64| {
            let pair = [Shot::read(0, BLOCK_BYTES), Shot::read(blocks * BLOCK_BYTES, BLOCK_BYTES)];
            self.waits(&pair, late_ns)
        };
        let mut apart = 1;
        while collides(apart)? {
            apart *= 2;
            if (apart + 1) * BLOCK_BYTES > (MAX_LEN_BYTES / 2).min(size_bytes) {
                return Ok(None);
            }
        }
        let mut together = apart / 2;
        while apart - together > 1 {
            let middle = (apart + together) / 2;
            if collides(middle)? { together = middle } else { apart = middle }
        }
        Ok(Some(apart * BLOCK_BYTES))
    }

    /// Where any unit serves any address, 8 KiB are faster across two stripes than within one.
    fn stripe_by_split(&mut self, basics: Basics) -> Result<Option<u64>, Failure> {
        let rounds = self.effort.rounds.div_ceil(4);
        let mut best: Option<(f64, u64)> = None;
        let (mut at, mut whole) = (2 * BLOCK_BYTES, vec![]);
        while at <= (1 << 20) && at + BLOCK_BYTES <= self.rig.facts().size_bytes {
            let mut split = vec![];
            for _ in 0..rounds {
                split.push(self.rig.lone(Shot::read(at - BLOCK_BYTES, 2 * BLOCK_BYTES))?);
                whole.push(self.rig.lone(Shot::read(0, 2 * BLOCK_BYTES))?);
            }
            let gain = median(whole.clone()).minus(median(split));
            // A difference that noise can't make, and the smallest such address: its multiples are borders too.
            if gain.low > 0.01 * basics.read.value && best.is_none_or(|(most, _)| gain.value > 1.5 * most) {
                best = Some((gain.value, at));
            }
            at *= 2;
        }
        Ok(best.map(|(_, at)| at))
    }

    pub(crate) fn units(&mut self) -> Result<Units, Failure> {
        let none = Units { count: 1, complete: false, addresses: vec![], stripe_ns: None };
        let (Some(basics), Some(stripe_bytes)) = (self.seen.basics, self.seen.stripe_bytes) else { return Ok(none) };
        match stripe_bytes {
            Some(stripe_bytes) if basics.by_address => self.units_by_address(basics, stripe_bytes),
            // Every address waits for every other.
            None if basics.by_address => {
                let at = self.place(BLOCK_BYTES, BLOCK_BYTES);
                Ok(Units { complete: true, addresses: vec![at], ..none })
            }
            stripe_bytes => self.units_by_filling(basics, stripe_bytes),
        }
    }

    /// Collects addresses none of which waits for another, until a new one hardly can be missing: after 8 times as
    /// many tries as there are units, one is missing in 3000 cases once.
    fn units_by_address(&mut self, basics: Basics, stripe_bytes: u64) -> Result<Units, Failure> {
        // So few at once that the last of them is not late because of the others.
        let spacing_ns = basics.apart_spacing.value.max(basics.small_spacing.value).max(1.0);
        let at_once = ((basics.same_spacing.value / 4.0 / spacing_ns) as usize).clamp(1, 32);
        let mut addresses = vec![self.place(stripe_bytes, stripe_bytes)];
        let (mut in_vain, mut bursts) = (0, 0);
        while in_vain < 8 * addresses.len() + 16 && addresses.len() < UNITS_MAX && bursts < UNIT_BURSTS_MAX {
            let candidate = self.place(stripe_bytes, stripe_bytes);
            bursts += addresses.len().div_ceil(at_once);
            if self.is_known(&addresses, at_once, candidate)? {
                in_vain += 1;
            } else {
                addresses.push(candidate);
                in_vain = 0;
            }
        }
        let complete = addresses.len() < UNITS_MAX && bursts < UNIT_BURSTS_MAX;
        Ok(Units { count: addresses.len() as u32, complete, addresses, stripe_ns: None })
    }

    /// Whether one of the addresses lies on the candidate's unit. Several are asked at once; then, because they may
    /// have delayed the candidate together, each of them alone.
    fn is_known(&mut self, addresses: &[u64], at_once: usize, candidate: u64) -> Result<bool, Failure> {
        let late_ns = self.late_ns();
        let read = |at: &u64| Shot::read(*at, BLOCK_BYTES);
        for group in addresses.chunks(at_once) {
            let shots: Vec<Shot> = group.iter().chain([&candidate]).map(read).collect();
            if !self.waits(&shots, late_ns)? {
                continue;
            }
            for address in group {
                if self.waits(&[read(address), read(&candidate)], late_ns)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Where any unit serves any address: how many stripes a read must have for the next one to wait.
    fn units_by_filling(&mut self, basics: Basics, stripe_bytes: Option<u64>) -> Result<Units, Failure> {
        let (own_ns, lone_ns) = (self.rig.facts().own_ns.0, basics.read.value);
        let by_rate = Units { count: 1, complete: false, addresses: vec![], stripe_ns: None };
        let Some(stripe_bytes) = stripe_bytes else { return Ok(by_rate) };
        let most = (MAX_LEN_BYTES.min(self.rig.facts().size_bytes) / stripe_bytes).min(UNITS_MAX as u64);
        let behind = |units: u64| [Shot::read(0, units * stripe_bytes), Shot::read(0, BLOCK_BYTES)];
        // Half of the time that one unit is kept, at least.
        let late_ns = own_ns + lone_ns + self.lone_stripe_ns(stripe_bytes)? / 2.0;
        let (mut enough, mut few) = (1, 0);
        while !self.waits(&behind(enough), late_ns)? {
            few = enough;
            enough *= 2;
            if enough > most {
                return Ok(by_rate);
            }
        }
        while enough - few > 1 {
            let middle = (enough + few) / 2;
            if self.waits(&behind(middle), late_ns)? { enough = middle } else { few = middle }
        }
        let mut stripe_ns = vec![];
        for _ in 0..self.effort.rounds {
            stripe_ns.push(self.rig.burst(&behind(enough))?[1] as f64 - own_ns - lone_ns);
        }
        Ok(Units { count: enough as u32, complete: true, addresses: vec![], stripe_ns: Some(median(stripe_ns)) })
    }

    /// How much longer a read of a stripe takes than one of 4 KiB, and half a lone read: about what a unit is kept.
    fn lone_stripe_ns(&mut self, stripe_bytes: u64) -> Result<f64, Failure> {
        let mut stripe = vec![];
        for _ in 0..self.effort.rounds {
            stripe.push(self.rig.lone(Shot::read(0, stripe_bytes))?);
        }
        Ok(median(stripe).value / 2.0)
    }

    pub(crate) fn reads(&mut self) -> Result<Reads, Failure> {
        let (stripe_bytes, units) = (self.stripe_bytes(), self.unit_count());
        let size_bytes = self.rig.facts().size_bytes;
        let lens = within_lens(stripe_bytes);
        // Groups of as many stripes as there are units begin with the drive: in one of them, no two share a unit.
        let group_bytes = u64::from(units) * stripe_bytes;
        let beyond: Vec<u64> = [1, 2, 3, 4, 6, 8].into_iter().filter(|n| *n <= u64::from(units)).collect();
        let beyond: Vec<u64> = beyond.into_iter().map(|n| n * stripe_bytes).filter(|len| *len <= size_bytes).collect();
        let (mut lone, mut large) = (vec![vec![]; lens.len()], vec![vec![]; beyond.len()]);
        let (mut same, mut distinct) = (vec![vec![]; lens.len()], vec![]);
        let block_bytes = self.rig.facts().block_bytes;
        let addresses = self.seen.units.iter().flat_map(|units| &units.addresses).take(BURST);
        let each: Vec<Shot> = addresses.map(|at| Shot::read(*at, block_bytes)).collect();
        for _ in 0..self.effort.rounds {
            if each.len() > 1 {
                distinct.push(self.spacing(&each)?);
            }
            for (samples, len) in lone.iter_mut().zip(&lens) {
                let at = self.place(stripe_bytes, stripe_bytes);
                samples.push(self.rig.lone(Shot::read(at, *len))?);
            }
            for (samples, len) in large.iter_mut().zip(&beyond) {
                let at = if group_bytes <= size_bytes { self.place(group_bytes, group_bytes) } else { 0 };
                samples.push(self.rig.lone(Shot::read(at, *len))?);
            }
            for (samples, len) in same.iter_mut().zip(&lens) {
                let at = self.place(stripe_bytes, stripe_bytes);
                samples.push(self.spacing(&[Shot::read(at, *len); 8])?);
            }
        }
        Ok(Reads {
            within: points(&lens, lone),
            beyond: points(&beyond, large),
            same: points(&lens, same),
            distinct_spacing: Estimate::median(&mut distinct),
        })
    }

    pub(crate) fn unit_count(&self) -> u32 {
        self.seen.units.as_ref().map_or(1, |units| units.count.max(1))
    }

    /// The first unit beside each other one: those that share a channel hold each other up.
    pub(crate) fn channels(&mut self) -> Result<Channels, Failure> {
        let none = Channels { count: 0, stripe_ns: None };
        let addresses = self.seen.units.as_ref().map(|units| units.addresses.clone()).unwrap_or_default();
        let Some((first, others)) = addresses.split_first() else { return Ok(none) };
        let mut gaps = vec![];
        for other in others {
            gaps.push(self.gap(*first, *other)?);
        }
        let (low, high) = gaps.iter().fold((f64::MAX, 0.0_f64), |(low, high), gap| (low.min(*gap), high.max(*gap)));
        // Two that share nothing still share the link.
        let blocks = self.stripe_bytes() as f64 / BLOCK_BYTES as f64;
        let link = self.seen.reads.as_ref().and_then(|reads| per_block(&reads.beyond));
        let low = low.max(link.map_or(0.0, |link| link.value * blocks));
        if gaps.is_empty() || high < 1.5 * low + 500.0 {
            return Ok(none);
        }
        let middle = (low + high) / 2.0;
        let mut shared: Vec<f64> = gaps.into_iter().filter(|gap| *gap > middle).collect();
        let mut heads: Vec<u64> = vec![*first];
        for address in others {
            let mut is_new = true;
            for head in heads.clone() {
                if self.gap(head, *address)? > middle {
                    is_new = false;
                    break;
                }
            }
            if is_new {
                heads.push(*address);
            }
        }
        Ok(Channels { count: heads.len() as u32, stripe_ns: Estimate::median(&mut shared) })
    }

    /// By how much the second of two reads of a stripe is later than the first; each the earliest of five, because a
    /// busy host makes any of them late.
    fn gap(&mut self, first: u64, second: u64) -> Result<f64, Failure> {
        let stripe_bytes = self.stripe_bytes();
        let mut earliest = [u64::MAX; 2];
        for _ in 0..5 {
            let finished = self.rig.burst(&[Shot::read(first, stripe_bytes), Shot::read(second, stripe_bytes)])?;
            earliest.iter_mut().zip(finished).for_each(|(earliest, at_ns)| *earliest = at_ns.min(*earliest));
        }
        Ok(earliest[1].saturating_sub(earliest[0]) as f64)
    }
}

/// Sizes within a stripe.
pub(crate) fn within_lens(stripe_bytes: u64) -> Vec<u64> {
    let mut lens: Vec<u64> = [BLOCK_BYTES, 2 * BLOCK_BYTES, stripe_bytes / 2, stripe_bytes]
        .into_iter()
        .filter(|len| *len <= stripe_bytes && *len >= BLOCK_BYTES && len.is_multiple_of(BLOCK_BYTES))
        .collect();
    lens.sort_unstable();
    lens.dedup();
    lens
}

pub(crate) fn points(lens: &[u64], samples: Vec<Vec<f64>>) -> Vec<Point> {
    lens.iter().zip(samples).map(|(len_bytes, samples)| Point { len_bytes: *len_bytes, ns: median(samples) }).collect()
}
