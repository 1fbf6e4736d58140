//! From what was seen to a profile. Each parameter says how it was found.

use arbitration::Arbitration;
use serde::Serialize;
use ssd_model::{Basis, Placement, Profile, Writes};

use crate::estimate::{Estimate, slope};
use crate::fit_writes::{self, Kind};
use crate::judge::judge;
use crate::model;
use crate::rig::Facts;
use crate::seen::{Basics, Point, Seen, Units};
use crate::session::{ASSUMED_STRIPE_BYTES, BLOCK_BYTES, Effort};

/// How a parameter was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Measured, with its interval in the parameter's unit.
    Measured(Estimate),
    /// Observed, without an interval: how.
    Observed(String),
    /// Not observable in this run: what was taken, and why.
    Assumed(String),
}

/// A parameter and its source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parameter {
    /// As the profile names it.
    pub name: &'static str,
    /// How it was found.
    pub source: Source,
}

/// A fitted drive.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The drive; its basis tells the sources.
    pub profile: Profile,
    /// The sources again, with numbers.
    pub parameters: Vec<Parameter>,
}

/// What the parameters are made of. Times in ns.
pub(crate) struct Parts<'s> {
    pub(crate) seen: &'s Seen,
    pub(crate) basics: Basics,
    pub(crate) facts: Facts,
    kind: Kind,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) stripe_bytes: u64,
    pub(crate) units: u32,
    pub(crate) controller: Estimate,
    pub(crate) pipeline: Estimate,
    /// A unit's time for 4 KiB, and for every further one.
    pub(crate) read: Estimate,
    pub(crate) further: Estimate,
    /// 4 KiB on a flash channel; 0 without one.
    pub(crate) channel: Estimate,
    /// 4 KiB on the link out of the drive.
    pub(crate) link_read: Estimate,
}

/// The profile that explains what was seen. `None`: nothing was seen.
pub fn fit(seen: &Seen, facts: Facts, name: &str, description: &str) -> Option<Fit> {
    let attempt = |seen: &Seen| attempt(seen, facts, name, description);
    let trusting = attempt(seen)?;
    if rate_off(&trusting.profile, facts, seen) < FLUSH_TRUSTED {
        return Some(trusting);
    }
    // A system may answer a flush without the drive.
    let mut best = (reads_off(&trusting.profile, facts, seen), trusting);
    let without_flush = attempt(&doubted(seen, false))?;
    let off = reads_off(&without_flush.profile, facts, seen);
    if off < best.0 {
        best = (off, without_flush);
    }
    // Collisions may have misled: a drive with a cache is then better described by its rate alone.
    if best.0 > STRUCTURE_TRUSTED {
        let by_rate = attempt(&doubted(seen, true))?;
        let off = reads_off(&by_rate.profile, facts, seen);
        if off < best.0 / 2.0 {
            best = (off, by_rate);
        }
    }
    Some(best.1)
}

/// A profile whose controller's time is a flush's may be so far off the measured rate of small reads.
const FLUSH_TRUSTED: f64 = 0.02;

/// A profile with units that were counted may be so far off the measured reads, in the median.
const STRUCTURE_TRUSTED: f64 = 0.15;

/// What was seen without the flushes; and, if wanted, without what was seen of units.
fn doubted(seen: &Seen, with_units: bool) -> Seen {
    let mut seen = seen.clone();
    if let Some(basics) = &mut seen.basics {
        basics.flush = None;
        basics.by_address &= !with_units;
    }
    if with_units {
        seen.units = Some(Units { count: 1, complete: false, addresses: vec![], stripe_ns: None });
    }
    seen
}

/// How far the predicted rate of 4 KiB reads is off where it was highest; 0 where it was not measured.
fn rate_off(profile: &Profile, facts: Facts, seen: &Seen) -> f64 {
    let small = seen.read_cells.iter().flatten().filter(|cell| cell.len_bytes == BLOCK_BYTES);
    let Some(fastest) = small.max_by(|a, b| a.iops.total_cmp(&b.iops)) else { return 0.0 };
    let predicted = model::session(profile, facts, Effort::QUICK, seen)
        .ok()
        .and_then(|mut session| session.cell(100, BLOCK_BYTES, fastest.depth).ok().flatten());
    predicted.map_or(0.0, |predicted| (predicted.iops / fastest.iops - 1.0).abs())
}

