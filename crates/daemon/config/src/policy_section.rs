//! The `[policy]` section: a policy's settings. A scenario reads what it has beside these itself.

use std::ops::RangeInclusive;

use policy::{ArbitratedConfig, FairSettings, LpnsSettings, PolicyKind, Settings};
use toml::de::DeValue;

use crate::keys::{Key, POLICY_KEYS, Values, Whole, any_policy, drr, fair, lpns, wrr};
use crate::problem::Sink;
use crate::profile::Profile;
use crate::section::{Section, Wrong, choice, integer, list};

/// Commands that may be with a drive together.
pub const IN_FLIGHT: RangeInclusive<u32> = wrr::MAX_IN_FLIGHT.values.range();

/// Policies that a scenario may name and a daemon does not run.
const SIMULATED: [&str; 4] = ["k2", "mqfq", "d2fq", "caps"];
/// Keys that a scenario has beside the daemon's.
const SIMULATED_KEYS: &[&str] = &[
    "variant",
    "omega",
    "exclusive_queues",
    "shared_queues",
    "lending",
    "throttle_gap",
    "guaranteed_weight",
    "medium_gap",
    "low_gap",
    "ratio",
    "adaptive",
];

/// Reads a `[policy]` section; `evenkeel` where it is missing or has no name.
pub fn read_policy(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<Settings> {
    section.reject_unknown_but(sink, SIMULATED_KEYS);
    for key in SIMULATED_KEYS {
        section.forbid(sink, key, "no policy of the daemon has it", "remove it; `evenkeel sim` takes it in a scenario");
    }
    let kind = any_policy::NAME.get_or_default_by(sink, section, policy_name)?;
    forbid_others(sink, section, kind.name(), &POLICY_KEYS.map(|(kind, keys)| (kind.name(), keys)));
    read_parameters(sink, section, kind, profile)
}

/// A policy's name.
fn policy_name(value: &DeValue<'_>) -> Result<PolicyKind, Wrong> {
    let kinds = any_policy::NAME.values.0;
    if let Some(name) = value.as_str().filter(|name| SIMULATED.contains(name)) {
        let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        return Err(Wrong {
            what: format!("is {name:?}, which no daemon runs"),
            remedy: format!("write {}, or run it in `evenkeel sim`", list(&names)),
        });
    }
    choice(kinds, &ABSENT)(value)
}

/// What other names call them.
pub const ABSENT: [(&str, &str); 1] = [("fairnvme", "write name = \"fair\"")];

/// Notes the keys of a section that the named policy does not have, and the policies that have them.
pub fn forbid_others(sink: &mut Sink<'_>, section: &Section<'_, '_>, name: &str, all: &[(&str, &[&str])]) {
    let own = all.iter().find(|(other, _)| *other == name).map_or(&[][..], |(_, keys)| keys);
    for key in section.known.iter().filter(|key| **key != "name" && !own.contains(key)) {
        let why = if own.is_empty() { "has no parameters" } else { "has no such parameter" };
        let owners: Vec<String> =
            all.iter().filter(|(_, keys)| keys.contains(key)).map(|(owner, _)| format!("{owner:?}")).collect();
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        section.forbid(sink, key, &format!("{name} {why}"), &format!("remove it, or write name = {}", list(&owners)));
    }
}

/// The settings of this policy in a section.
pub fn read_parameters(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    kind: PolicyKind,
    profile: &Profile,
) -> Option<Settings> {
    Some(match Settings::with_defaults(kind) {
        plain @ (Settings::Passthrough | Settings::Evenkeel(())) => plain,
        Settings::Lpns(_) => Settings::Lpns(read_lpns(sink, section, profile)?),
        Settings::Fair(_) => Settings::Fair(read_fair(sink, section)?),
        Settings::Wrr(_) => {
            let weights = [wrr::HIGH_WEIGHT, wrr::MEDIUM_WEIGHT, wrr::LOW_WEIGHT];
            Settings::Wrr(read_arbitrated(sink, section, weights)?)
        }
        Settings::Drr(_) => {
            let weights = [drr::HIGH_WEIGHT, drr::MEDIUM_WEIGHT, drr::LOW_WEIGHT];
            Settings::Drr(read_arbitrated(sink, section, weights)?)
        }
    })
}

/// Those of `lpns`.
pub fn read_lpns(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<LpnsSettings> {
    let figures = profile.figures();
    let rate_iops = lpns::RATE_IOPS.get_if_any(sink, section);
    let min_latency = lpns::MIN_LATENCY.get_if_any(sink, section);
    Some(LpnsSettings {
        rate_iops: rate_iops?.or(figures.map(|f| f.rate_iops)),
        min_latency: min_latency?.or(figures.map(|f| f.min_latency)),
    })
}

/// Those of `fair`.
pub fn read_fair(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<FairSettings> {
    let min_latency = fair::MIN_LATENCY.get_if_any(sink, section);
    let max_latency = fair::MAX_LATENCY.get_if_any(sink, section);
    let epoch = fair::EPOCH.get_if_any(sink, section);
    let (min_latency, max_latency) = (min_latency?, max_latency?);
    let (Some(min), Some(max)) = (min_latency, max_latency) else {
        for (key, other) in [("min_latency", "max_latency"), ("max_latency", "min_latency")] {
            if let Some((name, _)) = section.entry(key).filter(|_| section.lacks(other)) {
                let what = format!("`{key}` stands in [policy] without `{other}`");
                sink.at(&name.span(), what, format!("add {other}, or remove {key} to have both derived"));
            }
        }
        return Some(FairSettings { min_latency, max_latency, epoch: epoch? });
    };
    if min >= max {
        let span = section.entry("max_latency").map(|(_, value)| value.span());
        sink.maybe_at(span.as_ref(), format!("max_latency {max} is not above min_latency {min}"), "write a larger one");
    }
    Some(FairSettings { min_latency, max_latency, epoch: epoch? })
}

fn read_arbitrated(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    weights: [Key<Whole<u16>>; 3],
) -> Option<ArbitratedConfig<Option<u32>>> {
    let [high_weight, medium_weight, low_weight] = weights.map(|key| {
        let weight = |value: &DeValue<'_>| {
            key.values.read(value).map_err(|wrong| match integer(0..=0)(value) {
                Ok(_) => Wrong { what: "is 0, so its class would never be served".into(), ..wrong },
                Err(_) => wrong,
            })
        };
        key.get_or_default_by(sink, section, weight)
    });
    let burst = wrr::ARBITRATION_BURST.get_or_default(sink, section);
    let max_in_flight = wrr::MAX_IN_FLIGHT.get_if_any(sink, section);
    Some(ArbitratedConfig {
        high_weight: high_weight?,
        medium_weight: medium_weight?,
        low_weight: low_weight?,
        arbitration_burst: burst?,
        max_in_flight: max_in_flight?,
    })
}
