//! What each tenant got over a span of time, from the probes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::{BoundRow, DriveHealth, DrivePolicy, PollerRow, Snapshot, TenantRow};
use backend_nvme::LastHealth;
use io_model::{Nanos, TenantId};
use policy::{Bound, Percentile, RestsOn, TenantFigure};
use poller::{Board, Counters, HistogramCounts, Iterations, Percentiles, TenantProbes};

use crate::DriveView;
use crate::blame::blame;
use crate::cpu_waits::{CpuUse, PollersMark};
use crate::foresight::{Foresight, Observed};
use crate::usual::Usuals;
use crate::verdict::{self, Lateness, Measured};

/// What a drive said last of its health, if it said anything.
pub fn health_of(said: Option<&LastHealth>) -> Option<DriveHealth> {
    let health = said?.get()?;
    Some(DriveHealth {
        temperature_celsius: health.temperature_celsius,
        available_spare_percent: health.available_spare_percent,
        spare_threshold_percent: health.spare_threshold_percent,
        used_percent: health.used_percent,
        media_errors: health.media_errors,
        warnings: health.warnings().into_iter().map(str::to_owned).collect(),
    })
}

/// A point in time to measure from.
pub struct Mark {
    at: Nanos,
    cpu: PollersMark,
    tenants: BTreeMap<TenantId, Counted>,
}

/// What a tenant had counted by then.
struct Counted {
    at: Nanos,
    counters: Counters,
    latencies: HistogramCounts,
}

impl Counted {
    /// Now; `before` is what was counted of the same tenant earlier.
    fn now(probes: &TenantProbes, at: Nanos, before: Option<Self>) -> Self {
        let counters = probes.counters();
        let before = before.filter(|it| it.counters.completed == counters.completed);
        let latencies = match before {
            Some(before) => before.latencies,
            None if counters.completed == 0 => HistogramCounts::default(),
            None => probes.latency_counts(),
        };
        Self { at, counters, latencies }
    }
}

/// The marks of all drives.
pub struct DriveMarks {
    /// Of a drive added since: before it had tenants.
    nothing: Mark,
    of: HashMap<Arc<str>, Mark>,
}

impl DriveMarks {
    /// A time before any tenant.
    pub fn of_nobody(at: Nanos) -> Self {
        Self { nothing: Mark::of_nobody(at), of: HashMap::new() }
    }

    /// The time.
    pub fn at(&self) -> Nanos {
        self.nothing.at
    }

    /// That of a drive.
    pub fn of(&self, drive: &DriveView) -> &Mark {
        self.of.get(&drive.name).unwrap_or(&self.nothing)
    }

    /// Moves the marks of all drives on, for the drives of that time; see [`Mark::move_on`].
    pub fn move_on(&mut self, drives: &[DriveView], at: Nanos, go_on: impl Fn(TenantId) -> bool) {
        self.nothing = Mark::of_nobody(at);
        self.of.retain(|name, _| drives.iter().any(|drive| drive.name == *name));
        for drive in drives {
            let mark = self.of.entry(Arc::clone(&drive.name)).or_insert_with(|| Mark::of_nobody(at));
            mark.move_on((&drive.board, &drive.foresight), at, &go_on);
        }
    }
}

/// The marks of all drives and of their pollers.
pub struct Marks {
    drives: DriveMarks,
    pollers: HashMap<usize, HistogramCounts>,
}

impl Marks {
    /// Now.
    pub fn now(views: &[DriveView], at: Nanos) -> Self {
        let mut drives = DriveMarks::of_nobody(at);
        drives.move_on(views, at, |_| false);
        let pollers = views.iter().flat_map(|drive| drive.board.pollers());
        Self { drives, pollers: pollers.map(|it| (it.poller(), it.counts())).collect() }
    }

    /// The start, before any tenant.
    pub fn start() -> Self {
        Self { drives: DriveMarks::of_nobody(Nanos(0)), pollers: HashMap::new() }
    }

    /// What happened from then until `now`, drive by drive. Of one that came since, everything. Causes of broken
    /// promises compare it with `usuals`.
    pub fn until(&self, now: Nanos, views: &[DriveView], usuals: &Usuals) -> Snapshot {
        let of = |drive: &DriveView| {
            let mark = self.drives.of(drive);
            let cpu = mark.cpu_use(now, &drive.board);
            let policy = DrivePolicy {
                drive: drive.name.to_string(),
                policy: drive.foresight.policy().to_owned(),
                health: health_of(drive.health.as_ref()),
            };
            (policy, (mark.until(now, drive, &cpu, usuals), self.pollers_of(drive, &cpu)))
        };
        let (drives, of_each): (Vec<_>, Vec<_>) = views.iter().map(of).unzip();
        let (tenants, pollers): (Vec<_>, Vec<_>) = of_each.into_iter().unzip();
        let span_ms = (now - self.drives.at()).0 / 1_000_000;
        Snapshot { drives, span_ms, tenants: tenants.concat(), pollers: pollers.concat() }
    }

