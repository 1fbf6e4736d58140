//! What would have helped: tried out on the model where there is one, and said not to be where there is none.

use std::collections::BTreeSet;

use api::Remedy;
use history::{Comparison, Did, Neighbour, Promise};
use io_model::Nanos;
use io_model::units::{Bandwidth, Rate};
use planner::{Load, Tenant};
use policy::{Class, PolicyKind};

use super::model::Scene;

/// The cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The tenant's own load.
    Own,
    /// The tenant's own limits.
    Limits,
    /// A neighbour, by its index.
    Neighbour(usize),
    /// The drive.
    Drive,
    /// The host.
    Host,
    /// The host's too: for a while there was no daemon.
    Restart,
}

/// Parts of what a neighbour did that are tried as its limit, the largest first.
const PARTS: [f64; 6] = [0.5, 0.25, 0.1, 0.05, 0.02, 0.01];

/// A limit leaves a neighbour this much more than it usually does.
const ROOM: f64 = 1.2;

/// Commands of this size and more are limited by their bytes.
const LARGE_BYTES: f64 = 32_768.0;

/// What may be above what is usual, for a tenant without a target.
const GOAL: f64 = 1.25;

/// How a command begins that changes a tenant.
const SET: &str = "evenkeel disk set ";

/// What would have helped, the most specific first. `declared`: the tenants that the configuration file declares.
pub fn of(
    tenant: &str,
    fault: Fault,
    comparison: &Comparison,
    scene: Option<&Scene<'_>>,
    declared: &BTreeSet<String>,
) -> Vec<Remedy> {
    let mut remedies = thought_of(tenant, fault, comparison, scene);
    let was_us = Nanos(comparison.then.at_percentile_ns).as_micros_f64();
    // Where the mean was slow and what was promised was not.
    remedies.retain(|it| it.predicted_us.is_none_or(|predicted_us| predicted_us < was_us));
    for remedy in &mut remedies {
        let of = remedy.command.as_ref().and_then(|it| it.strip_prefix(SET)?.split(' ').next());
        if let Some(name) = of.filter(|name| declared.contains(*name)) {
            remedy.what += &format!("; the configuration file declares {name:?}: write it there, and `evenkeel apply`");
            remedy.command = None;
        }
    }
    remedies
}

fn thought_of(tenant: &str, fault: Fault, comparison: &Comparison, scene: Option<&Scene<'_>>) -> Vec<Remedy> {
    let plain = |what: String, command: Option<String>| Remedy { what, command, predicted_us: None };
    match fault {
        Fault::Neighbour(at) => {
            let Some(neighbour) = comparison.neighbours.get(at) else { return Vec::new() };
            let goal = goal(comparison, scene);
            let limit = limit(at, neighbour, goal, scene);
            let promised = promise(tenant, at, comparison, goal, scene);
            limit.into_iter().chain(promised).collect()
        }
        Fault::Own => {
            let what = "it asked for more than its latency bears: let it keep fewer commands outstanding, or allow it \
                        a higher latency";
            vec![plain(what.to_owned(), None)]
        }
        Fault::Limits => {
            let what = format!("a higher limit for {tenant:?}, which is held by its own");
            vec![plain(what, Some(format!("{SET}{tenant} --rw-iops …")))]
        }
        Fault::Drive => {
            let drive = &comparison.drive;
            let what = format!(
                "see what drive {drive:?} says of its health; if it is well, its profile may be another drive's: \
                 `evenkeel calibrate` measures it"
            );
            vec![plain(what, Some("evenkeel drive list".to_owned()))]
        }
        Fault::Restart => Vec::new(),
        Fault::Host => {
            let what = "CPUs that the pollers have to themselves: [pollers] cpus in the configuration, or fewer \
                        pollers (threads = \"shared\")";
            vec![plain(what.to_owned(), None)]
        }
    }
}

