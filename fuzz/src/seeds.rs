//! Numbered random inputs.

/// The random input number `seed`, of `len_bytes` (SplitMix64).
pub fn random_input(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut input: Vec<u8> =
        std::iter::repeat_with(|| next().to_le_bytes()).take(len_bytes / 8 + 1).flatten().collect();
    input.truncate(len_bytes);
    input
}

/// The seeds to run: `EVENKEEL_SEED` of the environment, or `count` fixed ones.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EVENKEEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

/// Runs a harness over numbered inputs; a failure names the seed.
#[cfg(test)]
pub(crate) fn run_seeds(count: u64, len_bytes: usize, run: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    for seed in seeds(count) {
        let input = random_input(seed, len_bytes);
        let result = std::panic::catch_unwind(|| run(&input));
        assert!(result.is_ok(), "seed {seed} failed; replay it with EVENKEEL_SEED={seed}");
    }
}