    fn pollers_of(&self, drive: &DriveView, cpu: &CpuUse) -> Vec<PollerRow> {
        let nothing = HistogramCounts::default();
        let row = |poller: &Arc<Iterations>| {
            let spent = cpu.most(&[poller.poller()]);
            let (long_iterations, longest) = poller.since(self.pollers.get(&poller.poller()).unwrap_or(&nothing));
            PollerRow {
                poller: poller.poller(),
                drive: drive.name.to_string(),
                busy_percent: spent.busy * 100.0,
                cpu_wait_percent: spent.waited * 100.0,
                long_iterations,
                longest_us: longest.as_micros_f64(),
            }
        };
        drive.board.pollers().iter().map(row).collect()
    }
}

impl Mark {
    /// Moves the mark on. Counts of idle tenants are not copied again. Spans of tenants with `go_on` began earlier.
    pub fn move_on(&mut self, (board, foresight): (&Board, &Foresight), at: Nanos, go_on: impl Fn(TenantId) -> bool) {
        let mut before = std::mem::take(&mut self.tenants);
        let counted = |probes: &TenantProbes| {
            let id = probes.tenant();
            match before.remove(&id) {
                Some(before) if go_on(id) => (id, before),
                before => (id, Counted::now(probes, at, before)),
            }
        };
        let tenants = foresight.tenants().map(counted).collect();
        *self = Self { at, cpu: PollersMark::now(board, at), tenants };
    }

    /// A time before any tenant.
    pub fn of_nobody(at: Nanos) -> Self {
        Self { at, cpu: PollersMark::of_none(at), tenants: BTreeMap::new() }
    }

    /// What happened from the mark until `now`: measurements, forecasts, and the causes of lateness.
    fn until(&self, now: Nanos, drive: &DriveView, cpu: &CpuUse, usuals: &Usuals) -> Vec<TenantRow> {
        let foresight = &drive.foresight;
        let mut observed = self.measure(now, foresight);
        foresight.predict(&mut observed);
        foresight.explain(&mut observed, cpu);
        let blame = |tenant: &Observed| blame(foresight, &observed, cpu, usuals, tenant.id).0;
        let is_broken = |tenant: &Observed| tenant.row.kept == Some(false);
        let blamed: Vec<_> = observed.iter().map(|tenant| is_broken(tenant).then(|| blame(tenant)).flatten()).collect();
        let row = |(tenant, blame): (Observed, _)| TenantRow { blame, drive: drive.name.to_string(), ..tenant.row };
        observed.into_iter().zip(blamed).map(row).collect()
    }

    /// What pollers spent from the mark until `now`.
    pub fn cpu_use(&self, now: Nanos, board: &Board) -> CpuUse {
        self.cpu.until(board, now)
    }

    /// What happened from the mark until `now`, without what follows from a model; in the order in which tenants came.
    /// Of one that came since, everything.
    pub fn measure(&self, now: Nanos, foresight: &Foresight) -> Vec<Observed> {
        let nothing = (Counters::default(), HistogramCounts::default());
        let observe = |probes: &TenantProbes| {
            let before = self.tenants.get(&probes.tenant());
            let (at, (counters, latencies)) =
                before.map_or((self.at, (&nothing.0, &nothing.1)), |it| (it.at, (&it.counters, &it.latencies)));
            let mut observed = observed(probes, counters, latencies, now - at);
            foresight.describe(observed.id, &mut observed.row).then_some(observed)
        };
        foresight.tenants().filter_map(observe).collect()
    }
}

/// A tenant that gets that part of its floor and more gets it.
const KEPT: f64 = 0.98;
/// A tenant with fewer commands outstanding on average did not ask for all that it could get.
const ASKS: f64 = 0.8;

/// Whether a tenant gets its floor, of which it `got` so much lately; `None`: it did not ask for it all through the
/// span, in which its commands took `latencies_ns` together.
fn is_floor_kept(got: Option<f64>, (latencies_ns, span): (u64, Nanos)) -> Option<bool> {
    let asks = latencies_ns as f64 >= ASKS * span.0 as f64;
    got.filter(|_| asks).map(|got| got >= KEPT)
}

