//! How writes are done, and the numbers of that.

use ssd_model::{Nand, Profile, Writes};

use crate::estimate::Estimate;
use crate::fit::{LINK, Parts, Source, mb_s, per_block, whole};
use crate::model;
use crate::seen::{Basics, Beside, Seen, Sustained, WriteTimes};
use crate::session::{BLOCK_BYTES, Effort};

/// What a profile says about writes.
pub(crate) struct Found {
    pub(crate) writes: Writes,
    pub(crate) link_mb_s: u32,
}

/// A mean read latency beside writes, over a lone read's, from which on writes occupy what reads need.
const DISTURBED: f64 = 1.1;

/// Assumed without a range to overwrite: a write is as slow as this many reads, in the units that reads use.
const ASSUMED_WRITE: f64 = 2.0;

/// What garbage collection alone depends on; it can't be seen and is off.
const PAGES_PER_BLOCK: u32 = 256;
const ERASE_NS: u64 = 3_000_000;

/// Rounds of bringing a model's writes in line with the measured ones.
const REFINEMENTS: usize = 6;

/// How a drive does its writes, as far as it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Assumed,
    InPlace,
    Buffered,
    Programmed,
}

impl Kind {
    pub(crate) fn of(seen: &Seen, basics: Basics, controller_ns: f64) -> Self {
        let (Some(times), Some(beside), Some(_)) = (&seen.writes, &seen.beside, &seen.sustained) else {
            return Self::Assumed;
        };
        let disturbed = beside.read_mean_ns > DISTURBED * basics.read.value + 2.0 * controller_ns;
        // Only flash has units that share channels.
        let has_channels = seen.channels.is_some_and(|channels| channels.count > 0);
        if times.by_address || (disturbed && !basics.by_address) {
            Self::InPlace
        } else if basics.by_address && (disturbed || has_channels) {
            Self::Programmed
        } else {
            Self::Buffered
        }
    }
}

pub(crate) fn fit(parts: &mut Parts<'_>, kind: Kind) -> Found {
    let seen = parts.seen;
    let (Some(times), Some(sustained)) = (&seen.writes, &seen.sustained) else { return assumed(parts) };
    let lone = times.within.first().map_or(Estimate::exact(0.0), |point| point.ns);
    match kind {
        Kind::Assumed => assumed(parts),
        Kind::InPlace => in_place(parts, times, lone),
        Kind::Buffered => buffered(parts, times, lone, sustained),
        Kind::Programmed => programmed(parts, times, lone, sustained),
    }
}

fn note_kind(parts: &mut Parts<'_>, how: &str) {
    parts.note("writes.kind", Source::Observed(how.into()));
}

fn assumed(parts: &mut Parts<'_>) -> Found {
    let why = "nothing may be overwritten (--overwrite gives a range), so writes are taken to be slow";
    for name in ["writes.kind", "writes.write_ns", "writes.ack_ns", "link_write_mb_s"] {
        parts.note(name, Source::Assumed(why.into()));
    }
    let write_ns = whole(parts.read.value * ASSUMED_WRITE).max(1);
    Found { writes: Writes::InPlace { write_ns, ack_ns: 0 }, link_mb_s: mb_s(parts.link_read) }
}

fn in_place(parts: &mut Parts<'_>, times: &WriteTimes, lone: Estimate) -> Found {
    note_kind(parts, "writes occupy the units that reads use");
    let write = if times.by_address {
        times.same_spacing
    } else {
        let rate = parts.rate_of(0).unwrap_or(0.0).max(1.0);
        Estimate::exact(f64::from(parts.units) * 1e9 / rate)
    };
    let ack = Estimate::sum(&[(1.0, lone), (-1.0, parts.controller), (-1.0, write), (-1.0, parts.pipeline)]);
    let ack = ack.at_least(0.0);
    parts.note("writes.write_ns", Source::Measured(write));
    parts.note("writes.ack_ns", Source::Measured(ack));
    let link_mb_s = match per_block(&times.beyond).filter(|link| link.value >= 1.0) {
        Some(link) => {
            parts.note("link_write_mb_s", Source::Measured(link.under(LINK)));
            mb_s(link)
        }
        None => {
            parts.note("link_write_mb_s", Source::Assumed("as the other direction: no size shows a limit".into()));
            mb_s(parts.link_read)
        }
    };
    Found { writes: Writes::InPlace { write_ns: whole(write.value).max(1), ack_ns: whole(ack.value) }, link_mb_s }
}

