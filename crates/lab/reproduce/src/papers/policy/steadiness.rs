//! Whether a policy leaves others the same from one moment to the next, where nothing changes.

use io_model::Nanos;
use sim::Report;
use ssd_model::Profile;

use super::cases::{Case, MIXES, Promised, STEADY};
use super::contenders::{Contender, LPNS, OURS, WARMUP_MS};
use super::{median, some};
use crate::papers::bench::{each, most};
use crate::report::{Figure, Table};
use crate::runner::{Context, Error};

const CONTENDERS: [Contender; 2] = [OURS, LPNS];
const DURATION: Nanos = Nanos::from_millis(2_000);
const WINDOW: Nanos = Nanos::from_millis(100);
const MOST_PERCENT: f64 = 10.0;

pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("steadiness");
    let seen = context.all(some(context, each(Profile::built_in(), &MIXES)), |(profile, mix)| {
        let promised = vec![Promised::back_to_back(4.0)];
        let case = Case::new(STEADY, profile, mix.name, promised, [mix.busy(), mix.busy()]);
        let targets = case.targets(context)?;
        let mut scenario = case.scenario(context, &targets, WARMUP_MS);
        (scenario.duration, scenario.window) = (context.span(DURATION), context.span(WINDOW));
        let figures = planner::drive_figures(profile);
        let under = |contender: &Contender| Ok(variation_percent(&contender.play(&scenario, &figures)?));
        CONTENDERS.iter().map(under).collect::<Result<Vec<f64>, String>>()
    })?;
    let mut table =
        Table::new("Coefficient of variation, by drive: the median and the worst of five mixes", &["drive"]);
    table.head.extend(CONTENDERS.map(Contender::name));
    for profile in Profile::built_in() {
        let cell = |at: usize| {
            let here = seen.iter().filter(|((drive, _), _)| *drive == profile);
            let values: Vec<f64> = here.map(|(_, values)| values[at]).collect();
            format!("{1:.1} %, {0:.1} %", most(&values), median(values))
        };
        table.rows.push([profile.name.to_string(), cell(0), cell(1)].into());
    }
    figure.tables.push(table);
    for ((profile, mix), values) in &seen {
        for (contender, value) in CONTENDERS.iter().zip(values) {
            let metric = "coefficient of variation of others' throughput over 100 ms (%)";
            figure.show(&contender.name(), format!("{}, {}", profile.name, mix.name), metric, *value);
        }
    }
    let ours: Vec<f64> = seen.iter().map(|(_, values)| values[0]).collect();
    let steady = ours.iter().filter(|value| **value < MOST_PERCENT).count();
    let saw = format!("{steady} of {}; {:.1} % at worst", ours.len(), most(&ours));
    figure.demand("others' throughput varies by less than 10 %", steady == ours.len(), saw);
    Ok(vec![figure])
}

fn variation_percent(report: &Report) -> f64 {
    let others = &report.tenants[1..];
    let windows = others.iter().map(|other| other.windows.len()).min().unwrap_or(0);
    let bytes = |at: usize| others.iter().map(|other| other.windows[at].bytes as f64).sum::<f64>();
    variation(&(0..windows).map(bytes).collect::<Vec<f64>>()) * 100.0
}

/// Standard deviation over mean.
fn variation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>();
    (squares / count).sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variation_is_relative_to_the_mean() {
        assert_eq!(variation(&[5.0, 5.0, 5.0]), 0.0);
        assert_eq!(variation(&[8.0, 12.0]), 0.2);
    }
}
