//! What a tenant is promised and held to. The daemon's file and a scenario share it.

use std::ops::Range;

use io_model::Nanos;
use io_model::units::{Bandwidth, Rate};
use policy::{Class, Floor, Limits, PolicyKind, Settings, TenantPriority, Terms};

use crate::demand::Demand;
use crate::keys::{Iops, Key, Shaped, tenant};
use crate::problem::Sink;
use crate::rw::BLOCK_MAX_BYTES;
use crate::section::{Section, Wrong, span};

/// Keys of limits; `burst` counts beside one of them.
pub(crate) const LIMITS: [&str; 6] = ["rw_iops", "r_iops", "w_iops", "rw_bandwidth", "r_bandwidth", "w_bandwidth"];

/// No command that moves data moves less.
const LEAST_BYTES: u64 = 512;

/// What a tenant gets at least.
const FLOORS: [&str; 2] = ["min_iops", "min_bandwidth"];

/// What the file's policies make of tenants' keys.
#[derive(Clone, Copy)]
pub struct TenantRules {
    /// One arbitrates by priority.
    pub priorities: bool,
    /// One keeps floors.
    pub floors: bool,
}

impl TenantRules {
    /// Where one policy is in force; `None`: it could not be read.
    pub fn of(policy: Option<&Settings>) -> Self {
        let one = |does: fn(PolicyKind) -> bool| policy.is_none_or(|policy| does(policy.kind()));
        Self { priorities: one(PolicyKind::has_priorities), floors: one(PolicyKind::keeps_floors) }
    }
}

/// A tenant's terms as far as they could be read.
pub struct TermsDraft {
    /// The promise or the weight.
    pub class: Option<Class>,
    /// What it counts for.
    pub priority: Option<TenantPriority>,
    /// What it may do at most.
    pub limits: Option<Limits>,
    /// What it gets at least.
    pub floor: Option<Floor>,
    /// Where its promise stands.
    pub target_mark: Option<Range<usize>>,
}

impl TermsDraft {
    /// The terms, where all of them could be read.
    pub fn finish(&self) -> Option<Terms> {
        let (class, limits, floor, priority) = (self.class?, self.limits?, self.floor?, self.priority?);
        Some(Terms { class, limits, group: None, floor, priority, pollers: 1 })
    }

    /// Whether it is known to limit nothing.
    pub fn is_unlimited(&self) -> bool {
        self.limits.is_some_and(|limits| limits.is_empty())
    }
}

/// `no_client`: why this tenant's guest can't ask for priorities, if it can't, and what to do.
pub fn read_terms(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    rules: TenantRules,
    no_client: Option<(&str, &str)>,
) -> TermsDraft {
    let class = read_class(sink, section);
    let limits = read_limits(sink, section);
    TermsDraft {
        class,
        priority: read_priority(sink, section, rules.priorities, no_client),
        floor: read_floor(sink, section, rules.floors, class, limits),
        limits,
        target_mark: ["latency_target", "min_iops", "min_bandwidth"]
            .iter()
            .find_map(|key| section.entry(key))
            .map(|(_, value)| value.span()),
    }
}

