//! Formats log lines.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tracing::Level;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// `evenkeeld: db: a client attached`. Service managers put the time before lines.
    Text,
    /// Text for the journal: the level is in front, as sd-daemon(3) has it, and the journal adds the name.
    Prefixed,
    /// A message of the journal's native protocol.
    Fields,
    /// A JSON object.
    Json,
}

/// What is said, of whom.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub level: Level,
    pub message: &'a str,
    pub tenant: Option<&'a str>,
    pub drive: Option<&'a str>,
    pub promise: Option<&'a str>,
}

impl<'a> Entry<'a> {
    /// A warning about nobody in particular.
    pub fn warning(message: &'a str) -> Self {
        Self { level: Level::WARN, message, tenant: None, drive: None, promise: None }
    }

    /// As it is to be written, at that time.
    pub fn in_style(&self, style: Style, now: SystemTime) -> Vec<u8> {
        let Self { level, message, .. } = *self;
        match style {
            Style::Text => format!("evenkeeld: {}{message}\n", word_before(level)).into_bytes(),
            Style::Prefixed => format!("<{}>{message}\n", priority(level)).into_bytes(),
            Style::Fields => self.fields(),
            Style::Json => self.json(now),
        }
    }

    fn fields(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |name: &str, value: &str| {
            bytes.extend_from_slice(name.as_bytes());
            if value.contains('\n') {
                // As it takes values of several lines: their length, and then whatever they hold.
                bytes.push(b'\n');
                bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
            } else {
                bytes.push(b'=');
            }
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(b'\n');
        };
        // First, where `message_of` finds it.
        add(MESSAGE, self.message);
        add("PRIORITY", &priority(self.level).to_string());
        add("SYSLOG_IDENTIFIER", "evenkeeld");
        let named = [("TENANT", self.tenant), ("DRIVE", self.drive), ("PROMISE", self.promise)];
        for (name, value) in named.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            add(&format!("EVENKEEL_{name}"), value);
        }
        bytes
    }

    fn json(&self, now: SystemTime) -> Vec<u8> {
        #[derive(Serialize)]
        struct Object<'a> {
            time: String,
            level: &'static str,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            tenant: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            drive: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            promise: Option<&'a str>,
        }
        let Self { level, message, tenant, drive, promise } = *self;
        let level = match level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            _ => "debug",
        };
        let object = Object { time: in_utc(now), level, message, tenant, drive, promise };
        // Strings alone: it can't fail.
        let mut bytes = serde_json::to_vec(&object).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

const MESSAGE: &str = "MESSAGE";

/// The line in a message of the journal's, for where that can't be delivered.
pub fn message_of(level: Level, fields: &[u8]) -> Cow<'_, [u8]> {
    let value = &fields[MESSAGE.len()..];
    let text = match value.first() {
        Some(b'=') => value[1..].split(|byte| *byte == b'\n').next().unwrap_or_default(),
        _ => {
            let len = value.get(1..9).and_then(|len| len.try_into().ok()).map_or(0, u64::from_le_bytes);
            value.get(9..9 + len as usize).unwrap_or_default()
        }
    };
    [format!("<{}>", priority(level)).as_bytes(), text, b"\n"].concat().into()
}

fn word_before(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        _ => "",
    }
}

/// As syslog(3) numbers them.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// A time as RFC 3339 writes it, to the millisecond.
fn in_utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The date this many days after 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KEPT: Entry<'static> = Entry {
        level: Level::INFO,
        message: "db: its promise is kept again",
        tenant: Some("db"),
        drive: Some("fast"),
        promise: Some("kept"),
    };

    fn text(entry: &Entry<'_>, style: Style) -> String {
        let at = UNIX_EPOCH + Duration::from_millis(1_709_210_096_007);
        String::from_utf8(entry.in_style(style, at)).expect("text")
    }

    #[test]
    fn people_and_programs_read_the_same() {
        assert_eq!(text(&KEPT, Style::Text), "evenkeeld: db: its promise is kept again\n");
        assert_eq!(text(&Entry::warning("x"), Style::Text), "evenkeeld: warning: x\n");
        assert_eq!(text(&Entry::warning("x"), Style::Prefixed), "<4>x\n");
        assert_eq!(
            text(&KEPT, Style::Json),
            "{\"time\":\"2024-02-29T12:34:56.007Z\",\"level\":\"info\",\"message\":\"db: its promise is kept again\",\
             \"tenant\":\"db\",\"drive\":\"fast\",\"promise\":\"kept\"}\n"
        );
        let forged = Entry::warning("x\n{\"level\":\"error\"}");
        assert_eq!(text(&forged, Style::Json).lines().count(), 1, "a line stays one");
    }

    #[test]
    fn the_journal_gets_fields_and_nobody_forges_one() {
        let fields = "MESSAGE=db: its promise is kept again\nPRIORITY=6\nSYSLOG_IDENTIFIER=evenkeeld\n\
                      EVENKEEL_TENANT=db\nEVENKEEL_DRIVE=fast\nEVENKEEL_PROMISE=kept\n";
        assert_eq!(text(&KEPT, Style::Fields), fields);
        let forged = Entry::warning("x\nPRIORITY=0").in_style(Style::Fields, UNIX_EPOCH);
        let (head, rest) = forged.split_at(MESSAGE.len() + 1);
        assert_eq!(head, b"MESSAGE\n");
        assert_eq!(rest[..8], 12_u64.to_le_bytes());
        assert_eq!(&rest[8..], b"x\nPRIORITY=0\nPRIORITY=4\nSYSLOG_IDENTIFIER=evenkeeld\n");
    }

    #[test]
    fn a_message_that_can_not_be_delivered_is_a_line() {
        for (message, line) in [("a=b", "<4>a=b\n"), ("a\nb", "<4>a\nb\n"), ("", "<4>\n")] {
            let fields = Entry::warning(message).in_style(Style::Fields, UNIX_EPOCH);
            assert_eq!(message_of(Level::WARN, &fields), line.as_bytes());
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (10_956, (1999, 12, 31)),
            (11_016, (2000, 2, 29)),
            (20_781, (2026, 11, 24)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }
}
