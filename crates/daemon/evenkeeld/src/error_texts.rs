//! Errors of commands that fail outside of a drive's state: drives, durability, promises.

use config::{ConfigErrors, Missing};
use layout::{LayoutError, is_full};
use state::errors::in_words;

use api::{DiskError, Reason};
use runtime::open_files;

/// What failed, where that is a command to a disk.
pub(crate) fn disk_error(error: anyhow::Error) -> DiskError {
    error.downcast().unwrap_or_else(|error| not_added(&error))
}

/// The disks of a file don't fit.
pub(crate) fn no_room_for_file(errors: &ConfigErrors) -> DiskError {
    let (title, remedy) = in_words(errors);
    DiskError::new(Reason::NoRoom, title, remedy)
}

/// What failed of a change. A disk that is larger in the layout, and can't be zeroed, grows at the next start.
pub(crate) fn grows_later(name: &str) -> impl Fn(anyhow::Error) -> DiskError {
    move |error| {
        error.downcast().unwrap_or_else(|error: anyhow::Error| {
            let title = format!("{name:?} grows at the next start only: {error:#}");
            DiskError::new(Reason::Failed, title, "see the daemon's log")
        })
    }
}

/// A disk can't be served, for another reason than what it is to be.
pub(crate) fn not_added(error: &anyhow::Error) -> DiskError {
    match (open_files::remedy(error), error.downcast_ref::<ConfigErrors>()) {
        (Some(remedy), Some(errors)) => DiskError::new(Reason::Failed, in_words(errors).0, remedy),
        (Some(remedy), None) => DiskError::new(Reason::Failed, format!("{error:#}"), remedy),
        (None, Some(errors)) => no_room_for_file(errors),
        (None, None) => failed(error, "see the daemon's log; nothing has changed"),
    }
}

/// Something that was tried, and what to do; unless a file system was full, which is a status of its own.
pub(crate) fn failed(error: &anyhow::Error, remedy: &str) -> DiskError {
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_full) {
        return DiskError::new(Reason::NotDurable, format!("{error:#}"), "make room on that file system");
    }
    DiskError::new(Reason::Failed, format!("{error:#}"), remedy)
}

pub(crate) fn promise_not_kept(errors: &ConfigErrors) -> DiskError {
    let (title, remedy) = in_words(errors);
    DiskError::new(Reason::PromiseNotKept, title, remedy)
}

pub(crate) fn unjudged(why: &str) -> DiskError {
    DiskError::new(Reason::PromiseNotJudged, why, "name the drive to create the disk there anyway")
}

pub(crate) fn no_such_drive(name: &str) -> DiskError {
    DiskError::new(Reason::NoSuchDrive, format!("there is no drive {name:?}"), "`evenkeel drive list` has their names")
}

pub(crate) fn drive_name_taken(name: &str) -> DiskError {
    DiskError::new(Reason::NameTaken, format!("there is a drive {name:?} already"), "choose another name")
}

pub(crate) fn drive_missing(missing: &Missing) -> DiskError {
    let title = format!("drive {:?} is missing: {}", missing.name(), missing.why());
    DiskError::new(Reason::DriveMissing, title, "fix that, and start the daemon again; or name another drive")
}

pub(crate) fn disk_missing(name: &str, why: &str) -> DiskError {
    let title = format!("{name:?} is not served: {why}");
    DiskError::new(Reason::DriveMissing, title, "fix that, and start the daemon again")
}

pub(crate) fn not_durable(error: &LayoutError) -> DiskError {
    DiskError::new(Reason::NotDurable, error.what(), error.remedy())
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use anyhow::anyhow;

    use super::*;

    /// Only here: a full file system is told as a failure of the daemon's.
    #[test]
    fn a_full_file_system_has_a_reason_of_its_own() {
        for (kind, reason) in [
            (ErrorKind::StorageFull, Reason::NotDurable),
            (ErrorKind::QuotaExceeded, Reason::NotDurable),
            (ErrorKind::PermissionDenied, Reason::Failed),
        ] {
            let error = anyhow!(io::Error::from(kind)).context("can't make the socket's directory");
            assert_eq!(not_added(&error).reason, reason, "{kind}");
        }
    }
}
