//! Metrics of drives, pollers and tenants, as text for Prometheus.
//!
//! | module | what |
//! | --- | --- |
//! | `reading` | [`Reading`]: the values, filled in by the daemon |
//! | `families` | metrics with one value per drive, disk, poller or tenant: tables of names, meanings and sources |
//! | `labelled` | metrics with more labels: directions, HWQs, queues, blame, operations |
//!
//! Names, units and meanings are defined here and in [`policy`] (its figures) only. `docs/METRICS.md` lists them, and a
//! test checks that list.

#![forbid(unsafe_code)]

mod families;
mod labelled;
mod reading;

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::registry::Registry;

pub use reading::{
    BOUNDS_NS, DriveReading, FileSystem, Moved, PollerReading, QueueReading, Reading, TenantReading, Totals, Verdict,
};

/// Before each name.
const PREFIX: &str = "evenkeel";

/// The forms that text for Prometheus has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own text format, version 0.0.4, which every version and tool reads.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The form for a client whose `Accept` header says this; without a word of OpenMetrics, the older one.
    pub fn accepted(accept: Option<&str>) -> Self {
        let names = |accept: &str| accept.split(',').any(|one| one.trim().starts_with("application/openmetrics-text"));
        if accept.is_some_and(names) { Self::OpenMetrics } else { Self::Text }
    }

    /// The answer's `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A reading as text.
pub fn render(reading: &Arc<Reading>, format: Format) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(All(Arc::clone(reading))));
    let mut told = String::new();
    let encoded = match format {
        Format::Text => prometheus_text::encode(&mut told, &registry),
        Format::OpenMetrics => text::encode(&mut told, &registry),
    };
    // Writing to a string does not fail.
    debug_assert!(encoded.is_ok());
    told
}

#[derive(Debug)]
struct All(Arc<Reading>);

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        families::encode(&self.0, &mut encoder)?;
        labelled::encode(&self.0, &mut encoder)
    }
}

#[cfg(test)]
mod tests;