/// How far the predicted rates of all loads that only read are off, in the median.
fn reads_off(profile: &Profile, facts: Facts, seen: &Seen) -> f64 {
    let reads = Seen { write_cells: None, ..seen.clone() };
    let mut off: Vec<f64> =
        judge(profile, facts, Effort::QUICK, &reads).iter().map(|load| load.iops_off().abs()).collect();
    Estimate::median(&mut off).map_or(0.0, |off| off.value)
}

fn attempt(seen: &Seen, facts: Facts, name: &str, description: &str) -> Option<Fit> {
    let mut parts = Parts::new(seen, facts)?;
    let kind = parts.kind;
    let writes = fit_writes::fit(&mut parts, kind);
    let mut profile = parts.profile(writes.writes, writes.link_mb_s);
    profile.name = name.into();
    profile.description = description.into();
    if let Writes::Programmed { .. } = profile.writes {
        fit_writes::refine(&mut profile, &mut parts);
    }
    let mut fit = Fit { profile, parameters: Vec::new() };
    fit.add(parts.parameters.into_iter());
    Some(fit)
}

impl Fit {
    /// Notes more parameters of the profile with their sources.
    pub(crate) fn add(&mut self, more: impl Iterator<Item = Parameter>) {
        self.parameters.extend(more);
        let basis = self.parameters.iter();
        let basis = basis
            .map(|Parameter { name, source }| Basis { parameter: (*name).into(), text: tell(name, source).into() });
        self.profile.basis = basis.collect();
    }
}

/// A source in the words of a profile's `[basis]`.
fn tell(name: &str, source: &Source) -> String {
    let unit = match name {
        _ if name.ends_with("_ns") => " ns",
        _ if name.ends_with("_mb_s") => " MB/s",
        _ if name.ends_with("_bytes") => " bytes",
        _ => "",
    };
    match source {
        Source::Measured(Estimate { low, high, .. }) => {
            format!("[M] measured, 95 % confidence interval {low:.0}..{high:.0}{unit}")
        }
        Source::Observed(how) => format!("[M] {how}"),
        Source::Assumed(why) => format!("[F] assumed: {why}"),
    }
}

impl<'s> Parts<'s> {
    fn new(seen: &'s Seen, facts: Facts) -> Option<Self> {
        let basics = seen.basics?;
        let mut parts = Self {
            seen,
            basics,
            facts,
            kind: Kind::Assumed,
            parameters: Vec::new(),
            stripe_bytes: seen.stripe_bytes.flatten().unwrap_or(ASSUMED_STRIPE_BYTES),
            units: seen.units.as_ref().map_or(1, |units| units.count.max(1)),
            controller: Estimate::exact(0.0),
            pipeline: Estimate::exact(0.0),
            read: basics.same_spacing,
            further: Estimate::exact(0.0),
            channel: Estimate::exact(0.0),
            link_read: Estimate::exact(0.0),
        };
        parts.find_structure();
        parts.find_controller();
        parts.kind = Kind::of(seen, basics, parts.controller.value);
        parts.find_link();
        parts.find_units();
        parts.find_window();
        Some(parts)
    }

    pub(crate) fn note(&mut self, name: &'static str, source: Source) {
        self.parameters.push(Parameter { name, source });
    }

    /// The flush is one of those that only pass the controller, as far as can be seen.
    fn plain_flush(&self) -> Option<Estimate> {
        self.basics.flush.filter(|flush| flush.value < self.basics.read.value)
    }

