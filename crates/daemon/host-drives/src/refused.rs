//! The error of this crate: why a drive was left as it is.

use std::path::Path;

/// What is wrong and what to do. Nothing was changed, or all changes were undone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct Refused {
    /// Name of the error, for programs. It does not change between versions.
    pub code: &'static str,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Refused {
    pub(crate) fn new(code: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, what: what.into(), remedy: remedy.into() }
    }

    /// A file of sysfs can't be written.
    pub(crate) fn unwritten(path: &Path, error: &std::io::Error) -> Self {
        let remedy = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "run this as root",
            std::io::ErrorKind::ReadOnlyFilesystem => "run this on the host itself: here /sys may only be read",
            _ => "look at `dmesg`, and try again",
        };
        Self::new("not-written", format!("can't write to {}: {error}", path.display()), remedy)
    }
}
