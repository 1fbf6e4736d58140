//! The `[policy]` section: a policy's settings. The daemon's file and a scenario share it.

use std::ops::RangeInclusive;

use io_model::Nanos;
use policy::{
    ArbitratedConfig, D2fqConfig, FairSettings, HwqSplit, K2Config, Lending, LpnsSettings, MqfqConfig, PolicyKind,
    Settings, Variant,
};
use toml::de::DeValue;

use crate::problem::Sink;
use crate::profile::Profile;
use crate::section::{Section, Wrong, boolean, choice, count, integer, list, or, rate, small_integer, span_in};

const IN_FLIGHT: RangeInclusive<u32> = 1..=65_536;
const GAPS: RangeInclusive<u32> = 1..=16_384;
const WEIGHTS: RangeInclusive<u32> = 1..=10_000;
/// What NVMe's 8 bits can say.
const WEIGHT_MAX_COMMANDS: u16 = 256;
const WEIGHT_MAX_KIB: u16 = 1024;

/// Which of the section's keys each policy has.
const KEYS: [(PolicyKind, &[&str]); 10] = [
    (
        PolicyKind::Lpns,
        &["variant", "omega", "rate_iops", "min_latency", "exclusive_queues", "shared_queues", "lending"],
    ),
    (PolicyKind::Evenkeel, &[]),
    (PolicyKind::Passthrough, &[]),
    (PolicyKind::Fair, &["variant", "min_latency", "max_latency", "epoch"]),
    (PolicyKind::K2, &["max_in_flight"]),
    (PolicyKind::Mqfq, &["throttle_gap", "max_in_flight", "guaranteed_weight"]),
    (PolicyKind::D2fq, &["medium_gap", "low_gap", "ratio", "adaptive", "guaranteed_weight"]),
    (PolicyKind::Wrr, &["high_weight", "medium_weight", "low_weight", "arbitration_burst", "max_in_flight"]),
    (PolicyKind::Drr, &["high_weight", "medium_weight", "low_weight", "max_in_flight"]),
    (PolicyKind::Caps, &[]),
];

/// What other names call them.
const ABSENT: [(&str, &str); 1] = [("fairnvme", "write name = \"fair\"")];