/// The latency that the promised percentage of commands, or 99 %, should meet: the target, or what the model predicts
/// for the usual time.
fn goal(comparison: &Comparison, scene: Option<&Scene<'_>>) -> Option<Nanos> {
    if let Promise::Target { ns, .. } = comparison.promise {
        return Some(Nanos(ns));
    }
    let usual = scene.and_then(Scene::usually_takes)?;
    Some(Nanos((usual.0 as f64 * GOAL) as u64))
}

/// A limit for the neighbour: what it usually does and a little more, or a part of what it did.
fn limit(at: usize, neighbour: &Neighbour, goal: Option<Nanos>, scene: Option<&Scene<'_>>) -> Option<Remedy> {
    if neighbour.promise != Promise::None || neighbour.name.starts_with('(') {
        // Nobody holds a promised tenant to less than it needs, nor the wiper.
        return None;
    }
    let name = &neighbour.name;
    let usual = neighbour.usual.map_or(0.0, |usual| usual.iops * ROOM);
    let usual = (usual > 1.0 && usual < neighbour.then.iops).then_some(usual);
    let remedy = |iops: f64, why: &str, predicted: Option<Nanos>| {
        let (key, value) = in_words(iops, &neighbour.then);
        let option = key.replace('_', "-");
        Remedy {
            what: format!("hold {name:?} to {key} = {value:?}{why}"),
            command: Some(format!("{SET}{name} --{option} {value}")),
            predicted_us: predicted.map(Nanos::as_micros_f64),
        }
    };
    let unchecked = || usual.map(|usual| remedy(usual, ", a little more than it usually does", None));
    let (Some(scene), Some(goal)) = (scene, goal) else { return unchecked() };
    let tried = usual.into_iter().chain(PARTS.map(|part| neighbour.then.iops * part));
    let with = |iops: f64| {
        let held = |index: usize, asks: Tenant| match index {
            // The tenant itself is the first.
            _ if index == at + 1 => Tenant { load: Load::Open { rate_iops: iops.max(1.0) }, ..asks },
            _ => asks,
        };
        scene.takes_if(scene.policy(), at, held)
    };
    let mut tried = tried.filter(|iops| *iops >= 1.0).filter_map(|iops| Some((iops, with(iops)?)));
    match tried.find(|(_, takes)| *takes <= goal) {
        Some((iops, takes)) => Some(remedy(iops, "", Some(takes))),
        None => unchecked(),
    }
}

/// A promise to the tenant beside the neighbour at index `at`, under the policy in force or one that keeps promises.
fn promise(
    tenant: &str,
    at: usize,
    comparison: &Comparison,
    goal: Option<Nanos>,
    scene: Option<&Scene<'_>>,
) -> Option<Remedy> {
    let (scene, goal) = (scene?, goal?);
    let promised = |index: usize, asks: Tenant| match index {
        0 => {
            let percentile = asks.percentile();
            Tenant { class: Class::Guaranteed { latency_target: Some(goal), percentile }, ..asks }
        }
        _ => asks,
    };
    let target = Nanos::from_micros(two_digits(goal.0 as f64 / 1e3));
    let kept = |policy: &policy::PolicyConfig| scene.takes_if(policy, at, promised).filter(|takes| *takes <= goal);
    let is_promised = matches!(comparison.promise, Promise::Target { .. });
    if !is_promised && let Some(takes) = kept(scene.policy()) {
        return Some(Remedy {
            what: format!("promise {tenant:?} a latency: class = \"guaranteed\", latency_target = \"{target}\""),
            command: Some(format!("{SET}{tenant} --class guaranteed --latency-target {target}")),
            predicted_us: Some(takes.as_micros_f64()),
        });
    }
    let keeps_none = !scene.policy().kind().keeps_targets();
    let evenkeel = keeps_none.then(|| scene.other_policy(PolicyKind::Evenkeel))?;
    let takes = kept(&evenkeel)?;
    let also = if is_promised { String::new() } else { format!(", and latency_target = \"{target}\" for {tenant:?}") };
    Some(Remedy {
        what: format!(
            "a policy that keeps promises, which {} does not: under [policy] write name = \"evenkeel\"{also}",
            scene.policy().name()
        ),
        command: None,
        predicted_us: Some(takes.as_micros_f64()),
    })
}

