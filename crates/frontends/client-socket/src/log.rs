//! Log lines, and what each is about.
//!
//! The sink keeps a client from filling a disk with log lines: it knows all devices, and how much is too much.

use std::sync::Arc;

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something happened as it should.
    Info,
    /// A client or an operator did something wrong.
    Warn,
}

/// How much a log line matters, and which tenant it is about, for sorting lines. The line itself says it in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About<'a> {
    /// How much it matters.
    pub level: Level,
    /// The disk or its device, by name.
    pub tenant: Option<&'a str>,
    /// The drive, by name.
    pub drive: Option<&'a str>,
    /// What has become of a promise: `broken` or `kept`.
    pub promise: Option<&'static str>,
}

impl Level {
    /// A line about the daemon as a whole.
    pub fn of_daemon(self) -> About<'static> {
        About { level: self, tenant: None, drive: None, promise: None }
    }

    /// A line about a disk.
    pub fn of_tenant(self, name: &str) -> About<'_> {
        About { tenant: Some(name), ..self.of_daemon() }
    }

    /// A line about a drive.
    pub fn of_drive(self, name: &str) -> About<'_> {
        About { drive: Some(name), ..self.of_daemon() }
    }
}

/// Where log lines go. Called on the thread that serves the client.
pub type Sink = Arc<dyn Fn(About<'_>, &str) + Send + Sync>;

/// One device's log.
pub struct Log {
    sink: Sink,
    device: String,
}

impl Log {
    /// A log of the device of that name, which writes to `sink`.
    pub fn new(sink: Sink, device: &str) -> Self {
        Self { sink, device: device.to_owned() }
    }

    /// Something happened as it should.
    pub fn info(&self, line: &str) {
        (self.sink)(Level::Info.of_tenant(&self.device), line);
    }

    /// Logs that a client did something wrong.
    pub fn warn(&self, line: &str) {
        (self.sink)(Level::Warn.of_tenant(&self.device), line);
    }
}
