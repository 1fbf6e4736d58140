//! Random numbers that a seed replays.

use fastrand::Rng;

/// The seeds to run: that of `EVENKEEL_SEED`, or all of a fixed range.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EVENKEEL_SEED") {
        Ok(seed) => vec![seed.parse().expect("EVENKEEL_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

/// Runs `body` once for each seed and names the seed that fails.
pub fn for_each_seed(count: u64, body: impl Fn(&mut Rng) + std::panic::RefUnwindSafe) {
    for seed in seeds(count) {
        let run = std::panic::catch_unwind(|| body(&mut Rng::with_seed(seed)));
        assert!(run.is_ok(), "replay with EVENKEEL_SEED={seed}");
    }
}
