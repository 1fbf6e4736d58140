//! What `evenkeel stats` and `evenkeel demo` show: each tenant over a span of time.

use io_model::Nanos;
use planner::Measured;
use policy::{Bound, Class, RestsOn};
use poller::{Board, Counters, Percentiles, TenantProbes};
use serde::{Deserialize, Serialize};

use super::cpu_waits::CpuWaits;
use super::foresight::{BlameRow, Foresight, Predicted};

/// All tenants over one span.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    /// The policy in force.
    pub policy: String,
    /// Length of the span.
    pub span_ms: u64,
    /// In the configuration's order.
    pub tenants: Vec<TenantRow>,
}

/// One tenant over one span. Latencies run from the doorbell's first sight to the posted completion.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TenantRow {
    /// The tenant.
    pub name: String,
    /// `guaranteed` or `best-effort`.
    pub class: String,
    /// The share of a best-effort tenant.
    pub weight: Option<u32>,
    /// The promise to a guaranteed tenant.
    pub latency_target_us: Option<f64>,
    /// What it may do at most under `caps`, in words.
    pub limits: Option<String>,
    /// `urgent`, `high`, `medium`, `low` or `client` under `wrr` and `drr`.
    pub priority: Option<String>,
    /// It is served even if its promise can't be kept.
    pub overcommit: bool,
    /// What it is taken to ask for, in words.
    pub demand: String,
    /// Nobody declared that.
    pub assumed: bool,
    /// Completions per second.
    pub iops: f64,
    /// Bytes read and written per second.
    pub bw_bytes: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// The part of it that passed in the tenant's queue.
    pub waited_us: f64,
    /// The part of it that passed with the drive.
    pub served_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// 99.99th percentile.
    pub p9999_us: f64,
    /// The latency that the policy can vouch for now, if any: time with the drive, from the moment that the
    /// policy let the command go.
    pub bound_us: Option<f64>,
    /// What stands behind it.
    pub bound: Option<BoundRow>,
    /// Completions later than the target, in this span.
    pub violations: u64,
    /// Commands that the drive failed, in this span.
    pub errors: u64,
    /// HWQs in use in the last 10 ms, as numbers within the tenant's poller; of several pollers, those that any of
    /// them used.
    pub hwqs: Vec<u16>,
    /// What the model says; none where the file names no drive, or there is no model of the policy.
    pub predicted: Option<Predicted>,
    /// Whether 99 of 100 commands met the target; none without one, and where nothing was asked.
    pub kept: Option<bool>,
    /// Whose fault it was if they did not.
    pub blame: Option<BlameRow>,
}

/// A latency bound and what it rests on (LPNS §4.3, Eqs. 1 to 5).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BoundRow {
    /// d·Ω/R + L_h as the paper prints it; nothing enforces the burst that it assumes.
    pub published_us: f64,
    /// b/R + L_h with the burst b that is enforced; none while rates don't allow one.
    pub corrected_us: Option<f64>,
    /// R, commands of 4 KiB per second.
    pub r_iops: f64,
    /// L_h.
    pub l_h_us: f64,
    /// Ω of the published bound.
    pub omega: f64,
    /// Whether p·Ω ≤ R, without which the published bound has no ground.
    pub published_rate_within_r: bool,
    /// Whether best-effort tenants are throttled now.
    pub engaged: bool,
    /// Commands of 4 KiB that best-effort tenants may have in flight together.
    pub best_effort_cap: Option<f64>,
    /// By how much one large command may exceed that.
    pub overdraft: f64,
    /// Commands that guaranteed tenants had in flight.
    pub guaranteed_in_flight: f64,
    /// v: commands per second that may arrive.
    pub arriving_iops: f64,
}

impl From<Bound> for BoundRow {
    fn from(bound: Bound) -> Self {
        let RestsOn { r_iops, l_h, omega, published_rate_within_r, engaged, .. } = bound.rests_on;
        let RestsOn { best_effort_cap, overdraft, guaranteed_in_flight, arriving_iops, .. } = bound.rests_on;
        Self {
            published_us: bound.published.as_micros_f64(),
            corrected_us: bound.corrected.map(Nanos::as_micros_f64),
            r_iops,
            l_h_us: l_h.as_micros_f64(),
            omega,
            published_rate_within_r,
            engaged,
            best_effort_cap,
            overdraft,
            guaranteed_in_flight,
            arriving_iops,
        }
    }
}

/// A point in time to measure from.
pub struct Mark {
    at: Nanos,
    waits: CpuWaits,
    tenants: Vec<(TenantProbes, Counters, Vec<u64>)>,
}

