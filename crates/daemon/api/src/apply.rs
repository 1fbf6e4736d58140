//! A configuration file that is applied to a daemon that runs.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A configuration file whose tenants are to be served from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// Its name, for messages.
    pub file: String,
    /// All of it; at most 4 MiB.
    pub text: String,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// What somebody was shown and agreed to: nothing is done if it is something else by now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agreed: Option<Vec<Step>>,
}

/// What is done with a tenant, or would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It was made or added while the daemon ran, and is the file's from now on.
    Declare,
    /// It is in the file, and not served.
    Create,
    /// It is promised or held to something else.
    Change,
    /// It left the file: it goes, and its data is overwritten.
    Delete,
    /// It can't be done while the daemon runs; each key says what to do.
    Later,
}

/// A key of the file with another value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// As in the file; `demand.bs` for one of a section within.
    pub key: String,
    /// As it is now; none: it is not there.
    pub old: Option<String>,
    /// As it is to be; none: it is there no more.
    pub new: Option<String>,
    /// What to do where it can't be changed while the daemon runs.
    pub remedy: Option<String>,
}

/// One difference between a file and what is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Step {
    /// What becomes of it.
    pub action: Action,
    /// Whose; none: a section that is no tenant's. A change of those is one of policies; what is declared of them are
    /// drives.
    pub tenant: Option<String>,
    /// Bytes of the disk that comes or goes.
    pub size_bytes: Option<u64>,
    /// What the file says of it, or says otherwise.
    pub keys: Vec<Key>,
}

/// What a file differs in, and whether that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// In the order in which they are done.
    pub steps: Vec<Step>,
    /// They are done, but for what is for later.
    pub done: bool,
    /// The file that the daemon starts with.
    pub starts_with: String,
}

/// The configuration of a running daemon, with the disks that were made since, as one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exported {
    /// The file.
    pub text: String,
}

impl Action {
    /// As a plan has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Declare => "declare",
            Self::Create => "create",
            Self::Change => "change",
            Self::Delete => "delete",
            Self::Later => "later",
        }
    }
}

impl Step {
    /// Whether it is about policies.
    pub fn is_policies(&self) -> bool {
        self.action == Action::Change && self.tenant.is_none()
    }

    /// It can't be done while the daemon runs, for a reason.
    pub fn put_off(&mut self, why: &str) {
        self.action = Action::Later;
        self.keys.iter_mut().for_each(|key| key.remedy = Some(format!("start the daemon again: {why}")));
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        write!(f, "{} {} → {}", self.key, word(&self.old), word(&self.new))?;
        self.remedy.iter().try_for_each(|remedy| write!(f, " ({remedy})"))
    }
}

/// One line: `change db: weight 1 → 5, rw_iops none → 20k`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.action == Action::Declare {
            let drives = self.keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>().join(", ");
            let what = self.tenant.as_ref().unwrap_or(&drives);
            return write!(f, "{} {what}: it is the file's from now on", self.action.name());
        }
        write!(f, "{} {}", self.action.name(), self.tenant.as_deref().unwrap_or("the daemon"))?;
        let told = |key: &Key| match (self.action, &key.new) {
            (Action::Create, Some(new)) => format!("{} {new}", key.key),
            _ => key.to_string(),
        };
        if self.action == Action::Delete {
            return write!(f, ": the disk and all its data");
        }
        write!(f, ": {}", self.keys.iter().map(told).collect::<Vec<_>>().join(", "))
    }
}
