//! The `[policy]` section: a policy's settings. A scenario reads what it has beside these itself.

use std::ops::RangeInclusive;

use io_model::Nanos;
use policy::{ArbitratedConfig, FairSettings, LpnsSettings, PolicyKind, Settings};
use toml::de::DeValue;

use crate::problem::Sink;
use crate::profile::Profile;
use crate::section::{Section, Wrong, choice, integer, list, or, rate, small_integer, span_in};

/// Commands that may be with a drive together.
pub const IN_FLIGHT: RangeInclusive<u32> = 1..=65_536;
/// What NVMe's 8 bits can say.
const WEIGHT_MAX_COMMANDS: u16 = 256;
const WEIGHT_MAX_KIB: u16 = 1024;

/// Which of the section's keys each policy has.
pub const POLICY_KEYS: [(PolicyKind, &[&str]); 6] = [
    (PolicyKind::Evenkeel, &[]),
    (PolicyKind::Lpns, &["rate_iops", "min_latency"]),
    (PolicyKind::Fair, &["min_latency", "max_latency", "epoch"]),
    (PolicyKind::Wrr, &["high_weight", "medium_weight", "low_weight", "arbitration_burst", "max_in_flight"]),
    (PolicyKind::Drr, &["high_weight", "medium_weight", "low_weight", "max_in_flight"]),
    (PolicyKind::Passthrough, &[]),
];

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
    let kind = or(sink, section, "name", PolicyKind::Evenkeel, policy_name)?;
    forbid_others(sink, section, kind.name(), &POLICY_KEYS.map(|(kind, keys)| (kind.name(), keys)));
    read_parameters(sink, section, kind, profile)
}

/// A policy's name.
fn policy_name(value: &DeValue<'_>) -> Result<PolicyKind, Wrong> {
    let kinds = POLICY_KEYS.map(|(kind, _)| (kind.name(), kind));
    if let Some(name) = value.as_str().filter(|name| SIMULATED.contains(name)) {
        let names = kinds.map(|(name, _)| name);
        return Err(Wrong {
            what: format!("is {name:?}, which no daemon runs"),
            remedy: format!("write {}, or run it in `evenkeel sim`", list(&names)),
        });
    }
    choice(&kinds, &ABSENT)(value)
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
        Settings::Wrr(default) => Settings::Wrr(read_arbitrated(sink, section, WEIGHT_MAX_COMMANDS, default)?),
        Settings::Drr(default) => Settings::Drr(read_arbitrated(sink, section, WEIGHT_MAX_KIB, default)?),
    })
}

/// Those of `lpns`.
pub fn read_lpns(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<LpnsSettings> {
    let figures = profile.figures();
    let rate_iops = or(sink, section, "rate_iops", figures.map(|f| f.rate_iops), |value| {
        let found = rate(value)?;
        let sane = (1_000..=100_000_000).contains(&found.0);
        let remedy = "write what the drive sustains, from \"1k\" to \"100M\"";
        sane.then_some(Some(found)).ok_or_else(|| Wrong { what: format!("is {found}"), remedy: remedy.into() })
    });
    let latencies = Nanos(100)..=Nanos(100_000_000);
    let default = figures.map(|f| f.min_latency);
    let min_latency = or(sink, section, "min_latency", default, |v| span_in(latencies)(v).map(Some));
    Some(LpnsSettings { rate_iops: rate_iops?, min_latency: min_latency? })
}

/// Those of `fair`.
pub fn read_fair(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<FairSettings> {
    let thresholds = || span_in(Nanos(1_000)..=Nanos(10_000_000_000));
    let min_latency = or(sink, section, "min_latency", None, |v| thresholds()(v).map(Some));
    let max_latency = or(sink, section, "max_latency", None, |v| thresholds()(v).map(Some));
    let epochs = Nanos(1_000)..=Nanos(1_000_000_000);
    let epoch = or(sink, section, "epoch", None, |v| span_in(epochs)(v).map(Some));
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
    weight_max: u16,
    default: ArbitratedConfig<Option<u32>>,
) -> Option<ArbitratedConfig<Option<u32>>> {
    let weight = |value: &DeValue<'_>| {
        small_integer(1..=weight_max)(value).map_err(|wrong| match integer(0..=0)(value) {
            Ok(_) => Wrong { what: "is 0, so its class would never be served".into(), ..wrong },
            Err(_) => wrong,
        })
    };
    let high_weight = or(sink, section, "high_weight", default.high_weight, weight);
    let medium_weight = or(sink, section, "medium_weight", default.medium_weight, weight);
    let low_weight = or(sink, section, "low_weight", default.low_weight, weight);
    let burst = or(sink, section, "arbitration_burst", default.arbitration_burst, small_integer(1..=256));
    let max_in_flight = or(sink, section, "max_in_flight", None, |v| integer(IN_FLIGHT)(v).map(Some));
    Some(ArbitratedConfig {
        high_weight: high_weight?,
        medium_weight: medium_weight?,
        low_weight: low_weight?,
        arbitration_burst: burst?,
        max_in_flight: max_in_flight?,
    })
}
