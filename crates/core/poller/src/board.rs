//! The probes of all tenants of one drive.

use std::sync::{Arc, PoisonError, RwLock};

use io_model::{Nanos, TenantId};
use policy::{Bound, Class, TenantFigure, TenantReport};

use crate::probe::Recent;
use crate::{Counters, Iterations, Probe};

/// Where pollers learn of each other's tenants, and `stats` of all of them.
///
/// The lock guards the list, not the numbers: it is taken when a tenant comes or goes and once per
/// 10 ms interval by each poller, never per command.
#[derive(Debug, Default)]
pub struct Board {
    /// By tenant.
    probes: RwLock<Vec<Arc<Probe>>>,
    pollers: RwLock<Vec<Arc<Iterations>>>,
}

impl Board {
    /// Adds a probe of a tenant: one for each poller that serves it. A probe that is there already stays.
    pub fn add(&self, probe: Arc<Probe>) {
        let mut probes = self.probes.write().unwrap_or_else(PoisonError::into_inner);
        if probes.iter().any(|other| Arc::ptr_eq(other, &probe)) {
            return;
        }
        let at = probes.partition_point(|other| other.tenant() <= probe.tenant());
        probes.insert(at, probe);
    }

    /// Forgets a probe, and what it counted. A tenant without any left the drive: no report names it from now on.
    /// Pollers that still hold it may go on counting for nobody.
    pub fn remove(&self, probe: &Arc<Probe>) {
        let mut probes = self.probes.write().unwrap_or_else(PoisonError::into_inner);
        probes.retain(|other| !Arc::ptr_eq(other, probe));
    }

    /// A poller begins.
    pub fn add_poller(&self, iterations: Arc<Iterations>) {
        self.pollers.write().unwrap_or_else(PoisonError::into_inner).push(iterations);
    }

    /// It has ended.
    pub fn remove_poller(&self, iterations: &Arc<Iterations>) {
        let mut pollers = self.pollers.write().unwrap_or_else(PoisonError::into_inner);
        pollers.retain(|other| !Arc::ptr_eq(other, iterations));
    }

    /// The pollers that run, in the order in which they began.
    pub fn pollers(&self) -> Vec<Arc<Iterations>> {
        self.pollers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every tenant's probes, in the order of their identifiers.
    pub fn tenants(&self) -> Vec<TenantProbes> {
        let probes = self.probes.read().unwrap_or_else(PoisonError::into_inner);
        probes.chunk_by(same_tenant).map(|probes| TenantProbes(probes.to_vec())).collect()
    }

    /// Fills `reports` with every tenant's recent past.
    pub(crate) fn reports(&self, reports: &mut Vec<TenantReport>) {
        reports.clear();
        let probes = self.probes.read().unwrap_or_else(PoisonError::into_inner);
        reports.extend(probes.chunk_by(same_tenant).map(|of_tenant| {
            let mut sum = Recent::default();
            of_tenant.iter().for_each(|probe| sum += probe.recent());
            sum.report(&of_tenant[0])
        }));
    }
}

fn same_tenant(one: &Arc<Probe>, other: &Arc<Probe>) -> bool {
    one.tenant() == other.tenant()
}

/// All probes of one tenant, at least one: what it experienced at all of its pollers together.
#[derive(Debug, Clone)]
pub struct TenantProbes(Vec<Arc<Probe>>);

impl TenantProbes {
    /// Whose.
    pub fn tenant(&self) -> TenantId {
        self.0[0].tenant()
    }

    /// Whether these are the same probes, and not those of a tenant that went from poller to poller.
    pub fn is(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// The promise or weight, as the first of its pollers has it: while a change goes from poller to poller, others may
    /// have another for a moment.
    pub fn class(&self) -> Class {
        self.0[0].class()
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.0.iter().for_each(|probe| sum += probe.counters());
        sum
    }

    /// Counts of latencies since the start; see [`Histogram::counts`](crate::Histogram::counts).
    pub fn latency_counts(&self) -> Vec<u64> {
        let mut sum = self.0[0].histogram().counts();
        for probe in &self.0[1..] {
            sum.iter_mut().zip(probe.histogram().counts()).for_each(|(sum, count)| *sum += count);
        }
        sum
    }

    /// The loosest of the pollers' bounds: it holds wherever a command goes.
    pub fn bound(&self) -> Option<Bound> {
        // A poller that vouches for nothing is the loosest.
        let looseness = |bound: &Bound| bound.vouched.unwrap_or(Nanos::MAX);
        self.0.iter().filter_map(|probe| probe.bound()).max_by_key(looseness)
    }

    /// Commands that waited in its queues; see [`Probe::waiting`].
    pub fn waiting(&self) -> u64 {
        self.0.iter().map(|probe| probe.waiting()).sum()
    }

    /// A figure of the policy's about it. Policies that have such things have all of a tenant's queues at one poller.
    pub fn figure(&self, figure: TenantFigure) -> Option<f64> {
        self.0.iter().find_map(|probe| probe.figure(figure))
    }

    /// Its queues: their pollers, their numbers, and the HWQs that their next commands go to, numbered within the
    /// poller.
    pub fn hwqs(&self) -> impl Iterator<Item = (usize, u16, u16)> {
        self.0.iter().flat_map(|probe| probe.hwqs().map(|(queue, hwq)| (probe.poller(), queue, hwq)))
    }

    /// The HWQs used in the last interval, one bit each (the 64th stands for all above). Each poller numbers its own.
    pub fn hwqs_in_use(&self) -> u64 {
        self.0.iter().fold(0, |hwqs, probe| hwqs | probe.hwqs_in_use())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_model::Op;

    #[test]
    fn a_tenant_with_two_pollers_is_reported_once() {
        let class = Class::Guaranteed { latency_target: Some(Nanos(50)) };
        let probe = |tenant| Arc::new(Probe::new(TenantId(tenant), class));
        let (first, other, second) = (probe(3), probe(4), probe(3));
        let board = Board::default();
        [&first, &other, &second].into_iter().for_each(|probe| board.add(Arc::clone(probe)));
        for (probe, latencies_ns) in [(&first, &[20, 30, 40][..]), (&second, &[90])] {
            for latency_ns in latencies_ns {
                probe.submitted();
                probe.completed(Op::Write, 512, Ok(()), Nanos(0), Nanos(*latency_ns));
            }
            probe.next_interval();
        }
        second.submitted();

        let mut reports = Vec::new();
        board.reports(&mut reports);
        let [report, idle] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!((report.tenant, report.submitted, report.completed), (TenantId(3), 5, 4));
        assert_eq!((report.mean_latency, report.max_latency), (Nanos(45), Nanos(90)), "weighted by commands");
        assert_eq!((report.violations, report.busy_pollers), (1, 2));
        assert_eq!((idle.tenant, idle.submitted, idle.busy_pollers), (TenantId(4), 0, 1));

        let [tenant, _] = &board.tenants()[..] else { panic!("two tenants") };
        assert_eq!((tenant.counters().completed, tenant.counters().write_bytes), (4, 2048));
        assert_eq!(tenant.latency_counts().iter().sum::<u64>(), 4);
        first.publish(None, 0b01);
        second.publish(None, 0b10);
        assert_eq!(tenant.hwqs_in_use(), 0b11);

        board.remove(&first);
        board.reports(&mut reports);
        assert_eq!((reports[0].submitted, reports[0].completed), (2, 1), "the other poller's remain");
        board.add(Arc::clone(&second));
        board.remove(&second);
        board.reports(&mut reports);
        assert_eq!(reports.iter().map(|report| report.tenant).collect::<Vec<_>>(), [TenantId(4)]);
    }
}
