//! A slow spell of one tenant beside the time before: what it got, what its neighbours did, what the host did.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::{Interval, Promise, Summary};

/// An interval whose mean latency is this many times the usual one is slow.
const SLOW: f64 = 1.5;

/// What one tenant did and got, over some intervals.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Did {
    /// Commands completed per second.
    pub iops: f64,
    /// Bytes per second, both ways.
    pub bytes_s: f64,
    /// Reads of those that read or write, 0 to 1.
    pub read_share: f64,
    /// Mean latency, waiting included.
    pub mean_ns: f64,
    /// The part of the mean that passed with the drive.
    pub served_ns: f64,
    /// 99th percentile: of a spell the highest of its intervals, of the usual time the median.
    pub p99_ns: u64,
    /// The percentile that its target is for, in the same way; the 99th without one.
    pub at_percentile_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Commands later than the target.
    pub late: u64,
    /// The part of its commands, 0 to 1, that was later than the target.
    pub late_part: f64,
    /// The part of its commands, 0 to 1, that was late only because a poller stood still.
    pub stalled: f64,
    /// Commands that the drive failed.
    pub errors: u64,
}

impl Did {
    /// The part of the mean latency that passed in the tenant's own queues.
    pub fn waited_ns(&self) -> f64 {
        (self.mean_ns - self.served_ns).max(0.0)
    }

    /// Commands outstanding in the mean, waiting ones included (Little's law).
    pub fn outstanding(&self) -> f64 {
        self.iops * self.mean_ns / 1e9
    }

    /// Bytes that its commands move, in the mean.
    pub fn mean_len_bytes(&self) -> f64 {
        if self.iops > 0.0 { self.bytes_s / self.iops } else { 0.0 }
    }

    /// Whether nothing completed.
    pub fn is_idle(&self) -> bool {
        self.iops <= 0.0
    }

    fn of(intervals: &[&Interval], tenant: &str, one_of: fn(Vec<u64>) -> u64) -> Self {
        let seconds = intervals.iter().map(|it| f64::from(it.span_ms)).sum::<f64>().max(1.0) / 1e3;
        let own: Vec<&Summary> = intervals.iter().filter_map(|it| of(it, tenant)).collect();
        // The sum of no floats is -0, and would be shown so.
        let sum = |field: fn(&Summary) -> u64| own.iter().fold(0.0, |all, it| all + field(it) as f64);
        let (commands, bytes) = (sum(Summary::commands), sum(Summary::bytes));
        let (reads, writes) = (sum(|it| it.reads.into()), sum(|it| it.writes.into()));
        let percentile =
            |of: fn(&Summary) -> u64| one_of(own.iter().filter(|it| it.commands() > 0).map(|it| of(it)).collect());
        let count = |field: fn(&Summary) -> u32| own.iter().map(|it| u64::from(field(it))).sum();
        Self {
            iops: commands / seconds,
            bytes_s: bytes / seconds,
            read_share: if reads + writes > 0.0 { reads / (reads + writes) } else { 0.0 },
            mean_ns: sum(|it| it.latency_sum_ns) / commands.max(1.0),
            served_ns: sum(|it| it.served_sum_ns) / commands.max(1.0),
            p99_ns: percentile(|it| it.p99_ns),
            at_percentile_ns: percentile(|it| it.at_percentile_ns),
            max_ns: own.iter().map(|it| it.max_ns).max().unwrap_or(0),
            late: count(|it| it.late),
            late_part: sum(|it| it.late.into()) / commands.max(1.0),
            stalled: sum(|it| it.stalled.into()) / commands.max(1.0),
            errors: count(|it| it.errors),
        }
    }
}

/// Another tenant of the same drive.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbour {
    /// Its name.
    pub name: String,
    /// What it was promised.
    pub promise: Promise,
    /// In the spell.
    pub then: Did,
    /// Before; `None`: nothing is known of that time.
    pub usual: Option<Did>,
}

/// The intervals that are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spell {
    /// Start of the first, in ms since 1970.
    pub from_unix_ms: u64,
    /// End of the last.
    pub to_unix_ms: u64,
    /// How many.
    pub intervals: usize,
    /// How many the tenant did something in, of those that were asked for.
    pub of: usize,
    /// Whether they were slow; `None`: there is nothing to compare with.
    pub is_slow: Option<bool>,
    /// Intervals that count as usual.
    pub usual: usize,
    /// The time that these cover, in ms.
    pub usual_ms: u64,
    /// Other slow spells of the time that was asked for, in which it lost less.
    pub others: usize,
}

/// Why there is nothing to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoComparison {
    /// Of the whole time that was asked for.
    #[error("no summaries are kept of that time")]
    NoSummaries,
    /// There are summaries, but it is in none of them.
    #[error("it did nothing at that time")]
    Idle,
    /// The drive had commands of it all the time, and answered none.
    #[error("none of its commands came back at that time")]
    Hung,
}

/// A spell beside the usual time.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The drive.
    pub drive: String,
    /// Its policy at the end of the spell.
    pub policy: String,
    /// What was promised then.
    pub promise: Promise,
    /// The tenant's weight then; 0 for one that was promised something.
    pub weight: u32,
    /// Which intervals.
    pub spell: Spell,
    /// What the tenant got then.
    pub then: Did,
    /// What it gets usually, if that is known.
    pub usual: Option<Did>,
    /// Part of the time in which pollers waited for a CPU, 0 to 1.
    pub starved: f64,
    /// The usual value of `starved`.
    pub usual_starved: Option<f64>,
    /// Those that did something then, by name.
    pub neighbours: Vec<Neighbour>,
}