/// A limit of commands per second as a configuration has it: in bytes for large ones, to two digits.
fn in_words(iops: f64, then: &Did) -> (&'static str, String) {
    if then.mean_len_bytes() < LARGE_BYTES {
        return ("rw_iops", Rate(two_digits(iops)).to_string());
    }
    let mib_s = two_digits(iops * then.mean_len_bytes() / f64::from(1 << 20)).max(1);
    ("rw_bandwidth", Bandwidth(mib_s << 20).to_string())
}

/// Rounded up.
fn two_digits(value: f64) -> u64 {
    let value = (value.ceil() as u64).max(1);
    let unit = 10_u64.pow(value.ilog10().saturating_sub(1));
    value.div_ceil(unit) * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn did(iops: f64, len_bytes: f64) -> Did {
        Did { iops, bytes_s: iops * len_bytes, mean_ns: 1e6, served_ns: 9e5, ..Did::default() }
    }

    fn neighbour(then: Did, usual: Option<Did>) -> Neighbour {
        Neighbour { name: "batch".into(), promise: Promise::None, then, usual }
    }

    #[test]
    fn limits_are_round_and_in_what_the_commands_are_large_in() {
        assert_eq!(in_words(12_345.0, &did(1.0, 4096.0)), ("rw_iops", "13k".into()));
        assert_eq!(in_words(0.3, &did(1.0, 4096.0)), ("rw_iops", "1".into()));
        let (key, value) = in_words(800.0, &did(1.0, 131_072.0));
        assert_eq!(
            (key, value.parse::<Bandwidth>().expect("as a file has it")),
            ("rw_bandwidth", Bandwidth(100 << 20))
        );
    }

    #[test]
    fn what_the_file_declares_is_changed_there() {
        let grown = neighbour(did(4_000.0, 4096.0), Some(did(100.0, 4096.0)));
        let interval = history::Interval {
            span_ms: 10_000,
            tenants: vec![history::Summary { name: "db".into(), reads: 1, p99_ns: 1, ..history::Summary::default() }],
            ..history::Interval::default()
        };
        let comparison = Comparison::of(&[interval], "db", 0..10_000).expect("it did something");
        let comparison = Comparison { neighbours: vec![grown], ..comparison };
        let of = |declared: &[&str]| {
            let declared = declared.iter().map(|name| (*name).to_owned()).collect();
            let remedies = super::of("db", Fault::Neighbour(0), &comparison, None, &declared);
            let [remedy] = &remedies[..] else { panic!("{remedies:?}") };
            (remedy.command.is_some(), remedy.what.contains("declares \"batch\": write it there"))
        };
        assert_eq!((of(&["db"]), of(&["batch"])), ((true, false), (false, true)));
    }

    #[test]
    fn without_a_model_a_neighbour_is_held_to_what_it_usually_does() {
        let grown = neighbour(did(4_000.0, 4096.0), Some(did(100.0, 4096.0)));
        let remedy = limit(0, &grown, None, None).expect("one");
        assert_eq!(remedy.command.as_deref(), Some("evenkeel disk set batch --rw-iops 120"));
        assert_eq!(remedy.predicted_us, None);
        // A tenant that usually does nothing can't be held to that.
        assert_eq!(limit(0, &neighbour(did(4_000.0, 4096.0), None), None, None), None);
        let promised = Neighbour { promise: Promise::Target { ns: 1, late_ppm: 10_000 }, ..grown.clone() };
        assert_eq!(limit(0, &promised, None, None), None);
        assert_eq!(limit(0, &Neighbour { name: "(wiper)".into(), ..grown }, None, None), None);
    }
}
