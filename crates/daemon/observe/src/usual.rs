//! What tenants usually do: a running mean of the time in which their drive's promises were kept.

use std::collections::BTreeMap;

use io_model::{Nanos, TenantId};

use crate::foresight::Observed;
use crate::verdict::Measured;

/// After this time a span counts half. `why` looks at the last half hour.
const HALF_LIFE_S: f64 = 600.0;

/// Usual values by tenant.
#[derive(Debug, Default)]
pub struct Usuals(BTreeMap<TenantId, Usual>);

/// Sums over a tenant's time; older time counts less.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usual {
    time_s: f64,
    commands: f64,
    reads: f64,
    bytes: f64,
    latency_ns: f64,
    served_ns: f64,
    at_percentile_ns: f64,
    cpu_waited_s: f64,
}

impl Usuals {
    /// Counts a span in which the promises of the tenant's drive were kept. `cpu_waited`: the fraction of it in which
    /// the tenant's pollers waited for a CPU.
    pub fn add(&mut self, Observed { id, span, measured, .. }: &Observed, cpu_waited: f64) {
        let span_s = span.0 as f64 / 1e9;
        let usual = self.0.entry(*id).or_default();
        let Measured { iops, read_share, mean_len_bytes, mean, at_percentile, served, .. } = *measured;
        let (commands, left) = (iops * span_s, 0.5_f64.powf(span_s / HALF_LIFE_S));
        let add = |sum: &mut f64, more: f64| *sum = *sum * left + more;
        add(&mut usual.time_s, span_s);
        add(&mut usual.commands, commands);
        add(&mut usual.reads, read_share * commands);
        add(&mut usual.bytes, mean_len_bytes * commands);
        add(&mut usual.latency_ns, mean.0 as f64 * commands);
        add(&mut usual.served_ns, served.0 as f64 * commands);
        add(&mut usual.at_percentile_ns, at_percentile.0 as f64 * commands);
        add(&mut usual.cpu_waited_s, cpu_waited * span_s);
    }

    /// Of a tenant, if anything is known.
    pub fn of(&self, tenant: TenantId) -> Option<&Usual> {
        self.0.get(&tenant)
    }

    /// Forgets tenants that left.
    pub fn retain(&mut self, is_there: impl Fn(TenantId) -> bool) {
        self.0.retain(|id, _| is_there(*id));
    }
}

impl Usual {
    /// The time that counts.
    pub fn time(&self) -> Nanos {
        Nanos((self.time_s * 1e9) as u64)
    }

    /// Mean fraction of the time in which pollers waited for a CPU.
    pub fn cpu_waited(&self) -> f64 {
        self.cpu_waited_s / self.time_s
    }

    /// Figures of a usual span.
    pub fn measured(&self) -> Measured {
        let mean = |sum: f64| if self.commands > 0.0 { sum / self.commands } else { 0.0 };
        let time = |sum_ns| Nanos(mean(sum_ns) as u64);
        Measured {
            iops: self.commands / self.time_s,
            read_share: mean(self.reads),
            mean_len_bytes: mean(self.bytes),
            mean: time(self.latency_ns),
            at_percentile: time(self.at_percentile_ns),
            served: time(self.served_ns),
            lateness: Default::default(),
        }
    }
}