    fn find_structure(&mut self) {
        let how = if self.basics.by_address {
            "one address is slower than many: each has its unit"
        } else {
            "one address is as fast as many: any unit serves it"
        };
        self.note("placement", Source::Observed(how.into()));
        let stripe = match self.seen.stripe_bytes.flatten() {
            Some(_) if self.basics.by_address => Source::Observed("the least distance without a collision".into()),
            Some(_) => Source::Observed("the least border across which 8 KiB are faster".into()),
            None => Source::Assumed("no two addresses differ by their unit".into()),
        };
        self.note("stripe_bytes", stripe);
    }

    /// The controller's time: what separates two commands if nothing else does.
    fn find_controller(&mut self) {
        let by_flush = self.plain_flush().and(self.basics.flush_spacing);
        let by_reads = self.seen.reads.as_ref().and_then(|reads| reads.distinct_spacing);
        let candidates = [by_flush, by_reads, Some(self.basics.small_spacing)].into_iter().flatten();
        let least = candidates.min_by(|a, b| a.value.total_cmp(&b.value));
        self.controller = least.unwrap_or(self.controller);
        self.note("controller_ns", Source::Measured(self.controller));
    }

    /// The link out of the drive: what each further stripe costs a read whose stripes are on different units.
    fn find_link(&mut self) {
        let reads = self.seen.reads.as_ref();
        let by_stripes = reads.and_then(|reads| per_block(&reads.beyond));
        let by_blocks = reads.and_then(|reads| Some(per_block(&reads.within)?.minus(per_block(&reads.same)?)));
        let found = [by_stripes, by_blocks].into_iter().flatten().find(|link| link.value >= 1.0);
        let source = match found {
            Some(link) => {
                self.link_read = link;
                Source::Measured(link.under(LINK))
            }
            None => Source::Assumed("no size shows a link that limits".into()),
        };
        self.note("link_read_mb_s", source);
    }

    fn find_units(&mut self) {
        let reads = self.seen.reads.as_ref();
        // Channels of their own are flash's; elsewhere they are part of the units' time.
        let channels = self.seen.channels.filter(|channels| channels.count > 0 && self.kind == Kind::Programmed);
        if let Some(stripe_ns) = channels.and_then(|channels| channels.stripe_ns) {
            self.channel = stripe_ns.times(BLOCK_BYTES as f64 / self.stripe_bytes as f64);
        }
        let lone = self.basics.read;
        if self.basics.by_address {
            let same = reads.and_then(|reads| reads.same.first()).map_or(self.basics.same_spacing, |point| point.ns);
            let slope = reads.and_then(|reads| per_block(&reads.same)).unwrap_or(Estimate::exact(0.0));
            self.further = slope.minus(self.channel).at_least(0.0);
            self.read = same.minus(self.channel).at_least(1.0);
            self.pipeline = Estimate::sum(&[(1.0, lone), (-1.0, self.controller), (-1.0, same)]).at_least(0.0);
        } else {
            let slope = reads.and_then(|reads| per_block(&reads.within)).unwrap_or(Estimate::exact(0.0));
            self.further = slope.minus(self.link_read).at_least(0.0);
            let others = (self.stripe_bytes / BLOCK_BYTES - 1) as f64;
            let filled = self.seen.units.as_ref().and_then(|units| units.stripe_ns);
            let by_filling = filled.map(|stripe| Estimate::sum(&[(1.0, stripe), (-others, self.further)]));
            let by_flush = self.plain_flush().map(|flush| lone.minus(flush));
            // The flush first: the link may hold up what waited for units.
            self.read = by_flush.or(by_filling).unwrap_or(lone).at_least(1.0);
            self.pipeline = Estimate::sum(&[(1.0, lone), (-1.0, self.controller), (-1.0, self.read)]).at_least(0.0);
        }
        self.note_units();
        for (name, estimate) in [("read_ns", self.read), ("further_ns", self.further), ("pipeline_ns", self.pipeline)] {
            self.note(name, Source::Measured(estimate));
        }
    }

