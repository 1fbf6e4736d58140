//! The probes of all tenants of one drive.

use std::sync::{Arc, PoisonError, RwLock};

use io_model::{Nanos, TenantId};
use policy::{Bound, Class, Demand, TenantFigure, TenantReport, TenantSlot};

use crate::awoken::Awoken;
use crate::probe::Recent;
use crate::shared::Shared;
use crate::{Counters, HistogramCounts, Iterations, Probe};

/// Where pollers learn of each other's tenants, and `stats` of all of them.
///
/// The lock guards the list, not the numbers: it is taken when a tenant comes or goes and once per
/// 10 ms interval by each poller, never per command.
#[derive(Debug, Default)]
pub struct Board {
    probes: RwLock<Entries>,
    pollers: RwLock<Vec<Arc<Iterations>>>,
    pub(crate) awoken: Awoken,
}

/// All probes.
#[derive(Debug, Default)]
struct Entries {
    /// By tenant.
    list: Vec<Entry>,
    /// Pollers that have tenants, in the order in which they got them, and how many.
    pollers: Vec<(Arc<Shared>, usize)>,
    /// Times that it changed.
    changes: u64,
}

/// A probe, and where its poller tells whether there is something new in it.
#[derive(Debug)]
struct Entry {
    /// Beside the probe's own: of an idle tenant that isn't read.
    tenant: TenantId,
    slot: TenantSlot,
    shared: Arc<Shared>,
    probe: Arc<Probe>,
}

/// What a poller last read of every tenant.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) tenants: Vec<TenantReport>,
    /// What the tenants' pollers had told by then, added up: none of it ever falls.
    stirs: Vec<u32>,
    /// [`Entries::changes`] by then.
    changes: u64,
    /// What pollers told of best effort, and which of them it is that reads.
    pub(crate) demands: Vec<Demand>,
    pub(crate) own: Option<usize>,
    /// Tenants of this poller that have others too: where, and the part of what they ask for that they ask for here.
    pub(crate) parts: Vec<(TenantSlot, f64)>,
}

/// So much of what a tenant may have is left to pollers at which it asks for nothing: it may begin there at once.
const LEFT_TO_IDLE: f64 = 1.0 / 64.0;

impl Board {
    /// Adds a probe of a tenant, which is in this slot of the poller that shares this: one for each poller that serves
    /// it.
    pub(crate) fn add(&self, probe: Arc<Probe>, shared: Arc<Shared>, slot: TenantSlot) {
        let mut probes = self.probes.write().unwrap_or_else(PoisonError::into_inner);
        let tenant = probe.tenant();
        let at = probes.list.partition_point(|other| other.tenant <= tenant);
        match probes.pollers.iter_mut().find(|poller| Arc::ptr_eq(&poller.0, &shared)) {
            Some((_, tenants)) => *tenants += 1,
            None => probes.pollers.push((Arc::clone(&shared), 1)),
        }
        probes.list.insert(at, Entry { tenant, slot, shared, probe });
        probes.changes += 1;
    }

    /// Forgets a probe, and what it counted. A tenant without any left the drive: no report names it from now on.
    /// Pollers that still hold it may go on counting for nobody.
    pub fn remove(&self, probe: &Arc<Probe>) {
        let mut probes = self.probes.write().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = probes.list.iter().position(|other| Arc::ptr_eq(&other.probe, probe)) else { return };
        let entry = probes.list.remove(at);
        if let Some(at) = probes.pollers.iter().position(|poller| Arc::ptr_eq(&poller.0, &entry.shared)) {
            probes.pollers[at].1 -= 1;
            if probes.pollers[at].1 == 0 {
                probes.pollers.remove(at);
            }
        }
        probes.changes += 1;
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
        let of_tenant = |entries: &[Entry]| entries.iter().map(|entry| Arc::clone(&entry.probe)).collect();
        probes.list.chunk_by(same_tenant).map(|entries| TenantProbes(of_tenant(entries))).collect()
    }

    /// Brings every tenant's recent past up to date, and what the pollers told, for the one that shares `own`. Of those
    /// who did nothing since the last time nothing is read but that.
    pub(crate) fn reports(&self, reports: &mut Reports, own: &Arc<Shared>) {
        let probes = self.probes.read().unwrap_or_else(PoisonError::into_inner);
        if probes.changes != reports.changes {
            *reports = Reports { changes: probes.changes, ..Reports::default() };
        }
        reports.parts.clear();
        for (at, of_tenant) in probes.list.chunk_by(same_tenant).enumerate() {
            reports.update(at, of_tenant);
            if of_tenant.len() > 1 {
                reports.parts.extend(part(of_tenant, own));
            }
        }
        reports.own = None;
        reports.demands.clear();
        for (shared, _) in &probes.pollers {
            let Some(demand) = shared.demand() else { continue };
            if Arc::ptr_eq(shared, own) {
                reports.own = Some(reports.demands.len());
            }
            reports.demands.push(demand);
        }
    }
}