impl Comparison {
    /// What became of `tenant` in `window` (ms since 1970); `intervals` are in order, and those before the window say
    /// what is usual. If part of the window is slow, it is about the part in which it lost most, and what is not slow
    /// counts as usual.
    ///
    /// # Errors
    /// There is nothing to compare.
    pub fn of(intervals: &[Interval], tenant: &str, window: Range<u64>) -> Result<Self, NoComparison> {
        let is_asked = |it: &Interval| it.at_unix_ms < window.end && end(it) > window.start;
        if !intervals.iter().any(is_asked) {
            return Err(NoComparison::NoSummaries);
        }
        let is_there = |it: &Interval| is_asked(it) && of(it, tenant).is_some();
        let none = if intervals.iter().any(is_there) { NoComparison::Hung } else { NoComparison::Idle };
        let last = intervals.iter().rev().find(|it| is_asked(it) && busy(it, tenant)).ok_or(none)?;
        let own: Vec<&Interval> = intervals.iter().filter(|it| it.drive == last.drive && busy(it, tenant)).collect();
        let asked: Vec<&Interval> = own.iter().copied().filter(|it| is_asked(it)).collect();
        let usual_mean = lower_quartile(own.iter().filter_map(|it| of(it, tenant)).map(Summary::mean_ns).collect());
        let is_slow = |it: &Interval| {
            of(it, tenant).is_some_and(|own| own.misses() || own.mean_ns() as f64 > SLOW * usual_mean as f64)
        };
        let slow = runs(&asked, is_slow);
        let lost = |run: &&[&Interval]| -> u64 {
            let own = run.iter().filter_map(|it| of(it, tenant));
            own.map(|it| it.latency_sum_ns.saturating_sub(it.commands().saturating_mul(usual_mean))).sum()
        };
        let then = slow.iter().copied().max_by_key(lost).unwrap_or(&asked);
        let is_then = |it: &Interval| then.iter().any(|one| std::ptr::eq(*one, it));
        // What comes after the window says nothing of what was usual before.
        let before = own.iter().copied().filter(|it| it.at_unix_ms < window.end && !is_then(it));
        let usual: Vec<&Interval> = before.filter(|it| !is_slow(it)).collect();
        let has_target = of(last, tenant).is_some_and(|own| matches!(own.promise, Promise::Target { .. }));
        let (Some(first), Some(newest)) = (then.first(), then.last()) else { return Err(NoComparison::Idle) };
        let spell = Spell {
            from_unix_ms: first.at_unix_ms,
            to_unix_ms: end(newest),
            intervals: then.len(),
            of: asked.len(),
            is_slow: if slow.is_empty() { (has_target || own.len() > 1).then_some(false) } else { Some(true) },
            usual: usual.len(),
            usual_ms: usual.iter().map(|it| u64::from(it.span_ms)).sum(),
            others: slow.len().saturating_sub(1),
        };
        let kept = of(newest, tenant).cloned().unwrap_or_default();
        let did = |name: &str| Did::of(then, name, |all| all.into_iter().max().unwrap_or(0));
        let did_usually = |name: &str| (!usual.is_empty()).then(|| Did::of(&usual, name, median));
        Ok(Self {
            drive: newest.drive.clone(),
            policy: newest.policy.clone(),
            promise: kept.promise,
            weight: kept.weight,
            spell,
            then: did(tenant),
            usual: did_usually(tenant),
            starved: starved(then),
            usual_starved: (!usual.is_empty()).then(|| starved(&usual)),
            neighbours: neighbours(then, tenant, did, did_usually),
        })
    }
}

/// All others that did something then, by name.
fn neighbours(
    then: &[&Interval],
    tenant: &str,
    did: impl Fn(&str) -> Did,
    did_usually: impl Fn(&str) -> Option<Did>,
) -> Vec<Neighbour> {
    let names = then.iter().flat_map(|it| &it.tenants).map(|it| it.name.as_str()).filter(|name| *name != tenant);
    let neighbour = |name: &str| Neighbour {
        name: name.to_owned(),
        promise: then.iter().rev().find_map(|it| of(it, name)).map_or(Promise::None, |it| it.promise),
        then: did(name),
        usual: did_usually(name),
    };
    let all = names.collect::<BTreeSet<_>>().into_iter().map(neighbour);
    all.filter(|it| !it.then.is_idle()).collect()
}

/// Intervals that follow each other and of which `is_one` holds.
fn runs<'a, 'i>(intervals: &'a [&'i Interval], is_one: impl Fn(&Interval) -> bool) -> Vec<&'a [&'i Interval]> {
    let goes_on = |one: &&Interval, next: &&Interval| is_one(one) == is_one(next);
    intervals.chunk_by(goes_on).filter(|run| run.first().is_some_and(|it| is_one(it))).collect()
}

fn of<'a>(interval: &'a Interval, tenant: &str) -> Option<&'a Summary> {
    interval.tenants.iter().find(|it| it.name == tenant)
}

fn busy(interval: &Interval, tenant: &str) -> bool {
    of(interval, tenant).is_some_and(|it| it.commands() > 0)
}

fn end(interval: &Interval) -> u64 {
    interval.at_unix_ms.saturating_add(interval.span_ms.into())
}

fn starved(intervals: &[&Interval]) -> f64 {
    let all_ms: f64 = intervals.iter().map(|it| f64::from(it.span_ms)).sum();
    let starved: f64 = intervals.iter().map(|it| f64::from(it.starved_ppm) * f64::from(it.span_ms)).sum();
    if all_ms > 0.0 { starved / all_ms / 1e6 } else { 0.0 }
}

fn lower_quartile(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 4).copied().unwrap_or(0)
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
