//! What would have helped: tried out on the model if there is one, else from what is usual.

use std::collections::BTreeSet;

use api::Remedy;
use io_model::Nanos;
use io_model::units::{Bandwidth, Rate};
use planner::{Load, Tenant};
use policy::{Class, PolicyConfig, PolicyKind, Settings};

use super::{Cause, Culprit, Measured, Model, Situation};

/// Parts of a neighbour's load that are tried as its limit, the largest first.
const PARTS: [f64; 6] = [0.5, 0.25, 0.1, 0.05, 0.02, 0.01];

/// A limit leaves a neighbour this many times its usual load.
const ROOM: f64 = 1.2;

/// Commands of this size and more are limited by their bytes.
const LARGE_BYTES: f64 = 32_768.0;

/// Without a target, latencies up to this many times the usual one are good.
const GOAL: f64 = 1.25;

/// Usual values of less time than this are too few for a remedy.
const USUAL_MIN: Nanos = Nanos::from_millis(60_000);

/// The start of a command that changes a disk.
const SET: &str = "evenkeel disk set ";

/// What would have helped against `cause`, the most specific first. Each was tried on the model where there is one.
/// `declared`: the disks that the configuration file declares. `drive`: the drive's name.
pub fn remedies(situation: &Situation<'_>, cause: &Cause, drive: &str, declared: &BTreeSet<String>) -> Vec<Remedy> {
    let was_us = situation.own.now.at_percentile.as_micros_f64();
    let mut remedies = thought_of(situation, cause.culprit, drive);
    // The mean can be slow while the promised percentile is not.
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

fn thought_of(situation: &Situation<'_>, culprit: Culprit, drive: &str) -> Vec<Remedy> {
    let plain = |what: &str, command: Option<String>| Remedy { what: what.to_owned(), command, predicted_us: None };
    let tenant = &situation.own.asks.name;
    match culprit {
        Culprit::Neighbour(at) => {
            let goal = situation.goal();
            limit(situation, at, goal).into_iter().chain(promise(situation, at, goal)).collect()
        }
        Culprit::Own => {
            let what = "its load is too high for its target: keep fewer commands outstanding, or raise the target";
            vec![plain(what, None)]
        }
        Culprit::Limits => {
            if let Some(group) = situation.own.held_to.as_ref().and_then(|ceiling| ceiling.group.as_ref()) {
                let what =
                    format!("a higher limit for group {group:?} in the configuration file, and `evenkeel apply`");
                return vec![plain(&what, None)];
            }
            let what = format!("a higher limit for {tenant:?}, which its own limit holds back");
            vec![plain(&what, Some(format!("{SET}{tenant} --rw-iops …")))]
        }
        Culprit::Drive => {
            let what = format!(
                "check the health of drive {drive:?}; if it is healthy, its profile may be another drive's: \
                 `evenkeel calibrate` measures it"
            );
            vec![plain(&what, Some("evenkeel drive list".to_owned()))]
        }
        Culprit::Restart => Vec::new(),
        Culprit::Host => {
            let what = "CPUs that the pollers have to themselves: [pollers] cpus in the configuration, or fewer \
                        pollers (threads = \"shared\")";
            vec![plain(what, None)]
        }
    }
}

impl Situation<'_> {
    /// The latency to reach at the promised percentile, or at the 99th: the target, or a little above the model's
    /// answer for the usual load.
    fn goal(&self) -> Option<Nanos> {
        self.own.asks.target().or_else(|| Some(Nanos((self.usually_takes()?.0 as f64 * GOAL) as u64)))
    }

    fn usually_takes(&self) -> Option<Nanos> {
        let model = self.model?;
        self.own.usual.filter(|own| !own.is_idle())?;
        let asked = self.parties().filter_map(|it| it.usual.as_ref()?.as_demand(&it.asks));
        Some(model.of_first(model.policy, &asked.collect::<Vec<_>>())?.at_percentile)
    }

    /// The tenant's latency at its percentile if the neighbour at `culprit` asks for its load of the span, and all
    /// others for their usual load: a tenant that waits has more outstanding than it wants. `changed` gets each demand
    /// with its index; the tenant itself is 0.
    fn takes_if(
        &self,
        policy: &PolicyConfig,
        culprit: usize,
        changed: impl Fn(usize, Tenant) -> Tenant,
    ) -> Option<Nanos> {
        let asked = self.parties().enumerate().filter_map(|(at, party)| {
            let usual = party.usual.filter(|usual| at > 0 || !usual.is_idle());
            let did = if at == culprit + 1 { party.now } else { usual.unwrap_or(party.now) };
            Some(changed(at, did.as_demand(&party.asks)?))
        });
        Some(self.model?.of_first(policy, &asked.collect::<Vec<_>>())?.at_percentile)
    }
}

