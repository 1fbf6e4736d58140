//! What one tenant did over a span, in the model's terms.

use io_model::Nanos;
use planner::{Load, Size, Tenant};

/// Figures of one tenant over one span.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measured {
    /// Commands completed per second.
    pub iops: f64,
    /// Fraction of reads among reads and writes, 0 to 1.
    pub read_share: f64,
    /// Mean bytes per command.
    pub mean_len_bytes: f64,
    /// Mean latency, waiting included.
    pub mean: Nanos,
    /// Latency at the promised percentile; at the 99th without a promise.
    pub at_percentile: Nanos,
    /// The part of the mean that the command spent in the drive.
    pub served: Nanos,
    /// How many commands were late, and why.
    pub lateness: Lateness,
}

/// Commands later than the target, by cause. Each is a fraction of all commands, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lateness {
    /// All late commands.
    pub late: f64,
    /// Late commands that would have met the target had their poller not stalled: the host's part.
    pub stalled: f64,
}

/// Commands count as this many bytes at least: small ones cost a drive as much.
const LEAST_BYTES: f64 = 4096.0;

/// With fewer outstanding commands than this, a tenant asks for a rate and not for a depth.
const DEPTH_MIN: f64 = 0.9;

impl Lateness {
    /// Whether the host is the cause, where a promise allows the fraction `allowed` of late commands. Either the
    /// promise would have been kept without the host's part, or that part is the larger one.
    pub fn is_hosts(&self, allowed: f64) -> bool {
        let others = self.late - self.stalled;
        self.late > allowed && (others <= allowed || self.stalled > others)
    }

    /// Both parts, for an operator. `None`: no command was late because of a stalled poller.
    pub fn in_words(&self) -> Option<String> {
        (self.stalled > 0.0 && self.late > 0.0).then(|| {
            let part = (100.0 * self.stalled / self.late).min(100.0);
            let (all, other) = (100.0 * self.late, 100.0 - part);
            format!(
                "of its late commands, {all:.1} % of all, {part:.0} % were late only because its poller stood still, \
                 {other:.0} % for another reason"
            )
        })
    }
}

impl Measured {
    /// Mean commands outstanding, waiting ones included (Little's law).
    pub fn outstanding(&self) -> f64 {
        self.iops * self.mean.0 as f64 / 1e9
    }

    /// Whether nothing completed.
    pub fn is_idle(&self) -> bool {
        self.iops <= 0.0
    }

    /// Mean latency in the tenant's own queue.
    pub fn waited(&self) -> Nanos {
        Nanos(self.mean.0.saturating_sub(self.served.0))
    }

    /// Bytes per second, both ways.
    pub fn bytes_s(&self) -> f64 {
        self.iops * self.mean_len_bytes
    }

    /// The load on the drive, in bytes per second.
    pub fn work(&self) -> f64 {
        self.iops * self.mean_len_bytes.max(LEAST_BYTES)
    }

    /// The tenant as if it had declared this load. `None`: it did nothing. A declared rate stays a rate; any other load
    /// counts as a depth, or as a rate below one outstanding command.
    pub fn as_demand(&self, tenant: &Tenant) -> Option<Tenant> {
        if self.is_idle() {
            return None;
        }
        let outstanding = self.outstanding();
        let is_rate = matches!(tenant.load, Load::Open { .. });
        let load = if is_rate || outstanding < DEPTH_MIN {
            Load::Open { rate_iops: self.iops }
        } else {
            Load::Closed { depth: outstanding.round().clamp(1.0, 1e6) as u32 }
        };
        // Commands that move nothing (flush, discard) count as the smallest.
        let len_bytes = ((self.mean_len_bytes / 512.0).round().max(1.0) as u64) * 512;
        let sizes = vec![Size { len_bytes, part: 1.0 }];
        Some(Tenant { load, read_share: self.read_share.clamp(0.0, 1.0), sizes, ..tenant.clone() })
    }
}
