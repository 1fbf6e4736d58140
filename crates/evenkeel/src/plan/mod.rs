//! `evenkeel plan`: predicts what tenants will get from a drive, and which promises hold.
//!
//! | module | what |
//! | --- | --- |
//! | `addition` | `--add`: tenants that are not in the file |
//! | `choices` | the policies to compare |
//! | `report`, `text` | the output, as data and for people |
//! | `paste` | settings as a configuration spells them |
//! | `plot` | `--plot`: latency against load |

mod addition;
mod choices;
mod paste;
mod plot;
mod report;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use api::Items;
use config::Config;
use planner::{Outcome, Planner, Promise, Unmodelled, Unsolved, Verdict};
use policy::PolicyKind;
use promises::drive_profile;
use promises::forecasts::Forecasts;
use promises::planning::{self, Question};

use self::addition::Enlarged;
use self::choices::Choice;
use self::report::{
    Addition, AdviceRow, Drive, FloorRow, PolicyReport, PriceRow, PromiseRow, Report, Solution, TenantRow,
};
use crate::output::print;

/// Exit status if a promise does not hold, an addition does not fit, or there is no solution.
pub const EXIT_NOT_KEPT: u8 = 3;

/// Predict each tenant's latency and throughput, and which promises hold.
///
/// Compares the configured policy with all others, and can add a tenant. Needs neither the drive nor the daemon. Exit
/// status: 0 if every promise holds, 3 if one does not, 2 for bad input.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    config: PathBuf,

    /// Plan for this drive only. A tenant without a drive's name goes to the drive, taken as empty, on which all
    /// promises hold and the least space is left.
    #[arg(long, value_name = "NAME")]
    drive: Option<String>,

    /// Plan for this policy only, instead of the configured one and all others.
    #[arg(long, value_name = "NAME", value_parser = PolicyKind::NAMES)]
    policy: Option<String>,

    /// Check whether this tenant fits too. A file with a tenant section, or the tenant itself:
    /// name=web,class=guaranteed,latency_target=200us,rw=randread,bs=4k,iodepth=1. Can be given several times.
    #[arg(long, value_name = "TENANT")]
    add: Vec<String>,

    /// Search for priorities, weights, caps or a rate with which every promise holds, and print them as TOML.
    #[arg(long)]
    solve: bool,

    /// Also plot the latency of guaranteed tenants against the load, as an HTML page: plan.html.
    #[arg(long, value_name = "FILE", value_parser = plot::parse_path)]
    plot: Option<PathBuf>,

    /// Also show the in-order bounds: maximum latencies on a drive that serves waiting commands in order.
    #[arg(long)]
    verbose: bool,

    /// Print JSON, with one item per drive.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// Bad input, or output that can't be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let all = addition::load(&args.config, &args.add, args.drive.as_deref())?;
    if let [_, second, ..] = &all[..]
        && args.plot.is_some()
    {
        let names: Vec<&str> = all.iter().map(|it| it.config.device.name.as_str()).collect();
        let remedy = format!("say which one to draw: --drive {}", names.join(" or "));
        return Err(config::ConfigErrors::one(second.config.file(), "has several drives", remedy).into());
    }
    let reports = all.iter().map(|enlarged| plan(enlarged, args)).collect::<Result<Vec<_>>>()?;
    print(args.json, &Items { items: &reports }, || {
        reports.iter().map(|report| text::show(report, args.verbose)).collect::<Vec<_>>().join("\n")
    })?;
    let is_good = reports.iter().all(Report::is_good);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NOT_KEPT) })
}

/// What is said of searches that found less than there may be.
const SEARCH_ENDED: &str =
    "the search for changes and settings ended at its limit of played commands: there may be more";

/// Plans for one drive.
fn plan(enlarged: &Enlarged, args: &Args) -> Result<Report> {
    let config = &enlarged.config;
    let profile = drive_profile::load(&config.device.profile, |why| config.no_profile(why))?;
    let question = planning::of_config(config, &profile);
    let planner = Planner::new(&question.site);
    let choices = choices::choices(config, &profile, &question.tenants, args.policy.as_deref());
    if let Some(path) = &args.plot {
        plot::write(path, &question.site, &choices)?;
    }
    Ok(make(enlarged, &question, &planner, &choices, args.solve)?)
}

