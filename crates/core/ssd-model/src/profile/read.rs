//! A profile out of its TOML text: every parameter with its range.

use io_model::WrrWeights;
use toml::de::DeTable;

use super::table::{NamedText, ProfileError, Table, Text, shown};
use super::{Basis, Cipher, Gc, Nand, Placement, Profile, Writes};
use arbitration::{Arbitration, QuantaKib};

const MAX_NS: u64 = 1_000_000_000;
const MAX_MB_S: u64 = 1_000_000;
const BLOCK_BYTES: u64 = 4096;
const MAX_STRIPE_BYTES: u64 = 1 << 30;
/// Bounds what a drive keeps in memory.
const MAX_BUFFER_BYTES: u64 = 1 << 30;
const MAX_UNITS: u64 = 4096;
const MAX_WINDOW: u64 = 65_535;
const MAX_TEXT_CHARS: usize = 1_000;

pub(super) const PLACEMENTS: [(&str, Placement); 2] = [("hashed", Placement::Hashed), ("pooled", Placement::Pooled)];

pub(super) fn word_of<T: PartialEq>(options: &[(&str, T)], wanted: T) -> String {
    options.iter().find(|(_, option)| *option == wanted).map_or("", |(word, _)| word).to_owned()
}

#[derive(Clone, Copy)]
enum Rule {
    RoundRobin,
    Weighted,
    Deficit,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    InPlace,
    Buffered,
    Programmed,
}

pub(super) fn profile(source: &str) -> Result<Profile, ProfileError> {
    let text = Text(source);
    let document = DeTable::parse(source).map_err(|error| {
        let what = format!("not TOML: {}", shown(error.message()));
        text.error(error.span().unwrap_or(0..0), what, "see https://toml.io for the format")
    })?;
    // What is missing at the top is missing in the first line.
    let mut top = Table::new(text, "", 0..0, document.get_ref());
    let name = name(&mut top)?;
    let description = top.text("description", MAX_TEXT_CHARS)?;
    let units = top.number("units", 1..=MAX_UNITS, "parallel units")?;
    let mut profile = Profile {
        name: name.into(),
        description: description.into(),
        units,
        placement: top.choice("placement", &PLACEMENTS)?,
        stripe_bytes: blocks(&mut top, "stripe_bytes", MAX_STRIPE_BYTES)?,
        read_ns: top.number("read_ns", 1..=MAX_NS, "ns")?,
        further_ns: top.number("further_ns", 0..=MAX_NS, "ns")?,
        writes: writes(&mut top, units)?,
        gc: None,
        controller_ns: top.number("controller_ns", 0..=MAX_NS, "ns")?,
        pipeline_ns: top.number("pipeline_ns", 0..=MAX_NS, "ns")?,
        link_read_mb_s: top.number("link_read_mb_s", 1..=MAX_MB_S, "MB/s")?,
        link_write_mb_s: top.number("link_write_mb_s", 1..=MAX_MB_S, "MB/s")?,
        arbitration: arbitration(&mut top)?,
        window: top.number("window", 1..=MAX_WINDOW, "commands")?,
        cipher: cipher(&mut top)?,
        basis: [].into(),
    };
    if profile.placement == Placement::Pooled && matches!(profile.writes, Writes::Programmed { .. }) {
        let span = top.entry("placement").map_or(0..0, |value| value.span());
        let what = "is \"pooled\", but flash has its data in one place";
        return Err(top.error_at(span, "placement", what, "write placement = \"hashed\""));
    }
    profile.gc = gc(&mut top, profile.writes)?;
    profile.basis = basis(text, &mut top, &profile)?.into();
    top.finish()?;
    Ok(profile)
}

fn name<'t>(top: &mut Table<'t, '_>) -> Result<&'t str, ProfileError> {
    let span = top.entry("name").map_or(0..0, |value| value.span());
    let name = top.text("name", 32)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        let remedy = "write a name of up to 32 letters, digits, `-`, `_` or `.`, such as name = \"my-drive\"";
        return Err(top.error_at(span, "name", "is missing or not plain", remedy));
    }
    Ok(name)
}

/// A size in whole blocks of 4 KiB.
fn blocks(table: &mut Table<'_, '_>, key: &'static str, max_bytes: u64) -> Result<u64, ProfileError> {
    let span = table.entry(key).map_or(0..0, |value| value.span());
    let bytes = table.number(key, BLOCK_BYTES..=max_bytes, "bytes, a multiple of 4096")?;
    if bytes % BLOCK_BYTES != 0 {
        return Err(table.error_at(span, key, &format!("is {bytes}"), "expected a multiple of 4096 (bytes)"));
    }
    Ok(bytes)
}

fn arbitration(top: &mut Table<'_, '_>) -> Result<Arbitration, ProfileError> {
    let rules = [("rr", Rule::RoundRobin), ("wrr", Rule::Weighted), ("drr", Rule::Deficit)];
    let rule = top.choice("arbitration", &rules)?;
    let why = "`high`, `medium` and `low`, in commands for \"wrr\", in KiB for \"drr\"";
    Ok(match rule {
        Rule::RoundRobin => Arbitration::RoundRobin { burst: burst(top)? },
        Rule::Weighted => {
            let burst = burst(top)?;
            let mut table = top.required_table("weights", "weights.", why)?;
            let mut weight = |key| table.number(key, 1..=256, "commands in a turn of the class");
            let weights = WrrWeights { high: weight("high")?, medium: weight("medium")?, low: weight("low")? };
            table.finish()?;
            Arbitration::WeightedRoundRobin { burst, weights }
        }
        Rule::Deficit => {
            let mut table = top.required_table("weights", "weights.", why)?;
            let mut weight = |key| table.number(key, 1..=1 << 20, "KiB in a turn of a queue");
            let quanta = QuantaKib { high: weight("high")?, medium: weight("medium")?, low: weight("low")? };
            table.finish()?;
            Arbitration::DeficitRoundRobin { quanta }
        }
    })
}

