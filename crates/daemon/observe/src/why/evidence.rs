//! A slow spell of the history as the evidence of a verdict.

use history::{Comparison, Did, Promise};
use io_model::Nanos;
use planner::{Planner, Site, Tenant, Unmodelled};
use policy::{Class, Percentile};
use promises::planning::undeclared;

use crate::ceilings::{Load, Loads};
use crate::foresight::Foresight;
use crate::verdict::{Host, Lateness, Measured, Model, Party, Situation};

/// Forecasts by short plays: there are many questions, and an operator waits.
pub fn planner(site: &Site) -> Planner<'_> {
    let engine = Planner::new(site);
    Planner::with_model(site, move |policy, tenants| {
        Ok(engine.guess(policy, tenants).ok_or(Unmodelled::TooLong)?.forecast)
    })
}

/// The situation of `tenant` in a spell, its neighbours in the order of `comparison`. `is_restarted`: a daemon started
/// in that time. `foresight`: of the drive, if it is still served.
pub fn situation<'a>(
    tenant: &str,
    comparison: &Comparison,
    is_restarted: bool,
    foresight: Option<&Foresight>,
    model: Option<Model<'a>>,
) -> Situation<'a> {
    let Comparison { then, usual, starved, usual_starved, promise, weight, spell, .. } = comparison;
    let load = |did: &Did| Load::new(did.iops, did.bytes_s, did.read_share).starved(*starved);
    let others = comparison.neighbours.iter().map(|it| (it.name.as_str(), load(&it.then)));
    let loads: Loads<'_> = others.chain([(tenant, load(then))]).collect();
    let party = |name: &str, promised, then, usual| party(name, promised, (then, usual), foresight, &loads);
    // The history keeps no weights of neighbours.
    let neighbours = comparison.neighbours.iter();
    let restart = "another daemon started then, and commands waited for it; no tenant did more than usual";
    Situation {
        model,
        own: party(tenant, (*promise, *weight), then, usual.as_ref()),
        neighbours: neighbours.map(|it| party(&it.name, (it.promise, 0), &it.then, it.usual.as_ref())).collect(),
        host: Host {
            cpu_waited: *starved,
            cpu_waited_usually: *usual_starved,
            restart: is_restarted.then(|| restart.to_owned()),
        },
        span: Nanos::from_millis(spell.to_unix_ms - spell.from_unix_ms),
        overdue: 0,
        usual_time: Nanos::from_millis(spell.usual_ms),
    }
}

fn party(
    name: &str,
    promised: (Promise, u32),
    (then, usual): (&Did, Option<&Did>),
    foresight: Option<&Foresight>,
    loads: &Loads<'_>,
) -> Party {
    let (asks, is_assumed) = asks(name, promised, foresight);
    let held_to = foresight.and_then(|it| it.ceiling_named(name, loads));
    Party { asks, is_assumed, held_to, now: measured(then), usual: usual.map(measured) }
}

/// The expected demand of a tenant. One that left is taken for one without a declared demand.
fn asks(name: &str, (promise, weight): (Promise, u32), foresight: Option<&Foresight>) -> (Tenant, bool) {
    let class = match promise {
        Promise::Target { ns, late_ppm } => {
            Class::Guaranteed { latency_target: Some(Nanos(ns)), percentile: Percentile::from_late_ppm(late_ppm) }
        }
        Promise::Unnamed => Class::guaranteed(None),
        Promise::None => Class::BestEffort { weight: weight.max(1) },
    };
    match foresight.and_then(|foresight| foresight.asks(name)) {
        Some((asks, assumed)) => {
            let is_weighed =
                weight == 0 && matches!((asks.class, class), (Class::BestEffort { .. }, Class::BestEffort { .. }));
            let class = if is_weighed { asks.class } else { class };
            (Tenant { class, ..asks.clone() }, assumed)
        }
        None => (Tenant { name: name.to_owned(), class, ..undeclared(class.is_guaranteed()) }, true),
    }
}

fn measured(did: &Did) -> Measured {
    Measured {
        iops: did.iops,
        read_share: did.read_share,
        mean_len_bytes: did.mean_len_bytes(),
        mean: Nanos(did.mean_ns as u64),
        at_percentile: Nanos(did.at_percentile_ns),
        served: Nanos(did.served_ns as u64),
        lateness: Lateness { late: did.late_part, stalled: did.stalled },
    }
}
