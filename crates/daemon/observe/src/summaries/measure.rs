//! One interval of all drives, from their probes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use history::{Interval, Promise, Summary};
use io_model::{Nanos, TenantId};
use policy::Class;
use poller::{Counters, HistogramCounts, Percentiles, TenantProbes};

use crate::DriveView;
use crate::cpu_waits::{self, CpuWaits};

/// What overwrites deleted disks. No tenant has such a name.
const WIPER: &str = "(wiper)";

/// What everybody had counted at some time.
pub struct Marks {
    at: Nanos,
    waits: CpuWaits,
    drives: HashMap<Arc<str>, BTreeMap<TenantId, Counted>>,
}

/// What one tenant had counted.
struct Counted {
    name: Arc<str>,
    probes: TenantProbes,
    counters: Counters,
    latencies: Arc<HistogramCounts>,
}

impl Counted {
    fn start(name: &Arc<str>, probes: &TenantProbes) -> Self {
        let (counters, latencies) = (Counters::default(), Arc::default());
        Self { name: Arc::clone(name), probes: probes.clone(), counters, latencies }
    }

    /// Reads the probes anew. Counts of idle tenants are not copied again.
    fn now(&self) -> Self {
        let counters = self.probes.counters();
        let latencies = match counters.completed == self.counters.completed {
            true => Arc::clone(&self.latencies),
            false => Arc::new(self.probes.latency_counts()),
        };
        Self { name: Arc::clone(&self.name), probes: self.probes.clone(), counters, latencies }
    }

    /// What was counted from `self` until `now`. `None`: nothing, and nothing is with the drive.
    fn until(&self, now: &Self) -> Option<Summary> {
        let (old, new) = (&self.counters, &now.counters);
        let since = |field: fn(&Counters) -> u64| field(new).saturating_sub(field(old));
        let completed = since(|it| it.completed);
        if completed == 0 && new.submitted <= new.completed {
            return None;
        }
        let count = |field| u32::try_from(since(field)).unwrap_or(u32::MAX);
        let latency_sum_ns = since(|it| it.latency_sum_ns);
        let latencies = match completed {
            0 => Percentiles::default(),
            _ => Percentiles::between(&self.latencies, &now.latencies),
        };
        let class = now.probes.class();
        let at_percentile_ns = match class.promise() {
            Some((_, percentile)) if completed > 0 => {
                Percentiles::one_between(&self.latencies, &now.latencies, percentile.quantile())
            }
            _ => latencies.p99_ns,
        };
        let (promise, weight) = match class {
            Class::Guaranteed { latency_target: Some(target), percentile } => {
                (Promise::Target { ns: target.0, late_ppm: percentile.late_ppm() }, 0)
            }
            Class::Guaranteed { latency_target: None, .. } => (Promise::Unnamed, 0),
            Class::BestEffort { weight } => (Promise::None, weight),
        };
        let (reads, writes) = (count(|it| it.reads), count(|it| it.writes));
        let others = u32::try_from(completed).unwrap_or(u32::MAX).saturating_sub(reads).saturating_sub(writes);
        Some(Summary {
            name: now.name.as_ref().to_owned(),
            promise,
            weight,
            reads,
            writes,
            others,
            errors: count(|it| it.errors),
            late: count(|it| it.violations),
            stalled: count(|it| it.stalled),
            read_bytes: since(|it| it.read_bytes),
            write_bytes: since(|it| it.write_bytes),
            latency_sum_ns,
            // Published once per 10 ms: behind or before the other counters for a moment.
            served_sum_ns: since(|it| it.served_sum_ns).min(latency_sum_ns),
            p50_ns: latencies.p50_ns,
            p99_ns: latencies.p99_ns,
            at_percentile_ns,
            max_ns: latencies.max_ns,
        })
    }
}

impl Marks {
    /// The start of everything.
    pub fn start(at: Nanos) -> Self {
        Self { at, waits: CpuWaits::now(), drives: HashMap::new() }
    }

    /// What happened from then until `now`, which is `unix_ms` on the wall clock, and what is counted now.
    pub fn until(&self, now: Nanos, unix_ms: u64, views: &[DriveView]) -> (Vec<Interval>, Self) {
        let span = now - self.at;
        let (waits, span_ms) = (CpuWaits::now(), span.0 / 1_000_000);
        let nobody = BTreeMap::new();
        let mut drives = HashMap::new();
        let interval = |view: &DriveView| {
            let (tenants, counted) = of_drive(self.drives.get(&view.name).unwrap_or(&nobody), view);
            drives.insert(Arc::clone(&view.name), counted);
            Interval {
                at_unix_ms: unix_ms.saturating_sub(span_ms),
                span_ms: u32::try_from(span_ms).unwrap_or(u32::MAX),
                starved_ppm: (waits.mean_part(&cpu_waits::numbers(&view.board), &self.waits, span) * 1e6) as u32,
                drive: view.name.to_string(),
                policy: view.foresight.policy().to_owned(),
                tenants,
            }
        };
        let intervals = views.iter().map(interval).collect();
        (intervals, Self { at: now, waits, drives })
    }
}

/// What the tenants of one drive did since they had counted `old`, and what they have counted now.
fn of_drive(old: &BTreeMap<TenantId, Counted>, view: &DriveView) -> (Vec<Summary>, BTreeMap<TenantId, Counted>) {
    let (mut summaries, mut counted) = (Vec::new(), BTreeMap::new());
    for probes in view.foresight.tenants().chain(&view.wiper) {
        let id = probes.tenant();
        // A new tenant counts from its start.
        let start = Counted::start(&name_of(id, old, view), probes);
        let before = old.get(&id).unwrap_or(&start);
        let now = Counted { name: Arc::clone(&start.name), ..before.now() };
        summaries.extend(before.until(&now));
        counted.insert(id, now);
    }
    // Those that left did something before they went.
    let left = old.iter().filter(|(id, _)| !counted.contains_key(id));
    summaries.extend(left.filter_map(|(_, before)| {
        let now = before.now();
        before.until(&now).filter(|it| it.commands() > 0)
    }));
    (summaries, counted)
}

fn name_of(id: TenantId, old: &BTreeMap<TenantId, Counted>, view: &DriveView) -> Arc<str> {
    let name = view.foresight.name(id).unwrap_or(WIPER);
    old.get(&id).filter(|it| *it.name == *name).map_or_else(|| name.into(), |it| Arc::clone(&it.name))
}
