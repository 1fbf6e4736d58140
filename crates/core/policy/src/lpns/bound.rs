//! The latency that a guaranteed tenant can count on, and what that rests on.

use io_model::Nanos;

use super::config::LpnsConfig;
use super::detector::Observed;
use super::throttle::ThrottleState;
use crate::Variant;
use crate::netcalc::{ArrivalCurve, delay_bound, published_bound, published_rate};

/// Two answers for one tenant. Both are times with the drive, from the moment that the policy let the command
/// go; not the wait for one's own earlier commands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// d·Ω/R + L_h (LPNS Eq. 5) with Ω and d as configured. Nothing enforces the burst that it assumes.
    pub published: Nanos,
    /// b/R + L_h, where b is everything that may be in flight. `None`: nothing enforces a burst (the published
    /// variant), commands may reach the drive faster than it serves them, or it serves others' first.
    pub corrected: Option<Nanos>,
    /// The one that the policy vouches for: `published` under the published variant, else `corrected`.
    pub vouched: Option<Nanos>,
    /// What they rest on.
    pub rests_on: RestsOn,
}

/// The assumptions behind a [`Bound`]. One more, which no figure shows: the drive serves waiting commands in
/// about the order they came (any unit takes the next), which skewed addresses and garbage collection break.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestsOn {
    /// R, reference commands per second.
    pub r_iops: f64,
    /// L_h.
    pub l_h: Nanos,
    /// Ω behind `published`.
    pub omega: f64,
    /// p·Ω ≤ R in the last interval; if not, `published` has no ground even with its burst.
    pub published_rate_within_r: bool,
    /// The throttle has been in force for a whole interval; if not, `corrected` starts to hold within two intervals of
    /// the first command.
    pub engaged: bool,
    /// Reference commands that best-effort tenants may have in flight together: now or in the last interval, whichever
    /// is more, since what went then may still be there.
    pub best_effort_cap: Option<f64>,
    /// By how much the largest best-effort command seen at this poller may exceed the cap. Others overdraw theirs too,
    /// each by one command: no figure counts that.
    pub overdraft: f64,
    /// Commands that guaranteed tenants had in flight together.
    pub guaranteed_in_flight: f64,
    /// v: rate of the guaranteed tenants plus what best effort is allowed, per second.
    pub arriving_iops: f64,
    /// Every tenant's work in flight is limited, the guaranteed ones' too: what enters the drive then can't outrun what
    /// leaves it, and v > R only means that the tenants' own queues grow.
    pub windowed: bool,
}

/// `depth`: commands that this tenant had in flight in the last interval.
pub(super) fn bound(
    config: &LpnsConfig,
    throttle: &ThrottleState,
    windowed: bool,
    observed: Option<&Observed>,
    depth: u64,
    overdraft: f64,
) -> Bound {
    let service = config.service();
    let guaranteed_iops = observed.map_or(0.0, |seen| seen.guaranteed_iops);
    let guaranteed_in_flight = observed.map_or(1, |seen| seen.guaranteed_depth.max(depth).max(1)) as f64;
    let arriving_iops = guaranteed_iops + throttle.rate_iops.unwrap_or(0.0);
    let corrected = throttle.cap.and_then(|cap| {
        let rate_iops = if windowed { arriving_iops.min(config.r_iops) } else { arriving_iops };
        let arrival = ArrivalCurve { rate_iops, burst: cap + overdraft + guaranteed_in_flight };
        delay_bound(&arrival, &service).ok()
    });
    let published_rate = published_rate(observed.map_or(0.0, |seen| seen.slowest_iops), config.omega);
    let published = published_bound(config.depth, config.omega, &service);
    Bound {
        published,
        corrected,
        vouched: match config.variant {
            Variant::Published => Some(published),
            Variant::Corrected => corrected,
        },
        rests_on: RestsOn {
            r_iops: config.r_iops,
            l_h: config.l_h,
            omega: config.omega,
            published_rate_within_r: published_rate <= config.r_iops,
            engaged: throttle.engaged,
            best_effort_cap: throttle.cap,
            overdraft,
            guaranteed_in_flight,
            arriving_iops,
            windowed,
        },
    }
}
