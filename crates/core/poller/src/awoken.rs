//! Tenants that became active again: the poller that notices tells all others at once, before the interval ends.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use io_model::TenantId;

/// The number of tenants that are remembered. If more wake up at a time, the oldest are reported with the next
/// interval.
const REMEMBERED: usize = 64;

/// The last that awoke. Several write, and several read, without waiting for each other.
#[derive(Debug)]
pub(crate) struct Awoken {
    count: AtomicU32,
    /// Each with its number, from 1 on, in the upper half.
    last: [AtomicU64; REMEMBERED],
}

impl Default for Awoken {
    fn default() -> Self {
        Self { count: AtomicU32::new(0), last: [const { AtomicU64::new(0) }; REMEMBERED] }
    }
}

impl Awoken {
    /// How many there were by now; wraps.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn tell(&self, tenant: TenantId) {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let entry = u64::from(before.wrapping_add(1)) << 32 | u64::from(tenant.0);
        self.last[before as usize % REMEMBERED].store(entry, Ordering::Relaxed);
    }

    /// The next one after `seen`, which counts it then. `None`: there is none, or it is just being written.
    pub(crate) fn next(&self, seen: &mut u32) -> Option<TenantId> {
        let count = self.count();
        if count.wrapping_sub(*seen) > REMEMBERED as u32 {
            *seen = count.wrapping_sub(REMEMBERED as u32);
        }
        if *seen == count {
            return None;
        }
        let entry = self.last[*seen as usize % REMEMBERED].load(Ordering::Relaxed);
        let is_whole = (entry >> 32) as u32 == seen.wrapping_add(1);
        is_whole.then(|| {
            *seen = seen.wrapping_add(1);
            TenantId(entry as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(awoken: &Awoken, seen: &mut u32) -> Vec<u32> {
        std::iter::from_fn(|| awoken.next(seen)).map(|tenant| tenant.0).collect()
    }

    #[test]
    fn each_reader_hears_of_everybody_once_and_of_too_many_the_last() {
        let awoken = Awoken::default();
        let (mut early, mut late) = (0, 0);
        awoken.tell(TenantId(7));
        assert_eq!(all(&awoken, &mut early), [7]);
        awoken.tell(TenantId(u32::MAX));
        assert_eq!((all(&awoken, &mut early), all(&awoken, &mut late)), (vec![u32::MAX], vec![7, u32::MAX]));
        (0..100).for_each(|tenant| awoken.tell(TenantId(tenant)));
        assert_eq!(all(&awoken, &mut early), (36..100).collect::<Vec<_>>());
        assert_eq!(all(&awoken, &mut early), [0; 0]);
    }

    #[test]
    fn nobody_is_lost_where_several_tell_at_once() {
        let awoken = Awoken::default();
        let mut seen = 0;
        let mut heard = 0;
        std::thread::scope(|scope| {
            // No more at a time than are remembered.
            let tellers: Vec<_> = (0..4)
                .map(|teller| {
                    let awoken = &awoken;
                    scope.spawn(move || (0..15).for_each(|at| awoken.tell(TenantId(teller * 100 + at))))
                })
                .collect();
            while heard < 60 {
                heard += all(&awoken, &mut seen).len();
                std::hint::spin_loop();
            }
            tellers.into_iter().for_each(|teller| teller.join().unwrap());
        });
        assert_eq!((heard, awoken.next(&mut seen)), (60, None));
    }
}
