//! How soon a policy follows what changes: a neighbour that starts, one that stops, a promised tenant that wakes.

use io_model::Nanos;
use sim::workload::{AWAKE, Access, Phase, Phases, Workload};
use sim::{Report, Window};
use ssd_model::Profile;

use super::cases::{Case, MIXES, Mix, Neighbour, Promised, STEADY};
use super::contenders::{Contender, LPNS, OURS};
use super::price::KEPT;
use super::{fixed, median, medium_drives, some};
use crate::papers::bench::{each, most};
use crate::report::{Figure, Table};
use crate::runner::{Context, Error};

const CONTENDERS: [Contender; 2] = [OURS, LPNS];
const SECOND: Nanos = Nanos::from_millis(1_000);
/// Before a neighbour starts or stops.
const BEFORE_MS: u64 = 3_000;
/// To see how fast a share is taken.
const WINDOW: Nanos = Nanos::from_millis(10);
/// Of what one has of the drive in the end: then the other one's share is used.
const USED: f64 = 0.9;
/// Longer than anybody remembers, in these policies.
const SILENCE: Nanos = Nanos::from_millis(1_500);
const WOKEN: Nanos = Nanos::from_millis(50);
/// Silences before the measured ones, and those.
const SILENCES: (u64, u64) = (2, 4);

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// A neighbour starts at full depth, where there was none.
    Starts,
    /// A neighbour comes beside another one that is there all the time.
    Joins,
    /// One of two neighbours stops.
    Stops,
    /// The promised tenant begins again after a silence.
    Wakes,
}

const LATE: &str = "late commands in the second in which a neighbour starts (%)";
const USED_AFTER: &str = "time until a stopped neighbour's share is used (ms)";
const AWAKE_P99: &str = "99th percentile from the 20th command after a silence on, of the target (%)";
/// What happens, in words, what is seen, and the most that is asked for.
const CHANGES: [(Change, &str, &str, f64); 4] = [
    (Change::Starts, "a neighbour starts where there was none", LATE, 1.0),
    (Change::Joins, "a neighbour starts beside another", LATE, 1.0),
    (Change::Stops, "one of two neighbours stops", USED_AFTER, 50.0),
    (Change::Wakes, "the promised tenant wakes", AWAKE_P99, 100.0),
];

/// What is seen under each policy, and at least: with one command of others at a time.
type Outcome = ([f64; CONTENDERS.len()], f64);

fn case(context: &Context<'_>, profile: &Profile, change: Change, name: &str, mix: &Mix) -> Case {
    let (on, off) = (context.span(SECOND), context.span(Nanos::from_millis(BEFORE_MS)));
    let (busy, idle) = (mix.busy(), Neighbour { jobs: 1, workload: Workload::Idle });
    let starts = mix.in_turn(on, off, false);
    let neighbours = match change {
        Change::Starts => [starts, idle],
        Change::Joins => [starts, busy],
        Change::Stops => [busy, mix.in_turn(off, on, true)],
        Change::Wakes => [busy.clone(), busy],
    };
    let mut promised = Promised::back_to_back(4.0);
    if change == Change::Wakes {
        let sleeps = Phase { lasts: context.span(SILENCE), access: None };
        let reads = Phase { lasts: context.span(WOKEN), access: Some(Access::random_4k(100)) };
        promised.workload = Workload::Phases(Phases { jobs: 1, iodepth: 1, phases: vec![sleeps, reads] });
    }
    Case::new(STEADY, profile, name, vec![promised], neighbours)
}

