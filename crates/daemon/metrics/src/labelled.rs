//! Metrics with more labels than whose they are.

use api::Operation;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::families::{Of, each_poller, each_tenant, gauge, one, sample};
use crate::reading::{FileSystem, Moved, Reading};

/// What is counted by direction: a metric's name, what it says, and which number it is.
type ByDirection = (&'static str, &'static str, fn(&Moved) -> u64);

const BY_DIRECTION: [ByDirection; 3] = [
    ("tenant_completions", "Commands that completed", |it| it.completions),
    ("tenant_bytes", "Bytes of commands that completed", |it| it.bytes),
    ("tenant_errors", "Commands that the drive failed", |it| it.errors),
];

pub fn encode(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    tenants(reading, encoder)?;
    drives(reading, encoder)?;
    operations(reading, encoder)?;
    file_systems(reading, encoder)
}

fn tenants(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    one(
        encoder,
        "tenant",
        "The tenant's class, and its labels with `label_` before each key",
        MetricType::Info,
        |metric| {
            each_tenant(reading, |[drive, tenant], it| {
                let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
                let mut labels = [*drive, *tenant, ("class", it.class.as_str())].map(owned).to_vec();
                labels.extend(it.labels.iter().map(|(key, value)| (format!("label_{key}"), value.clone())));
                metric.encode_info(&labels)
            })
        },
    )?;
    for (name, help, number) in BY_DIRECTION {
        let help = format!("{help}, by direction: read, write, or other for what moves no data");
        one(encoder, name, &help, MetricType::Counter, |metric| {
            each_tenant(reading, |[drive, tenant], it| {
                let directions =
                    [("read", &it.totals.reads), ("write", &it.totals.writes), ("other", &it.totals.others)];
                directions.into_iter().try_for_each(|(direction, moved)| {
                    let labels = [*drive, *tenant, ("direction", direction)];
                    sample(metric, MetricType::Counter, &labels, Some(number(moved) as f64))
                })
            })
        })?;
    }
    let help = "HWQ that the next command of a tenant's queue goes to, numbered within the queue's poller";
    one(encoder, "tenant_queue_hwq", help, MetricType::Gauge, |metric| {
        each_tenant(reading, |[drive, tenant], it| {
            it.queues.iter().try_for_each(|queue| {
                let (number, poller) = (queue.queue.to_string(), queue.poller.to_string());
                let labels = [*drive, *tenant, ("queue", &number), ("poller", &poller)];
                sample(metric, MetricType::Gauge, &labels, Some(queue.hwq.into()))
            })
        })
    })?;
    let help = "1 for each promise that failed in the last judged span, with whose fault it was: own (its own load), \
                neighbour (named), drive, host, or unknown";
    one(encoder, "promise_broken", help, MetricType::Gauge, |metric| {
        each_tenant(reading, |[drive, tenant], it| {
            let Some(verdict) = it.verdict.as_ref().filter(|verdict| verdict.kept == Some(false)) else {
                return Ok(());
            };
            let culprit = verdict.blame.as_ref().map_or("unknown", |blame| blame.culprit.as_str());
            let neighbour = verdict.blame.as_ref().and_then(|blame| blame.neighbour.as_deref()).unwrap_or("");
            let labels = [*drive, *tenant, ("culprit", culprit), ("neighbour", neighbour)];
            sample(metric, MetricType::Gauge, &labels, Some(1.0))
        })
    })
}

fn drives(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    one(encoder, "drive", "What the drive is, and its scheduling policy", MetricType::Info, |metric| {
        reading.drives.iter().try_for_each(|it| {
            let path = it.drive.path.as_deref().unwrap_or("");
            let (backend, policy) = (it.drive.backend.as_str(), it.drive.policy.as_str());
            let name = it.drive.name.as_str();
            metric.encode_info(&[("drive", name), ("backend", backend), ("policy", policy), ("path", path)])
        })
    })?;
    let help = "What the drive itself warns of, in words (SMART)";
    one(encoder, "drive_warning", help, MetricType::Info, |metric| {
        reading.drives.iter().try_for_each(|it| {
            let warnings = it.drive.health.iter().flat_map(|health| &health.warnings);
            let mut each = warnings.map(|warning| [("drive", it.drive.name.as_str()), ("warning", warning.as_str())]);
            each.try_for_each(|labels| metric.encode_info(&labels))
        })
    })?;
    let help = "Commands in flight on an HWQ, numbered within its poller";
    one(encoder, "hwq_in_flight_commands", help, MetricType::Gauge, |metric| {
        each_poller(reading, |[drive, poller], it| {
            (0..).zip(&it.hwqs_in_flight).try_for_each(|(hwq, in_flight): (u32, _)| {
                let labels = [*drive, *poller, ("hwq", &hwq.to_string())];
                sample(metric, MetricType::Gauge, &labels, Some(*in_flight as f64))
            })
        })
    })
}

const OPERATION: [Of<Operation>; 3] = [
    gauge("operation_done_bytes", "Bytes that a wipe or zeroing has behind it, over all passes", |it| {
        Some(it.done_bytes as f64)
    }),
    gauge("operation_size_bytes", "Bytes that a wipe or zeroing has to do in all", |it| Some(it.total_bytes as f64)),
    gauge("operation_left_seconds", "What is left of a wipe or zeroing, at its rate until now", |it| {
        Some(it.seconds_left? as f64)
    }),
];

fn operations(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    OPERATION.iter().try_for_each(|of| {
        one(encoder, of.name, of.help, of.kind, |metric| {
            reading.operations.iter().try_for_each(|it| {
                let labels = [("kind", it.kind.as_str()), ("disk", &it.disk), ("state", it.state.name())];
                sample(metric, of.kind, &labels, (of.value)(it))
            })
        })
    })
}

const FILE_SYSTEM: [Of<FileSystem>; 2] = [
    gauge("file_system_size_bytes", "Size of a file system that the daemon writes to", |it| Some(it.size_bytes as f64)),
    gauge("file_system_free_bytes", "What is left there for the daemon", |it| Some(it.free_bytes as f64)),
];

fn file_systems(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    FILE_SYSTEM.iter().try_for_each(|of| {
        one(encoder, of.name, of.help, of.kind, |metric| {
            reading.file_systems.iter().try_for_each(|it| {
                let labels = [("holds", it.holds.as_str()), ("path", &it.path)];
                sample(metric, of.kind, &labels, (of.value)(it))
            })
        })
    })
}
