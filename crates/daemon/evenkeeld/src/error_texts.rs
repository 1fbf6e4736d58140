//! What is told of what can't be done, and what to do then.

use config::{Config, ConfigErrors, KeyChange, Missing};
use io_model::units::Size;
use layout::{LayoutError, RANGE_STEP_BYTES, is_full};

use api::{DiskError, Reason};
use runtime::open_files;

/// Every problem, then every remedy. The lines of a file that nobody wrote would only mislead.
pub(crate) fn in_words(errors: &ConfigErrors) -> (String, String) {
    let all = |part: fn(&config::Problem) -> &str| errors.problems.iter().map(part).collect::<Vec<_>>().join("; ");
    (all(|problem| &problem.what), all(|problem| &problem.remedy))
}

/// It has no form in TOML.
pub(crate) fn not_writable(error: impl std::fmt::Display) -> DiskError {
    DiskError::new(Reason::Invalid, format!("TOML can't represent the request: {error}"), "use plain text")
}

/// A change that no disk takes.
pub(crate) fn not_changeable(why: &str) -> DiskError {
    DiskError::new(
        Reason::Invalid,
        why,
        "a change has the keys of a new disk but for name, drive, lba_size, attach and nsid",
    )
}

pub(crate) fn invalid(errors: &ConfigErrors) -> DiskError {
    let (title, remedy) = in_words(errors);
    DiskError::new(Reason::Invalid, title, remedy)
}

pub(crate) fn name_taken(name: &str) -> DiskError {
    let title = format!("there is another disk {name:?} already");
    DiskError::new(Reason::NameTaken, title, "choose another name, or delete that one first")
}

pub(crate) fn being_deleted(name: &str) -> DiskError {
    let remedy = "wait until `evenkeel disk list` no longer shows it, or choose another name";
    DiskError::new(Reason::Leaving, format!("{name:?} is being deleted"), remedy)
}

/// It is there with other settings.
pub(crate) fn otherwise(name: &str, others: &[KeyChange]) -> DiskError {
    let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let each = others.iter().map(|it| format!("{} {}, not {}", it.key, word(&it.old), word(&it.new)));
    let each = each.collect::<Vec<_>>().join("; ");
    let remedy = "change it by `evenkeel disk set` or `grow`, or choose another name";
    DiskError::new(Reason::NameTaken, format!("there is another disk {name:?} already: it has {each}"), remedy)
}

pub(crate) fn no_shrinking(name: &str, has_bytes: u64) -> DiskError {
    let title = format!("{name:?} has {}, and a disk can't shrink", Size(has_bytes));
    DiskError::new(Reason::NoShrinking, title, "make a smaller disk, copy the data in a guest, and delete this one")
}

pub(crate) fn no_room_to_grow(name: &str, has_bytes: u64, most_bytes: u64) -> DiskError {
    let title = format!("no room for {name:?} to grow so far: {} more could be had", Size(most_bytes));
    let remedy = match most_bytes - most_bytes % RANGE_STEP_BYTES {
        0 => "delete what nobody needs, or wait until what was deleted is wiped".to_owned(),
        more => format!("ask for a size of {}", Size(has_bytes + more)),
    };
    DiskError::new(Reason::NoRoom, title, remedy)
}

pub(crate) fn name_reserved(name: &str) -> DiskError {
    let title = format!("a drive has data of an earlier disk {name:?}");
    let remedy = "choose another name, delete that data by `evenkeel disk delete`, or write that disk into the \
                  configuration again to have it back";
    DiskError::new(Reason::NameReserved, title, remedy)
}

pub(crate) fn no_room(errors: &ConfigErrors) -> DiskError {
    let (title, remedy) = in_words(errors);
    DiskError::new(Reason::NoRoom, title, remedy)
}

/// A disk can't be served, for another reason than what it is to be.
pub(crate) fn not_added(error: &anyhow::Error) -> DiskError {
    match (open_files::remedy(error), error.downcast_ref::<ConfigErrors>()) {
        (Some(remedy), Some(errors)) => DiskError::new(Reason::Failed, in_words(errors).0, remedy),
        (Some(remedy), None) => DiskError::new(Reason::Failed, format!("{error:#}"), remedy),
        (None, Some(errors)) => no_room(errors),
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
    DiskError::new(Reason::PromiseNotJudged, why, "name the drive to have the disk there all the same")
}

pub(crate) fn no_such_drive(name: &str) -> DiskError {
    DiskError::new(Reason::NoSuchDrive, format!("there is no drive {name:?}"), "`evenkeel drive list` has their names")
}

pub(crate) fn drive_name_taken(name: &str) -> DiskError {
    DiskError::new(Reason::NameTaken, format!("there is a drive {name:?} already"), "choose another name")
}

pub(crate) fn drive_missing(missing: &Missing) -> DiskError {
    let title = format!("drive {:?} is missing: {}", missing.name(), missing.why());
    DiskError::new(Reason::DriveMissing, title, "mend that, and start the daemon again; or name another drive")
}

pub(crate) fn disk_missing(name: &str, why: &str) -> DiskError {
    let title = format!("{name:?} is not served: {why}");
    DiskError::new(Reason::DriveMissing, title, "mend that, and start the daemon again")
}

pub(crate) fn no_such_tenant(tenant: &str) -> DiskError {
    let title = format!("there is no tenant {tenant:?}");
    DiskError::new(Reason::NoSuchTenant, title, "`evenkeel disk list` has the names of those that have a socket")
}

pub(crate) fn declared(name: &str, config: &Config) -> DiskError {
    let file = config.file().display();
    let title = format!("{name:?} is declared in {file}");
    DiskError::new(Reason::Declared, title, format!("change it there, and run `evenkeel apply {file}`"))
}

pub(crate) fn not_durable(error: &LayoutError) -> DiskError {
    DiskError::new(Reason::NotDurable, error.what(), error.remedy())
}

pub(crate) fn broken() -> DiskError {
    DiskError::new(Reason::Failed, "the daemon has lost track of it", "please report this, with the daemon's log")
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