/// What a tenant of several pollers asks for at this one, if it is one of them.
fn part(of_tenant: &[Entry], own: &Arc<Shared>) -> Option<(TenantSlot, f64)> {
    let here = of_tenant.iter().find(|entry| Arc::ptr_eq(&entry.shared, own))?;
    let all = of_tenant.iter().map(|entry| entry.probe.asked()).sum::<f64>();
    let equal = 1.0 / of_tenant.len() as f64;
    let part = if all > 0.0 { here.probe.asked() / all } else { equal };
    Some((here.slot, part + (equal - part) * LEFT_TO_IDLE))
}

impl Reports {
    fn update(&mut self, at: usize, of_tenant: &[Entry]) {
        let (mut stirs, mut goes_on) = (0_u32, false);
        for entry in of_tenant {
            let told = entry.shared.stirs(entry.slot);
            stirs = stirs.wrapping_add(told);
            goes_on |= told % 2 == 1;
        }
        if at == self.tenants.len() {
            self.tenants.push(read(of_tenant));
            self.stirs.push(stirs);
        } else if goes_on || stirs != self.stirs[at] {
            self.tenants[at] = read(of_tenant);
            self.stirs[at] = stirs;
        }
        let report = &mut self.tenants[at];
        if !report.class.is_guaranteed() {
            let caps = of_tenant.iter().filter_map(|entry| entry.shared.best_effort_cap());
            report.best_effort_cap = caps.reduce(f64::max);
        }
    }
}

fn read(of_tenant: &[Entry]) -> TenantReport {
    let mut sum = Recent::default();
    of_tenant.iter().for_each(|entry| sum += entry.probe.recent());
    sum.report(&of_tenant[0].probe)
}

fn same_tenant(one: &Entry, other: &Entry) -> bool {
    one.tenant == other.tenant
}

/// All probes of one tenant, at least one: what it experienced at all of its pollers together.
#[derive(Debug, Clone)]
pub struct TenantProbes(Vec<Arc<Probe>>);

/// Of a tenant: one for each of its pollers, at least one.
impl FromIterator<Arc<Probe>> for TenantProbes {
    fn from_iter<I: IntoIterator<Item = Arc<Probe>>>(probes: I) -> Self {
        Self(probes.into_iter().collect())
    }
}