/// Without what the configuration says of the tenant.
fn observed(probes: &TenantProbes, old: &Counters, old_counts: &HistogramCounts, span: Nanos) -> Observed {
    let new = probes.counters();
    let seconds = (span.0 as f64 / 1e9).max(1e-9);
    let completed = new.completed - old.completed;
    let counts = (completed > 0).then(|| probes.latency_counts());
    let latencies = counts.as_ref().map(|counts| Percentiles::between(old_counts, counts)).unwrap_or_default();
    let bytes = new.read_bytes + new.write_bytes - old.read_bytes - old.write_bytes;
    let mean = |sum_ns: u64| Nanos(sum_ns.checked_div(completed).unwrap_or(0));
    let mean_latency = mean(new.latency_sum_ns - old.latency_sum_ns);
    // Published once per interval: behind the other counters for a moment.
    let served = mean(new.served_sum_ns.saturating_sub(old.served_sum_ns)).min(mean_latency);
    let (reads, writes) = (new.reads - old.reads, new.writes - old.writes);
    let us = |ns: u64| Nanos(ns).as_micros_f64();
    let (hwqs, bound) = (probes.hwqs_in_use(), probes.bound());
    let class = probes.class();
    let promise = class.promise();
    let target = promise.map(|(target, _)| target);
    let at_percentile = promise.zip(counts.as_ref()).map(|((_, percentile), counts)| match percentile {
        Percentile::P99 => latencies.p99_ns,
        percentile => Percentiles::one_between(old_counts, counts, percentile.quantile()),
    });
    let (violations, stalled) = (new.violations - old.violations, new.stalled - old.stalled);
    let at_percentile = promise.zip(at_percentile).map(|((target, percentile), took_ns)| {
        verdict::narrowed(took_ns, target, percentile.is_missed(violations, completed))
    });
    let overdue = old.in_flight().saturating_sub(completed);
    let kept = match promise {
        Some((target, _)) if overdue > 0 && span > target => Some(false),
        Some((_, percentile)) => verdict::is_kept(percentile, completed, violations),
        None => is_floor_kept(probes.figure(TenantFigure::Floor), (new.latency_sum_ns - old.latency_sum_ns, span))
            .filter(|_| completed >= verdict::enough_commands(Percentile::P99)),
    };
    let part = |count: u64| count as f64 / completed.max(1) as f64;
    let measured = Measured {
        iops: completed as f64 / seconds,
        read_share: reads as f64 / (reads + writes).max(1) as f64,
        mean_len_bytes: bytes as f64 / completed.max(1) as f64,
        mean: mean_latency,
        at_percentile: Nanos(at_percentile.unwrap_or(latencies.p99_ns)),
        served,
        lateness: Lateness { late: part(violations), stalled: part(stalled) },
    };
    let row = TenantRow {
        name: String::new(),
        labels: BTreeMap::new(),
        drive: String::new(),
        encryption: None,
        locked: false,
        class: class.name().into(),
        weight: class.weight(),
        latency_target_us: target.map(Nanos::as_micros_f64),
        latency_percentile: promise.map(|(_, percentile)| percentile.percent()),
        at_percentile_us: at_percentile.map(us),
        floor: None,
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
        bound: bound.map(bound_row),
        violations,
        stalled,
        overdue,
        errors: new.errors - old.errors,
        pollers: probes.pollers(),
        hwqs: (0..64).filter(|bit| hwqs & (1 << bit) != 0).collect(),
        predicted: None,
        kept,
        blame: None,
        price: None,
        held: None,
    };
    let outage = Nanos(new.outage_ns - old.outage_ns);
    Observed { id: probes.tenant(), commands: completed, span, outage, row, measured }
}

fn bound_row(bound: Bound) -> BoundRow {
    let RestsOn { r_iops, l_h, engaged, best_effort_cap, overdraft, guaranteed_in_flight, arriving_iops, .. } =
        bound.rests_on;
    BoundRow {
        published_us: bound.published.map(|published| published.latency.as_micros_f64()),
        corrected_us: bound.corrected.map(Nanos::as_micros_f64),
        r_iops,
        l_h_us: l_h.as_micros_f64(),
        omega: bound.published.map(|published| published.omega),
        published_rate_within_r: bound.published.map(|published| published.rate_within_r),
        engaged,
        best_effort_cap,
        overdraft,
        guaranteed_in_flight,
        arriving_iops,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_not_judged_that_was_not_asked_for() {
        let second = Nanos(1_000_000_000);
        let kept = |got, outstanding: f64| is_floor_kept(got, ((outstanding * 1e9) as u64, second));
        assert_eq!((kept(Some(0.5), 4.0), kept(Some(1.0), 4.0)), (Some(false), Some(true)));
        // What the policy told last is of a moment; the tenant rested in most of the span.
        assert_eq!((kept(Some(0.5), 0.3), kept(Some(0.5), 0.0), kept(None, 4.0)), (None, None, None));
    }
}
