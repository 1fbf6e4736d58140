//! Piecewise-linear curves: their shape is checked once, when they are made.

use super::{ArrivalCurve, NANOS_PER_SECOND, NoBound, ServiceCurve};

/// How far two values of one point may be apart, in commands and in parts of the larger, and still be the same.
const TOLERANCE: f64 = 1e-9;

/// One straight piece of a curve, up to the start of the next one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Where it starts, ns. The first segment of a curve starts at 0.
    pub start_ns: f64,
    /// The value there, reference commands.
    pub value: f64,
    /// Its slope, reference commands per second.
    pub rate_iops: f64,
}

impl Segment {
    pub(super) fn at(&self, span_ns: f64) -> f64 {
        self.value + self.rate_iops * (span_ns - self.start_ns) / NANOS_PER_SECOND
    }

    /// When it reaches a value that is not below its first. Infinite if it is flat.
    fn reaches(&self, value: f64) -> f64 {
        if value <= self.value {
            return self.start_ns;
        }
        self.start_ns + (value - self.value) / self.rate_iops * NANOS_PER_SECOND
    }

    fn is_finite(&self) -> bool {
        self.start_ns.is_finite() && self.value.is_finite() && self.rate_iops.is_finite()
    }
}

/// A curve's value at a span; it begins with its first segment.
pub(super) fn value_at(segments: &[Segment], span_ns: f64) -> f64 {
    let after = segments.partition_point(|segment| segment.start_ns <= span_ns);
    segments.get(after.saturating_sub(1)).map_or(0.0, |segment| segment.at(span_ns))
}

/// The slope of a curve just after a span.
pub(super) fn rate_after(segments: &[Segment], span_ns: f64) -> f64 {
    let after = segments.partition_point(|segment| segment.start_ns <= span_ns);
    segments.get(after.saturating_sub(1)).map_or(0.0, |segment| segment.rate_iops)
}

/// The first span at which a growing curve has this value; infinite if it never does.
pub(super) fn reaches(segments: &[Segment], value: f64) -> f64 {
    let after = segments.partition_point(|segment| segment.value < value);
    segments.get(after.saturating_sub(1)).map_or(f64::INFINITY, |segment| segment.reaches(value))
}

/// All points where one of the curves bends, 0 first, each once.
pub(super) fn bends(curves: [&[Segment]; 2]) -> Vec<f64> {
    let mut bends: Vec<f64> = curves.into_iter().flatten().map(|segment| segment.start_ns).collect();
    bends.sort_by(f64::total_cmp);
    bends.dedup();
    bends
}

/// The least of the lines at each span, as segments. A line is its value at 0 and its slope; there is one at least.
pub(super) fn lowest(mut lines: Vec<(f64, f64)>) -> Vec<Segment> {
    lines.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut hull: Vec<Segment> = Vec::with_capacity(lines.len());
    for (first, rate_iops) in lines {
        let mut start_ns = 0.0;
        let mut below = true;
        while let Some(last) = hull.last() {
            // Whoever starts no lower and rises no slower is never the least.
            below = rate_iops < last.rate_iops;
            let ahead = first - (last.value - last.rate_iops * last.start_ns / NANOS_PER_SECOND);
            start_ns = ahead / (last.rate_iops - rate_iops) * NANOS_PER_SECOND;
            if !below || start_ns > last.start_ns {
                break;
            }
            hull.pop();
            start_ns = 0.0;
        }
        if below && start_ns.is_finite() {
            let value = first + rate_iops * start_ns / NANOS_PER_SECOND;
            hull.push(Segment { start_ns, value, rate_iops });
        }
    }
    hull
}

/// Where a curve is not what it should be: it jumps, falls, or its slope goes the wrong way.
fn fault(segments: &[Segment], in_order: impl Fn(f64, f64) -> bool) -> Option<f64> {
    let first = segments.first()?;
    if first.start_ns != 0.0 || first.value < 0.0 {
        return Some(first.start_ns);
    }
    if let Some(falling) = segments.iter().find(|segment| segment.rate_iops < 0.0) {
        return Some(falling.start_ns);
    }
    let pairs = segments.iter().zip(segments.iter().skip(1));
    let bad = pairs.into_iter().find(|(one, next)| {
        let reached = one.at(next.start_ns);
        let jumps = (reached - next.value).abs() > TOLERANCE * (1.0 + reached.abs().max(next.value.abs()));
        next.start_ns <= one.start_ns || jumps || !in_order(one.rate_iops, next.rate_iops)
    });
    bad.map(|(_, next)| next.start_ns)
}

fn finite(segments: &[Segment]) -> Result<(), NoBound> {
    if segments.is_empty() || !segments.iter().all(Segment::is_finite) { Err(NoBound::NotFinite) } else { Ok(()) }
}

/// What may arrive in any span: a concave curve, the minimum of token buckets. It counts from just after 0, so its first value
/// is what may come at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope(Vec<Segment>);

