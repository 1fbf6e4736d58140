//! How soon a policy follows what changes: a neighbour that starts, one that stops, a promised tenant that wakes.

use io_model::Nanos;
use sim::workload::{AWAKE, Access, Phase, Phases, Workload};
use sim::{Report, Scenario, Window};
use ssd_model::Profile;

use super::cases::{Case, Group, MIXES, Mix, Neighbour, Promised};
use super::contenders::{Contender, LPNS, OURS};
use super::price::KEPT;
use super::{fixed, median, medium_drives, reads, some, worst};
use crate::paper::Paper;
use crate::report::{Figure, Row, Table};
use crate::runner::{Context, Error};

const CONTENDERS: [Contender; 2] = [OURS, LPNS];
const SECOND: Nanos = Nanos::from_millis(1_000);
/// Before a neighbour starts or stops.
const BEFORE: Nanos = Nanos::from_millis(3_000);
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

impl Change {
    const ALL: [Self; 4] = [Self::Starts, Self::Joins, Self::Stops, Self::Wakes];

    fn name(self) -> &'static str {
        match self {
            Self::Starts => "a neighbour starts where there was none",
            Self::Joins => "a neighbour starts beside another",
            Self::Stops => "one of two neighbours stops",
            Self::Wakes => "the promised tenant wakes",
        }
    }

    fn metric(self) -> &'static str {
        match self {
            Self::Starts | Self::Joins => "late commands in the second in which a neighbour starts (%)",
            Self::Stops => "time until a stopped neighbour's share is used (ms)",
            Self::Wakes => "99th percentile from the 20th command after a silence on, of the target (%)",
        }
    }

    /// The most that is asked for.
    fn most(self) -> f64 {
        match self {
            Self::Starts | Self::Joins => 1.0,
            Self::Stops => 50.0,
            Self::Wakes => 100.0,
        }
    }
}

struct Run {
    profile: &'static Profile,
    mix: &'static Mix,
    change: Change,
}

impl Run {
    fn name(&self) -> String {
        format!("{}, {}, {}", self.profile.name, self.mix.name, self.change.name())
    }

    fn case(&self, context: &Context<'_>) -> Case {
        let (on, off) = (context.span(SECOND), context.span(BEFORE));
        let (busy, idle) = (self.mix.busy(), Neighbour { jobs: 1, workload: Workload::Idle });
        let starts = self.mix.in_turn(on, off, false);
        let neighbours = match self.change {
            Change::Starts => [starts, idle],
            Change::Joins => [starts, busy],
            Change::Stops => [busy, self.mix.in_turn(off, on, true)],
            Change::Wakes => [busy.clone(), busy],
        };
        let workload = if self.change == Change::Wakes { waking(context) } else { reads() };
        let promised = Promised { workload, ..Promised::back_to_back(4.0) };
        Case::new(Group::Steady, self.profile, self.change.name(), vec![promised], neighbours)
    }

    fn play(&self, context: &Context<'_>) -> Result<Outcome, String> {
        let case = self.case(context);
        let figures = planner::drive_figures(self.profile);
        let targets = case.targets(context)?;
        let seen = |play: &dyn Fn(&Scenario) -> Result<Report, String>| {
            let mut scenario = case.scenario(context, &targets, BEFORE);
            scenario.duration = context.span(SECOND);
            scenario.window = context.span(WINDOW).min(WINDOW);
            if self.change == Change::Wakes {
                let round_ns = (context.span(SILENCE) + context.span(WOKEN)).0;
                (scenario.warmup, scenario.duration) = (Nanos(round_ns * SILENCES.0), Nanos(round_ns * SILENCES.1));
            }
            let report = play(&scenario)?;
            Ok::<_, String>(match self.change {
                Change::Starts | Change::Joins => late_percent(&report),
                Change::Stops => used_after(&report.tenants[1].windows, scenario.window),
                Change::Wakes => awake_percent(&report, targets[0]),
            })
        };
        let under = |contender: &Contender| seen(&|scenario| contender.play(scenario, &figures));
        let at_least = match self.change {
            Change::Stops => 0.0,
            _ => seen(&|scenario| fixed::play(scenario, 1))?,
        };
        Ok(Outcome { seen: CONTENDERS.iter().map(under).collect::<Result<_, _>>()?, at_least })
    }
}

