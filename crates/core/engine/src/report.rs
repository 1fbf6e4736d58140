//! What a run showed.

use std::collections::BTreeMap;

use io_model::Nanos;
use policy::Bound;
use serde::Serialize;

use crate::check::{BoundCounts, Violation};
use crate::disks::DiskCounts;
use crate::measure::{Latencies, Moments, Window, fairness_index};

/// A latency that a policy vouches for. Times in ns, with the drive: from the fetch of a command to its completion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BoundReport {
    /// By the formula as published (LPNS Eq. 5), if the policy is that.
    pub published_ns: Option<u64>,
    /// By the formula that holds, while its conditions do.
    pub corrected_ns: Option<u64>,
    /// The one that the policy vouches for, if it does.
    pub vouched_ns: Option<u64>,
}

impl From<Bound> for BoundReport {
    fn from(bound: Bound) -> Self {
        Self {
            published_ns: bound.published.map(|bound| bound.latency.0),
            corrected_ns: bound.corrected.map(|bound| bound.0),
            vouched_ns: bound.vouched.map(|bound| bound.0),
        }
    }
}

/// One tenant while it was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantReport {
    /// Its name.
    pub name: String,
    /// I/Os per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth_bytes_s: f64,
    /// Reads that ended.
    pub reads: Moments,
    /// Writes that ended.
    pub writes: Moments,
    /// Of all, how many failed.
    pub errors: u64,
    /// As the guest's application sees them.
    pub latency: Latencies,
    /// What ended in each window, if the scenario asked for windows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
    /// Operations of applications that have them, by kind: those of a loop with pauses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub operations: BTreeMap<String, Latencies>,
    /// Target of a guaranteed tenant.
    pub target_ns: Option<u64>,
    /// The percentage of its I/Os that the target is for.
    pub latency_percentile: Option<f64>,
    /// The latency that the promised percentage did not exceed.
    pub at_percentile_ns: Option<u64>,
    /// What it does not exceed with the standard error that a run of this length has, if there are windows.
    #[serde(skip)]
    pub cautious_ns: Option<u64>,
    /// The part of their time that its commands waited in their queue, over the whole run.
    #[serde(skip)]
    pub waited: f64,
    /// Whether the target was kept: that is within it, and no I/O failed. `None`: there is no target, or no I/O.
    pub kept: Option<bool>,
    /// I/Os that took longer than the target, as the guest sees them, and those under way at the end that already have.
    pub over_target: u64,
    /// The policy's bound at the end, if it gives one.
    pub bound: Option<BoundReport>,
    /// I/Os that took longer with the drive than the bound that the policy vouched for then.
    pub over_bound: u64,
    /// Mean latency over the mean latency alone, if that is known.
    pub slowdown: Option<f64>,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The policy's name.
    pub policy: String,
    /// The layout's name.
    pub layout: String,
    /// The drive's name.
    pub drive: String,
    /// The seed.
    pub seed: u64,
    /// The measured time.
    pub duration_ns: u64,
    /// In the scenario's order.
    pub tenants: Vec<TenantReport>,
    /// Each poller's share of its CPU, 0 to 1.
    pub poller_utilization: Vec<f64>,
    /// Smallest slowdown over largest, if slowdowns are known.
    pub fairness_index: Option<f64>,
    /// Largest slowdown, if slowdowns are known.
    pub max_slowdown: Option<f64>,
    /// I/Os that were simulated, warm-up included.
    pub simulated_ios: u64,
    /// How many commands were held against a bound.
    pub bounds: BoundCounts,
    /// What happened to disks.
    #[serde(skip_serializing_if = "DiskCounts::is_empty")]
    pub disks: DiskCounts,
    /// Rules that were broken.
    pub violations: u64,
    /// The first of them.
    pub broken: Vec<Violation>,
}

impl Report {
    /// I/Os per second of all tenants.
    pub fn total_iops(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.iops).sum()
    }

    /// Bytes per second of all tenants.
    pub fn total_bandwidth_bytes_s(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.bandwidth_bytes_s).sum()
    }

    /// Fills in slowdowns from each tenant's mean latency alone. Tenants without I/O have none.
    pub fn compare_alone(&mut self, alone: &[Nanos]) {
        let mut slowdowns = Vec::new();
        for (tenant, alone) in self.tenants.iter_mut().zip(alone) {
            if alone.0 > 0 && tenant.latency.count > 0 {
                let slowdown = tenant.latency.mean_ns / alone.0 as f64;
                tenant.slowdown = Some(slowdown);
                slowdowns.push(slowdown);
            }
        }
        self.fairness_index = (!slowdowns.is_empty()).then(|| fairness_index(&slowdowns));
        self.max_slowdown = slowdowns.iter().copied().reduce(f64::max);
    }
}
