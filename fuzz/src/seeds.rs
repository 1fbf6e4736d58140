//! Numbered random inputs.

/// The random input number `seed`, of `len_bytes`.
pub fn random_input(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut input = vec![0; len_bytes];
    fastrand::Rng::with_seed(seed).fill(&mut input);
    input
}

/// The seeds to run: `EVENKEEL_SEED` of the environment, or `count` fixed ones.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EVENKEEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

/// Runs a harness over numbered inputs; a failure names the seed.
pub fn run_seeds(count: u64, len_bytes: usize, run: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    for seed in seeds(count) {
        let input = random_input(seed, len_bytes);
        let result = std::panic::catch_unwind(|| run(&input));
        assert!(result.is_ok(), "seed {seed} failed; replay it with EVENKEEL_SEED={seed}");
    }
}
