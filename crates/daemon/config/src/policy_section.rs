//! The `[policy]` section: its values, and reading it. The daemon's file and a scenario share it.

use std::ops::RangeInclusive;

use io_model::Nanos;
use io_model::units::Rate;
use toml::de::DeValue;

use crate::problem::Sink;
use crate::profile::Profile;
use crate::section::{Section, Wrong, boolean, choice, count, integer, list, or, rate, span_in};

/// Who may send next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Round robin, no promise.
    Passthrough,
    /// Latency promises by throttling the best-effort tenants.
    Lpns(Lpns),
    /// Equal slowdowns by time budgets.
    Fair(Fair),
    /// A cap on what the whole drive has in flight.
    K2(K2),
    /// Fair queueing with a bounded gap.
    Mqfq(Mqfq),
    /// Fair queueing by the drive's own weighted round robin.
    D2fq(D2fq),
    /// Weighted round robin among tenants, by their priorities; weights in commands.
    Wrr(Arbitrated),
    /// Deficit round robin among tenants, by their priorities; weights in KiB.
    Drr(Arbitrated),
    /// Each tenant's limits, and nothing else.
    Caps,
}

/// The parameters of LPNS (Peng et al., USENIX ATC 2023). Those of the drive are filled in where its profile is
/// built in; `None`: they follow from the profile's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lpns {
    /// Which rules.
    pub variant: Variant,
    /// Ω, the burst that a scheduling period allows, in commands. 1 to 1000000.
    pub omega: Option<u32>,
    /// R of Eq. 4: 4 KiB random writes per second that the drive sustains.
    pub rate_iops: Option<Rate>,
    /// L_h of Eq. 4: a command's latency on the idle drive.
    pub min_latency: Option<Nanos>,
    /// HWQs that serve one VQ each (1-1); `None`: the policy's choice.
    pub exclusive_queues: Option<u16>,
    /// HWQs that serve many VQs (1-N), at least 1; `None`: the policy's choice.
    pub shared_queues: Option<u16>,
}

/// The parameters of FairNVMe (FGCS 2025).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fair {
    /// Which rules.
    pub variant: Variant,
    /// Below this mean latency a tenant counts as served too well; `None`: from the drive.
    pub min_latency: Option<Nanos>,
    /// Above this mean latency a tenant counts as suffering; `None`: from the drive.
    pub max_latency: Option<Nanos>,
    /// How long a tenant's time budget lasts, 1 us to 1 s; `None`: the policy's choice.
    pub epoch: Option<Nanos>,
}

/// The parameters of K2 (Miemietz et al., RTAS 2019).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct K2 {
    /// Commands that all tenants together may have in the drive, 1 to 65536.
    pub max_in_flight: u32,
}

/// The parameters of MQFQ (Hedayati et al., USENIX ATC 2019).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mqfq {
    /// T: how far a tenant may run ahead of the slowest, in commands of 4 KiB at weight 1. 1 to 16384.
    pub throttle_gap: u32,
    /// D: commands that all tenants together may have in the drive, 1 to 65536.
    pub max_in_flight: u32,
    /// The weight of a guaranteed tenant, 1 to 10000.
    pub guaranteed_weight: u32,
}

/// The parameters of D2FQ (Woo et al., FAST 2021).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct D2fq {
    /// τ_m: a tenant further ahead of the slowest than this goes through the drive's medium class; commands of 4 KiB
    /// at weight 1. 1 to 16384.
    pub medium_gap: u32,
    /// τ_l: further than this, through its low class. `medium_gap` to 16384.
    pub low_gap: u32,
    /// R: the drive's weight of its high class over that of its low one, at the start. 3 to 256.
    pub ratio: u32,
    /// Whether R follows what the tenants ask for.
    pub adaptive: bool,
    /// The weight of a guaranteed tenant, 1 to 10000.
    pub guaranteed_weight: u32,
}

/// The parameters of `wrr` and `drr`, which take turns as an NVMe controller does among its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arbitrated {
    /// What a class may send in one round (`wrr`: commands, 1 to 256), or each of its tenants (`drr`: KiB, 1 to 1024).
    pub high_weight: u32,
    /// The same of the medium class.
    pub medium_weight: u32,
    /// The same of the low class.
    pub low_weight: u32,
    /// Commands in one turn of a tenant, 1 to 256; of no meaning for `drr`.
    pub arbitration_burst: u32,
    /// Commands that all tenants together may have in the drive, 1 to 65536; `None`: what saturates the drive.
    pub max_in_flight: Option<u32>,
}