    fn note_units(&mut self) {
        let counted = self.seen.units.as_ref().filter(|units| units.count > 1 || units.complete);
        let source = match counted {
            Some(units) if units.complete => Source::Observed("counted".into()),
            Some(units) => Source::Observed(format!("counted {}; there may be more", units.count)),
            None => {
                // Without addresses that tell, units are what the rate needs.
                let most = self.rate_of(100).unwrap_or(0.0) / 1e9;
                self.units = (most * self.read.value).round().clamp(1.0, 4096.0) as u32;
                Source::Observed(format!("the read rate times read_ns, from {:.0} reads/s", most * 1e9))
            }
        };
        self.note("units", source);
    }

    /// The highest rate of 4 KiB commands under load, 1/s.
    pub(crate) fn rate_of(&self, read_percent: u8) -> Option<f64> {
        let cells = self.seen.read_cells.iter().chain(&self.seen.write_cells).flatten();
        let small = cells.filter(|cell| cell.read_percent == read_percent && cell.len_bytes == BLOCK_BYTES);
        small.map(|cell| cell.iops).max_by(f64::total_cmp)
    }

    fn find_window(&mut self) {
        let source = match self.seen.window {
            Some(window) => match window.commands {
                Some(commands) => Source::Measured(commands),
                None => Source::Assumed(format!("no limit was seen up to {} commands", window.tried)),
            },
            None => Source::Assumed("not measured".into()),
        };
        self.note("window", source);
        self.note("arbitration", Source::Assumed("what a back end can't choose can't be seen".into()));
        let burst = match self.seen.burst.flatten() {
            Some(_) => Source::Observed("how many of one queue finished in a row".into()),
            None => Source::Assumed("nothing had to wait for its turn".into()),
        };
        self.note("burst", burst);
    }

    fn profile(&self, writes: Writes, link_write_mb_s: u32) -> Profile {
        let hashed = self.basics.by_address;
        let window = match self.seen.window {
            Some(window) => window.commands.map_or(window.tried.max(1024), |commands| commands.value.round() as u32),
            None => 1024,
        };
        Profile {
            name: "".into(),
            description: "".into(),
            units: self.units,
            placement: if hashed { Placement::Hashed } else { Placement::Pooled },
            stripe_bytes: self.stripe_bytes,
            read_ns: whole(self.read.value).max(1),
            further_ns: whole(self.further.value),
            writes,
            gc: None,
            controller_ns: whole(self.controller.value),
            pipeline_ns: whole(self.pipeline.value),
            link_read_mb_s: mb_s(self.link_read),
            link_write_mb_s,
            arbitration: Arbitration::RoundRobin { burst: self.seen.burst.flatten().unwrap_or(1).clamp(1, 1024) },
            window: window.clamp(1, 65_535),
            cipher: None,
            basis: [].into(),
        }
    }
}

/// ns for 4 KiB and MB/s (10⁶ bytes) are this over each other.
pub(crate) const LINK: f64 = BLOCK_BYTES as f64 * 1000.0;

/// A link's rate from its time for 4 KiB; the fastest that a profile can have where none was seen.
pub(crate) fn mb_s(block_ns: Estimate) -> u32 {
    if block_ns.value < 1.0 { 1_000_000 } else { (LINK / block_ns.value).round().clamp(1.0, 1e6) as u32 }
}

/// A time that a profile can have.
pub(crate) fn whole(ns: f64) -> u64 {
    ns.round().clamp(0.0, 1e9) as u64
}

/// What each further 4 KiB costs: from the first point to the last, and with the interval of those. `None`: one size.
pub(crate) fn per_block(points: &[Point]) -> Option<Estimate> {
    let (first, last) = (points.first()?, points.last()?);
    let blocks = last.len_bytes.checked_sub(first.len_bytes)? as f64 / BLOCK_BYTES as f64;
    if blocks < 1.0 {
        return None;
    }
    let ends = last.ns.minus(first.ns).times(1.0 / blocks);
    let all = slope(points.iter().map(|point| (point.len_bytes as f64 / BLOCK_BYTES as f64, point.ns.value)));
    // All points say it better than two, if they lie on a line; a kink is the ends' business.
    let value = if (all - ends.value).abs() < 0.05 * ends.value.abs() { all } else { ends.value };
    Some(Estimate { value, low: ends.low.min(value), high: ends.high.max(value) })
}
