//! From a comparison to an answer.

use std::collections::BTreeSet;

use api::{NeighbourThen, Why};
use history::{Comparison, Did, Promise};
use io_model::Nanos;
use policy::Percentile;

use super::evidence;
use crate::foresight::Foresight;
use crate::verdict::{self, Model, Situation, remedies};

/// All but the events. `is_restarted`: a daemon started in that time. `foresight`: of the drive, if it is still served.
/// `declared`: the disks that the configuration file declares.
pub fn tell(
    tenant: &str,
    comparison: &Comparison,
    is_restarted: bool,
    foresight: Option<&Foresight>,
    declared: &BTreeSet<String>,
    notes: &mut Vec<String>,
) -> Why {
    let model = foresight.and_then(Foresight::model).filter(|(_, now)| now.name() == comparison.policy);
    if model.is_none() {
        notes.push(no_model(comparison, foresight));
    }
    let planner = model.map(|(site, _)| evidence::planner(site));
    let model = planner.as_ref().zip(model).map(|(planner, (_, policy))| Model { planner, policy });
    let situation = evidence::situation(tenant, comparison, is_restarted, foresight, model);
    let is_slow = comparison.spell.is_slow == Some(true);
    let cause = is_slow.then(|| verdict::cause(&situation)).flatten();
    let remedies = cause.as_ref().map(|cause| remedies::remedies(&situation, cause, &comparison.drive, declared));
    let alone = alone_mean(&situation);
    let promised = |promise| match promise {
        Promise::Target { ns, late_ppm } => {
            Some((Nanos(ns).as_micros_f64(), Percentile::from_late_ppm(late_ppm).percent()))
        }
        Promise::Unnamed | Promise::None => None,
    };
    let target = |promise| promised(promise).map(|(target_us, _)| target_us);
    let labels = |name: &str| foresight.map(|foresight| foresight.labels_of(name)).unwrap_or_default();
    let mut neighbours: Vec<_> = comparison.neighbours.iter().zip(&situation.neighbours).collect();
    neighbours.sort_by(|(_, one), (_, other)| other.growth().total_cmp(&one.growth()));
    let neighbours = neighbours.into_iter().map(|(it, party)| NeighbourThen {
        name: it.name.clone(),
        labels: labels(&it.name),
        latency_target_us: target(it.promise),
        then: row(&it.then),
        usual: it.usual.as_ref().map(row),
        grew: party.is_grown(),
    });
    let spell = &comparison.spell;
    Why {
        tenant: tenant.to_owned(),
        labels: labels(tenant),
        drive: comparison.drive.clone(),
        policy: comparison.policy.clone(),
        latency_target_us: target(comparison.promise),
        latency_percentile: promised(comparison.promise).map(|(_, percent)| percent),
        weight: (comparison.promise == Promise::None).then_some(comparison.weight),
        from_unix_ms: spell.from_unix_ms,
        to_unix_ms: spell.to_unix_ms,
        slow: spell.is_slow,
        summaries: spell.intervals as u64,
        summaries_asked: spell.of as u64,
        summaries_usual: spell.usual as u64,
        then: row(&comparison.then),
        usual: comparison.usual.as_ref().map(row),
        alone_mean_us: alone.map(Nanos::as_micros_f64),
        cpu_wait_percent: comparison.starved * 100.0,
        cpu_wait_usual_percent: comparison.usual_starved.map(|starved| starved * 100.0),
        neighbours: neighbours.collect(),
        blame: cause.map(|cause| cause.row(&situation)),
        remedies: remedies.unwrap_or_default(),
        events: Vec::new(),
        notes: Vec::new(),
    }
}

fn no_model(comparison: &Comparison, foresight: Option<&Foresight>) -> String {
    let why = match foresight.and_then(Foresight::model) {
        None if foresight.is_none() => format!("drive {:?} is not served now", comparison.drive),
        None => "the configuration does not name the drive's profile".to_owned(),
        Some((_, now)) => format!("the policy was {}, and is {} now", comparison.policy, now.name()),
    };
    format!("no model was asked: {why}")
}

/// The mean latency of the tenant's load if it had the drive alone.
fn alone_mean(situation: &Situation<'_>) -> Option<Nanos> {
    let asks = situation.own.now.as_demand(&situation.own.asks)?;
    let model = situation.model?;
    Some(model.of_first(model.policy, std::slice::from_ref(&asks))?.mean)
}

fn row(did: &Did) -> api::Did {
    api::Did {
        iops: did.iops,
        bw_bytes: did.bytes_s,
        read_percent: did.read_share * 100.0,
        mean_len_bytes: did.mean_len_bytes(),
        outstanding: did.outstanding(),
        mean_us: did.mean_ns / 1e3,
        waited_us: did.waited_ns() / 1e3,
        served_us: did.served_ns / 1e3,
        p99_us: Nanos(did.p99_ns).as_micros_f64(),
        at_percentile_us: Nanos(did.at_percentile_ns).as_micros_f64(),
        max_us: Nanos(did.max_ns).as_micros_f64(),
        late: did.late,
        stalled_percent: did.stalled * 100.0,
        errors: did.errors,
    }
}
