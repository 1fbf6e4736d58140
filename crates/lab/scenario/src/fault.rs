//! `[[fault]]`: what goes wrong, and when.

use std::ops::Range;

use config::reading::{Section, Sink, choice, fraction, integer, list, or, span_in, text};
use io_model::Nanos;
use sim::FaultKind;
use toml::Spanned;

use crate::read::RUN_MAX;

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

/// Longer than any run.
const TO_THE_END: Nanos = Nanos(2 * RUN_MAX.0);

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
            let ppm = (probability?.into_inner() * 1e6).round() as u32;
            KindDraft::Plain(FaultKind::Errors { ppm, lasts: lasts?.unwrap_or(TO_THE_END) })
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