/// The link into the drive, and a lone write's acknowledgement.
fn link_and_ack(parts: &mut Parts<'_>, times: &WriteTimes, lone: Estimate) -> (Estimate, Estimate) {
    let blocks = times.large_spacing.len_bytes as f64 / BLOCK_BYTES as f64;
    let link = times.large_spacing.ns.times(1.0 / blocks);
    let ack = Estimate::sum(&[(1.0, lone), (-1.0, parts.controller), (-1.0, link)]).at_least(0.0);
    parts.note("link_write_mb_s", Source::Measured(link.under(LINK)));
    parts.note("writes.ack_ns", Source::Measured(ack));
    (link, ack)
}

fn buffered(parts: &mut Parts<'_>, times: &WriteTimes, lone: Estimate, sustained: &Sustained) -> Found {
    note_kind(parts, "reads beside writes are as fast as without");
    let (link, ack) = link_and_ack(parts, times, lone);
    let drain = sustained.spacing;
    parts.note("writes.drain_ns", Source::Measured(drain));
    let arrival_ns = parts.controller.value.max(link.value * sustained.len_bytes as f64 / BLOCK_BYTES as f64);
    let found = plateau(sustained);
    // In whole blocks.
    let value = found.value.round().max(1.0);
    let blocks = Estimate { value, low: found.low.min(value), high: found.high.max(value) };
    let is_full = drain.value > 1.02 * arrival_ns && blocks.value < 0.5 * f64::from(sustained.count);
    let source = if is_full {
        Source::Measured(blocks.times(BLOCK_BYTES as f64))
    } else {
        Source::Assumed(format!("not full after {} writes; drain_ns is no more than that", sustained.count))
    };
    parts.note("writes.buffer_bytes", source);
    let buffer_bytes = whole(blocks.value).max(1) * BLOCK_BYTES;
    let buffer_bytes = buffer_bytes.min(1 << 30);
    let writes = Writes::Buffered { ack_ns: whole(ack.value), buffer_bytes, drain_ns: whole(drain.value).max(1) };
    Found { writes, link_mb_s: mb_s(link) }
}

/// The buffer in blocks: command i, from 0, finds room once i + 1 − blocks commands are drained, so what has finished
/// less what has drained stays at the buffer's size once it is full. Taken from the time right after, where errors of
/// the drain rate weigh least.
fn plateau(sustained: &Sustained) -> Estimate {
    let drain_ns = sustained.spacing.value.max(f64::MIN_POSITIVE);
    let held = |(index, at_ns): &(u32, u64)| f64::from(*index) + 1.0 - *at_ns as f64 / drain_ns;
    let all: Vec<f64> = sustained.points.iter().map(held).collect();
    let mut late = all[all.len() / 2..].to_vec();
    let level = Estimate::median(&mut late).unwrap_or(Estimate::exact(1.0)).value;
    let full = all.iter().position(|held| *held >= 0.95 * level).unwrap_or(0);
    let mut after: Vec<f64> = all.iter().skip(2 * full + 1).take(2 * full + 4).copied().collect();
    Estimate::median(&mut after).unwrap_or(Estimate::exact(level)).at_least(1.0)
}

fn programmed(parts: &mut Parts<'_>, times: &WriteTimes, lone: Estimate, sustained: &Sustained) -> Found {
    note_kind(parts, "lone writes don't wait for the flash, reads beside writes do");
    let (link, ack) = link_and_ack(parts, times, lone);
    let further = per_block(&times.within).map_or(Estimate::exact(0.0), |slope| slope.minus(link)).at_least(0.0);
    parts.note("writes.ack_further_ns", Source::Measured(further));
    let page_bytes = u64::from(sustained.lump.clamp(1, 256).next_power_of_two()) * BLOCK_BYTES;
    parts.note("nand.page_bytes", Source::Observed(format!("{} writes of a block finish together", sustained.lump)));
    let channels = channels(parts);
    let channel_mb_s = mb_s(parts.channel);
    let page_ns = parts.channel.value * page_bytes as f64 / BLOCK_BYTES as f64;
    let pages_ns = sustained.spacing.value * (page_bytes / BLOCK_BYTES) as f64 * f64::from(parts.units);
    let nand = Nand {
        channels,
        channel_mb_s,
        page_bytes,
        program_ns: whole(pages_ns - page_ns).max(1),
        reads_wait_for_programs: true,
        pages_per_block: PAGES_PER_BLOCK,
        erase_ns: ERASE_NS,
    };
    for name in ["nand.pages_per_block", "nand.erase_ns"] {
        parts.note(name, Source::Assumed("only garbage collection depends on it, which is not modelled here".into()));
    }
    let buffer_bytes = (u64::from(parts.units) * page_bytes).min(1 << 30);
    let writes =
        Writes::Programmed { ack_ns: whole(ack.value), ack_further_ns: whole(further.value), buffer_bytes, nand };
    Found { writes, link_mb_s: mb_s(link) }
}

