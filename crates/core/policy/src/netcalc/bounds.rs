//! What follows from curves, and the conditions under which it does.

use io_model::Nanos;

use super::curve::{bends, rate_after, reaches, value_at};
use super::{ArrivalCurve, Envelope, NANOS_PER_SECOND, Segment, Service, Unstable};

/// Why there is no curve or no bound.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NoBound {
    /// The sources may send faster than is served for ever: the backlog grows without end.
    #[error(transparent)]
    Unstable(#[from] Unstable),
    /// Arrivals must not speed up, fall or jump.
    #[error("the arrival curve is not concave and growing at {at_ns} ns")]
    NotConcave {
        /// Where, ns.
        at_ns: f64,
    },
    /// A service must not slow down, fall or jump, and serves nothing in no time.
    #[error("the service curve is not convex, growing and 0 at 0 at {at_ns} ns")]
    NotConvex {
        /// Where, ns.
        at_ns: f64,
    },
    /// There is no curve, or a figure of it is negative, infinite or no number.
    #[error("a figure of the curve is not finite and positive")]
    NotFinite,
    /// What others leave over is known only of a service that is strict (unless all are served in order).
    #[error("the service is not strict: what others leave of it has no bound")]
    NotStrict,
}

impl Envelope {
    /// All of these sources together.
    #[must_use]
    pub fn sum(&self, other: &Self) -> Self {
        let (one, two) = (self.segments(), other.segments());
        let segment = |start_ns| Segment {
            start_ns,
            value: value_at(one, start_ns) + value_at(two, start_ns),
            rate_iops: rate_after(one, start_ns) + rate_after(two, start_ns),
        };
        Self::new(bends([one, two]).into_iter().map(segment).collect())
    }

    fn is_nothing(&self) -> bool {
        self.segments().iter().all(|segment| segment.value == 0.0 && segment.rate_iops == 0.0)
    }

    fn stable_at(&self, service: &Service) -> Result<(), Unstable> {
        let (arriving_iops, served_iops) = (self.rate_iops(), service.rate_iops());
        if arriving_iops > served_iops || served_iops <= 0.0 {
            return Err(Unstable { arriving_iops, served_iops });
        }
        Ok(())
    }

    /// Longest time that a command spends at the service: the horizontal distance of the curves, rounded up.
    ///
    /// For commands served in the order that they came; `self` is everything that goes through the service.
    ///
    /// # Errors
    /// [`NoBound::Unstable`].
    pub fn delay_at(&self, service: &Service) -> Result<Nanos, NoBound> {
        if self.is_nothing() {
            return Ok(Nanos(0));
        }
        self.stable_at(service)?;
        let (arrivals, served) = (self.segments(), service.segments());
        // The distance is a concave function of the arrival's time: it is largest where one of the curves bends.
        let met = served.iter().map(|segment| reaches(arrivals, segment.value));
        let times = arrivals.iter().map(|segment| segment.start_ns).chain(met.filter(|time| time.is_finite()));
        let delay_ns = times.map(|time| served_after(served, value_at(arrivals, time)) - time).fold(0.0, f64::max);
        // What the arithmetic added in its last digits is not worth a nanosecond.
        Ok(Nanos((delay_ns * (1.0 - 1e-12)).ceil() as u64))
    }

    /// Most commands at the service at once: the vertical distance of the curves. Holds for any order.
    ///
    /// # Errors
    /// [`NoBound::Unstable`].
    pub fn backlog_at(&self, service: &Service) -> Result<f64, NoBound> {
        if self.is_nothing() {
            return Ok(0.0);
        }
        self.stable_at(service)?;
        let (arrivals, served) = (self.segments(), service.segments());
        let above = |time: f64| value_at(arrivals, time) - value_at(served, time);
        Ok(bends([arrivals, served]).into_iter().map(above).fold(0.0, f64::max))
    }

    /// What may leave the service in any span: each bucket with the burst that the service can build up for it.
    ///
    /// # Errors
    /// [`NoBound::Unstable`].
    pub fn after(&self, service: &Service) -> Result<Self, NoBound> {
        self.stable_at(service)?;
        let served = service.segments();
        let held = |bucket: ArrivalCurve| {
            let ahead = |segment: &Segment| bucket.rate_iops * segment.start_ns / NANOS_PER_SECOND - segment.value;
            let burst = bucket.burst + served.iter().map(ahead).fold(0.0, f64::max);
            ArrivalCurve { burst, ..bucket }
        };
        // A bucket faster than the service limits nothing behind it.
        let kept: Vec<_> = self.buckets().filter(|bucket| bucket.rate_iops <= service.rate_iops()).map(held).collect();
        Self::of(&kept)
    }
}

