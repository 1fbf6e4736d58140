//! Runs with the web server's stand-in: what Fig. 9, 10 and 11 are drawn from.

use io_model::Nanos;
use sim::workload::Webuser;

use super::systems::{Drive, System, assumptions, fio, guaranteed, mb_s_from, mean_us, mix, run, scenario, webuser};
use crate::report::Row;
use crate::runner::{Context, Error};

/// Many changes of the stand-in's rate.
const DURATION: Nanos = Nanos::from_millis(1_500);
/// About 200 I/Os of VM1: the paper's 10 s hold 40,000, so ours scatter more.
const WINDOW: Nanos = Nanos::from_millis(50);

/// A run: who shares the drive, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// How.
    pub system: System,
    /// Which drive.
    pub drive: Drive,
    /// VMs with the stand-in and a promise.
    pub svms: usize,
    /// VMs with 4K random writes at n4d32.
    pub ivms: usize,
}

/// What it showed.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Mean latency of each promised VM, µs.
    pub means_us: Vec<f64>,
    /// Mean latencies of all promised VMs in each window, ascending, µs.
    pub windows_us: Vec<f64>,
    /// Bandwidth of all other VMs, GB/s.
    pub noisy_gb_s: f64,
}

impl Seen {
    /// The highest mean of a promised VM, µs.
    pub fn mean_us(&self) -> f64 {
        self.means_us.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The highest window, µs.
    pub fn worst_window_us(&self) -> f64 {
        self.windows_us.last().copied().unwrap_or(f64::NAN)
    }

    /// A quantile of the windows, 0 to 1, µs.
    fn window_us(&self, quantile: f64) -> f64 {
        let last = self.windows_us.len().saturating_sub(1);
        let at = (quantile * last as f64).round() as usize;
        self.windows_us.get(at).copied().unwrap_or(f64::NAN)
    }

    /// The rows of a box, their metrics starting with `metric`.
    pub fn boxes(&self, series: &str, x: &str, metric: &str) -> Vec<Row> {
        let parts = [(" p1", 0.01), (" p25", 0.25), (" p50", 0.5), (" p75", 0.75), (" p99", 0.99)];
        let row = |(part, quantile)| Row::new(series, x, &format!("{metric}{part}"), self.window_us(quantile));
        parts.map(row).to_vec()
    }
}

/// Runs them all.
pub fn play(context: &Context<'_>, cases: &[Case]) -> Result<Vec<Seen>, Error> {
    let name =
        |case: &Case| format!("{} on {}, {} + {} VMs", case.system.name(), case.drive.name(), case.svms, case.ivms);
    context.all(cases, name, |case| {
        let vms = match case.ivms {
            0 => vec![guaranteed(webuser()); case.svms],
            ivms => mix(case.svms, &webuser(), ivms, &fio(4, 32, 0)),
        };
        let mut scenario = scenario(context, case.system, case.drive, &vms, DURATION);
        scenario.window = WINDOW;
        let report = run(&scenario)?;
        let promised = report.tenants.iter().take(case.svms);
        let mut windows_us: Vec<f64> =
            promised.clone().flat_map(|tenant| &tenant.windows).filter_map(|it| Some(it.mean_ns()? / 1e3)).collect();
        windows_us.sort_by(f64::total_cmp);
        let noisy_gb_s = mb_s_from(&report, case.svms) / 1e3;
        Ok(Seen { means_us: promised.map(mean_us).collect(), windows_us, noisy_gb_s })
    })
}

/// What these figures rest on.
pub fn rests_on(drive: Drive) -> Vec<String> {
    let mut all = assumptions(drive);
    all.extend(Webuser::ASSUMPTIONS.map(str::to_owned));
    all.push(format!(
        "{} ms of virtual time, means over windows of {} ms; the paper replays 2,000 s and reports every 10 s. A \
         window here holds about 200 I/Os, so it scatters more.",
        DURATION.0 / 1_000_000,
        WINDOW.0 / 1_000_000
    ));
    all.push(
        "K2, MQFQ and D2FQ run as processes on the host, as in the paper: no poller in between. K2 takes one lock for \
         each submission and completion; the other two were made without one."
            .to_owned(),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_quantiles() {
        let seen = |windows_us| Seen { means_us: vec![12.0, 15.0], windows_us, noisy_gb_s: 1.0 };
        let boxes = seen((0..=100).map(f64::from).collect()).boxes("K2", "1+1", "latency");
        let ours: Vec<f64> = boxes.iter().map(|row| row.ours).collect();
        assert_eq!(ours, [1.0, 25.0, 50.0, 75.0, 99.0]);
        assert_eq!((boxes[4].metric.as_str(), seen(Vec::new()).mean_us()), ("latency p99", 15.0));
        assert!(seen(Vec::new()).worst_window_us().is_nan());
    }
}
