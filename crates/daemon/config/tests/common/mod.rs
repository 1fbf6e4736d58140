//! Random numbers that a seed replays.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// The seeds to run: that of `EVENKEEL_SEED`, or all of a fixed range.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EVENKEEL_SEED") {
        Ok(seed) => vec![seed.parse().expect("EVENKEEL_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

/// Runs `body` once for each seed and names the seed that fails.
pub fn for_each_seed(count: u64, body: impl Fn(&mut Random) + std::panic::RefUnwindSafe) {
    for seed in seeds(count) {
        let run = std::panic::catch_unwind(|| body(&mut Random(seed)));
        assert!(run.is_ok(), "replay with EVENKEEL_SEED={seed}");
    }
}
