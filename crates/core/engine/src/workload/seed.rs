//! A random source of its own for each thread of a workload.

use fastrand::Rng;

/// The random source of thread `stream` of a workload with this seed. Neighbouring seeds and streams give unrelated
/// sequences: both go through SplitMix64's mixer (Steele, Lea and Flood, OOPSLA 2014).
pub(super) fn rng(seed: u64, stream: u64) -> Rng {
    Rng::with_seed(mix(mix(seed) ^ stream))
}

/// SplitMix64's mixer: one to one, and every bit of the input moves every bit of the output.
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// An exponentially distributed number with mean 1.
pub(super) fn exponential(rng: &mut Rng) -> f64 {
    // `f64` is below 1, so the logarithm is of a number above 0.
    -(1.0 - rng.f64()).ln()
}

/// An even draw of a number below `limit`. Some come up more often than others by `limit / 2^64`, which is nothing, and
/// there is no loop that would make it exact: this runs up to three times per simulated I/O.
pub(super) fn below(rng: &mut Rng, limit: u64) -> u64 {
    ((u128::from(rng.u64(..)) * u128::from(limit)) >> 64) as u64
}
