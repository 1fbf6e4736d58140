//! What `GET /live` answers.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use api::{
    Disk, DiskError, Drive, LiveDetail, LiveDisk, LiveDrive, LiveLatency, LivePoller, LiveTenant, LiveVerdict, Moved,
    TenantRow,
};
use metrics::Verdict;
use poller::TenantProbes;

use crate::response_cache::Answers;
use observe::clock::Clock;
use observe::events::EventLog;
use observe::snapshot::DriveMarks;
use observe::verdicts::Verdicts;
use runtime::command::{DiskCommand, Handle};
use runtime::state_versions;

/// A longer span is dropped: it would not describe the present.
const SPAN_MAX: Duration = Duration::from_secs(10);

/// How many events an answer includes.
const EVENTS: usize = 50;

/// One reading of all probes.
struct Reading {
    live: api::Live,
    /// In the order of `live.tenants`.
    tenants: Vec<(TenantRow, TenantProbes)>,
}

/// The last answer, and the counts of the previous reading.
pub(crate) struct Live {
    events: Arc<EventLog>,
    clock: Clock,
    answers: Answers<Reading, ()>,
    /// `None` if the previous reading is too old.
    marks: Option<DriveMarks>,
}

impl Live {
    pub(crate) fn new(events: Arc<EventLog>, clock: Clock) -> Self {
        Self { events, clock, answers: Answers::default(), marks: None }
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.answers.is_fresh()
    }

    /// Nobody has asked for a while.
    pub(crate) fn forget(&mut self) {
        self.answers.forget();
    }

    /// The answer for all tenants.
    pub(crate) fn of_all(&mut self, daemon: &Handle, verdicts: &Verdicts) -> Result<Arc<String>> {
        let reading = self.reading(daemon, verdicts)?;
        Ok(self.answers.text((), || to_json(&reading.live)))
    }

    /// The answer for one tenant. The inner error: there is no such tenant.
    pub(crate) fn of(&mut self, name: &str, daemon: &Handle, verdicts: &Verdicts) -> Result<Result<String, DiskError>> {
        Ok(self.reading(daemon, verdicts)?.detail(name).map(|detail| to_json(&detail)))
    }

    fn reading(&mut self, daemon: &Handle, verdicts: &Verdicts) -> Result<Arc<Reading>> {
        let mut answers = std::mem::take(&mut self.answers);
        let reading = answers.reading(|| self.read(daemon, verdicts));
        self.answers = answers;
        reading
    }

    fn read(&mut self, daemon: &Handle, verdicts: &Verdicts) -> Result<Reading> {
        let views = daemon.describe()?;
        let drives = daemon.ask_disks(DiskCommand::Drives)?;
        let disks = daemon.ask_disks(|reply| DiskCommand::List(None, reply))?;
        let (operations, judged, now) = (daemon.ask_disks(DiskCommand::Operations)?, verdicts.last(), self.clock.now());
        let span = self.marks.as_ref().map(|marks| now - marks.at());
        let span = span.filter(|span| span.0 <= SPAN_MAX.as_nanos() as u64);
        let marks = self.marks.get_or_insert_with(|| DriveMarks::of_nobody(now));
        let (mut told, mut tenants, mut pollers) = (Vec::new(), Vec::new(), Vec::new());
        for view in &views {
            let spent = marks.of(view).cpu_use(now, &view.board).0;
            pollers.extend(spent.into_iter().filter(|_| span.is_some()).map(|(poller, spent)| LivePoller {
                poller,
                busy_percent: spent.busy * 100.0,
                cpu_wait_percent: spent.waited * 100.0,
            }));
            for observed in marks.of(view).measure(now, &view.foresight) {
                let Some(probes) = view.foresight.measured(observed.id) else { continue };
                let row = TenantRow { drive: view.name.to_string(), ..observed.row };
                let in_flight = probes.counters().in_flight();
                told.push(tenant(&row, in_flight, judged.get(&observed.id), span.is_some()));
                tenants.push((row, probes.clone()));
            }
        }
        marks.move_on(&views, now, |_| false);
        let live = api::Live {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            handover: state_versions::left(),
            started_at_unix_ms: self.clock.started_at_unix().as_millis() as u64,
            at_unix_ms: unix_ms(),
            span_ms: span.map(|span| span.0.div_ceil(1_000_000)),
            drives: drives.into_iter().map(|drive| holdings(drive, &disks)).collect(),
            pollers,
            tenants: told,
            operations,
            events: self.events.last(EVENTS),
        };
        Ok(Reading { live, tenants })
    }
}