fn read_class(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Class> {
    if tenant::CLASS.get_or_default(sink, section)? {
        let why = "a guaranteed tenant has a latency target instead of a weight";
        section.forbid(sink, "weight", why, "remove it, or write class = \"best-effort\"");
        let target = section.require(sink, "latency_target", "add latency_target = \"50us\"", |value| {
            let found = span(value)?;
            let most = tenant::LATENCY_TARGET.values.1;
            if found == Nanos(0) || found > most {
                let remedy = format!("write a time above 0 and up to {most}, such as \"50us\"");
                return Err(Wrong { what: format!("is {found}"), remedy });
            }
            Ok(found)
        })?;
        let percentile = tenant::LATENCY_PERCENTILE.get_or_default(sink, section)?;
        return Some(Class::Guaranteed { latency_target: Some(target.into_inner()), percentile });
    }
    let why = "only a guaranteed tenant has a target";
    section.forbid(sink, "latency_target", why, "add class = \"guaranteed\", or remove the target");
    section.forbid(sink, "latency_percentile", why, "add class = \"guaranteed\" and a latency_target, or remove it");
    Some(Class::BestEffort { weight: tenant::WEIGHT.get_or_default(sink, section)? })
}

/// `kept`: whether a policy of the file keeps floors.
fn read_floor(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    kept: bool,
    class: Option<Class>,
    limits: Option<Limits>,
) -> Option<Floor> {
    for key in FLOORS {
        if !kept {
            let remedy = "write name = \"evenkeel\" under [policy], or remove it";
            section.forbid(sink, key, "only the evenkeel policy keeps it", remedy);
        } else if class.is_some_and(Class::is_guaranteed) {
            let why = "a guaranteed tenant has its latency target, and goes before all others";
            section.forbid(sink, key, why, "remove it, or write class = \"best-effort\"");
        }
    }
    if !kept || class.is_some_and(Class::is_guaranteed) {
        return Some(Floor::default());
    }
    let (ios, mib) = (iops(sink, section, &tenant::MIN_IOPS), mib(sink, section, &tenant::MIN_BANDWIDTH));
    let floor = Floor { ios_per_sec: ios?, mbytes_per_sec: mib? };
    if let Some((key, what, remedy)) = out_of_reach(&floor, &limits?) {
        let span = section.entry(key).map(|(_, value)| value.span());
        sink.maybe_at(span.as_ref(), what, remedy);
        return None;
    }
    Some(floor)
}

/// What a floor asks for that no commands can have under the limits, whatever their size: its key, why, and the remedy.
fn out_of_reach(floor: &Floor, limits: &Limits) -> Option<(&'static str, String, String)> {
    // Limits of reads and of writes add up to one for both, where there are both.
    let both = |reads: u64, writes: u64| if reads > 0 && writes > 0 { reads + writes } else { 0 };
    let of_ios = [
        (limits.rw_ios_per_sec, "rw_iops", "rw_iops"),
        (both(limits.r_ios_per_sec, limits.w_ios_per_sec), "r_iops and w_iops together", "r_iops or w_iops"),
    ];
    let of_mib = [
        (limits.rw_mbytes_per_sec, "rw_bandwidth", "rw_bandwidth"),
        (
            both(limits.r_mbytes_per_sec, limits.w_mbytes_per_sec),
            "r_bandwidth and w_bandwidth together",
            "r_bandwidth or w_bandwidth",
        ),
    ];
    let Floor { ios_per_sec: ios, mbytes_per_sec: mib } = *floor;
    // The floor under the other kind of limit, with the commands that need least of it.
    let least_mib = (ios * LEAST_BYTES).div_ceil(1 << 20);
    let least_ios = (mib << 20).div_ceil(BLOCK_MAX_BYTES);
    let asks = [
        ("min_iops", ios, of_ios, None),
        ("min_bandwidth", mib, of_mib, None),
        ("min_iops", least_mib, of_mib, Some("512 bytes")),
        ("min_bandwidth", least_ios, of_ios, Some("16 MiB")),
    ];
    asks.into_iter().find_map(|(key, least, limits, with)| {
        let (_, limit, higher) = limits.into_iter().find(|(most, ..)| *most > 0 && least > *most)?;
        let what = match with {
            None => format!("{key} is above {limit}, which the tenant can't exceed"),
            Some(size) => format!("{key} is above what even commands of {size} can have under {limit}"),
        };
        Some((key, what, format!("write a lower {key}, or a higher {higher}")))
    })
}

/// A floor is one of commands as the tenant will send them.
pub(crate) fn refuse_above_limits(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    terms: &TermsDraft,
    demand: Option<&Demand>,
) {
    let (Some(floor), Some(limits), Some(demand)) = (terms.floor, terms.limits, demand) else { return };
    let Some(most) = demand.most_iops(&limits) else { return };
    let least = floor.iops(demand.rw.mean_len_bytes());
    if least <= most {
        return;
    }
    let [least, most] = [least, most].map(|iops| Rate(iops as u64));
    let what = format!(
        "at least {floor} is {least} commands a second as [tenant.demand] has them, and its limits ({limits}) let \
         through {most}"
    );
    let span = FLOORS.iter().find_map(|key| section.entry(key)).map(|(_, value)| value.span());
    sink.maybe_at(span.as_ref(), what, "write a lower min_iops or min_bandwidth, or a higher limit");
}

/// Limits of a tenant or of a group.
pub(crate) fn read_limits(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Limits> {
    let [rw_iops, r_iops, w_iops] =
        [tenant::RW_IOPS, tenant::R_IOPS, tenant::W_IOPS].map(|key| iops(sink, section, &key));
    let [rw_bandwidth, r_bandwidth, w_bandwidth] =
        [tenant::RW_BANDWIDTH, tenant::R_BANDWIDTH, tenant::W_BANDWIDTH].map(|key| mib(sink, section, &key));
    if !LIMITS.iter().any(|key| section.has(key)) {
        let why = "it sets how long unused quota is kept, but there is no limit";
        section.forbid(sink, "burst", why, "add a limit such as rw_iops = \"10k\", or remove it");
        return Some(Limits::default());
    }
    let burst = tenant::BURST.get_or_default(sink, section);
    Some(Limits {
        rw_ios_per_sec: rw_iops?,
        r_ios_per_sec: r_iops?,
        w_ios_per_sec: w_iops?,
        rw_mbytes_per_sec: rw_bandwidth?,
        r_mbytes_per_sec: r_bandwidth?,
        w_mbytes_per_sec: w_bandwidth?,
        burst: burst?,
    })
}

/// 0 where the key is missing.
fn iops(sink: &mut Sink<'_>, section: &Section<'_, '_>, key: &Key<Iops>) -> Option<u64> {
    key.get_if_any(sink, section).map(|rate| rate.map_or(0, |rate| rate.0))
}

/// Whole MiB; 0 where the key is missing.
fn mib(sink: &mut Sink<'_>, section: &Section<'_, '_>, key: &Key<Shaped<Bandwidth>>) -> Option<u64> {
    key.get_if_any(sink, section).map(|bandwidth| bandwidth.map_or(0, Bandwidth::as_mib))
}

/// `counted`: whether a policy of the file arbitrates by priority.
fn read_priority(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    counted: bool,
    no_client: Option<(&str, &str)>,
) -> Option<TenantPriority> {
    if !counted {
        let remedy = "write name = \"wrr\" or \"drr\" under [policy], or remove it";
        section.forbid(sink, "priority", "only the wrr and drr policies have priorities", remedy);
        return Some(TenantPriority::default());
    }
    let found = tenant::PRIORITY.get_or_default(sink, section)?;
    match no_client.filter(|_| found == TenantPriority::OfQueue) {
        Some((why, remedy)) => {
            let span = section.entry("priority").map(|(_, value)| value.span());
            sink.maybe_at(span.as_ref(), format!("priority = \"client\" does not apply: {why}"), remedy);
            None
        }
        None => Some(found),
    }
}
