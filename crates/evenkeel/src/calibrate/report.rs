//! What was found, for people and as JSON.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use calibrate::{Compared, Facts, Fit, Seen, Source};
use serde::Serialize;

use crate::table;

/// A profile that predicts the measured loads worse than this in the median is not to be relied on.
const POOR: f64 = 0.15;

/// A measuring loop without a CPU for more of its time than this sees the host rather than the drive.
const DISTURBED: f64 = 0.05;

/// The outcome of a calibration.
#[derive(Serialize)]
pub struct Report<'a> {
    profile: String,
    seconds: f64,
    /// Part of the last run's time in which the measuring loop had no CPU.
    cpu_lost_part: f64,
    size_bytes: u64,
    overwrite: Option<(u64, u64)>,
    own_latency_ns: f64,
    parameters: Vec<Row>,
    prediction: Prediction,
    loads: Vec<Compared>,
    seen: &'a Seen,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    value: String,
    source: Source,
}

/// How far the profile's predictions are off the measured loads, as parts of the measured.
#[derive(Serialize)]
struct Prediction {
    loads: usize,
    iops_off_median: f64,
    iops_off_p95: f64,
    mean_off_median: f64,
    mean_off_p95: f64,
}

impl<'a> Report<'a> {
    /// Puts it together.
    pub fn new(
        output: &Path,
        facts: Facts,
        fitted: &Fit,
        loads: Vec<Compared>,
        seen: &'a Seen,
        (took, lost): (Duration, f64),
    ) -> Self {
        let source_of = |name: &str| fitted.parameters.iter().find(|parameter| parameter.name == name);
        let parameters = fitted
            .profile
            .parameters()
            .into_iter()
            .filter_map(|(name, value)| Some(Row { name, value, source: source_of(name)?.source.clone() }));
        let (iops, mean) = (sorted(&loads, Compared::iops_off), sorted(&loads, Compared::mean_off));
        let prediction = Prediction {
            loads: loads.len(),
            iops_off_median: at(&iops, 50),
            iops_off_p95: at(&iops, 95),
            mean_off_median: at(&mean, 50),
            mean_off_p95: at(&mean, 95),
        };
        Self {
            profile: output.display().to_string(),
            seconds: took.as_secs_f64(),
            cpu_lost_part: lost,
            size_bytes: facts.size_bytes,
            overwrite: facts.overwrite,
            own_latency_ns: facts.own_ns.0,
            parameters: parameters.collect(),
            prediction,
            loads,
            seen,
        }
    }
}

fn sorted(loads: &[Compared], off: impl Fn(&Compared) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = loads.iter().map(|load| off(load).abs()).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn at(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<Vec<String>> = self.parameters.iter().map(parameter_row).collect();
        writeln!(f, "{}", table::layout(&["parameter", "value", "95 % interval", "how"], &rows))?;
        let rows: Vec<Vec<String>> = self.loads.iter().map(load_row).collect();
        let heading = ["load", "depth", "measured IOPS", "predicted", "off", "mean µs", "predicted", "off"];
        writeln!(f, "{}", table::layout(&heading, &rows))?;
        let Prediction { iops_off_median, iops_off_p95, mean_off_median, mean_off_p95, .. } = self.prediction;
        writeln!(
            f,
            "The profile predicts throughput within {} (median; 95 % of the loads: {}), mean latency within {} ({}).",
            percent(iops_off_median),
            percent(iops_off_p95),
            percent(mean_off_median),
            percent(mean_off_p95)
        )?;
        if self.cpu_lost_part > DISTURBED {
            writeln!(
                f,
                "The measuring loop had no CPU for {} of the time: loads look slower than the drive is. Measure again \
                 on an idle machine.",
                percent(self.cpu_lost_part)
            )?;
        }
        if iops_off_median > POOR || mean_off_median > POOR {
            writeln!(
                f,
                "That is poor: this drive is of a kind that a profile can't describe, or was disturbed. Don't plan \
                 with it."
            )?;
        }
        writeln!(f, "Took {:.0} s. The profile is {}: name it in [device] profile.", self.seconds, self.profile)
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

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn signed(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}