/// As many channels as were seen; each has as many units.
fn channels(parts: &mut Parts<'_>) -> u32 {
    let seen = parts.seen.channels.map_or(0, |channels| channels.count);
    if seen == 0 {
        let why = "no two units hold each other up";
        parts.note("nand.channels", Source::Assumed(why.into()));
        parts.note("nand.channel_mb_s", Source::Assumed(why.into()));
        return parts.units;
    }
    parts.note("nand.channels", Source::Observed("counted by units that hold each other up".into()));
    parts.note("nand.channel_mb_s", Source::Measured(parts.channel.under(LINK)));
    let divisors = (1..=parts.units).filter(|divisor| parts.units.is_multiple_of(*divisor));
    divisors.min_by_key(|divisor| divisor.abs_diff(seen)).unwrap_or(1)
}

/// The program time and the buffer: the model's sustained writes are brought in line with the measured ones. Whether
/// reads wait for programs: what explains the reads beside writes better.
pub(crate) fn refine(profile: &mut Profile, parts: &mut Parts<'_>) {
    let (Some(sustained), Some(beside)) = (&parts.seen.sustained, &parts.seen.beside) else { return };
    for _ in 0..REFINEMENTS {
        let Some(modelled) = modelled_sustained(profile, parts) else { break };
        adjust(profile, sustained, &modelled);
    }
    let off = [true, false].map(|waits| {
        let mut candidate = profile.clone();
        if let Writes::Programmed { nand, .. } = &mut candidate.writes {
            nand.reads_wait_for_programs = waits;
        }
        let modelled = modelled_beside(&candidate, parts).map_or(f64::MAX, |modelled| modelled.read_mean_ns.max(1.0));
        (waits, (modelled / beside.read_mean_ns.max(1.0)).ln().abs())
    });
    if let Writes::Programmed { nand, buffer_bytes, .. } = &mut profile.writes {
        nand.reads_wait_for_programs = off[0].1 <= off[1].1;
        let doubt = sustained.spacing.times(1.0 / sustained.spacing.value.max(f64::MIN_POSITIVE));
        let (program, buffer) = (doubt.times(nand.program_ns as f64), doubt.times(*buffer_bytes as f64));
        parts.note("nand.program_ns", Source::Measured(program));
        parts.note("writes.buffer_bytes", Source::Measured(buffer));
        let how = "explains the latency of reads beside writes";
        parts.note("nand.reads_wait_for_programs", Source::Observed(how.into()));
    }
}

fn modelled_sustained(profile: &Profile, parts: &Parts<'_>) -> Option<Sustained> {
    model::session(profile, parts.facts, Effort::FULL, parts.seen).ok()?.sustained().ok()
}

fn modelled_beside(profile: &Profile, parts: &Parts<'_>) -> Option<Beside> {
    model::session(profile, parts.facts, Effort::FULL, parts.seen).ok()?.beside().ok()
}

/// A page less per die and spacing, a block more for each spacing that the model is ahead after the buffer is full.
fn adjust(profile: &mut Profile, measured: &Sustained, modelled: &Sustained) {
    let units = f64::from(profile.units);
    let Writes::Programmed { buffer_bytes, nand, .. } = &mut profile.writes else { return };
    let page_blocks = (nand.page_bytes / BLOCK_BYTES) as f64;
    let slower_ns = (measured.spacing.value - modelled.spacing.value) * page_blocks * units;
    nand.program_ns = whole(nand.program_ns as f64 + slower_ns).max(1);
    let last = measured.points.len().min(modelled.points.len());
    let behind = |index: usize| {
        let (measured_ns, modelled_ns) = (measured.points[index].1 as f64, modelled.points[index].1 as f64);
        // What differs only because the rates still do is not the buffer's.
        let drift_ns = (modelled.spacing.value - measured.spacing.value) * f64::from(measured.points[index].0);
        (modelled_ns - measured_ns - drift_ns) / measured.spacing.value.max(f64::MIN_POSITIVE)
    };
    let mut ahead: Vec<f64> = (last / 4..last / 2).map(behind).collect();
    let blocks = Estimate::median(&mut ahead).map_or(0.0, |ahead| ahead.value.round());
    let bytes = *buffer_bytes as f64 + blocks * BLOCK_BYTES as f64;
    *buffer_bytes = (bytes.clamp(nand.page_bytes as f64, (1_u64 << 30) as f64) as u64).next_multiple_of(BLOCK_BYTES);
}
