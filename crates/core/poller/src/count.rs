//! Numbers that one thread writes and any may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread writes: no locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn subtract(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(n), Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Figures by their numbers, of which some may not be told.
#[derive(Debug)]
pub(crate) struct Figures<const N: usize>([AtomicU64; N]);

/// What is not told, as bits: no calculation has this NaN.
const UNTOLD: u64 = u64::MAX;

impl<const N: usize> Default for Figures<N> {
    fn default() -> Self {
        Self([const { AtomicU64::new(UNTOLD) }; N])
    }
}

impl<const N: usize> Figures<N> {
    /// All anew; `None`: not told.
    pub(crate) fn set(&self, values: [Option<f64>; N]) {
        for (place, value) in self.0.iter().zip(values) {
            place.store(value.map_or(UNTOLD, f64::to_bits), Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self, at: usize) -> Option<f64> {
        let bits = self.0.get(at)?.load(Ordering::Relaxed);
        (bits != UNTOLD).then(|| f64::from_bits(bits))
    }
}