impl TenantProbes {
    /// The tenant of these probes.
    pub fn tenant(&self) -> TenantId {
        self.0[0].tenant()
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

    /// Counts of latencies since the start.
    pub fn latency_counts(&self) -> HistogramCounts {
        let mut sum = HistogramCounts::default();
        self.0.iter().for_each(|probe| sum += probe.histogram().counts());
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

    /// A figure of the policy's about it, the least of its pollers'.
    pub fn figure(&self, figure: TenantFigure) -> Option<f64> {
        self.0.iter().filter_map(|probe| probe.figure(figure)).reduce(f64::min)
    }

    /// Its queues: their pollers, their numbers, and the HWQs that their next commands go to, numbered within the
    /// poller.
    pub fn hwqs(&self) -> impl Iterator<Item = (usize, u16, u16)> {
        self.0.iter().flat_map(|probe| probe.hwqs().map(|(queue, hwq)| (probe.poller(), queue, hwq)))
    }

    /// The numbers of its pollers, in ascending order.
    pub fn pollers(&self) -> Vec<usize> {
        let mut pollers: Vec<usize> = self.0.iter().map(|probe| probe.poller()).collect();
        pollers.sort_unstable();
        pollers
    }

    /// The HWQs used in the last interval, one bit each (the 64th stands for all above). Each poller numbers its own.
    pub fn hwqs_in_use(&self) -> u64 {
        self.0.iter().fold(0, |hwqs, probe| hwqs | probe.hwqs_in_use())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Times;
    use io_model::Op;

    const CLASS: Class = Class::guaranteed(Some(Nanos(50)));

    /// A poller of one tenant in slot 0.
    fn poller(board: &Board, tenant: u32) -> (Arc<Probe>, Arc<Shared>) {
        let (probe, shared) = (Arc::new(Probe::new(TenantId(tenant), CLASS)), Arc::<Shared>::default());
        shared.make_room(TenantSlot(0));
        board.add(Arc::clone(&probe), Arc::clone(&shared), TenantSlot(0));
        (probe, shared)
    }

    fn reports<'a>(board: &Board, reports: &'a mut Reports) -> &'a [TenantReport] {
        board.reports(reports, &Arc::default());
        &reports.tenants
    }

    #[test]
    fn a_tenant_with_two_pollers_is_reported_once() {
        let board = Board::default();
        let [(first, _), (other, _), (second, _)] = [3, 4, 3].map(|tenant| poller(&board, tenant));
        for (probe, latencies_ns) in [(&first, &[20, 30, 40][..]), (&second, &[90])] {
            for latency_ns in latencies_ns {
                probe.submitted();
                let times = Times { waited: Nanos(0), served: Nanos(*latency_ns), stalled: Nanos(0) };
                probe.completed(Op::Write, 512, Ok(()), times);
            }
            probe.next_interval();
        }
        second.submitted();

        let mut seen = Reports::default();
        let [report, idle] = reports(&board, &mut seen) else { panic!("two tenants") };
        assert_eq!((report.tenant, report.submitted, report.completed), (TenantId(3), 5, 4));
        assert_eq!(report.mean_latency, Nanos(45), "weighted by commands");
        assert_eq!((report.violations, report.busy_pollers), (1, 2));
        assert_eq!((idle.tenant, idle.submitted, idle.busy_pollers), (TenantId(4), 0, 1));

        let [tenant, _] = &board.tenants()[..] else { panic!("two tenants") };
        assert_eq!((tenant.counters().completed, tenant.counters().write_bytes), (4, 2048));
        assert_eq!(tenant.latency_counts().total(), 4);
        first.served_by(7);
        second.served_by(2);
        assert_eq!(tenant.pollers(), [2, 7]);
        first.publish_hwqs(0b01);
        second.publish_hwqs(0b10);
        assert_eq!(tenant.hwqs_in_use(), 0b11);

        board.remove(&first);
        let report = reports(&board, &mut seen)[0];
        assert_eq!((report.submitted, report.completed), (2, 1), "the other poller's remain");
        board.remove(&second);
        let left: Vec<TenantId> = reports(&board, &mut seen).iter().map(|report| report.tenant).collect();
        assert_eq!(left, [other.tenant()]);
    }

    #[test]
    fn a_tenants_parts_are_where_it_asks_and_add_up_to_one() {
        let board = Board::default();
        let pollers = [3, 3, 3, 4].map(|tenant| poller(&board, tenant));
        let part = |at: usize| {
            let mut seen = Reports::default();
            board.reports(&mut seen, &pollers[at].1);
            seen.parts.first().map(|(_, part)| *part)
        };
        assert_eq!((part(0), part(3)), (Some(1.0 / 3.0), None));
        (0..100).for_each(|_| pollers[0].0.asks(60));
        (0..100).for_each(|_| pollers[1].0.asks(20));
        let parts = [0, 1, 2].map(|at| part(at).unwrap_or(0.0));
        assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9 && parts[2] > 0.0, "{parts:?}");
        assert!((parts[0] / parts[1] - 3.0).abs() < 0.1, "{parts:?}");
    }

    #[test]
    fn of_a_tenant_that_does_nothing_nothing_is_read() {
        let board = Board::default();
        let (probe, shared) = poller(&board, 3);
        let mut seen = Reports::default();
        let mut submitted = || reports(&board, &mut seen)[0].submitted;
        assert_eq!(submitted(), 0);
        probe.submitted();
        assert_eq!(submitted(), 0, "its poller told of nothing");
        shared.turn(TenantSlot(0));
        assert_eq!(submitted(), 1);
        probe.submitted();
        assert_eq!(submitted(), 2, "it goes on");
        probe.submitted();
        shared.turn(TenantSlot(0));
        assert_eq!(submitted(), 3, "its last");
        probe.submitted();
        assert_eq!(submitted(), 3);
        // Two changes that nobody looked in between.
        shared.turn(TenantSlot(0));
        shared.turn(TenantSlot(0));
        assert_eq!(submitted(), 4);
        probe.set_class(Class::BestEffort { weight: 7 });
        shared.changed(TenantSlot(0));
        shared.publish(None, Some(2.5));
        let report = reports(&board, &mut seen)[0];
        assert_eq!((report.class, report.best_effort_cap), (Class::BestEffort { weight: 7 }, Some(2.5)));
    }
}
