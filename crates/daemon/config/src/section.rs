//! One table of the file: typed reading of its keys, and complaints about the keys that it does not have.

use std::ops::{Range, RangeInclusive};

use io_model::Nanos;
use io_model::units::{Bandwidth, Rate, Size, UnitError};
use policy::Limits;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::nearest::nearest;
use crate::problem::Sink;

/// A value that can't be used: what is wrong, what to do.
pub struct Wrong {
    /// Follows the key: "is 5".
    pub what: String,
    /// An imperative.
    pub remedy: String,
}

impl Wrong {
    fn expected(what: &str, found: &DeValue<'_>) -> Self {
        Self { what: format!("is {}", kind(found)), remedy: format!("expected {what}") }
    }
}

/// The label of what stands above all headings.
pub const THE_TOP: &str = "the top of the file";

/// Every section of one kind of file with its keys, to tell where a misplaced key belongs.
pub type Schema = &'static [(&'static str, &'static [&'static str])];

/// One table, or its absence (then every key is missing).
#[derive(Clone)]
pub struct Section<'t, 'i> {
    /// For messages: `[device]`.
    pub label: String,
    schema: Schema,
    /// The keys that it may have.
    pub known: &'static [&'static str],
    /// Where a problem with the section as a whole is shown; `None` where the file has no such section.
    pub span: Option<Range<usize>>,
    table: Option<&'t DeTable<'i>>,
}

/// What a list of sections holds, for messages.
pub struct Items {
    /// "tenant".
    pub one: &'static str,
    /// "each virtual disk".
    pub each: &'static str,
    /// "name and size".
    pub keys: &'static str,
    /// How many there may be.
    pub most: usize,
    /// "can share a drive".
    pub why: &'static str,
}

