//! `[tenant.demand]`: what a tenant will ask for, in fio's words, so that promises can be checked beforehand.

use std::fmt;

use io_model::units::{Rate, Size};
use policy::Limits;
use toml::de::DeValue;

use crate::first_writes::FirstWrites;
use crate::keys::{SCHEMA, demand as keys};
use crate::problem::Sink;
use crate::rw::{BlockSize, Rw, read_rw};
use crate::section::{Section, kind};

/// What a tenant will ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// How often.
    pub load: DemandLoad,
    /// What. Its working set is `None`: the whole disk.
    pub rw: Rw,
    /// Of a thin disk; `None`: not declared.
    pub first_writes: Option<FirstWrites>,
}

/// How often a tenant asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DemandLoad {
    /// Each I/O that ends is followed by another.
    Closed {
        /// Threads, 1 to 1024.
        numjobs: u32,
        /// I/Os that each keeps outstanding, 1 to 65536.
        iodepth: u32,
    },
    /// At random moments, whether or not the last I/O ended.
    Open {
        /// The mean rate, 1 to 100 million.
        rate_iops: Rate,
    },
}

impl Demand {
    /// Commands per second that limits let this demand have; `None`: they don't limit it.
    pub fn most_iops(&self, limits: &Limits) -> Option<f64> {
        limits.most_iops(self.rw.read_share(), self.rw.mean_len_bytes())
    }
}

/// As an operator would say it: `70 % reads, 4KiB/60 64KiB/40, 32 in flight`.
impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rw.read_percent {
            100 => f.write_str("reads")?,
            0 => f.write_str("writes")?,
            percent => write!(f, "{percent} % reads")?,
        }
        let words = |size: &BlockSize| match self.rw.block_sizes.len() {
            1 => Size(size.bytes.into()).to_string(),
            _ => format!("{}/{}", Size(size.bytes.into()), size.weight),
        };
        write!(f, ", {}", self.rw.block_sizes.iter().map(words).collect::<Vec<_>>().join(" "))?;
        match self.load {
            DemandLoad::Closed { numjobs, iodepth } => {
                write!(f, ", {} in flight", u64::from(numjobs) * u64::from(iodepth))
            }
            DemandLoad::Open { rate_iops } => write!(f, ", {rate_iops} a second"),
        }?;
        self.first_writes.map_or(Ok(()), |first| write!(f, ", first writes {first}"))
    }
}

/// Reads what stands under `demand` in a tenant: `Some(None)` where nothing does. `is_thin`: so is its disk.
pub(crate) fn read_demand(sink: &mut Sink<'_>, tenant: &Section<'_, '_>, is_thin: bool) -> Option<Option<Demand>> {
    let Some((key, value)) = tenant.entry("demand") else { return Some(None) };
    let DeValue::Table(table) = value.get_ref() else {
        let what = format!("`demand` in {} is {}, not a section", tenant.label, kind(value.get_ref()));
        sink.at(&key.span(), what, "write it below the [[tenant]] as a heading of its own: [tenant.demand]");
        return None;
    };
    let label = format!("the demand of {}", tenant.label);
    let section = Section::new(SCHEMA, &label, keys::NAMES, Some(key.span()), Some(table));
    section.reject_unknown(sink);
    let rw = read_rw(sink, &section);
    let load = if section.has("rate_iops") {
        for key in ["numjobs", "iodepth"] {
            let why = "a demand with rate_iops sends at its own times, however many are in flight";
            section.forbid(sink, key, why, "remove one of the two");
        }
        keys::RATE_IOPS.get(sink, &section).map(|rate| DemandLoad::Open { rate_iops: rate.into_inner() })
    } else {
        let numjobs = keys::NUMJOBS.get_or_default(sink, &section);
        let iodepth = keys::IODEPTH.get_or_default(sink, &section);
        numjobs.zip(iodepth).map(|(numjobs, iodepth)| DemandLoad::Closed { numjobs, iodepth })
    };
    let first_writes = keys::FIRST_WRITES.get_if_any(sink, &section);
    if !is_thin {
        section.forbid(
            sink,
            "first_writes",
            "the disk has its own range",
            "remove it, or add thin = true to the tenant",
        );
    }
    Some(Some(Demand { load: load?, rw: rw?, first_writes: first_writes? }))
}
