//! `[tenant.workload]`: what a tenant's application does. Words and units are fio's where fio has them.

use std::path::PathBuf;

use config::reading::{
    DEPTHS, Section, Sink, THREADS, Wrong, arrivals, beside, boolean, choice, first_writes, fraction, integer, list,
    or, read_rw, span_in, text,
};
use config::{Demand, DemandLoad, FirstWrites, Rw};
use io_model::Nanos;
use io_model::units::Rate;
use sim::workload::{Access, Arrivals, BlockSize, Fio, Open, Pattern, Webuser, Workload};

/// What a tenant's application does.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub workload: Workload,
    pub demand: Option<Demand>,
    pub trace: Option<TraceReplay>,
}

impl Work {
    fn of(workload: Workload) -> Self {
        Self { workload, demand: None, trace: None }
    }
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
    ("fio", &["rw", "rwmixread", "bs", "bssplit", "numjobs", "iodepth", "size", "first_writes"]),
    (
        "open",
        &[
            "rate_iops",
            "arrival",
            "on",
            "off",
            "rw",
            "rwmixread",
            "bs",
            "bssplit",
            "numjobs",
            "iodepth",
            "size",
            "first_writes",
        ],
    ),
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
    "first_writes",
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
pub(crate) fn read(sink: &mut Sink<'_>, section: &Section<'_, '_>, vcpus: u16) -> Option<Work> {
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
        "fio" => read_fio(sink, section),
        "open" => read_open(sink, section, vcpus),
        "trace" => {
            let trace = read_trace(sink, section)?;
            Some(Work { trace: Some(trace), ..Work::of(Workload::Idle) })
        }
        "webuser" => {
            let mean_iops = or(sink, section, "rate_iops", Rate(4_000), arrivals)?.0 as f64;
            Some(Work::of(Workload::Webuser(Webuser { jobs: vcpus.into(), mean_iops, ..Webuser::default() })))
        }
        _ => Some(Work::of(Workload::Idle)),
    }
}

fn access(rw: &Rw) -> Access {
    Access {
        read_percent: rw.read_percent,
        pattern: if rw.random { Pattern::Random } else { Pattern::Sequential },
        block_sizes: rw
            .block_sizes
            .iter()
            .map(|&config::BlockSize { bytes, weight }| BlockSize { bytes, weight })
            .collect(),
        working_set_bytes: rw.working_set.map(|size| size.0),
    }
}

/// A scenario has no snapshots.
fn read_first_writes(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Option<FirstWrites>> {
    or(sink, section, "first_writes", None, |value| match first_writes(value)? {
        FirstWrites { are_shared: true, .. } => Err(Wrong {
            what: "is of shared pieces, and a scenario has no snapshots".to_owned(),
            remedy: "remove \"shared\"; `evenkeel plan` plays copies".to_owned(),
        }),
        of_new => Ok(Some(of_new)),
    })
}

fn read_fio(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Work> {
    let rw = read_rw(sink, section);
    let numjobs = or(sink, section, "numjobs", 1, integer(THREADS));
    let iodepth = or(sink, section, "iodepth", 1, integer(DEPTHS));
    let first_writes = read_first_writes(sink, section);
    let (numjobs, iodepth, rw, first_writes) = (numjobs?, iodepth?, rw?, first_writes?);
    let workload = Workload::Fio(Fio { jobs: numjobs, iodepth, access: access(&rw) });
    let load = DemandLoad::Closed { numjobs, iodepth };
    Some(Work { demand: Some(Demand { load, rw, first_writes }), ..Work::of(workload) })
}

fn read_open(sink: &mut Sink<'_>, section: &Section<'_, '_>, vcpus: u16) -> Option<Work> {
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
    let burst = if arrival == 2 {
        let spans = |min| span_in(Nanos(min)..=Nanos(3_600_000_000_000));
        let on = section.require(sink, "on", "add on = \"100ms\" (how long a burst lasts)", spans(1_000));
        let off = section.require(sink, "off", "add off = \"400ms\" (how long the pause after it)", spans(0));
        Some((on?.into_inner(), off?.into_inner()))
    } else {
        None
    };
    let first_writes = read_first_writes(sink, section);
    let (rate_iops, rw, first_writes) = (rate_iops?.into_inner(), rw?, first_writes?);
    let iops = rate_iops.0 as f64;
    let arrivals = match (burst, arrival) {
        (Some((on, off)), _) => Arrivals::Bursts { iops, on, off },
        (None, 0) => Arrivals::Poisson { iops },
        (None, _) => Arrivals::Constant { iops },
    };
    let workload = Workload::Open(Open { jobs: numjobs?, arrivals, access: access(&rw), max_outstanding: iodepth? });
    Some(Work { demand: Some(Demand { load: DemandLoad::Open { rate_iops }, rw, first_writes }), ..Work::of(workload) })
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
