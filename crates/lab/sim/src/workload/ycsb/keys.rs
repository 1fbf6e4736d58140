//! Which record a request is for.

use fastrand::Rng;

use super::super::seed;

/// A Zipf distribution over ranks: rank r (from 0) has a probability proportional to `1 / (r + 1)^theta`.
///
/// Drawn as YCSB draws it, after Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994.
#[derive(Debug, Clone)]
pub(super) struct Zipf {
    items: f64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Over `items` ranks, at least 3; `theta` between 0 and 1.
    pub(super) fn new(items: u64, theta: f64) -> Self {
        let zeta = zeta(items, theta);
        let items = items as f64;
        let tail = 1.0 - (2.0 / items).powf(1.0 - theta);
        let eta = tail / (1.0 - (1.0 + 0.5f64.powf(theta)) / zeta);
        Self { items, theta, zeta, alpha: 1.0 / (1.0 - theta), eta }
    }

    pub(super) fn rank(&self, rng: &mut Rng) -> u64 {
        let u = rng.f64();
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let rank = self.items * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        rank.min(self.items - 1.0) as u64
    }
}

/// The sum of `i^-theta` for i from 1 to `items`: exact for the first terms, which matter most, and an integral with
/// the trapezoid's correction for the others (Euler and Maclaurin), off by less than 1e-9.
fn zeta(items: u64, theta: f64) -> f64 {
    let exact = items.min(10_000);
    let head: f64 = (1..=exact).map(|i| (i as f64).powf(-theta)).sum();
    let (from, to) = (exact as f64, items as f64);
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    head + integral + (to.powf(-theta) - from.powf(-theta)) / 2.0
}

/// A random one-to-one map of `0..items` onto itself: where the record of each rank lies among all records. A Feistel
/// network over the next even number of bits, walked until it lands inside.
#[derive(Debug, Clone)]
pub(super) struct Scatter {
    items: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Scatter {
    pub(super) fn new(items: u64, seed: u64) -> Self {
        let bits = u64::BITS - items.saturating_sub(1).leading_zeros();
        let mut rng = seed::rng(seed, u64::MAX);
        let keys = std::array::from_fn(|_| rng.u64(..));
        Self { items, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The place of a rank below `items`.
    pub(super) fn place(&self, rank: u64) -> u64 {
        let mut at = rank;
        loop {
            at = self.keys.iter().fold(at, |at, key| {
                let (left, right) = self.halves(at);
                self.join(right, left ^ self.scramble(right, *key))
            });
            if at < self.items {
                return at;
            }
        }
    }

    /// The rank that lies at a place below `items`.
    pub(super) fn rank(&self, place: u64) -> u64 {
        let mut at = place;
        loop {
            at = self.keys.iter().rev().fold(at, |at, key| {
                let (left, right) = self.halves(at);
                self.join(right ^ self.scramble(left, *key), left)
            });
            if at < self.items {
                return at;
            }
        }
    }

    fn halves(&self, at: u64) -> (u64, u64) {
        (at >> self.half_bits, at & self.mask())
    }

    fn join(&self, left: u64, right: u64) -> u64 {
        (left << self.half_bits) | right
    }

    fn scramble(&self, half: u64, key: u64) -> u64 {
        seed::mix(half ^ key) & self.mask()
    }

    fn mask(&self) -> u64 {
        (1 << self.half_bits) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_has_its_shape() {
        let zipf = Zipf::new(1_000_000, 0.99);
        let mut rng = Rng::with_seed(7);
        let draws = 400_000;
        let mut counts = vec![0u32; 1_000_000];
        for _ in 0..draws {
            counts[zipf.rank(&mut rng) as usize] += 1;
        }
        // The first two ranks are exact; of the others Gray's formula is a close approximation.
        for (rank, tolerance) in [(0, 0.02), (1, 0.04)] {
            let expected = f64::from(draws) * (rank as f64 + 1.0).powf(-0.99) / zipf.zeta;
            assert!((f64::from(counts[rank]) / expected - 1.0).abs() < tolerance, "rank {rank}");
        }
        for top in [100, 10_000, 500_000] {
            let drawn: u32 = counts[..top].iter().sum();
            let share = zeta(top as u64, 0.99) / zipf.zeta;
            assert!((f64::from(drawn) / f64::from(draws) - share).abs() < 0.02, "top {top}: {share}");
        }
    }

    #[test]
    fn zeta_is_the_sum() {
        let sum: f64 = (1..=100_000).map(|i| f64::from(i).powf(-0.99)).sum();
        assert!((zeta(100_000, 0.99) - sum).abs() < 1e-6);
        assert!((zeta(3, 0.5) - (1.0 + 0.5f64.powf(0.5) + 3f64.powf(-0.5))).abs() < 1e-12);
    }

    #[test]
    fn scatter_is_one_to_one() {
        for items in [1, 2, 3, 1000, 4097] {
            let scatter = Scatter::new(items, 5);
            let mut seen = vec![false; items as usize];
            for rank in 0..items {
                let place = scatter.place(rank);
                assert!(!std::mem::replace(&mut seen[place as usize], true), "{place} of {items} twice");
                assert_eq!(scatter.rank(place), rank);
            }
        }
    }
}
