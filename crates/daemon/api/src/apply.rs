//! Applying a configuration file to a running daemon: the request, the plan and the result.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A configuration file. The daemon makes its disks agree with the file's `[[tenant]]` sections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The file's name. It appears in error messages only.
    pub file: String,
    /// The file's content, in TOML. At most 4 MiB.
    pub text: String,
    /// `true`: report the plan and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The plan that the operator agreed to. The daemon changes nothing if the plan is a different one by now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agreed: Option<Vec<Step>>,
}

/// What is done with a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The tenant or drive was added while the daemon ran. The configuration file owns it from now on.
    Declare,
    /// The tenant is in the file but is not served yet. Its disk is created.
    Create,
    /// The tenant's promise, weight or limits change.
    Change,
    /// The tenant is no longer in the file. Its disk is deleted and its data is overwritten.
    Delete,
    /// This can't be changed while the daemon runs. Each key's `remedy` says what to do instead.
    Later,
}

/// A key of the file whose value changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// The key's name, as in the file. A key of a subsection has its name in front, such as `demand.bs`.
    pub key: String,
    /// The value now. Absent: the key is not set.
    pub old: Option<String>,
    /// The value that the file sets. Absent: the file does not set the key.
    pub new: Option<String>,
    /// What to do if the key can't be changed while the daemon runs.
    pub remedy: Option<String>,
}

/// One difference between the file and what is served now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// The tenant. Absent: the section is not a tenant's. With `change` it is then about policies, with `declare` about
    /// drives.
    pub tenant: Option<String>,
    /// Size in bytes of the disk that is created or deleted.
    pub size_bytes: Option<u64>,
    /// The keys that differ. For `create`: all keys of the section.
    pub keys: Vec<Key>,
}

/// How a file differs from what is served, and whether the differences were applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// The differences, in the order in which they are applied.
    pub steps: Vec<Step>,
    /// `true`: all steps but those with the action `later` were applied.
    pub done: bool,
    /// Path of the file that the daemon reads when it starts.
    pub starts_with: String,
}

/// The configuration of a running daemon as one file, including the disks that were created since it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exported {
    /// The file's content, in TOML.
    pub text: String,
}

impl Action {
    /// The action's name, as a printed plan shows it.
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
    /// Whether this step changes policies.
    pub fn is_policies(&self) -> bool {
        self.action == Action::Change && self.tenant.is_none()
    }

    /// Marks the step as impossible while the daemon runs, and gives the reason.
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

/// One line, such as `change db: weight 1 → 5, rw_iops none → 20k`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.action == Action::Declare {
            let drives = self.keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>().join(", ");
            let what = self.tenant.as_ref().unwrap_or(&drives);
            return write!(f, "{} {what}: the file declares it from now on", self.action.name());
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
