//! The latency that a guaranteed tenant can count on under [`Lpns`](super::Lpns).

use super::config::LpnsConfig;
use super::detector::Observed;
use super::throttle::ThrottleState;
use crate::Variant;
use crate::bound::{Bound, PublishedBound, RestsOn};
use crate::netcalc::{published_bound, published_rate};

/// `depth`: commands that this tenant had in flight in the last interval.
pub(super) fn bound(
    config: &LpnsConfig,
    throttle: &ThrottleState,
    windowed: bool,
    observed: Option<&Observed>,
    depth: u64,
    overdraft: f64,
) -> Bound {
    let guaranteed_iops = observed.map_or(0.0, |seen| seen.guaranteed_iops);
    let rests_on = RestsOn {
        r_iops: config.r_iops,
        l_h: config.l_h,
        engaged: throttle.engaged,
        best_effort_cap: throttle.cap,
        overdraft,
        guaranteed_in_flight: observed.map_or(1, |seen| seen.guaranteed_depth.max(depth).max(1)) as f64,
        arriving_iops: Some(guaranteed_iops + throttle.rate_iops.unwrap_or(0.0)),
        windowed,
    };
    let published_rate = published_rate(observed.map_or(0.0, |seen| seen.slowest_iops), config.omega);
    let published = PublishedBound {
        latency: published_bound(config.depth, config.omega, &config.service()),
        omega: config.omega,
        rate_within_r: published_rate <= config.r_iops,
    };
    let corrected = rests_on.corrected();
    let vouched = match config.variant {
        Variant::Published => Some(published.latency),
        Variant::Corrected => corrected,
    };
    Bound { published: Some(published), corrected, vouched, rests_on }
}
