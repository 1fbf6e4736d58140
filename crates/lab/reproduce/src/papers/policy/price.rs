//! What a promise costs the others, beside what it has to: the best cap on their commands with the drive that could
//! have been chosen by hand, found by trying.

use io_model::Nanos;
use sim::Report;

use super::cases::{self, Case, FURTHER, STEADY, WARMUP_FIXED_MS};
use super::contenders::{Contender, LPNS, OTHERS, OURS};
use super::{fixed, some, standing};
use crate::report::Figure;
use crate::runner::{Context, Error};

const CAPS: [u32; 23] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256];
/// So far above the target no larger cap is tried.
const HOPELESS: f64 = 1.2;
/// In further cases every third cap is tried, and then those around the best.
const COARSE: usize = 3;

/// In targets: a target is a multiple of what a histogram shows, so its own bucket may end some ns beyond it.
pub const KEPT: f64 = 1.0001;

const PRICE: &str = "others' throughput beside the best fixed cap (%)";
const REACHED: &str = "99th percentile of the promised tenant, of its target (%)";

/// What one policy gave.
#[derive(Debug, Clone, Copy)]
pub struct Got {
    /// Of the target; of several, the one that is missed most.
    pub reached: f64,
    pub others_bytes_s: f64,
}

/// What one case came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Those that were asked to.
    pub seen: Vec<(Contender, Got)>,
    /// `None`: not even one command of theirs leaves room for the promise.
    pub best: Option<Got>,
}

impl Outcome {
    pub fn of(&self, contender: Contender) -> Option<Got> {
        self.seen.iter().find(|(other, _)| *other == contender).map(|(_, got)| *got)
    }

    /// What it gave where some fixed cap keeps the promise, and that cap's others.
    pub fn beside_best(&self, contender: Contender) -> Option<(Got, f64)> {
        let (got, best) = (self.of(contender)?, self.best?);
        Some((got, got.others_bytes_s / best.others_bytes_s))
    }
}

/// Every case.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let cases = some(context, cases::all());
    let seen = context.all(cases, |case| run(case, context))?;
    let (steady, further): (Vec<_>, Vec<_>) = seen.iter().cloned().partition(|(case, _)| case.group == STEADY);
    let mut price = context.figure("price");
    push_rows(&mut price, &steady);
    judge(&mut price, "", steady.iter().map(|(_, outcome)| outcome));
    let mut more = context.figure("further");
    push_rows(&mut more, &further);
    for group in FURTHER {
        let of_group = further.iter().filter(|(case, _)| case.group == group).map(|(_, outcome)| outcome);
        judge(&mut more, &format!("{group}: "), of_group);
    }
    more.tables.push(standing::by_group(&further));
    Ok(vec![price, more, standing::draw(context, &seen)])
}

fn push_rows(figure: &mut Figure, seen: &[(Case, Outcome)]) {
    for (case, outcome) in seen {
        for contender in [OURS, LPNS] {
            let Some(got) = outcome.of(contender) else { continue };
            figure.show(&contender.name(), case.name.as_str(), REACHED, got.reached * 100.0);
            if let Some((_, price)) = outcome.beside_best(contender) {
                figure.show(&contender.name(), case.name.as_str(), PRICE, price * 100.0);
            }
        }
        if let Some(best) = outcome.best {
            figure.show("best fixed cap", case.name.as_str(), REACHED, best.reached * 100.0);
        }
    }
}

/// `group`: what the demands begin with.
fn judge<'a>(figure: &mut Figure, group: &str, seen: impl Iterator<Item = &'a Outcome>) {
    let standing::Standing { kept, of, worst, median, least, .. } = standing::Standing::of(OURS, seen);
    let saw = format!("{kept} of {of}; the worst reached {:.0} % of its target", worst * 100.0);
    figure.demand(format!("{group}every promise kept that some fixed cap keeps"), kept == of, saw);
    let saw = |share: f64| format!("{:.1} %", share * 100.0);
    figure.demand(format!("{group}others get 97 % of the best fixed cap's, median"), median >= 0.97, saw(median));
    figure.demand(format!("{group}never below 90 %"), least >= 0.9, saw(least));
}

/// The cases that all policies run. With rare commands a run takes four times as long.
pub fn is_for_all(case: &Case) -> bool {
    !case.is_rare()
}

fn run(case: &Case, context: &Context<'_>) -> Result<Outcome, String> {
    let figures = planner::drive_figures(&case.profile);
    let targets = case.targets(context)?;
    let others = if is_for_all(case) { &OTHERS[..] } else { &[] };
    let mut seen = Vec::new();
    for contender in [OURS, LPNS].iter().chain(others) {
        let mut scenario = case.scenario(context, &targets, contender.warmup_ms());
        if others.contains(contender) {
            scenario.duration = Nanos(scenario.duration.0 / 2);
        }
        seen.push((*contender, got(&contender.play(&scenario, &figures)?, &targets)));
    }
    let scenario = case.scenario(context, &targets, WARMUP_FIXED_MS);
    let capped = |max_in_flight| Ok(got(&fixed::play(&scenario, max_in_flight)?, &targets));
    let best = best_cap(if case.group == STEADY { 1 } else { COARSE }, capped)?;
    Ok(Outcome { seen, best })
}

fn got(report: &Report, targets: &[Nanos]) -> Got {
    let (promised, others) = report.tenants.split_at(targets.len());
    let reached = promised.iter().zip(targets).map(|(tenant, target)| tenant.latency.p99_ns as f64 / target.0 as f64);
    Got {
        reached: reached.fold(0.0, f64::max),
        others_bytes_s: others.iter().map(|other| other.bandwidth_bytes_s).sum(),
    }
}

/// What the best of [`CAPS`] gives that keeps the promise: tried are every `every`th, and then those around the best.
fn best_cap(every: usize, capped: impl Fn(u32) -> Result<Got, String>) -> Result<Option<Got>, String> {
    let mut best: Option<(usize, Got)> = None;
    let better = |best: Option<(usize, Got)>, at, got: Got| {
        let is_better = got.reached <= KEPT && best.is_none_or(|(_, best)| got.others_bytes_s > best.others_bytes_s);
        if is_better { Some((at, got)) } else { best }
    };
    for (at, cap) in CAPS.into_iter().enumerate().step_by(every) {
        let got = capped(cap)?;
        best = better(best, at, got);
        if got.reached > HOPELESS {
            break;
        }
    }
    let Some((found, _)) = best else { return Ok(None) };
    let around = found.saturating_sub(every - 1)..(found + every).min(CAPS.len());
    for at in around.filter(|at| *at != found) {
        best = better(best, at, capped(CAPS[at])?);
    }
    Ok(best.map(|(_, got)| got))
}