impl Report {
    /// Whether the answer is good: with --solve, a solution exists; with --add, the addition fits; otherwise every
    /// promise holds.
    fn is_good(&self) -> bool {
        let floors_fit = self.floors.iter().all(FloorRow::is_good);
        floors_fit
            && match (&self.solution, &self.addition) {
                (Some(solution), _) => solution.found,
                (None, Some(addition)) => addition.fits,
                (None, None) => self.policies.first().is_some_and(|policy| policy.promises_kept),
            }
    }
}

fn make(
    enlarged: &Enlarged,
    question: &Question,
    planner: &Planner<'_>,
    choices: &[Choice],
    solve: bool,
) -> Result<Report, config::ConfigErrors> {
    let Enlarged { config, present, .. } = enlarged;
    let outcomes = outcomes_of(question, choices);
    refuse_the_impossible(enlarged, question, &outcomes)?;

    let rows = TenantRow::all(config, &question.tenants, &question.assumed, *present);
    let each = choices.iter().zip(&outcomes);
    let policies: Vec<PolicyReport> =
        each.clone().map(|(choice, outcome)| PolicyReport::new(choice, outcome, &rows)).collect();
    let first = each.clone().next().and_then(|(choice, outcome)| Some((choice, outcome.as_ref().ok()?)));
    let floors = first.map(|(choice, outcome)| FloorRow::all(config, (planner, choice, outcome))).unwrap_or_default();
    let advice = first.map(|(choice, outcome)| AdviceRow::all(planner, choice, outcome)).unwrap_or_default();
    let prices = first.map(|(choice, outcome)| PriceRow::all(planner, choice, outcome)).unwrap_or_default();
    let solution = solve.then(|| solution_of(planner, config, choices, &rows).beside(&floors));
    let mut warnings = enlarged.warnings();
    warnings.extend(no_profile_warning(config));
    warnings.extend(planner.is_spent().then(|| SEARCH_ENDED.to_owned()));
    Ok(Report {
        config: config.file().to_owned(),
        drive: Drive {
            name: config.device.name.clone(),
            profile: config.device.profile.name(),
            named: config.device.profile_named,
        },
        warnings,
        advice,
        addition: (*present < rows.len()).then(|| addition_of(planner, choices, &policies, &rows, *present)),
        prices,
        solution,
        floors,
        tenants: rows,
        policies,
    })
}

/// The outcome of each choice, computed in parallel: with hundreds of tenants each takes a while.
fn outcomes_of(question: &Question, choices: &[Choice]) -> Vec<Result<Outcome, Unmodelled>> {
    let ask = |choice: &Choice| Planner::new(&question.site).outcome(&choice.policy, &choice.tenants);
    std::thread::scope(|scope| {
        let asked: Vec<_> = choices.iter().map(|choice| scope.spawn(move || ask(choice))).collect();
        let outcome = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        asked.into_iter().map(outcome).collect()
    })
}

fn no_profile_warning(config: &Config) -> Option<String> {
    let profile = config.device.profile.name();
    (!config.device.profile_named).then(|| {
        format!(
            "{}: {} names no drive profile, so this plan is for another drive, a {profile}; \
             measure yours with `evenkeel calibrate`, and name its profile: profile = \"drive.toml\"",
            config.file().display(),
            config.device.section()
        )
    })
}

/// Refuses a target below the drive's latency alone: a mistake in the file, whatever the policy.
fn refuse_the_impossible(
    enlarged: &Enlarged,
    question: &Question,
    outcomes: &[Result<Outcome, Unmodelled>],
) -> Result<(), config::ConfigErrors> {
    let (config, forecasts) = (&enlarged.config, Forecasts::default());
    let Some(outcome) = outcomes.iter().find_map(|outcome| outcome.as_ref().ok()) else { return Ok(()) };
    let problem = |promise: &Promise| {
        let tenant = config.tenants.get(promise.tenant)?;
        if !matches!(promise.verdict, Verdict::Impossible { .. }) {
            return None;
        }
        let what = format!("tenant {:?} can't be promised {}: {}", tenant.name, promise.target, promise.reason);
        (!tenant.overcommit).then(|| {
            let higher = forecasts.instead_of_impossible(question, promise.tenant);
            let remedy = format!("{higher}; or overcommit = true to go without the promise");
            config.promise_problem(promise.tenant, what, remedy)
        })
    };
    let problems: Vec<config::Problem> = outcome.promises.iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(enlarged.errors(problems)) }
}

