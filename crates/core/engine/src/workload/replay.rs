//! A block trace, request by request.

use std::sync::Arc;

use io_model::Nanos;

use super::access::MAX_JOBS;
use super::{WorkloadError, within, within_f64};
use crate::{Action, Job, Shape};

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it arrives, in ns from the first one; never before the one in front of it.
    pub time_ns: u64,
    /// Its load.
    pub shape: Shape,
}

impl Request {
    fn end_bytes(&self) -> u64 {
        self.shape.offset_bytes + u64::from(self.shape.len_bytes)
    }
}

/// Replays a trace as an open loop: each request arrives when the trace says, whether or not those before it ended,
/// and its latency counts from then.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// What to replay; it must fit on the disk.
    pub requests: Arc<[Request]>,
    /// How much faster than it was recorded: 2 halves all times. 1e-6 to 1e6.
    pub speed: f64,
    /// Whether to begin again at the end. The first request follows the last by the trace's mean gap, so that the
    /// mean rate stays.
    pub looping: bool,
    /// Threads; they take turns at the requests.
    pub jobs: u32,
    /// Requests that each job may have outstanding. An arrival above that waits for a completion.
    pub max_outstanding: u32,
}

impl Replay {
    /// The trace once, as it was recorded, by one job with up to 4096 outstanding.
    pub fn new(requests: Arc<[Request]>) -> Self {
        Self { requests, speed: 1.0, looping: false, jobs: 1, max_outstanding: 4096 }
    }

    pub(super) fn validate(&self, disk_bytes: u64) -> Result<(), WorkloadError> {
        within("jobs", self.jobs.into(), 1..=MAX_JOBS, "1 to 1024")?;
        within("max_outstanding", self.max_outstanding.into(), 1..=65_536, "1 to 65536")?;
        within_f64("speed", self.speed, 1e-6, 1e6, "0.000001 to 1000000")?;
        let entries = &self.requests;
        if entries.is_empty() {
            return Err(WorkloadError::Empty("the trace"));
        }
        if self.looping && self.round_ns() == 0 {
            return Err(WorkloadError::NoSpan);
        }
        let end_bytes = entries.iter().map(Request::end_bytes).max().unwrap_or(0);
        if end_bytes > disk_bytes {
            return Err(WorkloadError::PastEnd { end_bytes, disk_bytes });
        }
        Ok(())
    }

    /// How long one round takes at the recorded speed: the trace's span and its mean gap.
    fn round_ns(&self) -> u64 {
        let entries = &self.requests;
        let span_ns = entries.last().map_or(0, |last| last.time_ns);
        let gaps = entries.len().saturating_sub(1).max(1) as u64;
        span_ns.saturating_add(span_ns / gaps)
    }

    pub(super) fn jobs(&self) -> Vec<Box<dyn Job>> {
        let job = |index: u32| -> Box<dyn Job> {
            Box::new(ReplayJob {
                requests: Arc::clone(&self.requests),
                speed: self.speed,
                round_ns: self.looping.then(|| self.round_ns()),
                turn: index.into(),
                jobs: self.jobs.into(),
                outstanding: 0,
                max_outstanding: self.max_outstanding,
                origin: None,
            })
        };
        (0..self.jobs).map(job).collect()
    }
}

/// One thread of [`Replay`].
struct ReplayJob {
    requests: Arc<[Request]>,
    speed: f64,
    /// `None`: one round only.
    round_ns: Option<u64>,
    /// The request that this job turns to next, counted over all rounds.
    turn: u64,
    jobs: u64,
    outstanding: u32,
    max_outstanding: u32,
    /// When it was first asked; the trace begins there.
    origin: Option<Nanos>,
}

impl ReplayJob {
    /// Its next request, and when it arrives after the start.
    fn upcoming(&self) -> Option<(Shape, Nanos)> {
        let entries = &self.requests;
        let count = entries.len() as u64;
        let round = self.turn.checked_div(count)?;
        let before_ns = match self.round_ns {
            Some(round_ns) => round.saturating_mul(round_ns),
            None if round == 0 => 0,
            None => return None,
        };
        let entry = entries.get((self.turn % count) as usize)?;
        let recorded_ns = before_ns.saturating_add(entry.time_ns);
        Some((entry.shape, Nanos(self.scale(recorded_ns))))
    }

    fn scale(&self, recorded_ns: u64) -> u64 {
        if self.speed == 1.0 {
            return recorded_ns;
        }
        (recorded_ns as f64 / self.speed) as u64
    }
}

impl Job for ReplayJob {
    fn next(&mut self, now: Nanos) -> Action {
        let origin = *self.origin.get_or_insert(now);
        let Some((shape, after)) = self.upcoming() else {
            return if self.outstanding > 0 { Action::WaitCompletion } else { Action::Done };
        };
        if self.outstanding >= self.max_outstanding {
            return Action::WaitCompletion;
        }
        let arrival = origin + after;
        if arrival > now {
            return Action::WaitUntil(arrival);
        }
        self.turn += self.jobs;
        self.outstanding += 1;
        Action::Submit { shape, since: Some(arrival) }
    }

    fn completed(&mut self, _shape: &Shape, _latency: Nanos, _now: Nanos) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}