/// Which rules of a published policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// As printed, to compare with the paper's figures.
    Published,
    /// With the gaps of the printed rules closed.
    Corrected,
}

const IN_FLIGHT: RangeInclusive<u32> = 1..=65_536;
const GAPS: RangeInclusive<u32> = 1..=16_384;
const WEIGHTS: RangeInclusive<u32> = 1..=10_000;
/// What NVMe's 8 bits can say.
const WEIGHT_MAX_COMMANDS: u32 = 256;
const WEIGHT_MAX_KIB: u32 = 1024;

/// Which of the section's keys each policy has.
const KEYS: [(&str, &[&str]); 9] = [
    ("lpns", &["variant", "omega", "rate_iops", "min_latency", "exclusive_queues", "shared_queues"]),
    ("passthrough", &[]),
    ("fair", &["variant", "min_latency", "max_latency", "epoch"]),
    ("k2", &["max_in_flight"]),
    ("mqfq", &["throttle_gap", "max_in_flight", "guaranteed_weight"]),
    ("d2fq", &["medium_gap", "low_gap", "ratio", "adaptive", "guaranteed_weight"]),
    ("wrr", &["high_weight", "medium_weight", "low_weight", "arbitration_burst", "max_in_flight"]),
    ("drr", &["high_weight", "medium_weight", "low_weight", "max_in_flight"]),
    ("caps", &[]),
];

/// What other names call them.
const ABSENT: [(&str, &str); 1] = [("fairnvme", "write name = \"fair\"")];

impl Policy {
    /// As a file names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Lpns(_) => "lpns",
            Self::Fair(_) => "fair",
            Self::K2(_) => "k2",
            Self::Mqfq(_) => "mqfq",
            Self::D2fq(_) => "d2fq",
            Self::Wrr(_) => "wrr",
            Self::Drr(_) => "drr",
            Self::Caps => "caps",
        }
    }

    /// Whether it knows what all tenants do only if one poller serves them all.
    pub fn needs_one_poller(&self) -> bool {
        !matches!(self, Self::Passthrough | Self::Lpns(_))
    }

    /// Whether it keeps latency targets: by a throttle, or because a tenant's priority may be high enough.
    pub fn keeps_targets(&self) -> bool {
        matches!(self, Self::Lpns(_)) || self.has_priorities()
    }

    /// Whether tenants' priorities count.
    pub fn has_priorities(&self) -> bool {
        matches!(self, Self::Wrr(_) | Self::Drr(_))
    }
}

impl Variant {
    /// As a file names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Corrected => "corrected",
        }
    }
}

