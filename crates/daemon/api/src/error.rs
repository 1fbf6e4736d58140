//! Why the daemon does not do what it is asked, without HTTP.

use std::fmt;

macro_rules! reasons {
    ($($reason:ident = $code:literal,)*) => {
        /// What keeps the daemon from it. Programs know each by its code, which does not change between versions.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason {
            $(#[doc = $code] $reason,)*
        }

        impl Reason {
            /// For programs.
            pub fn code(self) -> &'static str {
                match self {
                    $(Self::$reason => $code,)*
                }
            }
        }
    };
}

reasons! {
    Attached = "attached",
    ChangedMeanwhile = "changed-meanwhile",
    Declared = "declared",
    DriveMissing = "drive-missing",
    Ending = "ending",
    Failed = "failed",
    Formatting = "formatting",
    Hung = "hung",
    Idle = "idle",
    InUse = "in-use",
    Invalid = "invalid",
    Leaving = "leaving",
    NameReserved = "name-reserved",
    NameTaken = "name-taken",
    NewDrive = "new-drive",
    NoController = "no-controller",
    NoDescriptor = "no-descriptor",
    NoDrive = "no-drive",
    NoNamespace = "no-namespace",
    NoRoom = "no-room",
    NoShrinking = "no-shrinking",
    NoStateDir = "no-state-dir",
    NoSuchDisk = "no-such-disk",
    NoSuchDrive = "no-such-drive",
    NoSuchTenant = "no-such-tenant",
    NoSummaries = "no-summaries",
    NotDurable = "not-durable",
    NotEmpty = "not-empty",
    NotServable = "not-servable",
    NotServed = "not-served",
    NotUsable = "not-usable",
    NsidTaken = "nsid-taken",
    OtherAddress = "other-address",
    OtherDrive = "other-drive",
    OtherKind = "other-kind",
    OtherNamespace = "other-namespace",
    OtherSettings = "other-settings",
    PromiseNotJudged = "promise-not-judged",
    PromiseNotKept = "promise-not-kept",
    Reencrypting = "reencrypting",
    SecondWriter = "second-writer",
    StillLeaving = "still-leaving",
    TooMany = "too-many",
    TooManyAsk = "too-many-ask",
    TooManyTraces = "too-many-traces",
    Traced = "traced",
    WouldNotStart = "would-not-start",
    Zeroing = "zeroing",
}

/// A request that is refused, or failed: what is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskError {
    /// For programs.
    pub reason: Reason,
    /// What is wrong, for people.
    pub title: String,
    /// What to do about it.
    pub remedy: String,
    /// Each problem with its own remedy, if there are several.
    pub details: Vec<String>,
}

impl DiskError {
    /// An error without `details`.
    pub fn new(reason: Reason, title: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason, title: title.into(), remedy: remedy.into(), details: Vec::new() }
    }

    /// Nobody answers any more.
    pub fn ending() -> Self {
        Self::new(Reason::Ending, "the daemon is ending", "try again once it runs")
    }

    /// No disk has that name.
    pub fn no_such_disk(name: &str) -> Self {
        let remedy = "`evenkeel disk list` has their names";
        Self::new(Reason::NoSuchDisk, format!("there is no disk {name:?}"), remedy)
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.details[..] {
            [] => write!(f, "{}; {}", self.title, self.remedy),
            _ => f.write_str(&self.details.join("\n")),
        }
    }
}

impl std::error::Error for DiskError {}