fn play(context: &Context<'_>, change: Change, case: &Case) -> Result<Outcome, String> {
    let figures = planner::drive_figures(&case.profile);
    let targets = case.targets(context)?;
    let mut scenario = case.scenario(context, &targets, BEFORE_MS);
    scenario.duration = context.span(SECOND);
    scenario.window = context.span(WINDOW).min(WINDOW);
    if change == Change::Wakes {
        let round_ns = (context.span(SILENCE) + context.span(WOKEN)).0;
        (scenario.warmup, scenario.duration) = (Nanos(round_ns * SILENCES.0), Nanos(round_ns * SILENCES.1));
    }
    let seen = |report: &Report| match change {
        Change::Starts | Change::Joins => late_percent(report),
        Change::Stops => used_after(&report.tenants[1].windows, scenario.window),
        Change::Wakes => awake_percent(report, targets[0]),
    };
    let under = |contender: Contender| Ok::<_, String>(seen(&contender.play(&scenario, &figures)?));
    let at_least = if change == Change::Stops { 0.0 } else { seen(&fixed::play(&scenario, 1)?) };
    Ok(([under(OURS)?, under(LPNS)?], at_least))
}

fn late_percent(report: &Report) -> f64 {
    let promised = &report.tenants[0];
    promised.over_target as f64 / promised.latency.count.max(1) as f64 * 100.0
}

fn awake_percent(report: &Report, target: Nanos) -> f64 {
    let awake = report.tenants[0].operations.get(AWAKE);
    awake.map_or(f64::NAN, |awake| awake.p99_ns as f64 / target.0 as f64 * 100.0)
}

/// When a tenant first got what it gets in the second half, in ms.
fn used_after(windows: &[Window], window: Nanos) -> f64 {
    let half = windows.len() / 2;
    let settled = windows[half..].iter().map(|it| it.bytes as f64).sum::<f64>() / (windows.len() - half) as f64;
    let at = windows.iter().position(|it| it.bytes as f64 >= settled * USED);
    at.map_or(f64::NAN, |at| (at + 1) as f64 * window.0 as f64 / 1e6)
}

pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("reaction");
    let runs = some(context, each(each(medium_drives(), CHANGES), &MIXES));
    let seen = context.all(runs, |((profile, (change, name, ..)), mix)| {
        play(context, *change, &case(context, profile, *change, name, mix))
    })?;
    let mut table = Table::new("Over three drives and five mixes of neighbours", &["what happens", "what is seen"]);
    let columns = CONTENDERS.map(|it| [format!("{}, median", it.name()), format!("{}, worst", it.name())]);
    table.head.extend(columns.into_iter().flatten());
    for (change, name, metric, limit) in CHANGES {
        let is_met = |value: f64| value <= limit * KEPT;
        let mut can_be_met = [const { Vec::new() }; CONTENDERS.len()];
        for (((profile, _), mix), (values, at_least)) in seen.iter().filter(|(((_, it), _), _)| it.0 == change) {
            let run = format!("{}, {}, {name}", profile.name, mix.name);
            for ((contender, value), met) in CONTENDERS.iter().zip(values).zip(&mut can_be_met) {
                figure.show(&contender.name(), run.as_str(), metric, *value);
                met.extend(Some(*value).filter(|_| is_met(*at_least)));
            }
            if change != Change::Stops {
                figure.show("one command of others", run, metric, *at_least);
            }
        }
        let shown = can_be_met.iter().flat_map(|values| [median(values.clone()), most(values)]);
        let shown = shown.map(|value| format!("{value:.1}"));
        table.rows.push([name, metric].map(str::to_owned).into_iter().chain(shown).collect());
        let ours = &can_be_met[0];
        let met = ours.iter().filter(|value| is_met(**value)).count();
        let saw = format!("{met} of {}; {:.1} at worst", ours.len(), most(ours));
        figure.demand(format!("{name}: {metric}: at most {limit}"), met == ours.len(), saw);
    }
    figure.tables.push(table);
    Ok(vec![figure])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_used_once_the_other_has_it() {
        let window = |bytes| Window { bytes, ..Window::default() };
        let windows = [50, 60, 95, 100, 100, 100].map(window);
        assert_eq!(used_after(&windows, Nanos::from_millis(10)), 30.0);
    }
}
