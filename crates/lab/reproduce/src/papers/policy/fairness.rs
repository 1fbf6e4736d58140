//! Whether tenants without promises fare alike, where one beside them has one.

use io_model::Nanos;
use policy::{Class, PolicyKind};
use rivals::LabKind;
use sim::Scenario;
use sim::workload::{Access, BlockSize, Fio, Workload};
use ssd_model::Profile;

use super::cases::{Case, Group, Promised, play, tenant};
use super::contenders::{Contender, LPNS, OURS, corrected, rival};
use super::{medium_drives, reads, some};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row, Table};
use crate::runner::{Context, Error};

const TENANTS: [usize; 3] = [4, 16, 64];
const CONTENDERS: [Contender; 4] = [OURS, LPNS, corrected(PolicyKind::Fair), rival(LabKind::Mqfq)];
const WARMUP: Nanos = Nanos::from_millis(1_000);
const DURATION: Nanos = Nanos::from_millis(1_000);
const DEPTH: u32 = 16;
const INDEX: &str = "fairness index of slowdowns";
const LEAST: f64 = 0.97;

/// What tenants of equal weight do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loads {
    /// All the same: 4 KiB, as many reads as writes.
    Alike,
    /// One half reads 4 KiB, the other writes 64 KiB.
    Unlike,
}

impl Loads {
    fn name(self) -> &'static str {
        match self {
            Self::Alike => "alike",
            Self::Unlike => "unlike",
        }
    }

    fn of(self, at: usize) -> Workload {
        let access = |kib: u32, read_percent| {
            let block_sizes = vec![BlockSize { bytes: kib << 10, weight: 1 }];
            Access { block_sizes, ..Access::random_4k(read_percent) }
        };
        let access = match (self, at % 2) {
            (Self::Alike, _) => access(4, 50),
            (Self::Unlike, 0) => access(4, 100),
            (Self::Unlike, _) => access(64, 0),
        };
        Workload::Fio(Fio { jobs: 1, iodepth: DEPTH, access })
    }
}

struct Run {
    profile: &'static Profile,
    loads: Loads,
    tenants: usize,
}

impl Run {
    fn name(&self) -> String {
        format!("{}, {} {}", self.profile.name, self.tenants, self.loads.name())
    }

    /// Jain's index of the tenants' slowdowns under each policy.
    fn play(&self, context: &Context<'_>) -> Result<Vec<f64>, String> {
        let case = Case {
            group: Group::Steady,
            name: self.name(),
            profile: self.profile.clone(),
            promised: vec![Promised::back_to_back(4.0)],
            neighbours: Vec::new(),
        };
        let targets = case.targets(context)?;
        let promised = Class::guaranteed(Some(targets[0]));
        let mut tenants = vec![tenant("promised", promised, 1, &reads())];
        tenants.extend(
            (0..self.tenants)
                .map(|at| tenant(&format!("tenant {at}"), Class::BestEffort { weight: 1 }, 1, &self.loads.of(at))),
        );
        let figures = planner::drive_figures(self.profile);
        let scenario = Scenario {
            tenants,
            warmup: context.span(WARMUP),
            duration: context.span(DURATION),
            seed: context.seed(),
            ..Scenario::new(self.profile.clone())
        };
        let mut alone_ns = [0.0; 2];
        for (at, alone_ns) in alone_ns.iter_mut().enumerate() {
            *alone_ns = play(&scenario.alone(at + 1))?.tenants[0].latency.mean_ns;
        }
        CONTENDERS
            .iter()
            .map(|contender| {
                let report = contender.play(&scenario, &figures)?;
                let slowdowns = report.tenants.iter().skip(1).enumerate();
                let slowdowns: Vec<f64> =
                    slowdowns.map(|(at, tenant)| tenant.latency.mean_ns / alone_ns[at % 2]).collect();
                Ok(jain(&slowdowns))
            })
            .collect()
    }
}

/// 1 where all are equal, 1/n where one has everything.
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}

pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Policy, "fairness", "Equal tenants beside a promise");
    figure.shows = "4, 16 and 64 best-effort tenants of equal weight, 16 commands outstanding each, beside one that \
        was promised a latency. Alike: all read and write 4 KiB. Unlike: one half reads 4 KiB, the other writes 64 \
        KiB."
        .into();
    figure.goal = "Jain's index of their slowdowns at least 0.97 where they are alike".into();
    figure.assume(
        "A slowdown is the mean latency over the mean latency alone; the target is 4 times what 99 of 100 commands \
         take alone.",
    );
    figure.assume(
        "Where tenants are unlike, equal shares of the drive's time are not equal slowdowns: it is shown and not \
         asked.",
    );
    let runs = medium_drives()
        .flat_map(|profile| [Loads::Alike, Loads::Unlike].map(|loads| (profile, loads)))
        .flat_map(|(profile, loads)| TENANTS.map(|tenants| Run { profile, loads, tenants }));
    let runs = some(context, runs.collect());
    let seen = context.all(&runs, Run::name, |run| run.play(context))?;
    draw(&mut figure, &runs.iter().zip(&seen).collect::<Vec<_>>());
    Ok(vec![figure])
}

fn draw(figure: &mut Figure, seen: &[(&Run, &Vec<f64>)]) {
    let mut table = Table::new("Jain's index of slowdowns", &["drive and load", "tenants"]);
    table.head.extend(CONTENDERS.map(Contender::name));
    for (run, indices) in seen {
        let load = format!("{}, {}", run.profile.name, run.loads.name());
        let cells = indices.iter().map(|index| format!("{index:.3}"));
        table.rows.push([load.clone(), run.tenants.to_string()].into_iter().chain(cells).collect());
        for (contender, index) in CONTENDERS.iter().zip(*indices) {
            figure.push(Row::new(&format!("{}, {load}", contender.name()), run.tenants as u32, INDEX, *index));
        }
    }
    let alike = seen.iter().filter(|(run, _)| run.loads == Loads::Alike).map(|(_, indices)| indices[0]);
    let least = alike.fold(f64::INFINITY, f64::min);
    figure.demand("equal tenants that are alike: at least 0.97", least >= LEAST, format!("{least:.3} at least"));
    figure.tables.push(table);
    figure.plots.push(Plot::lines(INDEX, "tenants").log_x());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_tells_equal_from_unequal() {
        assert_eq!(jain(&[2.0, 2.0, 2.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    }
}
