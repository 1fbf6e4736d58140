//! The most that a guaranteed tenant's command may find in flight, and the latency bound that follows.

use super::EvenkeelConfig;
use crate::bound::{Bound, RestsOn};
use crate::cost::COST_UNIT;
use crate::{Class, TenantReport};

/// What all pollers reported in the last two intervals, because commands of the one before may still be in flight. Caps
/// are kept for three intervals: until then pollers have not split them.
#[derive(Debug)]
pub(super) struct Found {
    /// The cap on best-effort work in flight, in reference commands. `None`: some tenants are not capped.
    caps: [Option<f64>; 3],
    /// Commands of guaranteed tenants in flight.
    guaranteed: [u64; 2],
    /// The cap that this poller reports, and the one of an interval ago. A larger cap is used only after it was
    /// reported: otherwise other pollers would guarantee too low a bound meanwhile.
    told: [Option<f64>; 2],
    /// The cost of the largest best-effort command here, in ticks.
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

    /// The cap that this poller may use until the next interval, in reference commands.
    pub(super) fn told(&self) -> f64 {
        self.told[1].unwrap_or(f64::INFINITY)
    }

    /// An interval ended. `may`: the cap that this poller may use once it was reported. `None`: no cap.
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

    /// The latency bound of guaranteed tenants.
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

    /// The bound as pollers of best-effort tenants see it: with the caps that they report.
    pub(super) fn told_bound(&self, config: &EvenkeelConfig) -> Bound {
        let bound = self.bound(config);
        let rests_on = RestsOn { best_effort_cap: self.told[0], ..bound.rests_on };
        Bound { corrected: None, vouched: None, rests_on, ..bound }
    }
}
