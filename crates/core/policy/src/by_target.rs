//! Latencies as parts of the target that they are held to, in steps that are finest around it.

use io_model::Nanos;

/// How many steps there are.
pub const TARGET_STEPS: usize = 16;

/// Where each step ends, in sixteenths of the target; the last one has all that is longer.
const ENDS: [u16; TARGET_STEPS] = [4, 8, 10, 12, 13, 14, 15, 16, 18, 20, 24, 32, 48, 64, 128, 256];

const LAST: usize = 128;

/// The first step ends at the target divided by this.
const FIRST: u64 = 16 / ENDS[0] as u64;

const STEPS: [u8; LAST + 1] = {
    let mut steps = [0; LAST + 1];
    let mut sixteenths = 0;
    while sixteenths <= LAST {
        let mut step = 0;
        while step + 1 < TARGET_STEPS && sixteenths >= ENDS[step] as usize {
            step += 1;
        }
        steps[sixteenths] = step as u8;
        sixteenths += 1;
    }
    steps
};

/// The step of a latency.
#[inline]
pub fn target_step(latency: Nanos, target: Nanos) -> usize {
    // Most commands of a tenant that is served well: without a division by what is no constant.
    if latency.0 < target.0 / FIRST {
        return 0;
    }
    let sixteenths = latency.0.saturating_mul(16) / target.0.max(1);
    usize::from(STEPS[sixteenths.min(LAST as u64) as usize])
}

/// Where a step begins and ends, in targets. What is in the last one may be longer.
pub(crate) fn span_of(step: usize) -> (f64, f64) {
    let end = |step: usize| f64::from(ENDS[step]) / 16.0;
    (if step == 0 { 0.0 } else { end(step - 1) }, end(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_in_the_step_that_holds_it() {
        let target = Nanos(1_600);
        for latency_ns in (0..20_000).step_by(7) {
            let (from, to) = span_of(target_step(Nanos(latency_ns), target));
            let part = latency_ns as f64 / 1_600.0;
            assert!(part >= from && (part < to || part >= 8.0), "{latency_ns}: {from} to {to}");
        }
        assert_eq!(target_step(Nanos(1_600), target), 8, "the first of those that are late");
        assert_eq!(target_step(Nanos::MAX, Nanos(0)), TARGET_STEPS - 1);
    }
}
