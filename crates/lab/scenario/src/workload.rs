//! `[tenant.workload]`: what a tenant's application does. Words and units are fio's where fio has them.

use std::path::PathBuf;

use config::Rw;
use config::reading::{
    DEPTHS, Section, Sink, THREADS, arrivals, beside, boolean, choice, fraction, integer, list, or, read_rw, span_in,
    text,
};
use io_model::Nanos;
use io_model::units::Rate;

/// What a tenant's application does.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// A closed loop: each I/O that ends is followed by another.
    Fio(Fio),
    /// An open loop: arrivals come whether or not the last I/O ended.
    Open(Open),
    /// A block trace.
    Trace(TraceReplay),
    /// A synthetic stand-in for the *webusers* trace.
    Webuser {
        /// Its mean rate.
        rate_iops: Rate,
    },
    /// Nothing.
    Idle,
}

/// A closed loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fio {
    /// Threads, 1 to 1024.
    pub numjobs: u32,
    /// I/Os that each keeps outstanding, 1 to 65536.
    pub iodepth: u32,
    /// What.
    pub rw: Rw,
}

/// An open loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// Threads that share the arrivals, 1 to 1024.
    pub numjobs: u32,
    /// I/Os that each may have outstanding before arrivals wait, 1 to 65536.
    pub iodepth: u32,
    /// The mean rate; of bursts: while they last.
    pub rate_iops: Rate,
    /// When.
    pub arrival: Arrival,
    /// What.
    pub rw: Rw,
}

/// When I/Os arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Independent of each other.
    Poisson,
    /// At equal gaps.
    Constant,
    /// Poisson arrivals in bursts.
    OnOff {
        /// How long a burst lasts; above 0.
        on: Nanos,
        /// How long the pause after it.
        off: Nanos,
    },
}

/// A block trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceReplay {
    /// The file, from the current directory or absolute.
    pub path: PathBuf,
    /// Its form; `None`: found out by its first lines.
    pub format: Option<trace::Format>,
    /// How much faster than it was recorded, 0.000001 to 1000000.
    pub speed: f64,
    /// Begin again at the end; `None`: yes, if the trace spans any time.
    pub looping: Option<bool>,
}

/// Which keys each kind has.
const KINDS: [(&str, &[&str]); 5] = [
    ("fio", &["rw", "rwmixread", "bs", "bssplit", "numjobs", "iodepth", "size"]),
    ("open", &["rate_iops", "arrival", "on", "off", "rw", "rwmixread", "bs", "bssplit", "numjobs", "iodepth", "size"]),
    ("trace", &["path", "format", "speed", "loop"]),
    ("webuser", &["rate_iops"]),
    ("idle", &[]),
];

pub(crate) const KEYS: &[&str] = &[
    "kind",
    "rw",
    "rwmixread",
    "bs",
    "bssplit",
    "numjobs",
    "iodepth",
    "size",
    "rate_iops",
    "arrival",
    "on",
    "off",
    "path",
    "format",
    "speed",
    "loop",
];

/// `vcpus`: an open loop has a thread for each, unless it says otherwise.
pub(crate) fn read(sink: &mut Sink<'_>, section: &Section<'_, '_>, vcpus: u16) -> Option<Workload> {
    section.reject_unknown(sink);
    let words = KINDS.map(|(kind, _)| (kind, kind));
    let names: Vec<&str> = KINDS.iter().skip(1).map(|(kind, _)| *kind).collect();
    let remedy = format!("add kind = {:?} (or {})", KINDS[0].0, list(&names));
    let kind = section.require(sink, "kind", &remedy, choice(&words, &[]))?.into_inner();
    let own = KINDS.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, keys)| keys);
    for key in section.known.iter().filter(|key| **key != "kind" && !own.contains(key)) {
        section.forbid(sink, key, &format!("a workload of kind {kind:?} has none"), "remove it, or change the kind");
    }
    match kind {
        "fio" => read_fio(sink, section).map(Workload::Fio),
        "open" => read_open(sink, section, vcpus).map(Workload::Open),
        "trace" => read_trace(sink, section).map(Workload::Trace),
        "webuser" => Some(Workload::Webuser { rate_iops: or(sink, section, "rate_iops", Rate(4_000), arrivals)? }),
        _ => Some(Workload::Idle),
    }
}

fn read_fio(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Fio> {
    let rw = read_rw(sink, section);
    let numjobs = or(sink, section, "numjobs", 1, integer(THREADS));
    let iodepth = or(sink, section, "iodepth", 1, integer(DEPTHS));
    Some(Fio { numjobs: numjobs?, iodepth: iodepth?, rw: rw? })
}

fn read_open(sink: &mut Sink<'_>, section: &Section<'_, '_>, vcpus: u16) -> Option<Open> {
    let rw = read_rw(sink, section);
    let numjobs = or(sink, section, "numjobs", vcpus.into(), integer(THREADS));
    let iodepth = or(sink, section, "iodepth", 4096, integer(DEPTHS));
    let rate_iops = section.require(sink, "rate_iops", "add rate_iops = \"10k\" (arrivals per second)", arrivals);
    let words = [("poisson", 0), ("constant", 1), ("on-off", 2)];
    let arrival = or(sink, section, "arrival", 0, choice(&words, &[]))?;
    if arrival != 2 {
        for key in ["on", "off"] {
            section.forbid(sink, key, "only on-off arrivals have bursts", "add arrival = \"on-off\", or remove it");
        }
    }
    let arrival = match arrival {
        0 => Arrival::Poisson,
        1 => Arrival::Constant,
        _ => {
            let spans = |min| span_in(Nanos(min)..=Nanos(3_600_000_000_000));
            let on = section.require(sink, "on", "add on = \"100ms\" (how long a burst lasts)", spans(1_000));
            let off = section.require(sink, "off", "add off = \"400ms\" (how long the pause after it)", spans(0));
            Arrival::OnOff { on: on?.into_inner(), off: off?.into_inner() }
        }
    };
    let rate_iops = rate_iops?.into_inner();
    Some(Open { numjobs: numjobs?, iodepth: iodepth?, rate_iops, arrival, rw: rw? })
}

fn read_trace(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<TraceReplay> {
    let file = sink.text.file.clone();
    let remedy = "add path = \"traces/web.csv\", from the directory of this file";
    let path = section.require(sink, "path", remedy, |value| beside(&file, &text(value)?));
    let mut words = vec![("auto", None)];
    words.extend(trace::Format::ALL.map(|format| (format.name(), Some(format))));
    let format = or(sink, section, "format", None, choice(&words, &[]));
    let speed = or(sink, section, "speed", 1.0, fraction(0.000_001..=1_000_000.0));
    let looping = or(sink, section, "loop", None, |value| boolean(value).map(Some));
    Some(TraceReplay { path: path?.into_inner(), format: format?, speed: speed?, looping: looping? })
}