/// Whether the tenants from `present` on fit under the first choice.
fn addition_of(
    planner: &Planner<'_>,
    choices: &[Choice],
    policies: &[PolicyReport],
    rows: &[TenantRow],
    present: usize,
) -> Addition {
    let tenants: Vec<String> = rows[present..].iter().map(|row| row.name.clone()).collect();
    let (fits, why) = match (choices.first(), policies.first()) {
        (_, Some(PolicyReport { unmodelled: Some(_), promises_kept: true, .. })) => {
            (true, "nobody is promised anything".to_owned())
        }
        (_, Some(PolicyReport { unmodelled: Some(why), .. })) => (false, format!("can't be said: {why}")),
        (Some(choice), Some(policy)) => {
            let before = planner.outcome(&choice.policy, &choice.tenants[..present.min(choice.tenants.len())]);
            let before = before.map(|outcome| PromiseRow::all(&outcome.promises, &choice.tenants, rows));
            fits(policy, &before.unwrap_or_default())
        }
        _ => (false, "there is no policy to plan for".to_owned()),
    };
    Addition { tenants, fits, why }
}

/// Whether it fits, and why. `before`: the promises without the addition.
fn fits(policy: &PolicyReport, before: &[PromiseRow]) -> (bool, String) {
    let broken = || policy.promises.iter().filter(|promise| !promise.is_good());
    let names = |broken: &[&PromiseRow]| {
        let names: Vec<String> = broken.iter().take(4).map(|promise| format!("{:?}", promise.tenant)).collect();
        let more = broken.len().saturating_sub(names.len());
        names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
    };
    let was_good = |promise: &&PromiseRow| {
        before.iter().find(|before| before.tenant == promise.tenant).is_none_or(PromiseRow::is_good)
    };
    let (newly, already): (Vec<&PromiseRow>, Vec<&PromiseRow>) = broken().partition(was_good);
    match (&newly[..], &already[..]) {
        ([], []) => (true, format!("every promise still holds under {}", policy.policy)),
        ([], already) => (
            false,
            format!("no promise suffers from it, but those to {} do not hold without it either", names(already)),
        ),
        ([first, ..], _) => (
            false,
            format!("the promise to {} would not hold under {}: {}", names(&newly), policy.policy, first.reason),
        ),
    }
}

fn solution_of(planner: &Planner<'_>, config: &Config, choices: &[Choice], rows: &[TenantRow]) -> Solution {
    // All choices have the same tenants except for priorities, which the search sets anyway if they count.
    let policies: Vec<_> = choices.iter().map(|choice| choice.policy.clone()).collect();
    let tenants = choices.first().map(|choice| &choice.tenants[..]).unwrap_or_default();
    let none = |promises: Vec<PromiseRow>, why: String| Solution {
        found: false,
        policy: None,
        policy_toml: None,
        priorities: Vec::new(),
        remove_priorities: false,
        promises,
        why,
    };
    match planner::solve(planner, &policies, tenants) {
        Ok(solution) => {
            let policy = &solution.policy;
            let unchanged = *policy == policies[0] && solution.tenants == tenants;
            let why = match unchanged {
                true => "every promised latency holds as it is configured".to_owned(),
                false => format!("every promised latency holds under {} with these settings", policy.name()),
            };
            Solution {
                found: true,
                policy: Some(policy.name()),
                policy_toml: Some(paste::section(policy, config)),
                priorities: paste::priorities(policy, config, &solution.tenants),
                remove_priorities: paste::must_lose_priorities(policy, config),
                promises: PromiseRow::all(&solution.outcome.promises, &solution.tenants, rows),
                why,
            }
        }
        Err(Unsolved::Impossible(promises)) => none(
            PromiseRow::all(&promises, tenants, rows),
            "no settings can help: the drive takes longer even for a lone command".to_owned(),
        ),
        Err(Unsolved::Closest { policy, broken }) => none(
            PromiseRow::all(&broken, tenants, rows),
            format!(
                "none of the settings that were tried is enough; the closest, under {}, breaks these",
                policy.name()
            ),
        ),
        Err(Unsolved::Unmodelled) => none(Vec::new(), "nothing can be said under any of the policies".to_owned()),
    }
}