impl<'t, 'i> Section<'t, 'i> {
    /// `span` as in the field; `table`: `None` where the file has no such section.
    pub fn new(
        schema: Schema,
        label: &str,
        known: &'static [&'static str],
        span: Option<Range<usize>>,
        table: Option<&'t DeTable<'i>>,
    ) -> Self {
        Self { label: label.to_owned(), schema, known, span, table }
    }

    /// A section that the file does not have.
    pub fn missing(label: &str) -> Self {
        Self::new(&[], label, &[], None, None)
    }

    /// "`key` in [device]".
    fn title(&self, key: &str) -> String {
        let word = if self.label == THE_TOP { "at" } else { "in" };
        format!("`{key}` {word} {}", self.label)
    }

    /// A key and its value.
    pub fn entry(&self, key: &str) -> Option<(&'t Spanned<toml::de::DeString<'i>>, &'t Spanned<DeValue<'i>>)> {
        self.table?.iter().find(|(name, _)| name.get_ref() == key)
    }

    /// Where the value of a key stands, if it is written.
    pub fn mark(&self, key: &str) -> Option<Range<usize>> {
        self.entry(key).map(|(_, value)| value.span())
    }

    /// The text under a key, if it is one: for who only wants to know which section this is.
    pub(crate) fn peek(&self, key: &str) -> Option<(&str, Range<usize>)> {
        let (_, value) = self.entry(key)?;
        Some((value.get_ref().as_str()?, value.span()))
    }

    /// Whether the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Whether the key is neither there nor what a misspelt key was meant to be: that one is told already.
    pub fn lacks(&self, key: &str) -> bool {
        let meant = |name: &str| name == key || (!self.known.contains(&name) && nearest(name, self.known) == Some(key));
        !self.table.into_iter().flatten().any(|(name, _)| meant(name.get_ref()))
    }

    /// The key's value through `read`; `None` where it is missing or (with a problem noted) can't be used.
    pub fn get<T>(
        &self,
        sink: &mut Sink<'_>,
        key: &str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> Option<Spanned<T>> {
        let (_, value) = self.entry(key)?;
        match read(value.get_ref()) {
            Ok(found) => Some(Spanned::new(value.span(), found)),
            Err(wrong) => {
                sink.at(&value.span(), format!("{} {}", self.title(key), wrong.what), wrong.remedy);
                None
            }
        }
    }

    /// Like [`Section::get`], and a missing key is a problem too.
    pub fn require<T>(
        &self,
        sink: &mut Sink<'_>,
        key: &str,
        remedy: &str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> Option<Spanned<T>> {
        if self.lacks(key) {
            sink.maybe_at(self.span.as_ref(), format!("{} has no `{key}`", self.label), remedy);
        }
        self.get(sink, key, read)
    }

    /// The section under `key`; an empty one where it is missing or (with a problem noted) no table.
    pub fn table(&self, sink: &mut Sink<'_>, key: &str, known: &'static [&'static str]) -> Self {
        let label = format!("[{key}]");
        let Some((name, value)) = self.entry(key) else { return Self::missing(&label) };
        if let DeValue::Table(found) = value.get_ref() {
            return Self::new(self.schema, &label, known, Some(name.span()), Some(found));
        }
        let what = format!("`{key}` is {}, not a section", kind(value.get_ref()));
        sink.at(&name.span(), what, format!("write it once, as a heading of its own: {label}"));
        Self::missing(&label)
    }

    /// The tables of the list under `key`; none where it is missing or (with a problem noted) something else.
    pub fn tables(&self, sink: &mut Sink<'_>, key: &str, words: &Items) -> Vec<(Range<usize>, &'t DeTable<'i>)> {
        let Items { one, each, keys, most, why } = words;
        let Some((name, value)) = self.entry(key) else { return Vec::new() };
        let DeValue::Array(items) = value.get_ref() else {
            let remedy = format!("write a heading with two brackets for each {one}: [[{key}]]");
            sink.at(&name.span(), format!("{one}s are a list of sections"), remedy);
            return Vec::new();
        };
        if items.len() > *most {
            sink.at(&name.span(), format!("there are {} {one}s", items.len()), format!("at most {most} {why}"));
            return Vec::new();
        }
        if items.is_empty() {
            let remedy = format!("write a [[{key}]] section for {each}");
            sink.at(&name.span(), format!("the list of {one}s is empty"), remedy);
        }
        let mut tables = Vec::with_capacity(items.len());
        for item in items.iter() {
            match item.get_ref() {
                DeValue::Table(table) => tables.push((item.span(), table)),
                other => {
                    let what = format!("a {one} is {}, not a section", kind(other));
                    sink.at(&item.span(), what, format!("write [[{key}]] with {keys} under it"));
                }
            }
        }
        tables
    }

    /// The key must not stand here, for a reason.
    pub fn forbid(&self, sink: &mut Sink<'_>, key: &str, why: &str, remedy: &str) {
        if let Some((name, _)) = self.entry(key) {
            sink.at(&name.span(), format!("{} does not apply: {why}", self.title(key)), remedy);
        }
    }

    /// Complains about every key that this section does not have.
    pub fn reject_unknown(&self, sink: &mut Sink<'_>) {
        self.reject_unknown_but(sink, &[]);
    }

    /// Reports unknown keys, except those in `told`, which are reported elsewhere.
    pub fn reject_unknown_but(&self, sink: &mut Sink<'_>, told: &[&str]) {
        let known = self.known;
        for (key, value) in self.table.into_iter().flatten() {
            let name = key.get_ref().as_ref();
            if known.contains(&name) || told.contains(&name) {
                continue;
            }
            // A section is no key of another one, whatever it is called.
            let is_section = match value.get_ref() {
                DeValue::Table(_) => true,
                DeValue::Array(values) => values.iter().any(|value| value.get_ref().is_table()),
                _ => false,
            };
            let elsewhere = self.schema.iter().find(|(_, keys)| !is_section && keys.contains(&name));
            let elsewhere = elsewhere.map(|(section, _)| *section);
            let remedy = match (nearest(name, known), elsewhere) {
                (_, Some(section)) => format!("it belongs under {section}"),
                (Some(meant), None) => format!("did you mean `{meant}`?"),
                (None, None) => format!("known keys are {}; remove it", list(known)),
            };
            let shown: String = name.chars().take(64).collect();
            sink.at(&key.span(), format!("unknown key {}", self.title(&shown.escape_debug().to_string())), remedy);
        }
    }
}

/// `key`'s value, `default` where it is missing, `None` where it can't be used.
pub fn or<T>(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    key: &str,
    default: T,
    read: impl FnOnce(&DeValue<'_>) -> Result<T, Wrong>,
) -> Option<T> {
    if !section.has(key) {
        return Some(default);
    }
    section.get(sink, key, read).map(Spanned::into_inner)
}

/// Like [`or`] for a count that has no default.
pub fn count(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    key: &str,
    range: RangeInclusive<u32>,
) -> Option<Option<u16>> {
    or(sink, section, key, None, |value| integer(range)(value).map(|n| u16::try_from(n).ok()))
}

/// A text.
pub fn text(value: &DeValue<'_>) -> Result<String, Wrong> {
    value.as_str().map(str::to_owned).ok_or_else(|| Wrong::expected("a text in double quotes", value))
}

/// True or false.
pub fn boolean(value: &DeValue<'_>) -> Result<bool, Wrong> {
    value.as_bool().ok_or_else(|| Wrong::expected("true or false", value))
}

/// A size, or a number of bytes.
pub fn size(value: &DeValue<'_>) -> Result<Size, Wrong> {
    number_with_unit(value, "a size such as \"16GiB\", \"1TB\" or 4096 (bytes)")
}

pub(crate) fn span(value: &DeValue<'_>) -> Result<Nanos, Wrong> {
    number_with_unit(value, "a time with its unit, in double quotes, such as \"50us\" or \"10ms\"")
}

pub(crate) fn rate(value: &DeValue<'_>) -> Result<Rate, Wrong> {
    number_with_unit(value, "a rate in commands per second such as \"800k\" or 800000")
}

/// Whole MiB per second: policies count in them, as SPDK's limits do.
pub(crate) fn bandwidth(value: &DeValue<'_>) -> Result<Bandwidth, Wrong> {
    const MIB: u64 = 1 << 20;
    let found: Bandwidth = number_with_unit(value, "a bandwidth such as \"200MiB/s\"")?;
    if found.0 == 0 {
        let remedy = "write at least \"1MiB/s\", or remove the line";
        return Err(Wrong { what: "is 0".into(), remedy: remedy.into() });
    }
    if found.0 > Limits::MOST_MBYTES_PER_SEC * MIB {
        let remedy = "write at most \"1000000MiB/s\", or remove the line";
        return Err(Wrong { what: format!("is {found}"), remedy: remedy.into() });
    }
    if !found.0.is_multiple_of(MIB) {
        let remedy = format!("write \"{}MiB/s\"", found.0.div_ceil(MIB));
        return Err(Wrong { what: format!("is {found}, which is no whole number of MiB/s"), remedy });
    }
    Ok(found)
}

/// A span within bounds.
pub fn span_in(range: RangeInclusive<Nanos>) -> impl FnOnce(&DeValue<'_>) -> Result<Nanos, Wrong> {
    move |value| {
        let found = span(value)?;
        if range.contains(&found) {
            return Ok(found);
        }
        let remedy = format!("write a time from {} to {}", range.start(), range.end());
        Err(Wrong { what: format!("is {found}"), remedy })
    }
}

fn number_with_unit<T: std::str::FromStr<Err = UnitError>>(value: &DeValue<'_>, expected: &str) -> Result<T, Wrong> {
    let (text, shown) = match value {
        DeValue::String(text) => (text.as_ref(), format!("{:?}", clip(text))),
        DeValue::Integer(number) if number.radix() == 10 => (number.as_str(), clip(number.as_str())),
        _ => return Err(Wrong::expected(expected, value)),
    };
    text.parse().map_err(|e: UnitError| Wrong { what: format!("is {shown}"), remedy: e.to_string() })
}

/// A whole number within a range.
pub fn integer(range: RangeInclusive<u32>) -> impl Fn(&DeValue<'_>) -> Result<u32, Wrong> {
    move |value| {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let DeValue::Integer(number) = value else { return Err(Wrong::expected(&expected, value)) };
        match u32::from_str_radix(number.as_str(), number.radix()) {
            Ok(found) if range.contains(&found) => Ok(found),
            _ => {
                Err(Wrong { what: format!("is {}", clip(&number.to_string())), remedy: format!("expected {expected}") })
            }
        }
    }
}

/// A whole number of 16 bits.
pub fn small_integer(range: RangeInclusive<u16>) -> impl Fn(&DeValue<'_>) -> Result<u16, Wrong> {
    // What is within the range has 16 bits.
    move |value| integer(u32::from(*range.start())..=(*range.end()).into())(value).map(|number| number as u16)
}

/// A seed of random numbers.
pub fn seed(value: &DeValue<'_>) -> Result<u64, Wrong> {
    const EXPECTED: &str = "a whole number from 0 to 2^64 - 1";
    let DeValue::Integer(number) = value else { return Err(Wrong::expected(EXPECTED, value)) };
    u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| Wrong {
        what: format!("is {}", clip(&number.to_string())),
        remedy: format!("expected {EXPECTED}"),
    })
}

/// A number with or without a point.
pub fn fraction(range: RangeInclusive<f64>) -> impl FnOnce(&DeValue<'_>) -> Result<f64, Wrong> {
    move |value| {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        let text = match value {
            DeValue::Float(number) => number.as_str(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            _ => return Err(Wrong::expected(&expected, value)),
        };
        // Infinities and NaN are in no range.
        match text.parse::<f64>() {
            Ok(found) if range.contains(&found) => Ok(found),
            _ => Err(Wrong { what: format!("is {}", clip(text)), remedy: format!("expected {expected}") }),
        }
    }
}

/// A list of whole numbers, at least one, each within `range` and none twice.
pub(crate) fn integers(range: RangeInclusive<u32>) -> impl FnOnce(&DeValue<'_>) -> Result<Vec<u32>, Wrong> {
    move |value| {
        let one = integer(range);
        let DeValue::Array(items) = value else { return Err(Wrong::expected("a list such as [2, 3]", value)) };
        if items.is_empty() {
            let remedy = "name at least one, such as [2, 3], or leave the key out".to_owned();
            return Err(Wrong { what: "names none".into(), remedy });
        }
        let mut found = Vec::new();
        for item in items.iter() {
            let number =
                one(item.get_ref()).map_err(|w| Wrong { what: format!("has an entry that {}", w.what), ..w })?;
            if found.contains(&number) {
                return Err(Wrong { what: format!("names {number} twice"), remedy: "remove one of them".into() });
            }
            found.push(number);
        }
        Ok(found)
    }
}

/// One of several words. `absent` are words that other versions or plans know, with what to say about each.
pub fn choice<T: Copy>(
    options: &[(&str, T)],
    absent: &[(&str, &str)],
) -> impl FnOnce(&DeValue<'_>) -> Result<T, Wrong> {
    move |value| {
        let words: Vec<&str> = options.iter().map(|(word, _)| *word).collect();
        let DeValue::String(found) = value else { return Err(Wrong::expected(&list(&words), value)) };
        if let Some((_, option)) = options.iter().find(|(word, _)| word == found) {
            return Ok(*option);
        }
        let what = format!("is {:?}", clip(found));
        if let Some((_, remedy)) = absent.iter().find(|(word, _)| word == found) {
            return Err(Wrong { what: format!("{what}, which this build does not have"), remedy: (*remedy).into() });
        }
        let remedy = match nearest(found, &words) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("expected {}", list(&words)),
        };
        Err(Wrong { what, remedy })
    }
}

/// `a, b or c`.
pub fn list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The kind of a value, for messages.
pub fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

pub(crate) fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}
