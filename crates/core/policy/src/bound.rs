//! The latency that a guaranteed tenant can count on, and what that rests on.

use io_model::Nanos;

use crate::netcalc::{ArrivalCurve, ServiceCurve, delay_bound};

/// Answers for one tenant. They are times with the drive, from the moment that the policy let the command go; not the
/// wait for one's own earlier commands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// The one of LPNS as printed, if the policy is that.
    pub published: Option<PublishedBound>,
    /// b/R + L_h, where b is everything that may be in flight. `None`: nothing enforces a burst (the published
    /// variant), commands may reach the drive faster than it serves them, or it serves others' first.
    pub corrected: Option<Nanos>,
    /// The one that the policy vouches for: `published` under the published variant, else `corrected`.
    pub vouched: Option<Nanos>,
    /// What they rest on.
    pub rests_on: RestsOn,
}

/// LPNS Eq. 5 as printed. Nothing enforces the burst that it assumes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PublishedBound {
    /// d·Ω/R + L_h with Ω and d as configured.
    pub latency: Nanos,
    /// Ω.
    pub omega: f64,
    /// p·Ω ≤ R in the last interval; if not, it has no ground even with its burst.
    pub rate_within_r: bool,
}

/// The assumptions behind a [`Bound`]. One more, which no figure shows: the drive serves waiting commands in
/// about the order they came (any unit takes the next), which skewed addresses and garbage collection break.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestsOn {
    /// R, reference commands per second.
    pub r_iops: f64,
    /// L_h.
    pub l_h: Nanos,
    /// The throttle has been in force for two whole intervals, in the second of which pollers part what it allows; if
    /// not, `corrected` starts to hold within three intervals of the first command.
    pub engaged: bool,
    /// Reference commands that best-effort tenants may have in flight together: now or in the last interval, whichever
    /// is more, since what went then may still be there.
    pub best_effort_cap: Option<f64>,
    /// By how much the largest best-effort command seen at this poller may exceed the cap. Others overdraw theirs too,
    /// each by one command: no figure counts that.
    pub overdraft: f64,
    /// Commands that guaranteed tenants had in flight together.
    pub guaranteed_in_flight: f64,
    /// v: rate of the guaranteed tenants plus what best effort is allowed, per second. `None`: no rate is limited.
    pub arriving_iops: Option<f64>,
    /// Every tenant's work in flight is limited, the guaranteed ones' too: what enters the drive then can't outrun what
    /// leaves it, and v > R only means that the tenants' own queues grow.
    pub windowed: bool,
}

impl RestsOn {
    /// b/R + L_h.
    pub(crate) fn corrected(&self) -> Option<Nanos> {
        let service = ServiceCurve { rate_iops: self.r_iops, latency: self.l_h };
        let burst = self.best_effort_cap? + self.overdraft + self.guaranteed_in_flight;
        let rate_iops = self.arriving_iops.unwrap_or(0.0);
        let rate_iops = if self.windowed { rate_iops.min(self.r_iops) } else { rate_iops };
        delay_bound(&ArrivalCurve { rate_iops, burst }, &service).ok()
    }
}
