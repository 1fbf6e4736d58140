//! What was found, for people and as JSON.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use calibrate::{Compared, Facts, Fit, Source};
use serde::Serialize;

use crate::table;

/// A profile that predicts the measured loads worse than this in the median is not to be relied on.
const POOR_PERCENT: f64 = 15.0;

/// A measuring loop without a CPU for more of its time than this sees the host rather than the drive.
const DISTURBED_PERCENT: f64 = 5.0;

/// The outcome of a calibration.
#[derive(Serialize)]
pub struct Report {
    profile: String,
    took_ms: u64,
    /// Of the last run's time: the measuring loop had no CPU.
    cpu_lost_percent: f64,
    size_bytes: u64,
    overwrite: Option<Range>,
    own_latency_ns: f64,
    parameters: Vec<Row>,
    prediction: Prediction,
    loads: Vec<Compared>,
}

/// A range of the drive that was written to.
#[derive(Serialize)]
struct Range {
    start_bytes: u64,
    len_bytes: u64,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    value: String,
    source: Source,
}

/// How far the profile's predictions are off the measured loads, as percentages of the measured.
#[derive(Serialize)]
struct Prediction {
    loads: usize,
    median_iops_off_percent: f64,
    p95_iops_off_percent: f64,
    median_mean_off_percent: f64,
    p95_mean_off_percent: f64,
}

impl Report {
    /// Puts it together.
    pub fn new(output: &Path, facts: Facts, fitted: &Fit, loads: Vec<Compared>, (took, lost): (Duration, f64)) -> Self {
        let source_of = |name: &str| fitted.parameters.iter().find(|parameter| parameter.name == name);
        let parameters = fitted
            .profile
            .parameters()
            .into_iter()
            .filter_map(|(name, value)| Some(Row { name, value, source: source_of(name)?.source.clone() }));
        let (iops, mean) = (sorted(&loads, Compared::iops_off), sorted(&loads, Compared::mean_off));
        let prediction = Prediction {
            loads: loads.len(),
            median_iops_off_percent: at(&iops, 50),
            p95_iops_off_percent: at(&iops, 95),
            median_mean_off_percent: at(&mean, 50),
            p95_mean_off_percent: at(&mean, 95),
        };
        Self {
            profile: output.display().to_string(),
            took_ms: took.as_millis() as u64,
            cpu_lost_percent: lost * 100.0,
            size_bytes: facts.size_bytes,
            overwrite: facts.overwrite.map(|(start_bytes, len_bytes)| Range { start_bytes, len_bytes }),
            own_latency_ns: facts.own_ns.0,
            parameters: parameters.collect(),
            prediction,
            loads,
        }
    }
}

fn sorted(loads: &[Compared], off: impl Fn(&Compared) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = loads.iter().map(|load| off(load).abs() * 100.0).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn at(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<Vec<String>> = self.parameters.iter().map(parameter_row).collect();
        writeln!(f, "{}", table::layout(&["parameter", "value", "95 % interval", "how"], &rows))?;
        let rows: Vec<Vec<String>> = self.loads.iter().map(load_row).collect();
        let heading = ["load", "depth", "measured IOPS", "predicted", "off", "mean µs", "predicted", "off"];
        writeln!(f, "{}", table::layout(&heading, &rows))?;
        let Prediction { median_iops_off_percent, median_mean_off_percent, .. } = self.prediction;
        writeln!(
            f,
            "The profile predicts throughput within {} (median; 95 % of the loads: {}), mean latency within {} ({}).",
            percent(median_iops_off_percent),
            percent(self.prediction.p95_iops_off_percent),
            percent(median_mean_off_percent),
            percent(self.prediction.p95_mean_off_percent)
        )?;
        if self.cpu_lost_percent > DISTURBED_PERCENT {
            writeln!(
                f,
                "The measuring loop had no CPU for {} of the time: loads look slower than the drive is. Measure again \
                 on an idle machine.",
                percent(self.cpu_lost_percent)
            )?;
        }
        if median_iops_off_percent > POOR_PERCENT || median_mean_off_percent > POOR_PERCENT {
            writeln!(
                f,
                "That is poor: this drive is of a kind that a profile can't describe, or was disturbed. Don't plan \
                 with it."
            )?;
        }
        writeln!(
            f,
            "Took {:.0} s. The profile is {}: name it in [device] profile.",
            self.took_ms as f64 / 1e3,
            self.profile
        )
    }
}

fn parameter_row(row: &Row) -> Vec<String> {
    let (interval, how) = match &row.source {
        Source::Measured(estimate) => (format!("{:.0}..{:.0}", estimate.low, estimate.high), "measured".to_owned()),
        Source::Observed(how) => (String::new(), how.clone()),
        Source::Assumed(why) => (String::new(), format!("assumed: {why}")),
    };
    vec![row.name.to_owned(), row.value.clone(), interval, how]
}

fn load_row(load: &Compared) -> Vec<String> {
    let Compared { measured, predicted } = load;
    let what = match measured.read_percent {
        100 => "read".to_owned(),
        0 => "write".to_owned(),
        percent => format!("{percent} % read"),
    };
    vec![
        format!("{what} {} KiB", measured.len_bytes >> 10),
        measured.depth.to_string(),
        table::count(measured.iops),
        table::count(predicted.iops),
        signed(load.iops_off()),
        table::micros(measured.mean_ns / 1e3),
        table::micros(predicted.mean_ns / 1e3),
        signed(load.mean_off()),
    ]
}

fn percent(percent: f64) -> String {
    format!("{percent:.1} %")
}

fn signed(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}
