//! Metrics with one value for each drive, disk, poller or tenant.

use api::Disk;
use policy::{FigureKind, PolicyFigure, TenantFigure};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::reading::{BOUNDS_NS, DriveReading, PollerReading, Reading, TenantReading, Totals};

/// A label and its value.
pub type Label<'a> = (&'static str, &'a str);

/// What a metric of something is: its name without prefix and `_total`, what it says, and where the value is.
pub struct Of<T> {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
    pub value: fn(&T) -> Option<f64>,
}

pub const fn gauge<T>(name: &'static str, help: &'static str, value: fn(&T) -> Option<f64>) -> Of<T> {
    Of { name, help, kind: MetricType::Gauge, value }
}

const fn counter<T>(name: &'static str, help: &'static str, value: fn(&T) -> Option<f64>) -> Of<T> {
    Of { name, help, kind: MetricType::Counter, value }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn seconds_of_us(us: f64) -> f64 {
    us / 1e6
}

fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

/// A percentage as a ratio.
fn ratio(percent: u8) -> f64 {
    f64::from(percent) / 100.0
}

const DRIVE: [Of<DriveReading>; 14] = [
    gauge("drive_up", "1: the drive is served; 0: it could not be had at the start, or was given up", |it| {
        Some(flag(it.drive.failed.is_none()))
    }),
    gauge("drive_size_bytes", "Bytes that disks may have", |it| Some(it.drive.size_bytes as f64)),
    gauge("drive_free_bytes", "Bytes that new disks could have in all", |it| Some(it.drive.free_bytes as f64)),
    gauge("drive_pool_size_bytes", "Bytes that thin disks share", |it| {
        it.drive.pool.map(|pool| pool.size_bytes as f64)
    }),
    gauge("drive_pool_free_bytes", "Bytes that thin disks can still get", |it| {
        it.drive.pool.map(|pool| pool.free_bytes as f64)
    }),
    gauge("drive_wiping_bytes", "Bytes that deleted disks left, and that are free once they are wiped", |it| {
        Some(it.drive.wiping_bytes as f64)
    }),
    gauge("drive_in_flight_commands", "Commands of all tenants that are with the drive", |it| {
        Some(it.pollers.iter().flat_map(|poller| &poller.hwqs_in_flight).sum::<u64>() as f64)
    }),
    gauge("drive_waiting_commands", "Commands that wait in all tenants' queues", |it| {
        Some(it.tenants.iter().map(|tenant| tenant.waiting).sum::<u64>() as f64)
    }),
    gauge("drive_temperature_celsius", "The drive's composite temperature (SMART)", |it| {
        Some(it.drive.health.as_ref()?.temperature_celsius.into())
    }),
    gauge("drive_available_spare_ratio", "Spare blocks that are left, of 1 (SMART)", |it| {
        Some(ratio(it.drive.health.as_ref()?.available_spare_percent))
    }),
    gauge("drive_spare_threshold_ratio", "Spare blocks below which the drive warns, of 1 (SMART)", |it| {
        Some(ratio(it.drive.health.as_ref()?.spare_threshold_percent))
    }),
    gauge("drive_used_life_ratio", "Life that is used up, of what its maker expects; may pass 1 (SMART)", |it| {
        Some(ratio(it.drive.health.as_ref()?.used_percent))
    }),
    counter("drive_media_errors", "Data that could not be read, as the drive counts them (SMART)", |it| {
        Some(it.drive.health.as_ref()?.media_errors as f64)
    }),
    gauge("drive_warnings", "How many things the drive itself warns of (SMART); drive_warning_info names them", |it| {
        Some(it.drive.health.as_ref()?.warnings.len() as f64)
    }),
];

const DISK: [Of<Disk>; 3] = [
    gauge("disk_pool_bytes", "Bytes of the pool that a thin disk has, shared ones included", |it| {
        it.pool_bytes.map(|bytes| bytes as f64)
    }),
    gauge("disk_encrypted", "1: the disk's data is encrypted; 0: it is not", |it| Some(flag(it.encryption.is_some()))),
    gauge(
        "disk_locked",
        "1: the key of the encrypted disk is not here, and no client can attach; 0: it is here",
        |it| it.encryption.as_ref().map(|_| flag(it.is_locked())),
    ),
];

const POLLER: [Of<PollerReading>; 9] = [
    counter("poller_iterations", "Iterations of the poller", |it| Some(it.iterations as f64)),
    counter("poller_busy_seconds", "Time in iterations in which a command moved", |it| Some(seconds(it.busy_ns))),
    counter("poller_sleeps", "Times that the poller slept, or gave its CPU away for a moment", |it| {
        Some(it.sleeps as f64)
    }),
    counter("poller_sleep_seconds", "Time asleep; a sleep counts once it is over", |it| Some(seconds(it.slept_ns))),
    gauge("poller_asleep", "1 while the poller sleeps, else 0", |it| Some(flag(it.is_asleep))),
    counter("poller_cpu_wait_seconds", "Time in which the poller could have run and had no CPU", |it| {
        Some(seconds(it.cpu_waited_ns?))
    }),
    counter("poller_long_iterations", "Iterations of 50 µs and more, waits for a CPU left out", |it| {
        Some(it.long_iterations as f64)
    }),
    gauge("poller_longest_iteration_seconds", "The longest of them so far; 0: there was none", |it| {
        Some(seconds(it.longest_ns))
    }),
    gauge("poller_hwq_depth_commands", "Commands that each of the poller's HWQs holds", |it| Some(it.hwq_depth.into())),
];

const TENANT: [Of<TenantReading>; 16] = [
    gauge("tenant_weight", "Share of a best-effort tenant", |it| Some(it.weight?.into())),
    gauge("tenant_latency_target_seconds", "What the tenant is promised: its commands within this", |it| {
        Some(seconds(it.target_ns?))
    }),
    gauge("tenant_latency_target_quantile_ratio", "Part of its commands that this is promised for", |it| it.quantile),
    gauge(
        "tenant_latency_bound_seconds",
        "Time that the policy vouches for now with a drive that serves waiting commands in order",
        |it| Some(seconds(it.bound_ns?)),
    ),
    counter("tenant_late_completions", "Completions later than the target then in force", |it| {
        it.target_ns.map(|_| it.totals.late as f64)
    }),
    counter("tenant_wait_seconds", "Time that completed commands passed in the tenant's queues, summed up", |it| {
        Some(seconds(it.totals.latency_ns.saturating_sub(it.totals.served_ns)))
    }),
    counter("tenant_service_seconds", "Time that completed commands passed with the drive, summed up", |it| {
        Some(seconds(it.totals.served_ns.min(it.totals.latency_ns)))
    }),
    gauge("tenant_in_flight_commands", "Commands of the tenant that are with the drive", |it| {
        Some(it.in_flight as f64)
    }),
    gauge("tenant_waiting_commands", "Commands that wait in the tenant's queues", |it| Some(it.waiting as f64)),
    gauge("tenant_p99_latency_seconds", "99th percentile of the latencies in the last judged span", |it| {
        Some(seconds_of_us(it.verdict.as_ref()?.p99_us?))
    }),
    gauge("tenant_predicted_completions_per_second", "What the model says that the tenant gets", |it| {
        Some(it.verdict.as_ref()?.predicted.as_ref()?.iops)
    }),
    gauge("tenant_predicted_mean_latency_seconds", "Mean latency that the model says", |it| {
        Some(seconds_of_us(it.verdict.as_ref()?.predicted.as_ref()?.mean_us))
    }),
    gauge("tenant_predicted_p99_latency_seconds", "99th percentile that the model says", |it| {
        Some(seconds_of_us(it.verdict.as_ref()?.predicted.as_ref()?.p99_us))
    }),
    gauge(
        "tenant_alone_p99_latency_seconds",
        "What 99 of 100 commands take one at a time with nobody else there",
        |it| Some(seconds_of_us(it.verdict.as_ref()?.predicted.as_ref()?.alone_us)),
    ),
    gauge("tenant_slowdown_ratio", "tenant_p99_latency_seconds over tenant_alone_p99_latency_seconds", |it| {
        let verdict = it.verdict.as_ref()?;
        let alone_us = verdict.predicted.as_ref().map(|said| said.alone_us).filter(|alone_us| *alone_us > 0.0)?;
        Some(verdict.p99_us? / alone_us)
    }),
    gauge("promise_kept", "1: the promise was kept in the last judged span; 0: it was not", |it| {
        Some(flag(it.verdict.as_ref()?.kept?))
    }),
];

pub fn encode(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    one(encoder, "build", "The daemon's version", MetricType::Info, |metric| {
        metric.encode_info(&[("version", reading.version.as_str())])
    })?;
    one(encoder, "start_time_seconds", "When the daemon started, since 1970 (UTC)", MetricType::Gauge, |metric| {
        metric.encode_gauge(&reading.started_at_s)
    })?;
    for of in &DRIVE {
        one(encoder, of.name, of.help, of.kind, |metric| {
            reading.drives.iter().try_for_each(|it| sample(metric, of.kind, &labels_of_drive(it), (of.value)(it)))
        })?;
    }
    for of in &DISK {
        one(encoder, of.name, of.help, of.kind, |metric| {
            each_disk(reading, |labels, it| sample(metric, of.kind, labels, (of.value)(it)))
        })?;
    }
    let figure = |figure: &PolicyFigure| (figure.name(), figure.help(), figure.kind(), *figure as usize);
    for of in &POLLER {
        one(encoder, of.name, of.help, of.kind, |metric| {
            each_poller(reading, |labels, it| sample(metric, of.kind, labels, (of.value)(it)))
        })?;
    }
    for (name, help, kind, at) in PolicyFigure::ALL.iter().map(figure) {
        let kind = metric_type(kind);
        one(encoder, name, help, kind, |metric| {
            each_poller(reading, |labels, it| sample(metric, kind, labels, it.figures[at]))
        })?;
    }
    for of in &TENANT {
        one(encoder, of.name, of.help, of.kind, |metric| {
            each_tenant(reading, |labels, it| sample(metric, of.kind, labels, (of.value)(it)))
        })?;
    }
    let figure = |figure: &TenantFigure| (figure.name(), figure.help(), figure.kind(), *figure as usize);
    for (name, help, kind, at) in TenantFigure::ALL.iter().map(figure) {
        let kind = metric_type(kind);
        one(encoder, name, help, kind, |metric| {
            each_tenant(reading, |labels, it| sample(metric, kind, labels, it.figures[at]))
        })?;
    }
    histogram(reading, encoder)
}

const fn metric_type(kind: FigureKind) -> MetricType {
    match kind {
        FigureKind::Gauge => MetricType::Gauge,
        FigureKind::Counter => MetricType::Counter,
    }
}

/// A metric with all its samples.
pub fn one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    samples: impl FnOnce(&mut MetricEncoder<'_>) -> std::fmt::Result,
) -> std::fmt::Result {
    samples(&mut encoder.encode_descriptor(name, &format!("{help}."), None, kind)?)
}

/// One sample, if there is a value.
pub fn sample(
    metric: &mut MetricEncoder<'_>,
    kind: MetricType,
    labels: &impl EncodeLabelSet,
    value: Option<f64>,
) -> std::fmt::Result {
    let Some(value) = value else { return Ok(()) };
    let mut one = metric.encode_family(labels)?;
    match kind {
        MetricType::Counter => one.encode_counter(&value, None::<&Exemplar<[Label<'_>; 0], f64>>),
        _ => one.encode_gauge(&value),
    }
}

pub fn labels_of_drive(of: &DriveReading) -> [Label<'_>; 1] {
    [("drive", &of.drive.name)]
}

fn each_disk(reading: &Reading, mut visit: impl FnMut(&[Label<'_>; 2], &Disk) -> std::fmt::Result) -> std::fmt::Result {
    for drive in &reading.drives {
        for disk in &drive.disks {
            visit(&[("drive", &drive.drive.name), ("disk", &disk.name)], disk)?;
        }
    }
    Ok(())
}

pub fn each_poller(
    reading: &Reading,
    mut visit: impl FnMut(&[Label<'_>; 2], &PollerReading) -> std::fmt::Result,
) -> std::fmt::Result {
    for drive in &reading.drives {
        for poller in &drive.pollers {
            visit(&[("drive", &drive.drive.name), ("poller", &poller.poller.to_string())], poller)?;
        }
    }
    Ok(())
}

pub fn each_tenant(
    reading: &Reading,
    mut visit: impl FnMut(&[Label<'_>; 2], &TenantReading) -> std::fmt::Result,
) -> std::fmt::Result {
    for drive in &reading.drives {
        for tenant in &drive.tenants {
            visit(&[("drive", &drive.drive.name), ("tenant", &tenant.name)], tenant)?;
        }
    }
    Ok(())
}

fn histogram(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    let help = "Latencies from the doorbell's first sight to the posted completion";
    let mut buckets = Vec::with_capacity(BOUNDS_NS.len() + 1);
    one(encoder, "tenant_latency_seconds", help, MetricType::Histogram, |metric| {
        each_tenant(reading, |labels, it| {
            buckets.clear();
            let mut below = 0;
            for (bound_ns, at_most) in BOUNDS_NS.iter().zip(&it.totals.at_most) {
                buckets.push((seconds(*bound_ns), at_most.saturating_sub(below)));
                below = below.max(*at_most);
            }
            // Counters are read one after another: what was completed meanwhile may be in one and not yet in another.
            let count = it.totals.completions().max(below);
            buckets.push((f64::INFINITY, count - below));
            let mut one = metric.encode_family(labels)?;
            one.encode_histogram::<[Label<'_>; 0]>(seconds(it.totals.latency_ns), count, &buckets, None)
        })
    })
}

impl Totals {
    fn completions(&self) -> u64 {
        self.reads.completions + self.writes.completions + self.others.completions
    }
}