/// The span after which more than this was served: the right limit of the inverse, so that the first of a stream of
/// infinitely small commands also waits for the server's latency.
fn served_after(served: &[Segment], value: f64) -> f64 {
    let flat = served.iter().take_while(|segment| segment.rate_iops == 0.0).count();
    match served.get(flat) {
        Some(first) if value <= first.value => first.start_ns,
        _ => reaches(served, value),
    }
}

impl Service {
    /// This service, then that one, for the same commands: the min-plus convolution. What comes out is not strict.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        let mut pieces: Vec<(f64, f64)> = Vec::new();
        for segments in [self.segments(), next.segments()] {
            let ends = segments.iter().skip(1).map(|segment| segment.start_ns).chain([f64::INFINITY]);
            pieces.extend(
                segments.iter().zip(ends).map(|(segment, end_ns)| (segment.rate_iops, end_ns - segment.start_ns)),
            );
        }
        // Slowest pieces first, up to the first one that goes on for ever.
        pieces.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut segments: Vec<Segment> = Vec::with_capacity(pieces.len());
        let (mut start_ns, mut value) = (0.0, 0.0);
        for (rate_iops, length_ns) in pieces {
            if segments.last().is_none_or(|last| last.rate_iops < rate_iops) {
                segments.push(Segment { start_ns, value, rate_iops });
            }
            if length_ns == f64::INFINITY {
                break;
            }
            start_ns += length_ns;
            value += rate_iops * length_ns / NANOS_PER_SECOND;
        }
        Self::new(segments)
    }

    /// What is left beside other sources, in whatever order the server takes them, its worst included
    /// (blind multiplexing): max(0, β − α).
    ///
    /// # Errors
    /// [`NoBound::NotStrict`]; [`NoBound::Unstable`]: the others leave nothing.
    pub fn left_over(&self, others: &Envelope) -> Result<Self, NoBound> {
        if !self.is_strict() {
            return Err(NoBound::NotStrict);
        }
        self.left_after(others, 0.0)
    }

    /// What is left beside other sources where all are served in the order that they came. More than
    /// [`left_over`](Self::left_over), and this service need not be strict.
    ///
    /// One of the family β(t) − α(t − θ), t > θ, each of which holds: the one whose θ is the time to serve the others' burst.
    ///
    /// # Errors
    /// [`NoBound::Unstable`]: the others leave nothing.
    pub fn left_over_fifo(&self, others: &Envelope) -> Result<Self, NoBound> {
        others.stable_at(self)?;
        self.left_after(others, reaches(self.segments(), others.at(0.0)))
    }

    /// max(0, β(t) − α(t − θ)) after θ, 0 before.
    fn left_after(&self, others: &Envelope, theta_ns: f64) -> Result<Self, NoBound> {
        let (arriving_iops, served_iops) = (others.rate_iops(), self.rate_iops());
        if arriving_iops >= served_iops {
            return Err(Unstable { arriving_iops, served_iops }.into());
        }
        let late: Vec<_> = others
            .segments()
            .iter()
            .map(|segment| Segment { start_ns: segment.start_ns + theta_ns, ..*segment })
            .collect();
        let mut segments = vec![Segment { start_ns: 0.0, value: 0.0, rate_iops: 0.0 }];
        let starts: Vec<_> = bends([self.segments(), &late]).into_iter().filter(|start| *start >= theta_ns).collect();
        let ends = starts.iter().copied().skip(1).chain([f64::INFINITY]);
        for (&start_ns, end_ns) in starts.iter().zip(ends) {
            let value = self.at(start_ns) - value_at(&late, start_ns);
            let rate_iops = rate_after(self.segments(), start_ns) - rate_after(&late, start_ns);
            // The difference is convex and not above 0 at first: where it leaves 0 it rises, and goes on to.
            let zero_ns = if value < 0.0 { start_ns - value / rate_iops * NANOS_PER_SECOND } else { start_ns };
            if rate_iops <= 0.0 || zero_ns >= end_ns {
                continue;
            }
            if zero_ns == 0.0 {
                segments.clear();
            }
            segments.push(Segment { start_ns: zero_ns, value: value.max(0.0), rate_iops });
        }
        Ok(Self::new(segments))
    }
}
