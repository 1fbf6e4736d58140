//! What experiments are put together from: tenants, scenarios, sweeps, and numbers over them.

use std::borrow::Borrow;

use io_model::Nanos;
use policy::{EvenkeelConfig, PolicyConfig, Terms};
use sim::workload::{Access, BlockSize, Fio, Workload};
use sim::{Report, Scenario, Tenant, TenantReport};
use ssd_model::Profile;

pub use crate::report::EVENKEEL;
use crate::report::{Figure, Row, X};
use crate::runner::Context;

/// All pairs, the second ones of each first one together.
pub fn each<A: Clone, B>(
    first: impl IntoIterator<Item = A>,
    second: impl IntoIterator<Item = B> + Clone,
) -> Vec<(A, B)> {
    first.into_iter().flat_map(|a| second.clone().into_iter().map(move |b| (a.clone(), b))).collect()
}

/// The profile of that name in any case.
pub fn profile(name: &str) -> Result<Profile, String> {
    Profile::by_name(name).ok_or_else(|| format!("no profile {name}"))
}

/// The default policy, as the daemon sets it up for a drive.
pub fn evenkeel(drive: &Profile) -> PolicyConfig {
    PolicyConfig::Evenkeel(EvenkeelConfig::on(&planner::drive_figures(drive)))
}

/// A tenant with a queue for each vCPU.
pub fn tenant(
    name: impl Into<String>,
    terms: impl Into<Terms>,
    vcpus: u16,
    size_bytes: u64,
    workload: Workload,
) -> Tenant {
    Tenant {
        name: name.into(),
        terms: terms.into(),
        vcpus,
        vqs: vcpus,
        queue_priorities: Vec::new(),
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes,
        workload,
    }
}

/// fio's random 4K I/O with this many jobs and this depth.
pub fn fio(jobs: u32, iodepth: u32, read_percent: u8) -> Workload {
    Workload::Fio(Fio::random_4k(jobs, iodepth, read_percent))
}

/// Random I/O of one size.
pub fn access(bytes: u32, read_percent: u8) -> Access {
    Access { block_sizes: vec![BlockSize { bytes, weight: 1 }], ..Access::random_4k(read_percent) }
}

impl Context<'_> {
    /// Tenants on a drive, with how long they warm up and are measured, in ms.
    pub fn scenario(&self, profile: Profile, tenants: Vec<Tenant>, (warmup, duration): (u64, u64)) -> Scenario {
        Scenario {
            tenants,
            warmup: self.span(Nanos::from_millis(warmup)),
            duration: self.span(Nanos::from_millis(duration)),
            seed: self.seed(),
            ..Scenario::new(profile)
        }
    }
}

/// Runs a scenario.
pub fn play(scenario: &Scenario) -> Result<Report, String> {
    sim::run(scenario).map_err(|error| error.to_string())
}

/// Runs a scenario; a broken rule is an error.
pub fn run(scenario: &Scenario) -> Result<Report, String> {
    let report = play(scenario)?;
    match report.broken.first() {
        Some(broken) => Err(format!("the simulated system broke a rule: {broken:?}")),
        None => Ok(report),
    }
}

/// A tenant's mean latency in µs; not a number if it did nothing.
pub fn mean_us(tenant: &TenantReport) -> f64 {
    if tenant.latency.count > 0 { tenant.latency.mean_ns / 1e3 } else { f64::NAN }
}

/// A number of the first tenant.
pub fn first(report: &Report, of: impl Fn(&TenantReport) -> f64) -> f64 {
    report.tenants.first().map_or(f64::NAN, of)
}

/// The highest; not a number where there is none.
pub fn most(values: impl IntoIterator<Item = impl Borrow<f64>>) -> f64 {
    values.into_iter().fold(f64::NAN, |most, value| most.max(*value.borrow()))
}

/// The lowest; not a number where there is none.
pub fn least(values: impl IntoIterator<Item = impl Borrow<f64>>) -> f64 {
    values.into_iter().fold(f64::NAN, |least, value| least.min(*value.borrow()))
}

/// Jain's index: 1 where all are equal, 1/n where one has everything.
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}

/// Whether each is above the one before it.
pub fn grows(values: &[f64]) -> bool {
    values.is_sorted_by(|before, after| before < after)
}

/// For a criterion: `1.2, 3.4`.
pub fn list(values: &[f64], show: impl Fn(f64) -> String) -> String {
    values.iter().map(|value| show(*value)).collect::<Vec<_>>().join(", ")
}

/// Lowest and highest of some numbers, for a criterion: `12.3 to 45.6 µs`.
pub fn range(values: &[f64], unit: &str) -> String {
    let (low, high) = ends(values);
    format!("{low:.1} to {high:.1} {unit}")
}

/// Lowest and highest of some numbers; not numbers, both, if one of them is not.
pub fn ends(values: &[f64]) -> (f64, f64) {
    if values.iter().any(|value| value.is_nan()) { (f64::NAN, f64::NAN) } else { (least(values), most(values)) }
}

impl Figure {
    /// Adds a number with nothing to compare it with.
    pub(crate) fn show(&mut self, series: &str, x: impl Into<X>, metric: &str, ours: f64) {
        self.push(Row::new(series, x, metric, ours));
    }

    /// Our numbers of a metric in the rows' order, of the series that `is_it` picks.
    pub(crate) fn seen(&self, metric: &str, is_it: impl Fn(&str) -> bool) -> Vec<f64> {
        self.rows.iter().filter(|row| row.metric == metric && is_it(&row.series)).map(|row| row.ours).collect()
    }

    /// Our numbers of one series and metric, in the rows' order.
    pub(crate) fn curve(&self, series: &str, metric: &str) -> Vec<f64> {
        self.seen(metric, |name| name == series)
    }

    /// Our number there; not a number where nothing was measured.
    pub(crate) fn at(&self, series: &str, x: impl Into<X>, metric: &str) -> f64 {
        self.ours(series, &x.into(), metric).unwrap_or(f64::NAN)
    }

    /// The largest deviation of a series from print, as a fraction.
    pub(crate) fn furthest(&self, series: &str) -> f64 {
        let rows = self.rows.iter().filter(|row| row.series == series);
        rows.filter_map(|row| row.deviation).map(f64::abs).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_tells_equal_from_unequal() {
        assert_eq!(jain(&[2.0, 2.0, 2.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn what_was_not_measured_has_no_range() {
        assert_eq!(range(&[3.0, 1.0, 2.0], "µs"), "1.0 to 3.0 µs");
        assert!(ends(&[1.0, f64::NAN]).1.is_nan());
    }
}
