//! `[[fault]]`: what goes wrong, and when.

use std::ops::Range;

use config::reading::{Section, Sink, choice, fraction, integer, list, or, span_in, text};
use io_model::Nanos;
use toml::Spanned;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// When, from the start of the run; the warm-up counts.
    pub at: Nanos,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultKind {
    /// The drive fails commands.
    Error {
        /// How many, above 0 and at most 1.
        probability: f64,
        /// For how long; `None`: to the end.
        lasts: Option<Nanos>,
    },
    /// The drive finishes nothing.
    Stall {
        /// For how long.
        lasts: Nanos,
    },
    /// Completions of one HWQ never come.
    LoseHwq {
        /// Which, counted over all pollers.
        hwq: u16,
        /// How long the host waits before it gives a command up.
        timeout: Nanos,
    },
    /// The tenant's driver resets its controller.
    Reset {
        /// Index into the tenants.
        tenant: usize,
    },
    /// The tenant goes away with commands in flight.
    Leave {
        /// Index into the tenants.
        tenant: usize,
    },
    /// The tenant rings its doorbells for commands that aren't there.
    Rogue {
        /// Index into the tenants.
        tenant: usize,
    },
}

/// A fault as far as it could be read.
pub(crate) struct FaultDraft {
    pub span: Range<usize>,
    pub at: Nanos,
    pub kind: KindDraft,
}

/// Tenants are names until all are known.
pub(crate) enum KindDraft {
    Plain(FaultKind),
    Of(fn(usize) -> FaultKind, Spanned<String>),
}

pub(crate) const KEYS: &[&str] = &["kind", "at", "for", "probability", "hwq", "timeout", "tenant"];

const KINDS: [(&str, &[&str]); 6] = [
    ("error", &["probability", "at", "for"]),
    ("stall", &["at", "for"]),
    ("lose-hwq", &["at", "hwq", "timeout"]),
    ("reset", &["at", "tenant"]),
    ("leave", &["at", "tenant"]),
    ("rogue", &["at", "tenant"]),
];

pub(crate) fn read(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<FaultDraft> {
    section.reject_unknown(sink);
    let words = KINDS.map(|(kind, _)| (kind, kind));
    let names: Vec<&str> = KINDS.iter().skip(1).map(|(kind, _)| *kind).collect();
    let remedy = format!("add kind = {:?} (or {})", KINDS[0].0, list(&names));
    let kind = section.require(sink, "kind", &remedy, choice(&words, &[]))?.into_inner();
    let own = KINDS.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, keys)| keys);
    for key in KEYS.iter().filter(|key| **key != "kind" && !own.contains(key)) {
        section.forbid(sink, key, &format!("a fault of kind {kind:?} has none"), "remove it, or change the kind");
    }
    let spans = |min| span_in(Nanos(min)..=Nanos(3_600_000_000_000));
    let at = match kind {
        "error" => or(sink, section, "at", Nanos(0), spans(0)),
        _ => section
            .require(sink, "at", "add at = \"500ms\", from the start of the run", spans(0))
            .map(Spanned::into_inner),
    };
    let kind = match kind {
        "error" => {
            let remedy = "add probability = 0.001 (of a command to fail)";
            let probability = section.require(sink, "probability", remedy, fraction(0.000_001..=1.0));
            let lasts = or(sink, section, "for", None, |value| spans(1_000)(value).map(Some));
            KindDraft::Plain(FaultKind::Error { probability: probability?.into_inner(), lasts: lasts? })
        }
        "stall" => {
            let lasts = section.require(sink, "for", "add for = \"5ms\" (how long it lasts)", spans(1_000));
            KindDraft::Plain(FaultKind::Stall { lasts: lasts?.into_inner() })
        }
        "lose-hwq" => {
            let hwq = section.require(sink, "hwq", "add hwq = 0 (which queue of the drive)", integer(0..=1023));
            let timeout = or(sink, section, "timeout", Nanos(50_000_000), spans(1_000));
            KindDraft::Plain(FaultKind::LoseHwq { hwq: hwq?.into_inner() as u16, timeout: timeout? })
        }
        tenants => {
            let of: fn(usize) -> FaultKind = match tenants {
                "reset" => |tenant| FaultKind::Reset { tenant },
                "leave" => |tenant| FaultKind::Leave { tenant },
                _ => |tenant| FaultKind::Rogue { tenant },
            };
            KindDraft::Of(of, section.require(sink, "tenant", "add tenant = \"db\" (its name)", text)?)
        }
    };
    Some(FaultDraft { span: section.span.clone().unwrap_or(0..0), at: at?, kind })
}
