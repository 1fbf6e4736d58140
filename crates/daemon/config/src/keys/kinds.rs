//! What a key of the file can be: its values, its default, and when a change of it counts.

use std::fmt::Display;
use std::ops::RangeInclusive;

use io_model::Nanos;
use io_model::units::Rate;
use policy::Percentile;
use toml::Spanned;
use toml::de::DeValue;

use crate::problem::Sink;
use crate::section::{Section, Wrong, boolean, choice, fraction, integer, rate, span_in, text};
use crate::values::word_of;

/// One key of a section.
pub struct Key<V: Values> {
    /// As the file has it.
    pub name: &'static str,
    /// The values that it takes.
    pub values: V,
    /// What holds without it.
    pub default: Default<V::Value>,
    /// When a change of it counts.
    pub changes: Changes,
    /// One sentence.
    pub doc: &'static str,
}

/// The values that a key takes.
pub trait Values: Sync {
    /// What is made of the file's value.
    type Value: Sync + Clone + 'static;

    /// # Errors
    /// It is none of these values.
    fn read(&self, value: &DeValue<'_>) -> Result<Self::Value, Wrong>;

    /// As a file would have it: the same text for each spelling of a value.
    fn show(&self, value: &Self::Value) -> String;

    /// All values, in words.
    fn words(&self) -> String;
}

/// The texts of the other keys of a section.
pub type Others<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// What holds where a key is missing.
pub enum Default<T> {
    /// The key must be there.
    Needed,
    /// There is no such value. In words: what then.
    Absent(&'static str),
    /// This value.
    Is(T),
    /// This value, as a file would have it.
    Written(&'static str),
    /// It depends on the file: the usual value, and in words what else.
    Usually(T, &'static str),
    /// In words, and what follows from other keys of the section.
    By(&'static str, fn(Others<'_>) -> Option<T>),
}

/// When a change of a key counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// At once, under clients that are attached.
    AtOnce,
    /// At once, but to and from this value as [`Changes::Detached`].
    AtOnceBut(&'static str),
    /// While no client is attached to the disk.
    Detached,
    /// With the daemon's next start.
    AtStart,
    /// Never. What to do instead.
    Never(&'static str),
}

impl Changes {
    /// What to do where a change from `old` to `new` can't be made now; `None`: it can. `attached`: a client is.
    pub(crate) fn remedy(self, [old, new]: [Option<&str>; 2], attached: bool) -> Option<&'static str> {
        match self {
            Self::AtOnce => None,
            _ if self.is_detached([old, new]) => attached
                .then_some("detach its client (shut the guest down, or unplug the disk), and apply the file again"),
            Self::AtOnceBut(_) | Self::Detached => None,
            Self::AtStart => Some("start the daemon again"),
            Self::Never(remedy) => Some(remedy),
        }
    }

    /// Whether such a change takes a disk without a client.
    pub(crate) fn is_detached(self, [old, new]: [Option<&str>; 2]) -> bool {
        match self {
            Self::Detached => true,
            Self::AtOnceBut(value) => old == Some(value) || new == Some(value),
            _ => false,
        }
    }
}

impl<V: Values> Key<V> {
    /// The value; `None` where it is missing or (with a problem noted) can't be used.
    pub fn get(&self, sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Spanned<V::Value>> {
        section.get(sink, self.name, |value| self.values.read(value))
    }

    /// Like [`Key::get`], and a missing key is a problem too.
    pub fn require(&self, sink: &mut Sink<'_>, section: &Section<'_, '_>, remedy: &str) -> Option<Spanned<V::Value>> {
        section.require(sink, self.name, remedy, |value| self.values.read(value))
    }

    /// The value or the default; `None` where it can't be used.
    pub fn get_or_default(&self, sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<V::Value> {
        self.get_or_default_by(sink, section, |value| self.values.read(value))
    }

    /// Like [`Key::get_or_default`], with messages of its own.
    pub fn get_or_default_by(
        &self,
        sink: &mut Sink<'_>,
        section: &Section<'_, '_>,
        read: impl FnOnce(&DeValue<'_>) -> Result<V::Value, Wrong>,
    ) -> Option<V::Value> {
        match section.has(self.name) {
            true => section.get(sink, self.name, read).map(Spanned::into_inner),
            false => self.default_beside(&|key| section.peek(key).map(|(text, _)| text)),
        }
    }

    /// `Some(None)` where the key is missing, `None` where its value can't be used.
    pub fn get_if_any(&self, sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Option<V::Value>> {
        match section.has(self.name) {
            true => self.get(sink, section).map(|value| Some(value.into_inner())),
            false => Some(None),
        }
    }

    /// What holds where the key is missing, if that is a value.
    pub fn default_beside(&self, others: Others<'_>) -> Option<V::Value> {
        match &self.default {
            Default::Needed | Default::Absent(_) => None,
            Default::Is(value) | Default::Usually(value, _) => Some(value.clone()),
            Default::Written(text) => self.values.read(&DeValue::String((*text).into())).ok(),
            Default::By(_, value) => value(others),
        }
    }
}

/// A key of whatever values.
pub trait Row: Sync {
    /// As the file has it.
    fn name(&self) -> &'static str;
    /// When a change of it counts.
    fn changes(&self) -> Changes;
    /// What the value means, whatever way it is written; `None`: it is none of the key's.
    fn meaning(&self, value: &toml::Value) -> Option<String>;
    /// What holds where the key is missing, as a file would have it; `None`: that depends on more than the section.
    fn default_text(&self, others: Others<'_>) -> Option<String>;
    /// Its line of the reference: values, default, changes, and what it is.
    fn cells(&self) -> [String; 4];
}

impl<V: Values> Row for Key<V> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn changes(&self) -> Changes {
        self.changes
    }

    fn meaning(&self, value: &toml::Value) -> Option<String> {
        let text = value.to_string();
        let read = self.values.read(DeValue::parse(&text).ok()?.get_ref()).ok()?;
        Some(self.values.show(&read))
    }

    fn default_text(&self, others: Others<'_>) -> Option<String> {
        match self.default {
            Default::Usually(..) => None,
            _ => self.default_beside(others).map(|value| self.values.show(&value)),
        }
    }

    fn cells(&self) -> [String; 4] {
        let default = match &self.default {
            Default::Needed => "needed".to_owned(),
            Default::Is(value) => format!("`{}`", self.values.show(value)),
            Default::Usually(value, words) => format!("`{}`; {words}", self.values.show(value)),
            Default::Written(text) => format!("`{text}`"),
            Default::Absent(words) | Default::By(words, _) => (*words).to_owned(),
        };
        let changes = match self.changes {
            Changes::AtOnce => "at once".to_owned(),
            Changes::AtOnceBut(value) => format!("at once; to and from `{value}` without a client"),
            Changes::Detached => "without a client".to_owned(),
            Changes::AtStart => "at a start".to_owned(),
            Changes::Never(_) => "never".to_owned(),
        };
        [self.values.words(), default, changes, self.doc.to_owned()]
    }
}

/// Whole numbers from the first to the second.
pub struct Whole<T>(pub T, pub T);

impl Whole<u32> {
    /// All of them.
    pub const fn range(&self) -> RangeInclusive<u32> {
        self.0..=self.1
    }
}

impl<T: Copy + Display + Sync + Into<u32> + TryFrom<u32> + 'static> Values for Whole<T> {
    type Value = T;

    fn read(&self, value: &DeValue<'_>) -> Result<T, Wrong> {
        // What is within the range has as many bits.
        integer(self.0.into()..=self.1.into())(value).map(|found| T::try_from(found).unwrap_or(self.1))
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }

    fn words(&self) -> String {
        format!("a number, {} to {}", self.0, self.1)
    }
}

/// Times from the first to the second.
pub struct Span(pub Nanos, pub Nanos);

impl Values for Span {
    type Value = Nanos;

    fn read(&self, value: &DeValue<'_>) -> Result<Nanos, Wrong> {
        span_in(self.0..=self.1)(value)
    }

    fn show(&self, value: &Nanos) -> String {
        if *value == Nanos(0) { "0".to_owned() } else { value.to_string() }
    }

    fn words(&self) -> String {
        format!("a time, `{}` to `{}`", self.show(&self.0), self.1)
    }
}

/// Rates from the first to the second, and what they are, for messages.
pub struct Iops(pub u64, pub u64, pub &'static str, pub &'static str);

impl Values for Iops {
    type Value = Rate;

    fn read(&self, value: &DeValue<'_>) -> Result<Rate, Wrong> {
        let Self(least, most, before, after) = *self;
        let found = rate(value)?;
        let quoted = |rate: u64| if rate < 1000 { rate.to_string() } else { format!("\"{}\"", Rate(rate)) };
        let remedy = || format!("write {before} {} to {}{after}", quoted(least), quoted(most));
        let is_within = (least..=most).contains(&found.0);
        is_within.then_some(found).ok_or_else(|| Wrong { what: format!("is {found}"), remedy: remedy() })
    }

    fn show(&self, value: &Rate) -> String {
        value.to_string()
    }

    fn words(&self) -> String {
        format!("commands per second, `{}` to `{}`", Rate(self.0), Rate(self.1))
    }
}

/// Percentiles from the first to the second.
pub struct Percent(pub f64, pub f64);

impl Values for Percent {
    type Value = Percentile;

    fn read(&self, value: &DeValue<'_>) -> Result<Percentile, Wrong> {
        let found = fraction(self.0..=self.1)(value)?;
        Percentile::new(found).ok_or_else(|| Wrong { what: format!("is {found}"), remedy: "write 99".into() })
    }

    fn show(&self, value: &Percentile) -> String {
        value.percent().to_string()
    }

    fn words(&self) -> String {
        format!("a percentage, {} to {}", self.0, self.1)
    }
}

/// Words, each with its value.
pub struct Word<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy + PartialEq + Sync + 'static> Values for Word<T> {
    type Value = T;

    fn read(&self, value: &DeValue<'_>) -> Result<T, Wrong> {
        choice(self.0, &[])(value)
    }

    fn show(&self, value: &T) -> String {
        word_of(self.0, value).to_owned()
    }

    fn words(&self) -> String {
        self.0.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ")
    }
}

/// True or false.
pub struct Flag;

impl Values for Flag {
    type Value = bool;

    fn read(&self, value: &DeValue<'_>) -> Result<bool, Wrong> {
        boolean(value)
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }

    fn words(&self) -> String {
        "`true`, `false`".to_owned()
    }
}

/// Values in words, with their reader and how they are shown.
pub struct Shaped<T>(pub &'static str, pub fn(&DeValue<'_>) -> Result<T, Wrong>, pub fn(&T) -> String);

impl<T: Sync + Clone + 'static> Values for Shaped<T> {
    type Value = T;

    fn read(&self, value: &DeValue<'_>) -> Result<T, Wrong> {
        self.1(value)
    }

    fn show(&self, value: &T) -> String {
        self.2(value)
    }

    fn words(&self) -> String {
        self.0.to_owned()
    }
}

/// Values that are read with more than the key at hand, in words. Compared as they are written.
pub struct Apart(pub &'static str);

impl Values for Apart {
    type Value = String;

    fn read(&self, value: &DeValue<'_>) -> Result<String, Wrong> {
        text(value)
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }

    fn words(&self) -> String {
        self.0.to_owned()
    }
}
