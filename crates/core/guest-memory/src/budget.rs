//! How much memory a client may have mapped: address space and mappings are the whole process's, and so are the pages
//! that are filled on its behalf.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A client's limits, and what it has of them.
#[derive(Debug)]
pub struct Budget {
    max_bytes: u64,
    max_maps: u32,
    bytes: AtomicU64,
    maps: AtomicU32,
}

/// A client wanted more than it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    /// See [`Budget::new`].
    #[error("it would have {wanted_bytes} bytes mapped, and max_memory allows {max_bytes}: raise max_memory")]
    Bytes {
        /// With this mapping.
        wanted_bytes: u64,
        /// At most.
        max_bytes: u64,
    },
    /// See [`Budget::new`].
    #[error("it would have more mappings than the {max_maps} that max_maps allows: raise max_maps")]
    Maps {
        /// At most.
        max_maps: u32,
    },
}

impl Budget {
    /// `max_bytes` in `max_maps` mappings at a time.
    pub fn new(max_bytes: u64, max_maps: u32) -> Arc<Self> {
        Arc::new(Self { max_bytes, max_maps, bytes: AtomicU64::new(0), maps: AtomicU32::new(0) })
    }

    /// Mappings at a time.
    pub fn max_maps(&self) -> u32 {
        self.max_maps
    }

    /// Takes what one mapping needs, before it is made.
    pub(crate) fn take(budget: &Arc<Self>, len_bytes: u64) -> Result<Share, OverBudget> {
        // Both counts say nothing about other memory: no order is needed. A sum that overflows is over the limit.
        let (max_bytes, max_maps) = (budget.max_bytes, budget.max_maps);
        let more = |bytes: u64| bytes.checked_add(len_bytes).filter(|wanted| *wanted <= max_bytes);
        budget
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|bytes| OverBudget::Bytes { wanted_bytes: bytes.saturating_add(len_bytes), max_bytes })?;
        // Gives the bytes back if there are too many mappings.
        let mut share = Share { budget: Arc::clone(budget), len_bytes, maps: 0 };
        let more = |maps: u32| maps.checked_add(1).filter(|wanted| *wanted <= max_maps);
        let taken = budget.maps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map_err(|_| OverBudget::Maps { max_maps })?;
        share.maps = 1;
        Ok(share)
    }
}

/// What one mapping has of a budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    len_bytes: u64,
    maps: u32,
}

impl Share {
    /// The budget that it is of.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.bytes.fetch_sub(self.len_bytes, Ordering::Relaxed);
        self.budget.maps.fetch_sub(self.maps, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_what_it_gave_back() {
        let budget = Budget::new(100, 2);
        let first = Budget::take(&budget, 60).unwrap();
        let refused = OverBudget::Bytes { wanted_bytes: 101, max_bytes: 100 };
        assert_eq!(Budget::take(&budget, 41).unwrap_err(), refused);
        assert!(Budget::take(&budget, u64::MAX).is_err());
        let second = Budget::take(&budget, 30).unwrap();
        assert_eq!(Budget::take(&budget, 1).unwrap_err(), OverBudget::Maps { max_maps: 2 });
        drop(second);
        // What the refused ones took is back as well.
        let second = Budget::take(&budget, 40).unwrap();
        drop((first, second));
        assert!(Budget::take(&budget, 100).is_ok());
    }
}