impl Envelope {
    /// Sources that keep to all of these token buckets at once. Redundant ones are dropped.
    ///
    /// # Errors
    /// [`NoBound::NotFinite`]: no bucket, or a figure that is negative, infinite or no number.
    pub fn of(buckets: &[ArrivalCurve]) -> Result<Self, NoBound> {
        let valid = |figure: f64| figure.is_finite() && figure >= 0.0;
        if buckets.is_empty() || !buckets.iter().all(|bucket| valid(bucket.rate_iops) && valid(bucket.burst)) {
            return Err(NoBound::NotFinite);
        }
        Ok(Self(lowest(buckets.iter().map(|bucket| (bucket.burst, bucket.rate_iops)).collect())))
    }

    /// A curve given piece by piece.
    ///
    /// # Errors
    /// [`NoBound::NotConcave`], [`NoBound::NotFinite`].
    pub fn from_segments(segments: &[Segment]) -> Result<Self, NoBound> {
        finite(segments)?;
        match fault(segments, |rate, next| rate >= next) {
            Some(at_ns) => Err(NoBound::NotConcave { at_ns }),
            None => Ok(Self(segments.to_vec())),
        }
    }

    pub(super) fn new(segments: Vec<Segment>) -> Self {
        Self(segments)
    }

    /// Its pieces, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Reference commands that may arrive within a span of this many ns; at 0: at once.
    pub fn at(&self, span_ns: f64) -> f64 {
        value_at(&self.0, span_ns)
    }

    /// Reference commands per second that may arrive for ever.
    pub fn rate_iops(&self) -> f64 {
        self.0.last().map_or(0.0, |segment| segment.rate_iops)
    }

    /// The token buckets whose minimum it is: bursts in commands, rates per second.
    pub fn buckets(&self) -> impl Iterator<Item = ArrivalCurve> {
        self.0.iter().map(|segment| ArrivalCurve { rate_iops: segment.rate_iops, burst: segment.at(0.0) })
    }

    /// Sources that keep to both curves.
    #[must_use]
    pub fn minimum(&self, other: &Self) -> Self {
        let lines = self.buckets().chain(other.buckets());
        Self(lowest(lines.map(|bucket| (bucket.burst, bucket.rate_iops)).collect()))
    }
}

/// What is served at least: a convex curve, the maximum of rate-latency curves, 0 at 0.
///
/// *Strict*: in any span during which work waits, at least this much is served, whenever the span starts. A plain
/// service curve promises that only from the time that the server was last empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    segments: Vec<Segment>,
    strict: bool,
}

impl Service {
    /// A strict server that does as well as the best of these rate-latency curves at any time.
    ///
    /// # Errors
    /// [`NoBound::NotFinite`]: no curve, or a rate that is negative, infinite or no number.
    pub fn of(servers: &[ServiceCurve]) -> Result<Self, NoBound> {
        let valid = |server: &ServiceCurve| server.rate_iops.is_finite() && server.rate_iops >= 0.0;
        if servers.is_empty() || !servers.iter().all(valid) {
            return Err(NoBound::NotFinite);
        }
        // The maximum of lines is the minimum of their mirror images.
        let line = |server: &ServiceCurve| {
            let before = server.rate_iops * server.latency.0 as f64 / NANOS_PER_SECOND;
            (before, -server.rate_iops)
        };
        let mirrored = lowest(servers.iter().map(line).chain([(0.0, 0.0)]).collect());
        let segments = mirrored.iter().map(|segment| Segment {
            start_ns: segment.start_ns,
            value: 0.0 - segment.value,
            rate_iops: 0.0 - segment.rate_iops,
        });
        Ok(Self { segments: segments.collect(), strict: true })
    }

    /// A curve given piece by piece. The caller vouches for `strict`.
    ///
    /// # Errors
    /// [`NoBound::NotConvex`] (also if it is not 0 at 0), [`NoBound::NotFinite`].
    pub fn from_segments(segments: &[Segment], strict: bool) -> Result<Self, NoBound> {
        finite(segments)?;
        let fault = fault(segments, |rate, next| rate <= next);
        match fault.or((segments[0].value > 0.0).then_some(0.0)) {
            Some(at_ns) => Err(NoBound::NotConvex { at_ns }),
            None => Ok(Self { segments: segments.to_vec(), strict }),
        }
    }

    /// Not strict: what the operations on services give.
    pub(super) fn new(segments: Vec<Segment>) -> Self {
        Self { segments, strict: false }
    }

    /// Its pieces, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Reference commands served at least within a span of this many ns.
    pub fn at(&self, span_ns: f64) -> f64 {
        value_at(&self.segments, span_ns)
    }

    /// Reference commands per second that it serves in the long run.
    pub fn rate_iops(&self) -> f64 {
        self.segments.last().map_or(0.0, |segment| segment.rate_iops)
    }

    /// Whether it holds from any time on, not only from when the server was last empty.
    pub fn is_strict(&self) -> bool {
        self.strict
    }
}
