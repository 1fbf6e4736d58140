//! The `[policy]` section: what the daemon's has, the policies of others, and what is set for figures alone.

use std::ops::RangeInclusive;

use config::Profile;
use config::reading::{
    ABSENT, IN_FLIGHT, POLICY_KEYS, Section, Sink, Wrong, boolean, choice, count, forbid_others, integer, or,
    read_fair, read_lpns, read_parameters,
};
use policy::{HwqSplit, Lending, PolicyKind, Variant};
use rivals::{D2fqConfig, FairAsked, K2Config, LabKind, LabSettings, LpnsAsked, MqfqConfig};
use toml::de::DeValue;

const GAPS: RangeInclusive<u32> = 1..=16_384;
const WEIGHTS: RangeInclusive<u32> = 1..=10_000;

/// The keys of `[policy]`.
pub(crate) const KEYS: &[&str] = &[
    "name",
    "variant",
    "omega",
    "rate_iops",
    "min_latency",
    "max_latency",
    "epoch",
    "exclusive_queues",
    "shared_queues",
    "lending",
    "max_in_flight",
    "throttle_gap",
    "guaranteed_weight",
    "medium_gap",
    "low_gap",
    "ratio",
    "adaptive",
    "high_weight",
    "medium_weight",
    "low_weight",
    "arbitration_burst",
];

/// Every policy that may be named.
fn kinds() -> Vec<LabKind> {
    POLICY_KEYS.iter().map(|(kind, _)| LabKind::Product(*kind)).chain(LabKind::RIVALS).collect()
}

/// Which of the section's keys a policy has.
fn keys_of(kind: LabKind) -> Vec<&'static str> {
    let daemons = |kind| POLICY_KEYS.iter().find(|(other, _)| *other == kind).map_or(&[][..], |(_, keys)| keys);
    match kind {
        LabKind::Product(PolicyKind::Lpns) => {
            [&["variant", "omega", "exclusive_queues", "shared_queues", "lending"], daemons(PolicyKind::Lpns)].concat()
        }
        LabKind::Product(PolicyKind::Fair) => [&["variant"], daemons(PolicyKind::Fair)].concat(),
        LabKind::Product(kind) => daemons(kind).to_vec(),
        LabKind::K2 => vec!["max_in_flight"],
        LabKind::Mqfq => vec!["throttle_gap", "max_in_flight", "guaranteed_weight"],
        LabKind::D2fq => vec!["medium_gap", "low_gap", "ratio", "adaptive", "guaranteed_weight"],
        LabKind::Caps => Vec::new(),
    }
}

/// Reads a `[policy]` section; `evenkeel` where it is missing or has no name.
pub(crate) fn read_policy(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<LabSettings> {
    section.reject_unknown(sink);
    let kind = or(sink, section, "name", LabKind::Product(PolicyKind::Evenkeel), policy_name)?;
    let keys: Vec<(&str, Vec<&str>)> = kinds().into_iter().map(|kind| (kind.name(), keys_of(kind))).collect();
    let keys: Vec<(&str, &[&str])> = keys.iter().map(|(name, keys)| (*name, &keys[..])).collect();
    forbid_others(sink, section, kind.name(), &keys);
    read(sink, section, kind, profile)
}

/// A policy with its defaults.
pub(crate) fn policy_with_defaults(sink: &mut Sink<'_>, kind: LabKind, profile: &Profile) -> Option<LabSettings> {
    read(sink, &Section::missing("[policy]"), kind, profile)
}

/// A policy's name.
pub(crate) fn policy_name(value: &DeValue<'_>) -> Result<LabKind, Wrong> {
    let options: Vec<(&str, LabKind)> = kinds().into_iter().map(|kind| (kind.name(), kind)).collect();
    choice(&options, &ABSENT)(value)
}

fn read(sink: &mut Sink<'_>, section: &Section<'_, '_>, kind: LabKind, profile: &Profile) -> Option<LabSettings> {
    Some(match LabSettings::with_defaults(kind) {
        LabSettings::Product(settings) => {
            LabSettings::Product(read_parameters(sink, section, settings.kind(), profile)?)
        }
        LabSettings::Lpns(_) => LabSettings::Lpns(lpns(sink, section, profile)?),
        LabSettings::Fair(_) => {
            let (variant, settings) = (variant(sink, section), read_fair(sink, section));
            LabSettings::Fair(FairAsked { settings: settings?, variant: variant? })
        }
        LabSettings::K2(default) => {
            let max_in_flight = or(sink, section, "max_in_flight", default.max_in_flight, integer(IN_FLIGHT))?;
            LabSettings::K2(K2Config { max_in_flight })
        }
        LabSettings::Mqfq(default) => LabSettings::Mqfq(mqfq(sink, section, default)?),
        LabSettings::D2fq(default) => LabSettings::D2fq(d2fq(sink, section, default)?),
        LabSettings::Caps => LabSettings::Caps,
    })
}

fn variant(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Variant> {
    let variants = [Variant::Published, Variant::Corrected].map(|variant| (variant.name(), variant));
    or(sink, section, "variant", Variant::default(), choice(&variants, &[]))
}

fn lpns(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<LpnsAsked> {
    let variant = variant(sink, section);
    let omega = or(sink, section, "omega", None, |value| integer(1..=1_000_000)(value).map(Some));
    let settings = read_lpns(sink, section, profile);
    let exclusive = count(sink, section, "exclusive_queues", 0..=1024);
    let shared = count(sink, section, "shared_queues", 1..=1024);
    let lendings = [Lending::Backlog, Lending::Turns, Lending::Never].map(|lending| (lending.name(), lending));
    let lending = or(sink, section, "lending", Lending::default(), choice(&lendings, &[]));
    Some(LpnsAsked {
        settings: settings?,
        variant: variant?,
        omega: omega?,
        hwqs: HwqSplit { exclusive: exclusive?, shared: shared? },
        lending: lending?,
    })
}

fn mqfq(sink: &mut Sink<'_>, section: &Section<'_, '_>, default: MqfqConfig) -> Option<MqfqConfig> {
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

fn d2fq(sink: &mut Sink<'_>, section: &Section<'_, '_>, default: D2fqConfig) -> Option<D2fqConfig> {
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