/// A limit for the neighbour at index `at`: a little above its usual load, or a part of its load. `None`: its load is
/// promised, the usual is not known, or no limit would have helped.
fn limit(situation: &Situation<'_>, at: usize, goal: Option<Nanos>) -> Option<Remedy> {
    let neighbour = situation.neighbours.get(at)?;
    let name = &neighbour.asks.name;
    if neighbour.asks.class.is_guaranteed() || name.starts_with('(') || situation.usual_time < USUAL_MIN {
        // The wiper has such a name.
        return None;
    }
    let least_iops = neighbour.entitled_iops().max(1.0);
    let usual = neighbour.usual.map_or(0.0, |usual| usual.iops * ROOM);
    let usual = (usual > 1.0).then_some(usual).into_iter();
    let tried = usual.clone().chain(PARTS.map(|part| neighbour.now.iops * part));
    let mut tried = tried.filter(|iops| (least_iops..neighbour.now.iops).contains(iops)).peekable();
    let remedy = |iops: f64, why: &str, predicted: Option<Nanos>| {
        let (key, value) = in_words(iops, &neighbour.now);
        let option = key.replace('_', "-");
        Remedy {
            what: format!("hold {name:?} to {key} = {value:?}{why}"),
            command: Some(format!("{SET}{name} --{option} {value}")),
            predicted_us: predicted.map(Nanos::as_micros_f64),
        }
    };
    let with = |iops: f64| {
        let held = |index: usize, asks: Tenant| match index {
            _ if index == at + 1 => Tenant { load: Load::Open { rate_iops: iops }, ..asks },
            _ => asks,
        };
        situation.takes_if(situation.model?.policy, at, held)
    };
    let first = *tried.peek()?;
    let Some(goal) = goal.filter(|_| with(first).is_some()) else {
        // Without a model, the usual load is known to have been harmless.
        let usual = usual.clone().find(|usual| *usual == first)?;
        return Some(remedy(usual, ", a little more than it usually does", None));
    };
    let (iops, takes) = tried.filter_map(|iops| Some((iops, with(iops)?))).find(|(_, takes)| *takes <= goal)?;
    Some(remedy(iops, "", Some(takes)))
}

/// A promise to the tenant beside the neighbour at index `at`, under the policy in force or one that keeps promises.
fn promise(situation: &Situation<'_>, at: usize, goal: Option<Nanos>) -> Option<Remedy> {
    let (goal, tenant, Model { planner, policy }) = (goal?, &situation.own.asks.name, situation.model?);
    let promised = |index: usize, asks: Tenant| match index {
        0 => {
            let percentile = asks.percentile();
            Tenant { class: Class::Guaranteed { latency_target: Some(goal), percentile }, ..asks }
        }
        _ => asks,
    };
    let target = Nanos::from_micros(two_digits(goal.0 as f64 / 1e3));
    let kept = |policy: &PolicyConfig| situation.takes_if(policy, at, promised).filter(|takes| *takes <= goal);
    let is_promised = situation.own.asks.target().is_some();
    if !is_promised && let Some(takes) = kept(policy) {
        return Some(Remedy {
            what: format!("promise {tenant:?} a latency: class = \"guaranteed\", latency_target = \"{target}\""),
            command: Some(format!("{SET}{tenant} --class guaranteed --latency-target {target}")),
            predicted_us: Some(takes.as_micros_f64()),
        });
    }
    if policy.kind().keeps_targets() {
        return None;
    }
    let figures = planner::drive_figures(&planner.site().profile);
    let takes = kept(&Settings::with_defaults(PolicyKind::Evenkeel).on(&figures))?;
    let also = if is_promised { String::new() } else { format!(", and latency_target = \"{target}\" for {tenant:?}") };
    Some(Remedy {
        what: format!(
            "a policy that keeps promises, which {} does not: under [policy] write name = \"evenkeel\"{also}",
            policy.name()
        ),
        command: None,
        predicted_us: Some(takes.as_micros_f64()),
    })
}

/// A limit of commands per second as a configuration has it: in bytes for large ones, to two digits.
fn in_words(iops: f64, now: &Measured) -> (&'static str, String) {
    if now.mean_len_bytes < LARGE_BYTES {
        return ("rw_iops", Rate(two_digits(iops)).to_string());
    }
    let mib_s = two_digits(iops * now.mean_len_bytes / f64::from(1 << 20)).max(1);
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

    #[test]
    fn limits_are_round_and_in_what_the_commands_are_large_in() {
        let of = |mean_len_bytes| Measured { mean_len_bytes, ..Measured::default() };
        assert_eq!(in_words(12_345.0, &of(4096.0)), ("rw_iops", "13k".into()));
        assert_eq!(in_words(0.3, &of(4096.0)), ("rw_iops", "1".into()));
        let (key, value) = in_words(800.0, &of(131_072.0));
        assert_eq!(
            (key, value.parse::<Bandwidth>().expect("as a file has it")),
            ("rw_bandwidth", Bandwidth(100 << 20))
        );
    }
}
