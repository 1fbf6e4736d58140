//! Which I/Os a tenant asks for, in fio's words. `[tenant.demand]` and a scenario's workloads share it.

use std::ops::RangeInclusive;

use io_model::units::{Rate, Size};
use toml::de::DeValue;

use crate::first_writes::FirstWrites;
use crate::keys::{Values, demand};
use crate::problem::Sink;
use crate::section::{Section, Wrong, choice, clip, or, text};

/// Which operation, where and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rw {
    /// Reads in 100 I/Os.
    pub read_percent: u8,
    /// Anywhere, or one after another.
    pub random: bool,
    /// At least one.
    pub block_sizes: Vec<BlockSize>,
    /// The part of the disk that is used, from its start; `None`: all.
    pub working_set: Option<Size>,
}

impl Rw {
    /// Reads of all I/Os, 0 to 1.
    pub fn read_share(&self) -> f64 {
        f64::from(self.read_percent) / 100.0
    }

    /// Mean block size.
    pub(crate) fn mean_len_bytes(&self) -> f64 {
        let sum = |of: fn(&BlockSize) -> f64| self.block_sizes.iter().map(of).sum::<f64>();
        sum(|size| f64::from(size.bytes) * f64::from(size.weight)) / sum(|size| size.weight.into())
    }
}

/// One of the block sizes of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize {
    /// A multiple of 512, up to 16 MiB.
    pub bytes: u32,
    /// Its part of the I/Os, relative to the others; 1 to 100.
    pub weight: u32,
}

/// A command moves no more.
pub(crate) const BLOCK_MAX_BYTES: u64 = 16 << 20;
/// I/Os that a thread may keep outstanding.
pub const DEPTHS: RangeInclusive<u32> = demand::IODEPTH.values.range();
/// Threads of a workload.
pub const THREADS: RangeInclusive<u32> = demand::NUMJOBS.values.range();

/// Reads `rw`, `rwmixread`, `bs` (one size, or several as fio's `bssplit` has them) or `bssplit`, and `size`.
pub fn read_rw(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Rw> {
    // Reads in 100 (`None`: as rwmixread says), and whether they go anywhere.
    let words = [
        ("read", (Some(100), false)),
        ("write", (Some(0), false)),
        ("randread", (Some(100), true)),
        ("randwrite", (Some(0), true)),
        ("rw", (None, false)),
        ("readwrite", (None, false)),
        ("randrw", (None, true)),
    ];
    let remedy = "add rw = \"randread\" (read, write, randread, randwrite, rw or randrw)";
    let rw = section.require(sink, "rw", remedy, choice(&words, &[]));
    let mixed = rw.as_ref().is_none_or(|rw| rw.get_ref().0.is_none());
    if !mixed {
        let why = "only rw and randrw mix reads and writes";
        section.forbid(sink, "rwmixread", why, "remove it, or write rw = \"randrw\"");
    }
    let mix = demand::RWMIXREAD.get_or_default(sink, section);
    if section.has("bs") {
        section.forbid(sink, "bssplit", "bs gives the block size already", "remove one of the two");
    }
    let default = vec![BlockSize { bytes: 4096, weight: 1 }];
    let block_sizes = if section.has("bssplit") {
        or(sink, section, "bssplit", default, split)
    } else {
        or(sink, section, "bs", default, |value| match text_or_number(value)? {
            several if several.contains(['/', ':']) => split(value),
            one => Ok(vec![BlockSize { bytes: block(&one)?, weight: 1 }]),
        })
    };
    let working_set = or(sink, section, "size", None, |value| fio_size(&text_or_number(value)?).map(Some));
    let (read_percent, random) = rw?.into_inner();
    let read_percent = read_percent.unwrap_or(mix?) as u8;
    Some(Rw { read_percent, random, block_sizes: block_sizes?, working_set: working_set? })
}

/// Arrivals per second.
///
/// # Errors
/// The value is no rate, or not from 1 to 100 million.
pub fn arrivals(value: &DeValue<'_>) -> Result<Rate, Wrong> {
    demand::RATE_IOPS.values.read(value)
}

/// A thin disk's first writes.
///
/// # Errors
/// The value is no percentage.
pub fn first_writes(value: &DeValue<'_>) -> Result<FirstWrites, Wrong> {
    demand::FIRST_WRITES.values.read(value)
}

fn text_or_number(value: &DeValue<'_>) -> Result<String, Wrong> {
    match value {
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        _ => text(value),
    }
}

/// `4k/60:64k/40`; a size without a share gets an equal part of what the others leave of 100.
fn split(value: &DeValue<'_>) -> Result<Vec<BlockSize>, Wrong> {
    let found = text(value)?;
    let wrong =
        |what: String| Wrong { what, remedy: "expected sizes with their percent, such as \"4k/60:64k/40\"".into() };
    let mut parts: Vec<(u32, Option<u32>)> = Vec::new();
    for part in found.split(':') {
        let (size, percent) = part.split_once('/').map_or((part, None), |(size, percent)| (size, Some(percent)));
        let percent = percent.map(str::trim).filter(|percent| !percent.is_empty());
        let percent = match percent.map(|percent| percent.parse::<u32>().ok().filter(|p| (1..=100).contains(p))) {
            Some(None) => return Err(wrong(format!("has {:?}, which is no percent", clip(part)))),
            Some(percent) => percent,
            None => None,
        };
        if size.trim().is_empty() {
            return Err(wrong(format!("is {:?}, which has an empty part", clip(&found))));
        }
        parts.push((block(size.trim())?, percent));
        if parts.len() > 64 {
            return Err(wrong("has more than 64 sizes".into()));
        }
    }
    let given: u32 = parts.iter().filter_map(|(_, percent)| *percent).sum();
    let open = parts.iter().filter(|(_, percent)| percent.is_none()).count() as u32;
    let rest = 100_u32.checked_sub(given).filter(|rest| if open == 0 { *rest == 0 } else { *rest >= open });
    let Some(rest) = rest else { return Err(wrong(format!("is {:?}, which does not make 100 percent", clip(&found)))) };
    let equal = rest.checked_div(open).unwrap_or(0);
    Ok(parts.into_iter().map(|(bytes, percent)| BlockSize { bytes, weight: percent.unwrap_or(equal) }).collect())
}

fn block(found: &str) -> Result<u32, Wrong> {
    let size = fio_size(found)?;
    let fits = (512..=BLOCK_MAX_BYTES).contains(&size.0) && size.0.is_multiple_of(512);
    let remedy = "expected a multiple of 512 bytes up to 16MiB, such as \"4k\"";
    u32::try_from(size.0)
        .ok()
        .filter(|_| fits)
        .ok_or_else(|| Wrong { what: format!("is {:?}", clip(found)), remedy: remedy.into() })
}

/// A size in fio's words.
fn fio_size(found: &str) -> Result<Size, Wrong> {
    Size::from_fio(found).map_err(|error| Wrong { what: format!("is {:?}", clip(found)), remedy: error.to_string() })
}