/// What is asked for.
struct Outcome {
    /// Under each policy.
    seen: Vec<f64>,
    /// However little others may have: one command at a time.
    at_least: f64,
}

/// Nothing, and then reads back to back for a while.
fn waking(context: &Context<'_>) -> Workload {
    let phases = vec![
        Phase { lasts: context.span(SILENCE), access: None },
        Phase { lasts: context.span(WOKEN), access: Some(Access::random_4k(100)) },
    ];
    Workload::Phases(Phases { jobs: 1, iodepth: 1, phases })
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
    let mut figure = Figure::new(Paper::Policy, "reaction", "How soon a policy follows");
    figure.shows = "A tenant with a promise of 4 times what its commands take alone reads back to back. A neighbour \
        starts at full depth, one of two stops, or the promised tenant itself begins again after 1.5 s of silence."
        .into();
    figure.goal = "At most 1 % late commands in the second in which a neighbour starts; a stopped one's share used \
        within 50 ms; from its 20th command on a tenant that wakes keeps its target"
        .into();
    figure.assume(
        "3 s before a neighbour starts or stops: of one that starts where none was, only the profile is known.",
    );
    figure.assume(
        "A share counts as used in the first 10 ms in which the other one gets nine tenths of what it has half a \
         second later.",
    );
    figure.assume("Of a tenant that wakes the commands of 50 ms count, four times.");
    figure.assume(
        "What is missed even while others have no more than one command at a time with the drive (a fixed cap of 1) \
         is shown and counts for nobody.",
    );
    let runs = medium_drives()
        .flat_map(|profile| Change::ALL.map(|change| (profile, change)))
        .flat_map(|(profile, change)| MIXES.iter().map(move |mix| Run { profile, mix, change }));
    let runs = some(context, runs.collect());
    let seen = context.all(&runs, Run::name, |run| run.play(context))?;
    draw(&mut figure, &runs.iter().zip(&seen).collect::<Vec<_>>());
    figure.deviation = Some(WHY.to_owned());
    Ok(vec![figure])
}

fn draw(figure: &mut Figure, seen: &[(&Run, &Outcome)]) {
    let mut table = Table::new("Over three drives and five mixes of neighbours", &["what happens", "what is seen"]);
    let columns = CONTENDERS.iter().flat_map(|it| [format!("{}, median", it.name()), format!("{}, worst", it.name())]);
    table.head.extend(columns);
    for change in Change::ALL {
        let of_change = seen.iter().filter(|(run, _)| run.change == change);
        for (run, outcome) in of_change.clone() {
            for (contender, value) in CONTENDERS.iter().zip(&outcome.seen) {
                figure.push(Row::new(&contender.name(), run.name(), change.metric(), *value));
            }
            if change != Change::Stops {
                figure.push(Row::new(ONE_AT_A_TIME, run.name(), change.metric(), outcome.at_least));
            }
        }
        let is_met = |value: f64| value <= change.most() * KEPT;
        let can_be_met = of_change.map(|(_, outcome)| *outcome).filter(|outcome| is_met(outcome.at_least));
        let values = |at: usize| can_be_met.clone().map(|outcome| outcome.seen[at]).collect::<Vec<f64>>();
        let shown = (0..CONTENDERS.len()).flat_map(|at| [median(values(at)), worst(&values(at))]);
        let shown = shown.map(|value| format!("{value:.1}"));
        table.rows.push([change.name(), change.metric()].map(str::to_owned).into_iter().chain(shown).collect());
        let ours = values(0);
        let met = ours.iter().filter(|value| is_met(**value)).count();
        figure.demand(
            format!("{}: {}: at most {}", change.name(), change.metric(), change.most()),
            met == ours.len(),
            format!("{met} of {}; {:.1} at worst", ours.len(), worst(&ours)),
        );
    }
    figure.tables.push(table);
}

const ONE_AT_A_TIME: &str = "one command of others";

const WHY: &str = "A cap is set anew each 10 ms, from what the promised tenant's commands met before. Beside a \
    neighbour that starts it is the profile's at first, or that of another load: too high for large commands and \
    where reads wait for programs of the flash. Beside 64 KiB writes such reads are late although others have one \
    command at a time. A tenant that was silent for more than a second holds nobody back; \
    when it wakes, all pollers are told at once, and it waits for what others have with the drive by then.";

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
