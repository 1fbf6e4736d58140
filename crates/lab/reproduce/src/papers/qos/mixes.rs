//! Random mixes of tenants: what is forecast beforehand beside what a ten times longer simulation shows.
//!
//! A forecast is itself a play of the engine. So this says how much a play of a second's work can tell, not whether the
//! engine is right: the longer simulation has another seed, and the daemon's own figures are in docs/PERFORMANCE.md.

mod draw;

use engine::Effort;
use planner::{FULL, Forecast, Load};
use sim::TenantReport;

use crate::report::Figure;
use crate::runner::{Context, Error};
use draw::{Mix, POLICIES, draw, policy};

/// Mixes, and how many of them where a look is all that is wanted.
const MIXES: u64 = 500;
const FEW: u64 = 6;
/// Seeds of one set; the next set's begin so much later.
const SETS: u64 = 1_000;
/// The simulation's part of the random numbers.
const OTHER_SEED: u64 = 0x5EED;
/// How much longer than a forecast the simulation is.
const LONGER: u64 = 10;

/// Fewer commands than this show no mean.
const LEAST_SEEN: u64 = 1_000;
/// An open load that gets less than this part of what it asks for waits longer and longer: it has no mean latency.
const SERVED: f64 = 0.97;

/// The metrics, in the order of [`Seen`].
const METRICS: [&str; 4] = [
    "error of the throughput (%)",
    "error of the mean latency (%)",
    "error of the 99th percentile (%)",
    "bound over the longest latency seen",
];
const BOUND: usize = 3;

/// Of ourselves, for each of the first three metrics and each policy: a part of all tenants, and the largest error in
/// percent.
const LIMITS: [(&str, f64, f64); 2] = [("half", 0.5, 2.0), ("95 of 100", 0.95, 8.0)];

/// Of ourselves: promises that are wrongly made, and wrongly refused, in percent of all.
const WRONGLY_MADE: f64 = 1.0;
const WRONGLY_REFUSED: f64 = 5.0;

/// One tenant's [`METRICS`], forecast over simulated: the throughput, the latencies of a load that is served, and the
/// bound if it has one.
type Seen = [Option<f64>; METRICS.len()];

/// All tenants of one mix.
struct Played {
    policy: &'static str,
    drive: String,
    /// Of each promise whether it was forecast to hold, and whether it did.
    promises: Vec<(bool, bool)>,
    tenants: Vec<Seen>,
}

/// Each mix is on one of the drives and under one of the policies, in turn.
fn policy_of(mix: &Mix) -> &'static str {
    POLICIES[(mix.seed % POLICIES.len() as u64) as usize]
}

fn play(mix: &Mix, longer: u64) -> Result<Played, String> {
    let name = policy_of(mix);
    let policy = policy(name, mix);
    let planner = planner::Planner::new(&mix.site);
    let outcome = planner.outcome(&policy, &mix.tenants).map_err(|error| error.to_string())?;
    let mut scenario = planner::scenario(&mix.site, &policy, &mix.tenants);
    scenario.seed = mix.seed ^ OTHER_SEED;
    scenario.duration.0 *= longer;
    let effort = Effort { ios: longer * FULL.ios, each: longer * FULL.each };
    let report = engine::play_within(&scenario, effort, &|| false).map_err(|error| error.to_string())?;
    let seen = report.ok_or("it was cut off")?.tenants;
    let judged = outcome.promises.iter().zip(seen.iter().filter(|seen| seen.target_ns.is_some()));
    let promises = judged.filter_map(|(promise, seen)| Some((promise.verdict.is_kept(), seen.kept?))).collect();
    let drive = mix.site.profile.name.to_string();
    Ok(Played { policy: name, drive, promises, tenants: compare(mix, &outcome.forecast, &seen) })
}

fn compare(mix: &Mix, forecast: &Forecast, seen: &[TenantReport]) -> Vec<Seen> {
    let pairs = mix.tenants.iter().zip(&forecast.tenants).zip(seen);
    let pairs = pairs.filter(|(_, seen)| seen.latency.count >= LEAST_SEEN);
    let seen = pairs.map(|((tenant, said), seen)| {
        let served = match tenant.load {
            Load::Closed { .. } => true,
            Load::Open { rate_iops } => said.iops.min(seen.iops) >= SERVED * rate_iops,
        };
        let latency = &seen.latency;
        [
            Some(said.iops / seen.iops),
            served.then(|| said.mean.0 as f64 / latency.mean_ns),
            served.then(|| said.p99.0 as f64 / latency.p99_ns as f64),
            said.bound.map(|bound| bound.0 as f64 / latency.max_ns as f64),
        ]
    });
    seen.collect()
}

