//! The log page in which a guest reads its own promise: its own figures, and nothing of neighbours.

use std::sync::{Arc, OnceLock};

use io_model::Nanos;
use nvme_controller::PromiseSource;
use nvme_spec::vendor::{LATENCY_BUCKETS, PromiseLog};
use observe::verdict_record::VerdictRecord;
use poller::TenantProbes;

/// What a tenant's guest may read of its promise. It begins anew with each daemon.
#[derive(Debug, Default)]
pub struct OwnPromise {
    /// Once its pollers have it.
    probes: OnceLock<TenantProbes>,
    verdicts: Arc<VerdictRecord>,
}

impl OwnPromise {
    /// What measures the tenant from now on; given once.
    pub fn measure(&self, probes: TenantProbes) {
        // It has no others.
        let _ = self.probes.set(probes);
    }

    /// Where verdicts on the tenant go.
    pub fn verdicts(&self) -> Arc<VerdictRecord> {
        Arc::clone(&self.verdicts)
    }
}

impl PromiseSource for OwnPromise {
    fn fill(&self, log: &mut PromiseLog) {
        let Some(probes) = self.probes.get() else { return };
        let (verdict, day) = self.verdicts.read();
        log.verdict = verdict.kept.map_or(0, |kept| if kept { 1 } else { 2 });
        log.judged_span_ns = verdict.span.0;
        log.at_percentile_ns = verdict.at_percentile.unwrap_or(Nanos(0)).0;
        (log.day_kept, log.day_broken, log.day_at_limits) = (day.kept, day.broken, day.at_limits);
        if let Some((target, percentile)) = probes.class().promise() {
            (log.target_ns, log.percentile_ppm) = (target.0, 1_000_000 - percentile.late_ppm());
        }
        let counters = probes.counters();
        (log.late, log.failed) = (counters.violations, counters.errors);
        log.waited_ns = counters.latency_sum_ns.saturating_sub(counters.served_sum_ns);
        let latencies = probes.latency_counts();
        // Both histograms have powers of two among their bounds, so that this is exact.
        let ends = log.ends_ns[..LATENCY_BUCKETS - 1].iter().map(|end| end - 1);
        let up_to = latencies.at_most(ends).chain([latencies.total()]);
        for (count, up_to) in log.counts.iter_mut().zip(up_to) {
            *count = up_to - log.completed;
            log.completed = up_to;
        }
    }
}
