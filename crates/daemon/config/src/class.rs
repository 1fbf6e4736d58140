//! What a tenant is promised, and its limits. The daemon's file and a scenario share it.

use std::fmt;

use io_model::Nanos;
use io_model::units::{Bandwidth, Rate};
use toml::de::DeValue;

use crate::problem::Sink;
use crate::section::{Section, Wrong, bandwidth, choice, integer, or, rate, span};

/// A target above this is no promise worth a poller.
const TARGET_MAX: Nanos = Nanos(1_000_000_000);

/// What a tenant is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// A latency.
    Guaranteed {
        /// The target: above 0, at most 1 s.
        latency_target: Nanos,
    },
    /// A share of what is left.
    BestEffort {
        /// 1 to 10000.
        weight: u32,
    },
}

/// What a tenant may do at most under the `caps` policy; `None`: no limit. Bandwidths are whole MiB/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Commands, both ways.
    pub rw_iops: Option<Rate>,
    /// Bytes read and written.
    pub rw_bandwidth: Option<Bandwidth>,
    /// Bytes read.
    pub r_bandwidth: Option<Bandwidth>,
    /// Bytes written.
    pub w_bandwidth: Option<Bandwidth>,
}

impl Class {
    /// As a file names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guaranteed { .. } => "guaranteed",
            Self::BestEffort { .. } => "best-effort",
        }
    }

    /// Whether it has a latency target.
    pub fn is_guaranteed(self) -> bool {
        matches!(self, Self::Guaranteed { .. })
    }
}

/// As an operator would say it: `20k IOPS, reads 200MiB/s`.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bandwidths = [("", self.rw_bandwidth), ("reads ", self.r_bandwidth), ("writes ", self.w_bandwidth)];
        let mut words: Vec<String> = self.rw_iops.map(|rate| format!("{rate} IOPS")).into_iter().collect();
        words.extend(bandwidths.iter().filter_map(|(word, limit)| Some(format!("{word}{}", (*limit)?))));
        f.write_str(&words.join(", "))
    }
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As it is shown; `None` where nothing is limited.
    pub fn in_words(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.to_string())
    }
}

/// What the file's policies make of tenants' keys.
#[derive(Clone, Copy)]
pub(crate) struct TenantRules {
    /// One keeps limits.
    pub limits: bool,
    /// One arbitrates by priority.
    pub priorities: bool,
}

pub(crate) fn read_class(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Class> {
    if or(sink, section, "class", false, choice(&[("guaranteed", true), ("best-effort", false)], &[]))? {
        let why = "a guaranteed tenant has a latency target instead of a weight";
        section.forbid(sink, "weight", why, "remove it, or write class = \"best-effort\"");
        let target = section.require(sink, "latency_target", "add latency_target = \"50us\"", |value| {
            let found = span(value)?;
            if found == Nanos(0) || found > TARGET_MAX {
                let remedy = format!("write a time above 0 and up to {TARGET_MAX}, such as \"50us\"");
                return Err(Wrong { what: format!("is {found}"), remedy });
            }
            Ok(found)
        })?;
        return Some(Class::Guaranteed { latency_target: target.into_inner() });
    }
    let why = "only a guaranteed tenant has a target";
    section.forbid(sink, "latency_target", why, "add class = \"guaranteed\", or remove the target");
    Some(Class::BestEffort { weight: or(sink, section, "weight", 1, integer(1..=10_000))? })
}

/// `kept`: whether a policy of the file keeps limits.
pub(crate) fn read_limits(sink: &mut Sink<'_>, section: &Section<'_, '_>, kept: bool) -> Option<Limits> {
    if !kept {
        for key in ["rw_iops", "rw_bandwidth", "r_bandwidth", "w_bandwidth"] {
            let remedy = "write name = \"caps\" under [policy], or remove it";
            section.forbid(sink, key, "only the caps policy keeps limits", remedy);
        }
        return Some(Limits::default());
    }
    let rw_iops = or(sink, section, "rw_iops", None, |value| sane(rate(value)?).map(Some));
    let limit = |value: &DeValue<'_>| bandwidth(value).map(Some);
    let rw_bandwidth = or(sink, section, "rw_bandwidth", None, limit);
    let r_bandwidth = or(sink, section, "r_bandwidth", None, limit);
    let w_bandwidth = or(sink, section, "w_bandwidth", None, limit);
    Some(Limits {
        rw_iops: rw_iops?,
        rw_bandwidth: rw_bandwidth?,
        r_bandwidth: r_bandwidth?,
        w_bandwidth: w_bandwidth?,
    })
}

fn sane(found: Rate) -> Result<Rate, Wrong> {
    let remedy = "write the commands per second that it may send, 1 to \"1000M\", or remove the line: no limit";
    let valid = (1..=1_000_000_000).contains(&found.0);
    valid.then_some(found).ok_or_else(|| Wrong { what: format!("is {found}"), remedy: remedy.into() })
}