/// A percentile of a metric: of how far ratios are from 1, in percent, or of the bounds themselves.
fn percentile(seen: &[Seen], metric: usize, part: f64) -> Option<f64> {
    let error = |ratio: f64| if metric == BOUND { ratio } else { (ratio - 1.0).abs() * 100.0 };
    let mut values: Vec<f64> = seen.iter().filter_map(|one| one[metric]).map(error).collect();
    values.sort_by(f64::total_cmp);
    values.get(((values.len().max(1) - 1) as f64 * part).round() as usize).copied()
}

/// The distribution of the errors of some tenants, as rows at `x`.
fn rows(figure: &mut Figure, x: &str, seen: &[Seen]) {
    for (series, part) in [("median", 0.5), ("90th percentile", 0.9), ("95th percentile", 0.95)] {
        for (at, metric) in METRICS.into_iter().enumerate() {
            percentile(seen, at, part).into_iter().for_each(|value| figure.show(series, x, metric, value));
        }
    }
}

/// The figure.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let first = context.seed().wrapping_mul(SETS);
    let (count, longer) = if context.is_quick() { (FEW, 1) } else { (MIXES, LONGER) };
    let mixes: Vec<Mix> = (0..count).map(|at| draw(first.wrapping_add(at))).collect();
    let played = context.all(mixes, |mix| play(mix, longer))?;
    let mut figure = context.figure("mixes");
    figure.assumptions.insert(0, format!("Seeds {first} to {}.", first.wrapping_add(count - 1)));
    let of = |keep: &dyn Fn(&Played) -> bool| -> Vec<Seen> {
        played.iter().map(|(_, one)| one).filter(|one| keep(one)).flat_map(|one| one.tenants.iter().copied()).collect()
    };
    let all = of(&|_| true);
    rows(&mut figure, "all", &all);
    for policy in POLICIES {
        let seen = of(&|one| one.policy == policy);
        rows(&mut figure, policy, &seen);
        for (many, part, limit) in LIMITS.into_iter().filter(|_| !context.is_quick()) {
            let errors = (0..BOUND).filter_map(|metric| percentile(&seen, metric, part));
            let worst = errors.fold(0.0, f64::max);
            let saw = format!("{worst:.1} % of {} tenants", seen.len());
            figure.demand(format!("{policy}: {many} of each metric are within {limit:.0} %"), worst <= limit, saw);
        }
    }
    for profile in ssd_model::Profile::names() {
        rows(&mut figure, profile, &of(&|one| one.drive == profile));
    }
    let promises: Vec<(bool, bool)> = played.iter().flat_map(|(_, one)| one.promises.iter().copied()).collect();
    confusion(&mut figure, &promises, !context.is_quick());
    let bounds: Vec<f64> = all.iter().filter_map(|one| one[BOUND]).collect();
    let exceeded = bounds.iter().filter(|ratio| **ratio < 1.0).count();
    figure.demand(
        "no command takes longer than its bound",
        exceeded == 0,
        format!("{exceeded} of {} tenants with a bound exceeded it", bounds.len()),
    );
    Ok(vec![figure])
}

/// Promises by what was forecast of them, and what became of them. A look is too short to judge.
fn confusion(figure: &mut Figure, promises: &[(bool, bool)], is_judged: bool) {
    let percent = |said: bool, seen: bool| {
        let count = promises.iter().filter(|one| **one == (said, seen)).count();
        100.0 * count as f64 / promises.len().max(1) as f64
    };
    for (said, series) in [(true, "promised"), (false, "refused")] {
        for (seen, x) in [(true, "kept"), (false, "broken")] {
            figure.show(series, x, "of all promises (%)", percent(said, seen));
        }
    }
    for (what, said, seen, limit) in
        [("promised and broken", true, false, WRONGLY_MADE), ("refused and kept", false, true, WRONGLY_REFUSED)]
            .into_iter()
            .filter(|_| is_judged)
    {
        let part = percent(said, seen);
        let saw = format!("{part:.1} % of {} promises", promises.len());
        figure.demand(format!("at most {limit:.0} % are {what}"), part <= limit, saw);
    }
}
