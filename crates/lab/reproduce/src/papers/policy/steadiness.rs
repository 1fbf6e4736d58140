//! Whether a policy leaves others the same from one moment to the next, where nothing changes.

use io_model::Nanos;
use sim::Report;
use ssd_model::Profile;

use super::cases::{Case, Group, MIXES, Mix, Promised};
use super::contenders::{Contender, LPNS, OURS, WARMUP};
use super::{median, some, worst};
use crate::paper::Paper;
use crate::report::{Figure, Row, Table};
use crate::runner::{Context, Error};

const CONTENDERS: [Contender; 2] = [OURS, LPNS];
const DURATION: Nanos = Nanos::from_millis(2_000);
const WINDOW: Nanos = Nanos::from_millis(100);
const VARIES: &str = "coefficient of variation of others' throughput over 100 ms (%)";
const MOST_PERCENT: f64 = 10.0;

struct Run {
    profile: &'static Profile,
    mix: &'static Mix,
}

impl Run {
    fn name(&self) -> String {
        format!("{}, {}", self.profile.name, self.mix.name)
    }

    fn play(&self, context: &Context<'_>) -> Result<Vec<f64>, String> {
        let neighbours = [self.mix.busy(), self.mix.busy()];
        let case = Case::new(Group::Steady, self.profile, self.mix.name, vec![Promised::back_to_back(4.0)], neighbours);
        let figures = planner::drive_figures(self.profile);
        let targets = case.targets(context)?;
        let mut scenario = case.scenario(context, &targets, WARMUP);
        (scenario.duration, scenario.window) = (context.span(DURATION), context.span(WINDOW));
        let under = |contender: &Contender| Ok(variation_percent(&contender.play(&scenario, &figures)?));
        CONTENDERS.iter().map(under).collect()
    }
}

fn variation_percent(report: &Report) -> f64 {
    let others = &report.tenants[1..];
    let windows = others.iter().map(|other| other.windows.len()).min().unwrap_or(0);
    let bytes = |at: usize| others.iter().map(|other| other.windows[at].bytes as f64).sum::<f64>();
    variation((0..windows).map(bytes)) * 100.0
}

/// Standard deviation over mean.
fn variation(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>();
    (squares / count).sqrt() / mean
}

pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Policy, "steadiness", "What others get from one moment to the next");
    figure.shows = "Two busy neighbours of a tenant that reads back to back and was promised a latency: their \
        throughput together in each 100 ms of 2 s, after 2 s to learn. Nothing changes meanwhile."
        .into();
    figure.goal = "A coefficient of variation below 10 %".into();
    figure.assume("The target is 4 times what 99 of 100 commands take alone.");
    let runs = Profile::built_in().iter().flat_map(|profile| MIXES.iter().map(move |mix| Run { profile, mix }));
    let runs = some(context, runs.collect());
    let seen = context.all(&runs, Run::name, |run| run.play(context))?;
    draw(&mut figure, &runs.iter().zip(&seen).collect::<Vec<_>>());
    Ok(vec![figure])
}

fn draw(figure: &mut Figure, seen: &[(&Run, &Vec<f64>)]) {
    let mut table =
        Table::new("Coefficient of variation, by drive: the median and the worst of five mixes", &["drive"]);
    table.head.extend(CONTENDERS.map(Contender::name));
    for profile in Profile::built_in() {
        let here = || seen.iter().filter(|(run, _)| run.profile == profile);
        let cell = |at: usize| {
            let values: Vec<f64> = here().map(|(_, values)| values[at]).collect();
            format!("{1:.1} %, {0:.1} %", worst(&values), median(values))
        };
        table.rows.push(std::iter::once(profile.name.to_string()).chain((0..CONTENDERS.len()).map(cell)).collect());
    }
    figure.tables.push(table);
    for (run, values) in seen {
        for (contender, value) in CONTENDERS.iter().zip(*values) {
            figure.push(Row::new(&contender.name(), run.name(), VARIES, *value));
        }
    }
    let ours: Vec<f64> = seen.iter().map(|(_, values)| values[0]).collect();
    let steady = ours.iter().filter(|value| **value < MOST_PERCENT).count();
    let saw = format!("{steady} of {}; {:.1} % at worst", ours.len(), worst(&ours));
    figure.demand("others' throughput varies by less than 10 %", steady == ours.len(), saw);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variation_is_relative_to_the_mean() {
        assert_eq!(variation([5.0, 5.0, 5.0].into_iter()), 0.0);
        assert_eq!(variation([8.0, 12.0].into_iter()), 0.2);
    }
}