fn burst(top: &mut Table<'_, '_>) -> Result<u32, ProfileError> {
    top.number("burst", 1..=1024, "commands in a turn of a queue")
}

fn writes(top: &mut Table<'_, '_>, units: u32) -> Result<Writes, ProfileError> {
    let mut table =
        top.required_table("writes", "writes.", "its `kind` is \"in-place\", \"buffered\" or \"programmed\"")?;
    let kinds = [("in-place", Kind::InPlace), ("buffered", Kind::Buffered), ("programmed", Kind::Programmed)];
    let writes = match table.choice("kind", &kinds)? {
        Kind::InPlace => Writes::InPlace {
            write_ns: table.number("write_ns", 1..=MAX_NS, "ns")?,
            ack_ns: table.number("ack_ns", 0..=MAX_NS, "ns")?,
        },
        Kind::Buffered => Writes::Buffered {
            ack_ns: table.number("ack_ns", 0..=MAX_NS, "ns")?,
            buffer_bytes: blocks(&mut table, "buffer_bytes", MAX_BUFFER_BYTES)?,
            drain_ns: table.number("drain_ns", 1..=MAX_NS, "ns")?,
        },
        Kind::Programmed => {
            let span = table.entry("buffer_bytes").map_or(0..0, |value| value.span());
            let buffer_bytes = blocks(&mut table, "buffer_bytes", MAX_BUFFER_BYTES)?;
            let nand = nand(top, units)?;
            if buffer_bytes < nand.page_bytes {
                let remedy = format!("expected {} (`nand.page_bytes`) or more", nand.page_bytes);
                return Err(table.error_at(span, "buffer_bytes", "is less than a page", &remedy));
            }
            Writes::Programmed {
                ack_ns: table.number("ack_ns", 0..=MAX_NS, "ns")?,
                ack_further_ns: table.number("ack_further_ns", 0..=MAX_NS, "ns")?,
                buffer_bytes,
                nand,
            }
        }
    };
    table.finish()?;
    Ok(writes)
}

fn nand(top: &mut Table<'_, '_>, units: u32) -> Result<Nand, ProfileError> {
    let mut table = top.required_table("nand", "nand.", "`writes.kind` is \"programmed\"")?;
    let span = table.entry("channels").map_or(0..0, |value| value.span());
    let nand = Nand {
        channels: table.number("channels", 1..=MAX_UNITS, "channels")?,
        channel_mb_s: table.number("channel_mb_s", 1..=MAX_MB_S, "MB/s")?,
        page_bytes: blocks(&mut table, "page_bytes", 1 << 20)?,
        program_ns: table.number("program_ns", 1..=MAX_NS, "ns")?,
        reads_wait_for_programs: table.boolean("reads_wait_for_programs")?,
        pages_per_block: table.number("pages_per_block", 1..=65_536, "pages")?,
        erase_ns: table.number("erase_ns", 0..=MAX_NS, "ns")?,
    };
    if !units.is_multiple_of(nand.channels) {
        let what = format!("is {}, which does not divide the {units} units", nand.channels);
        return Err(table.error_at(span, "channels", &what, "expected as many dies on each channel"));
    }
    table.finish()?;
    Ok(nand)
}

fn gc(top: &mut Table<'_, '_>, writes: Writes) -> Result<Option<Gc>, ProfileError> {
    let span = top.entry("gc").map_or(0..0, |value| value.span());
    let Some(mut table) = top.table("gc", "gc.")? else { return Ok(None) };
    if matches!(writes, Writes::InPlace { .. }) {
        let what = "does not apply to writes in place";
        return Err(top.error_at(span, "gc", what, "remove the table, or change `writes.kind`"));
    }
    let gc = Gc {
        enabled: table.boolean("enabled")?,
        over_provisioning_percent: table.number("over_provisioning_percent", 1..=400, "% of the user's capacity")?,
        utilization_percent: table.number("utilization_percent", 1..=100, "% of the user's capacity")?,
    };
    table.finish()?;
    Ok(Some(gc))
}

fn cipher(top: &mut Table<'_, '_>) -> Result<Option<Cipher>, ProfileError> {
    let Some(mut table) = top.table("cipher", "cipher.")? else { return Ok(None) };
    let cipher = Cipher {
        sector_512_ns: table.number("sector_512_ns", 0..=MAX_NS, "ns")?,
        sector_4096_ns: table.number("sector_4096_ns", 0..=MAX_NS, "ns")?,
    };
    table.finish()?;
    Ok(Some(cipher))
}

fn basis(text: Text<'_>, top: &mut Table<'_, '_>, profile: &Profile) -> Result<Vec<Basis>, ProfileError> {
    let Some(table) = top.table("basis", "basis.")? else { return Ok(Vec::new()) };
    let parameters = profile.parameters();
    let mut all = Vec::new();
    for NamedText { name: parameter, span, text: of_parameter } in table.texts()? {
        if !parameters.iter().any(|(name, _)| *name == parameter) {
            let what = format!("`basis.{}` is about no parameter of this profile", shown(&parameter));
            return Err(text.error(span, what, "remove it, or correct its name"));
        }
        if of_parameter.chars().count() > MAX_TEXT_CHARS {
            let what = format!("`basis.{parameter}` is too long");
            return Err(text.error(span, what, format!("expected up to {MAX_TEXT_CHARS} characters")));
        }
        all.push(Basis { parameter: parameter.into(), text: of_parameter.into() });
    }
    Ok(all)
}