/// Reads a `[policy]` section; `evenkeel` where it is missing or has no name.
pub fn read_policy(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<Settings> {
    section.reject_unknown(sink);
    let kind = or(sink, section, "name", PolicyKind::Evenkeel, policy_name)?;
    let own = KEYS.iter().find(|(policy, _)| *policy == kind).map_or(&[][..], |(_, keys)| keys);
    for key in section.known.iter().filter(|key| **key != "name" && !own.contains(key)) {
        forbid(sink, section, key, kind);
    }
    read_parameters(sink, section, kind, profile)
}

/// A policy with its defaults.
pub fn policy_with_defaults(sink: &mut Sink<'_>, kind: PolicyKind, profile: &Profile) -> Option<Settings> {
    read_parameters(sink, &Section::missing("[policy]"), kind, profile)
}

/// A policy's name.
pub fn policy_name(value: &DeValue<'_>) -> Result<PolicyKind, Wrong> {
    choice(&KEYS.map(|(kind, _)| (kind.name(), kind)), &ABSENT)(value)
}

fn forbid(sink: &mut Sink<'_>, section: &Section<'_, '_>, key: &str, kind: PolicyKind) {
    let why = match kind {
        PolicyKind::Passthrough => "passthrough has no parameters".to_owned(),
        PolicyKind::Caps => "caps has its limits in each [[tenant]]".to_owned(),
        kind => format!("{} has no such parameter", kind.name()),
    };
    let owners = KEYS.iter().filter(|(_, keys)| keys.contains(&key)).map(|(owner, _)| format!("{:?}", owner.name()));
    let owners: Vec<String> = owners.collect();
    let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
    section.forbid(sink, key, &why, &format!("remove it, or write name = {}", list(&owners)));
}

fn read_parameters(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    kind: PolicyKind,
    profile: &Profile,
) -> Option<Settings> {
    Some(match Settings::with_defaults(kind) {
        plain @ (Settings::Passthrough | Settings::Caps | Settings::Evenkeel) => plain,
        Settings::Lpns(_) => Settings::Lpns(read_lpns(sink, section, profile)?),
        Settings::Fair(_) => Settings::Fair(read_fair(sink, section)?),
        Settings::K2(default) => {
            let max_in_flight = or(sink, section, "max_in_flight", default.max_in_flight, integer(IN_FLIGHT))?;
            Settings::K2(K2Config { max_in_flight })
        }
        Settings::Mqfq(default) => Settings::Mqfq(read_mqfq(sink, section, default)?),
        Settings::D2fq(default) => Settings::D2fq(read_d2fq(sink, section, default)?),
        Settings::Wrr(default) => Settings::Wrr(read_arbitrated(sink, section, WEIGHT_MAX_COMMANDS, default)?),
        Settings::Drr(default) => Settings::Drr(read_arbitrated(sink, section, WEIGHT_MAX_KIB, default)?),
    })
}

fn read_variant(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Variant> {
    let variants = [Variant::Published, Variant::Corrected].map(|variant| (variant.name(), variant));
    or(sink, section, "variant", Variant::default(), choice(&variants, &[]))
}

fn read_lpns(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<LpnsSettings> {
    let figures = profile.figures();
    let variant = read_variant(sink, section);
    let omega = or(sink, section, "omega", figures.map(|f| f.omega), |v| integer(1..=1_000_000)(v).map(Some));
    let rate_iops = or(sink, section, "rate_iops", figures.map(|f| f.rate_iops), |value| {
        let found = rate(value)?;
        let sane = (1_000..=100_000_000).contains(&found.0);
        let remedy = "write what the drive sustains, from \"1k\" to \"100M\"";
        sane.then_some(Some(found)).ok_or_else(|| Wrong { what: format!("is {found}"), remedy: remedy.into() })
    });
    let latencies = Nanos(100)..=Nanos(100_000_000);
    let default = figures.map(|f| f.min_latency);
    let min_latency = or(sink, section, "min_latency", default, |v| span_in(latencies)(v).map(Some));
    let exclusive_queues = count(sink, section, "exclusive_queues", 0..=1024);
    let shared_queues = count(sink, section, "shared_queues", 1..=1024);
    let lendings = [Lending::Backlog, Lending::Turns, Lending::Never].map(|lending| (lending.name(), lending));
    let lending = or(sink, section, "lending", Lending::default(), choice(&lendings, &[]));
    Some(LpnsSettings {
        variant: variant?,
        omega: omega?,
        rate_iops: rate_iops?,
        min_latency: min_latency?,
        hwqs: HwqSplit { exclusive: exclusive_queues?, shared: shared_queues? },
        lending: lending?,
    })
}

fn read_fair(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<FairSettings> {
    let variant = read_variant(sink, section);
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
        return Some(FairSettings { variant: variant?, min_latency, max_latency, epoch: epoch? });
    };
    if min >= max {
        let span = section.entry("max_latency").map(|(_, value)| value.span());
        sink.maybe_at(span.as_ref(), format!("max_latency {max} is not above min_latency {min}"), "write a larger one");
    }
    Some(FairSettings { variant: variant?, min_latency, max_latency, epoch: epoch? })
}

fn read_mqfq(sink: &mut Sink<'_>, section: &Section<'_, '_>, default: MqfqConfig) -> Option<MqfqConfig> {
    let gap_commands = or(sink, section, "throttle_gap", default.gap_commands, integer(GAPS));
    let max_in_flight = or(sink, section, "max_in_flight", default.max_in_flight, integer(IN_FLIGHT));
    let guaranteed_weight = or(sink, section, "guaranteed_weight", default.guaranteed_weight, integer(WEIGHTS));
    Some(MqfqConfig {
        gap_commands: gap_commands?,
        max_in_flight: max_in_flight?,
        guaranteed_weight: guaranteed_weight?,
        ..default
    })
}

fn read_d2fq(sink: &mut Sink<'_>, section: &Section<'_, '_>, default: D2fqConfig) -> Option<D2fqConfig> {
    let medium_gap = or(sink, section, "medium_gap", default.medium_gap_commands, integer(GAPS));
    let low_gap = or(sink, section, "low_gap", default.low_gap_commands, integer(GAPS));
    let ratio = or(sink, section, "ratio", default.ratio, integer(3..=256));
    let adaptive = or(sink, section, "adaptive", default.adaptive, boolean);
    let guaranteed_weight = or(sink, section, "guaranteed_weight", default.guaranteed_weight, integer(WEIGHTS));
    let (medium_gap_commands, low_gap_commands) = (medium_gap?, low_gap?);
    if low_gap_commands < medium_gap_commands {
        let what = format!("low_gap {low_gap_commands} is below medium_gap {medium_gap_commands}");
        let span = ["low_gap", "medium_gap"].iter().find_map(|key| section.entry(key)).map(|(_, value)| value.span());
        sink.maybe_at(span.as_ref(), what, "write a larger low_gap: a tenant passes the medium class first");
    }
    let (ratio, adaptive, guaranteed_weight) = (ratio?, adaptive?, guaranteed_weight?);
    Some(D2fqConfig { medium_gap_commands, low_gap_commands, ratio, adaptive, guaranteed_weight, ..default })
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
