//! Typed reading of one TOML table, and complaints about what it should not hold.

use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Why a text is not a profile: the first thing that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}; {remedy}")]
pub struct ProfileError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What was expected or what to do about it.
    pub remedy: String,
}

/// Longer words of a file are cut in messages.
const SHOWN_CHARS: usize = 64;

/// The text, to turn byte spans into places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text<'t>(pub(super) &'t str);

impl Text<'_> {
    pub(super) fn error(self, span: Range<usize>, what: impl Into<String>, remedy: impl Into<String>) -> ProfileError {
        // A parser's span may lie behind the end of the text.
        let start = self.0.floor_char_boundary(span.start);
        let before = self.0.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        ProfileError { line, column, what: what.into(), remedy: remedy.into() }
    }
}

/// A text, its dotted name, and where that stands.
pub(super) struct NamedText<'t> {
    pub(super) name: String,
    pub(super) span: Range<usize>,
    pub(super) text: &'t str,
}

/// One table. Remembers which keys were asked for: the others are unknown.
pub(super) struct Table<'t, 'i> {
    text: Text<'t>,
    /// For messages and for names of parameters: empty or `writes.`.
    prefix: &'static str,
    span: Range<usize>,
    table: &'t DeTable<'i>,
    known: Vec<&'static str>,
}

impl<'t, 'i> Table<'t, 'i> {
    pub(super) fn new(text: Text<'t>, prefix: &'static str, span: Range<usize>, table: &'t DeTable<'i>) -> Self {
        Self { text, prefix, span, table, known: Vec::new() }
    }

    pub(super) fn entry(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'i>>> {
        self.known.push(key);
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    pub(super) fn error_at(&self, span: Range<usize>, key: &str, what: &str, remedy: &str) -> ProfileError {
        self.text.error(span, format!("`{}{key}` {what}", self.prefix), remedy)
    }

    fn missing(&self, key: &str, expected: &str) -> ProfileError {
        let remedy = format!("write `{key} = …`, {expected}");
        self.text.error(self.span.clone(), format!("`{}{key}` is missing", self.prefix), remedy)
    }

    fn unfit(&self, key: &str, value: &Spanned<DeValue<'i>>, expected: &str) -> ProfileError {
        let what = match value.get_ref() {
            DeValue::Integer(number) => format!("is {}", shown(&number.to_string())),
            DeValue::Float(number) => format!("is {}", shown(number.as_str())),
            DeValue::String(text) => format!("is \"{}\"", shown(text)),
            DeValue::Boolean(value) => format!("is {value}"),
            DeValue::Datetime(_) => "is a date or time".to_owned(),
            DeValue::Array(_) => "is a list".to_owned(),
            DeValue::Table(_) => "is a table".to_owned(),
        };
        self.error_at(value.span(), key, &what, &format!("expected {expected}"))
    }

    /// A required value: `read` makes it of what is there, or is not fit for it.
    fn require<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&DeValue<'i>) -> Option<T>,
    ) -> Result<T, ProfileError> {
        let value = self.entry(key).ok_or_else(|| self.missing(key, expected))?;
        read(value.get_ref()).ok_or_else(|| self.unfit(key, value, expected))
    }

    /// A required whole number; `unit` is for people.
    pub(super) fn number<T: TryFrom<u64>>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
        unit: &str,
    ) -> Result<T, ProfileError> {
        let expected = format!("a whole number from {} to {} ({unit})", range.start(), range.end());
        self.require(key, &expected, |value| {
            let DeValue::Integer(number) = value else { return None };
            let number = u64::from_str_radix(number.as_str(), number.radix()).ok()?;
            range.contains(&number).then(|| T::try_from(number).ok())?
        })
    }

    /// A required truth value.
    pub(super) fn boolean(&mut self, key: &'static str) -> Result<bool, ProfileError> {
        self.require(key, "true or false", |value| value.as_bool())
    }

    /// A required word, one of `options`.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, options: &[(&str, T)]) -> Result<T, ProfileError> {
        let words: Vec<String> = options.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        self.require(key, &words.join(" or "), |value| {
            let found = value.as_str()?;
            options.iter().find(|(word, _)| *word == found).map(|(_, option)| *option)
        })
    }

    /// An optional text of one line, not longer than `max_chars`; empty if it is not there.
    pub(super) fn text(&mut self, key: &'static str, max_chars: usize) -> Result<&'t str, ProfileError> {
        let Some(value) = self.entry(key) else { return Ok("") };
        let fits = |text: &&str| text.chars().count() <= max_chars && !text.contains(char::is_control);
        let expected = format!("a text of up to {max_chars} characters, without control characters");
        value.get_ref().as_str().filter(fits).ok_or_else(|| self.unfit(key, value, &expected))
    }

    /// An optional table.
    pub(super) fn table(
        &mut self,
        key: &'static str,
        prefix: &'static str,
    ) -> Result<Option<Table<'t, 'i>>, ProfileError> {
        let Some(value) = self.entry(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Table(table) => Ok(Some(Table::new(self.text, prefix, value.span(), table))),
            _ => Err(self.unfit(key, value, &format!("a table: `[{key}]`"))),
        }
    }

    /// A required table.
    pub(super) fn required_table(
        &mut self,
        key: &'static str,
        prefix: &'static str,
        why: &str,
    ) -> Result<Table<'t, 'i>, ProfileError> {
        self.table(key, prefix)?.ok_or_else(|| {
            self.text.error(self.span.clone(), format!("the table `[{key}]` is missing"), format!("add it: {why}"))
        })
    }

    /// The texts of this table and of the tables in it, by their dotted names; for a table that holds nothing else.
    pub(super) fn texts(&self) -> Result<Vec<NamedText<'t>>, ProfileError> {
        let mut texts = Vec::new();
        for (key, value) in self.table.iter() {
            let name = key.get_ref().to_string();
            match value.get_ref() {
                DeValue::String(text) => texts.push(NamedText { name, span: key.span(), text: text.as_ref() }),
                DeValue::Table(table) => {
                    let inner = Table::new(self.text, self.prefix, value.span(), table).texts()?;
                    let named = |inner: NamedText<'t>| NamedText { name: format!("{name}.{}", inner.name), ..inner };
                    texts.extend(inner.into_iter().map(named));
                }
                _ => return Err(self.unfit(&shown(&name), value, "a text in double quotes")),
            }
        }
        Ok(texts)
    }

    /// Ends the reading: every key must have been asked for.
    pub(super) fn finish(self) -> Result<(), ProfileError> {
        let unknown = self.table.iter().find(|(name, _)| !self.known.contains(&name.get_ref().as_ref()));
        let Some((name, _)) = unknown else { return Ok(()) };
        let what = format!("unknown key `{}{}`", self.prefix, shown(name.get_ref()));
        let place = if self.prefix.is_empty() { "here" } else { "in this table" };
        Err(self.text.error(name.span(), what, format!("known {place}: {}", self.known.join(", "))))
    }
}

/// For a message: short, and nothing that a terminal would obey.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect()
}