fn holdings(drive: Drive, disks: &[Disk]) -> LiveDrive {
    let own = disks.iter().filter(|disk| disk.drive == drive.name);
    let told = |disk: &Disk| LiveDisk {
        name: disk.name.clone(),
        size_bytes: disk.size_bytes,
        encryption: disk.encryption.clone(),
        locked: disk.is_locked(),
    };
    LiveDrive {
        disks: own.map(told).collect(),
        name: drive.name,
        policy: drive.policy,
        size_bytes: drive.size_bytes,
        free_bytes: drive.free_bytes,
        wiping_bytes: drive.wiping_bytes,
        failed: drive.failed,
        health: drive.health,
    }
}

fn tenant(row: &TenantRow, in_flight: u64, verdict: Option<&Verdict>, is_measured: bool) -> LiveTenant {
    let moved = is_measured.then(|| Moved {
        iops: (row.iops * 10.0).round() / 10.0,
        bytes_per_second: row.bw_bytes.round() as u64,
        late: row.violations,
        errors: row.errors,
    });
    let latency = moved.filter(|_| row.iops > 0.0).map(|_| LiveLatency {
        mean_ns: ns(row.mean_us),
        waited_ns: ns(row.waited_us),
        served_ns: ns(row.served_us),
        p50_ns: ns(row.p50_us),
        p99_ns: ns(row.p99_us),
        p999_ns: ns(row.p999_us),
    });
    let predicted = verdict.and_then(|verdict| verdict.predicted.as_ref());
    LiveTenant {
        name: row.name.clone(),
        labels: row.labels.clone(),
        drive: row.drive.clone(),
        class: row.class.clone(),
        weight: row.weight,
        target_ns: row.latency_target_us.map(ns),
        latency_percentile: row.latency_percentile,
        floor: row.floor.clone(),
        predicted_p99_ns: predicted.map(|predicted| ns(predicted.p99_us)),
        verdict: verdict.filter(|_| row.latency_target_us.is_some() || row.floor.is_some()).map(|it| LiveVerdict {
            span_ms: it.span_ms,
            kept: it.kept,
            at_percentile_ns: it.at_percentile_us.map(ns),
            blame: it.blame.clone(),
        }),
        moved,
        in_flight,
        latency,
    }
}

/// Upper bounds of the histogram's buckets: eight per power of two, from 1 µs to 17 s. The probes have each of them.
fn upper_bounds_ns() -> impl Iterator<Item = u64> {
    (10..34).flat_map(|exponent| (0..8_u64).map(move |eighth| ((8 + eighth) << (exponent - 3)) - 1))
}

impl Reading {
    fn detail(&self, name: &str) -> Result<LiveDetail, DiskError> {
        let at = self.live.tenants.iter().position(|tenant| tenant.name == name);
        let at = at.ok_or_else(|| DiskError::no_such_disk(name))?;
        let (row, probes) = &self.tenants[at];
        let latencies = probes.latency_counts();
        let mut counts: Vec<u64> = latencies.at_most(upper_bounds_ns().chain([u64::MAX])).collect();
        (1..counts.len()).rev().for_each(|at| counts[at] -= counts[at - 1]);
        Ok(LiveDetail {
            started_at_unix_ms: self.live.started_at_unix_ms,
            at_unix_ms: unix_ms(),
            tenant: self.live.tenants[at].clone(),
            limits: row.limits.clone(),
            priority: row.priority.clone(),
            overcommit: row.overcommit,
            demand: row.demand.clone(),
            assumed: row.assumed,
            hwqs: row.hwqs.clone(),
            bound_ns: row.bound_us.map(ns),
            bound: row.bound.clone(),
            upper_ns: upper_bounds_ns().collect(),
            counts,
        })
    }
}

fn to_json(it: &impl serde::Serialize) -> String {
    // It has numbers, strings and lists only, so this can't fail.
    serde_json::to_string(it).unwrap_or_default()
}

fn ns(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pictures_bounds_rise_by_an_eighth_at_most() {
        let bounds: Vec<u64> = upper_bounds_ns().collect();
        assert_eq!((bounds[0], bounds.last().copied()), (1023, Some((15 << 30) - 1)));
        assert!(bounds.windows(2).all(|pair| pair[0] < pair[1] && (pair[1] - pair[0]) * 8 <= pair[0] + 1));
    }
}