impl Mark {
    /// Now.
    pub fn now(board: &Board, at: Nanos) -> Self {
        let counted = |tenant: TenantProbes| {
            let (counters, counts) = (tenant.counters(), tenant.latency_counts());
            (tenant, counters, counts)
        };
        Self { at, waits: CpuWaits::now(), tenants: board.tenants().into_iter().map(counted).collect() }
    }

    /// The start of everything.
    pub fn start(board: &Board) -> Self {
        let tenants = board.tenants().into_iter().map(|tenant| (tenant, Counters::default(), Vec::new())).collect();
        Self { at: Nanos(0), waits: CpuWaits::default(), tenants }
    }

    /// What happened from the mark until `now`: measured, foreseen, and whose fault it was.
    pub fn until(&self, now: Nanos, foresight: &Foresight, policy: &str) -> Snapshot {
        let (mut tenants, measured) = self.measure(now, foresight);
        foresight.predict(&mut tenants, &measured);
        let starved = self.starved(now);
        for (index, row) in tenants.iter_mut().enumerate().filter(|(_, row)| row.kept == Some(false)) {
            row.blame = foresight.blame(&measured, starved, index);
        }
        Snapshot { policy: policy.to_owned(), span_ms: (now - self.at).0 / 1_000_000, tenants }
    }

    /// The part of the time from the mark until `now` in which pollers waited for a CPU, in the mean.
    pub fn starved(&self, now: Nanos) -> f64 {
        CpuWaits::now().since(&self.waits, now - self.at)
    }

    /// What happened from the mark until `now`, without what follows from a model; in the order of the tenants.
    pub fn measure(&self, now: Nanos, foresight: &Foresight) -> (Vec<TenantRow>, Vec<Measured>) {
        let span = now - self.at;
        let each = self.tenants.iter().map(|(probes, counters, counts)| {
            let (mut row, measured) = row(probes, counters, counts, span);
            foresight.describe(usize::from(probes.tenant().0), &mut row);
            (row, measured)
        });
        each.unzip()
    }
}

/// Without what the configuration says of the tenant.
fn row(probes: &TenantProbes, old: &Counters, old_counts: &[u64], span: Nanos) -> (TenantRow, Measured) {
    let new = probes.counters();
    let latencies = Percentiles::between(old_counts, &probes.latency_counts());
    let seconds = (span.0 as f64 / 1e9).max(1e-9);
    let completed = new.completed - old.completed;
    let bytes = new.read_bytes + new.write_bytes - old.read_bytes - old.write_bytes;
    let mean = |sum_ns: u64| Nanos(sum_ns.checked_div(completed).unwrap_or(0));
    let mean_latency = mean(new.latency_sum_ns - old.latency_sum_ns);
    // Published once per interval: behind the other counters for a moment.
    let served = mean(new.served_sum_ns.saturating_sub(old.served_sum_ns)).min(mean_latency);
    let (reads, writes) = (new.reads - old.reads, new.writes - old.writes);
    let us = |ns: u64| Nanos(ns).as_micros_f64();
    let (hwqs, bound) = (probes.hwqs_in_use(), probes.bound());
    let (class, weight, target) = match probes.class() {
        Class::Guaranteed { latency_target } => ("guaranteed", None, latency_target),
        Class::BestEffort { weight } => ("best-effort", Some(weight), None),
    };
    let kept = target.filter(|_| completed > 0).map(|target| latencies.p99_ns <= target.0);
    let measured = Measured {
        iops: completed as f64 / seconds,
        read_share: reads as f64 / (reads + writes).max(1) as f64,
        mean_len_bytes: bytes as f64 / completed.max(1) as f64,
        mean: mean_latency,
        p99: Nanos(latencies.p99_ns),
        served,
    };
    let row = TenantRow {
        name: String::new(),
        class: class.into(),
        weight,
        latency_target_us: target.map(Nanos::as_micros_f64),
        limits: None,
        priority: None,
        overcommit: false,
        demand: String::new(),
        assumed: true,
        iops: completed as f64 / seconds,
        bw_bytes: bytes as f64 / seconds,
        mean_us: mean_latency.as_micros_f64(),
        waited_us: (mean_latency - served).as_micros_f64(),
        served_us: served.as_micros_f64(),
        p50_us: us(latencies.p50_ns),
        p99_us: us(latencies.p99_ns),
        p999_us: us(latencies.p999_ns),
        p9999_us: us(latencies.p9999_ns),
        bound_us: bound.and_then(|bound| bound.vouched).map(Nanos::as_micros_f64),
        bound: bound.map(BoundRow::from),
        violations: new.violations - old.violations,
        errors: new.errors - old.errors,
        hwqs: (0..64).filter(|bit| hwqs & (1 << bit) != 0).collect(),
        predicted: None,
        kept,
        blame: None,
    };
    (row, measured)
}