/// Reads a `[policy]` section; `lpns` where it is missing or has no name.
pub(crate) fn read(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<Policy> {
    section.reject_unknown(sink);
    let name = or(sink, section, "name", "lpns", word)?;
    let own = KEYS.iter().find(|(policy, _)| *policy == name).map_or(&[][..], |(_, keys)| keys);
    for key in section.known.iter().filter(|key| **key != "name" && !own.contains(key)) {
        forbid(sink, section, key, name);
    }
    read_parameters(sink, section, name, profile)
}

/// A policy with its defaults.
pub(crate) fn with_defaults(sink: &mut Sink<'_>, name: &str, profile: &Profile) -> Option<Policy> {
    read_parameters(sink, &Section::missing("[policy]"), name, profile)
}

/// A policy's name.
pub(crate) fn word(value: &DeValue<'_>) -> Result<&'static str, Wrong> {
    choice(&KEYS.map(|(name, _)| (name, name)), &ABSENT)(value)
}

fn forbid(sink: &mut Sink<'_>, section: &Section<'_, '_>, key: &str, name: &str) {
    let why = match name {
        "passthrough" => "passthrough has no parameters".to_owned(),
        "caps" => "caps has its limits in each [[tenant]]".to_owned(),
        name => format!("{name} has no such parameter"),
    };
    let owners = KEYS.iter().filter(|(_, keys)| keys.contains(&key)).map(|(owner, _)| format!("{owner:?}"));
    let owners: Vec<String> = owners.collect();
    let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
    section.forbid(sink, key, &why, &format!("remove it, or write name = {}", list(&owners)));
}

fn read_parameters(sink: &mut Sink<'_>, section: &Section<'_, '_>, name: &str, profile: &Profile) -> Option<Policy> {
    match name {
        "passthrough" => Some(Policy::Passthrough),
        "fair" => read_fair(sink, section).map(Policy::Fair),
        "k2" => {
            let max_in_flight = or(sink, section, "max_in_flight", 32, integer(IN_FLIGHT));
            Some(Policy::K2(K2 { max_in_flight: max_in_flight? }))
        }
        "mqfq" => {
            let throttle_gap = or(sink, section, "throttle_gap", 12, integer(GAPS));
            let max_in_flight = or(sink, section, "max_in_flight", 64, integer(IN_FLIGHT));
            let guaranteed_weight = or(sink, section, "guaranteed_weight", 2, integer(WEIGHTS));
            Some(Policy::Mqfq(Mqfq {
                throttle_gap: throttle_gap?,
                max_in_flight: max_in_flight?,
                guaranteed_weight: guaranteed_weight?,
            }))
        }
        "d2fq" => read_d2fq(sink, section).map(Policy::D2fq),
        "wrr" => read_arbitrated(sink, section, WEIGHT_MAX_COMMANDS, [32, 16, 8]).map(Policy::Wrr),
        "drr" => read_arbitrated(sink, section, WEIGHT_MAX_KIB, [128, 64, 32]).map(Policy::Drr),
        "caps" => Some(Policy::Caps),
        _ => read_lpns(sink, section, profile).map(Policy::Lpns),
    }
}

fn read_variant(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Variant> {
    let variants = [("published", Variant::Published), ("corrected", Variant::Corrected)];
    or(sink, section, "variant", Variant::Corrected, choice(&variants, &[]))
}

fn read_lpns(sink: &mut Sink<'_>, section: &Section<'_, '_>, profile: &Profile) -> Option<Lpns> {
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
    Some(Lpns {
        variant: variant?,
        omega: omega?,
        rate_iops: rate_iops?,
        min_latency: min_latency?,
        exclusive_queues: exclusive_queues?,
        shared_queues: shared_queues?,
    })
}

fn read_fair(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Fair> {
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
        return Some(Fair { variant: variant?, min_latency, max_latency, epoch: epoch? });
    };
    if min >= max {
        let span = section.entry("max_latency").map(|(_, value)| value.span());
        sink.maybe_at(span.as_ref(), format!("max_latency {max} is not above min_latency {min}"), "write a larger one");
    }
    Some(Fair { variant: variant?, min_latency, max_latency, epoch: epoch? })
}

fn read_d2fq(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<D2fq> {
    let medium_gap = or(sink, section, "medium_gap", 3, integer(GAPS));
    let low_gap = or(sink, section, "low_gap", 10, integer(GAPS));
    let ratio = or(sink, section, "ratio", 6, integer(3..=256));
    let adaptive = or(sink, section, "adaptive", true, boolean);
    let guaranteed_weight = or(sink, section, "guaranteed_weight", 2, integer(WEIGHTS));
    let (medium_gap, low_gap) = (medium_gap?, low_gap?);
    if low_gap < medium_gap {
        let what = format!("low_gap {low_gap} is below medium_gap {medium_gap}");
        let span = ["low_gap", "medium_gap"].iter().find_map(|key| section.entry(key)).map(|(_, value)| value.span());
        sink.maybe_at(span.as_ref(), what, "write a larger low_gap: a tenant passes the medium class first");
    }
    let (ratio, adaptive, guaranteed_weight) = (ratio?, adaptive?, guaranteed_weight?);
    Some(D2fq { medium_gap, low_gap, ratio, adaptive, guaranteed_weight })
}

/// `defaults` of the high, medium and low class.
fn read_arbitrated(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    weight_max: u32,
    defaults: [u32; 3],
) -> Option<Arbitrated> {
    let weight = |value: &DeValue<'_>| {
        integer(1..=weight_max)(value).map_err(|wrong| match integer(0..=0)(value) {
            Ok(_) => Wrong { what: "is 0, so its class would never be served".into(), ..wrong },
            Err(_) => wrong,
        })
    };
    let [high, medium, low] = defaults;
    let high_weight = or(sink, section, "high_weight", high, weight);
    let medium_weight = or(sink, section, "medium_weight", medium, weight);
    let low_weight = or(sink, section, "low_weight", low, weight);
    let arbitration_burst = or(sink, section, "arbitration_burst", 1, integer(1..=256));
    let max_in_flight = or(sink, section, "max_in_flight", None, |v| integer(IN_FLIGHT)(v).map(Some));
    Some(Arbitrated {
        high_weight: high_weight?,
        medium_weight: medium_weight?,
        low_weight: low_weight?,
        arbitration_burst: arbitration_burst?,
        max_in_flight: max_in_flight?,
    })
}
