//! What a guaranteed tenant's command may find with the drive at most, and so how long it may take.

use super::EvenkeelConfig;
use crate::bound::{Bound, RestsOn};
use crate::cost::COST_UNIT;
use crate::{Class, TenantReport};

/// What all pollers told, as of this interval and the one before, since what went then may still be there; of caps the
/// one before that, too: until then pollers did not part them.
#[derive(Debug)]
pub(super) struct Found {
    /// Reference commands that best-effort tenants may have with the drive; `None`: some are not held.
    caps: [Option<f64>; 3],
    /// Commands of guaranteed tenants with the drive.
    guaranteed: [u64; 2],
    /// What this poller tells, and what it told an interval ago: a larger cap is used only once it was told, or others
    /// would vouch for less meanwhile.
    told: [Option<f64>; 2],
    /// The largest best-effort command here, in cost ticks.
    largest: u32,
}

impl Found {
    pub(super) fn new() -> Self {
        Self { caps: [None; 3], guaranteed: [0; 2], told: [None; 2], largest: COST_UNIT }
    }

    #[inline]
    pub(super) fn sent(&mut self, cost: u32) {
        self.largest = self.largest.max(cost);
    }

    /// What best effort here may have with the drive until the next interval.
    pub(super) fn told(&self) -> f64 {
        self.told[1].unwrap_or(f64::INFINITY)
    }

    /// An interval ended. `may`: what best effort here may have with the drive, once it was told; `None`: any amount.
    pub(super) fn observe(&mut self, reports: &[TenantReport], may: Option<f64>) {
        let (mut cap, mut guaranteed) = (Some(0.0), 0);
        for report in reports {
            let in_flight = report.submitted.saturating_sub(report.completed);
            match report.class {
                Class::Guaranteed { .. } if in_flight > 0 || report.mean_latency.0 > 0 => {
                    guaranteed += in_flight.max(1);
                }
                Class::Guaranteed { .. } => {}
                Class::BestEffort { .. } => {
                    cap = cap.zip(report.best_effort_cap).map(|(cap, of): (f64, f64)| cap.max(of))
                }
            }
        }
        self.caps = [cap, self.caps[0], self.caps[1]];
        self.guaranteed = [guaranteed, self.guaranteed[0]];
        self.told = [may, self.told[0]];
    }

    /// What guaranteed tenants can count on.
    pub(super) fn bound(&self, config: &EvenkeelConfig) -> Bound {
        let cap = match self.caps {
            [Some(now), Some(before), Some(_)] => Some(now.max(before)),
            _ => None,
        };
        let rests_on = RestsOn {
            r_iops: config.rate_iops,
            l_h: config.alone,
            engaged: cap.is_some(),
            best_effort_cap: cap,
            overdraft: f64::from(self.largest) / f64::from(COST_UNIT) - 1.0,
            guaranteed_in_flight: self.guaranteed[0].max(self.guaranteed[1]).max(1) as f64,
            arriving_iops: None,
            windowed: true,
        };
        let corrected = rests_on.corrected();
        Bound { published: None, corrected, vouched: corrected, rests_on }
    }

    /// The same in words of best effort's pollers, which tell what they let go.
    pub(super) fn told_bound(&self, config: &EvenkeelConfig) -> Bound {
        let bound = self.bound(config);
        let rests_on = RestsOn { best_effort_cap: self.told[0], ..bound.rests_on };
        Bound { corrected: None, vouched: None, rests_on, ..bound }
    }
}
