//! What is told of what can't be done, and what to do then.

use api::Problem;
use config::{Config, ConfigErrors, KeyChange, Missing};
use io_model::units::Size;
use layout::{LayoutError, RANGE_STEP_BYTES, is_full};

use crate::open_files;

/// The code of what no daemon would take.
pub(crate) const INVALID: &str = "invalid";

/// Every problem, then every remedy. The lines of a file that nobody wrote would only mislead.
pub(crate) fn in_words(errors: &ConfigErrors) -> (String, String) {
    let all = |part: fn(&config::Problem) -> &str| errors.problems.iter().map(part).collect::<Vec<_>>().join("; ");
    (all(|problem| &problem.what), all(|problem| &problem.remedy))
}

/// It has no form in TOML.
pub(crate) fn not_writable(error: impl std::fmt::Display) -> Problem {
    Problem::new(422, "invalid", format!("TOML can't represent the request: {error}"), "use plain text")
}

pub(crate) fn invalid(errors: &ConfigErrors) -> Problem {
    let (title, remedy) = in_words(errors);
    Problem::new(422, INVALID, title, remedy)
}

pub(crate) fn name_taken(name: &str) -> Problem {
    let title = format!("there is another disk {name:?} already");
    Problem::new(409, "name-taken", title, "choose another name, or delete that one first")
}

pub(crate) fn being_deleted(name: &str) -> Problem {
    let remedy = "wait until `evenkeel disk list` no longer shows it, or choose another name";
    Problem::new(409, "leaving", format!("{name:?} is being deleted"), remedy)
}

/// It is there with other settings.
pub(crate) fn otherwise(name: &str, others: &[KeyChange]) -> Problem {
    let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let each = others.iter().map(|it| format!("{} {}, not {}", it.key, word(&it.old), word(&it.new)));
    let each = each.collect::<Vec<_>>().join("; ");
    let remedy = "change it by `evenkeel disk set` or `grow`, or choose another name";
    Problem::new(409, "name-taken", format!("there is another disk {name:?} already: it has {each}"), remedy)
}

pub(crate) fn no_shrinking(name: &str, has_bytes: u64) -> Problem {
    let title = format!("{name:?} has {}, and a disk can't shrink", Size(has_bytes));
    Problem::new(409, "no-shrinking", title, "make a smaller disk, copy the data in a guest, and delete this one")
}

pub(crate) fn no_room_to_grow(name: &str, has_bytes: u64, most_bytes: u64) -> Problem {
    let title = format!("no room for {name:?} to grow so far: {} more could be had", Size(most_bytes));
    let remedy = match most_bytes - most_bytes % RANGE_STEP_BYTES {
        0 => "delete what nobody needs, or wait until what was deleted is wiped".to_owned(),
        more => format!("ask for a size of {}", Size(has_bytes + more)),
    };
    Problem::new(409, "no-room", title, remedy)
}

pub(crate) fn name_reserved(name: &str) -> Problem {
    let title = format!("a drive has data of an earlier disk {name:?}");
    let remedy = "choose another name, delete that data by `evenkeel disk delete`, or write that disk into the \
                  configuration again to have it back";
    Problem::new(409, "name-reserved", title, remedy)
}

pub(crate) fn no_room(errors: &ConfigErrors) -> Problem {
    let (title, remedy) = in_words(errors);
    Problem::new(409, "no-room", title, remedy)
}

/// A disk can't be served, for another reason than what it is to be.
pub(crate) fn not_added(error: &anyhow::Error) -> Problem {
    match (open_files::remedy(error), error.downcast_ref::<ConfigErrors>()) {
        (Some(remedy), Some(errors)) => Problem::new(500, "failed", in_words(errors).0, remedy),
        (Some(remedy), None) => Problem::new(500, "failed", format!("{error:#}"), remedy),
        (None, Some(errors)) => no_room(errors),
        (None, None) => failed(error, "see the daemon's log; nothing has changed"),
    }
}

/// Something that was tried, and what to do; unless a file system was full, which is a status of its own.
pub(crate) fn failed(error: &anyhow::Error, remedy: &str) -> Problem {
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_full) {
        return Problem::new(507, "not-durable", format!("{error:#}"), "make room on that file system");
    }
    Problem::new(500, "failed", format!("{error:#}"), remedy)
}

pub(crate) fn promise_not_kept(errors: &ConfigErrors) -> Problem {
    let (title, remedy) = in_words(errors);
    Problem::new(409, "promise-not-kept", title, remedy)
}

pub(crate) fn unjudged(why: &str) -> Problem {
    Problem::new(409, "promise-not-judged", why, "name the drive to have the disk there all the same")
}

pub(crate) fn no_such_drive(name: &str) -> Problem {
    Problem::new(404, "no-such-drive", format!("there is no drive {name:?}"), "`evenkeel drive list` has their names")
}

pub(crate) fn drive_name_taken(name: &str) -> Problem {
    Problem::new(409, "name-taken", format!("there is a drive {name:?} already"), "choose another name")
}

pub(crate) fn drive_missing(missing: &Missing) -> Problem {
    let title = format!("drive {:?} is missing: {}", missing.name(), missing.why());
    Problem::new(409, "drive-missing", title, "mend that, and start the daemon again; or name another drive")
}

pub(crate) fn disk_missing(name: &str, why: &str) -> Problem {
    let title = format!("{name:?} is not served: {why}");
    Problem::new(409, "drive-missing", title, "mend that, and start the daemon again")
}

pub(crate) fn no_such_tenant(tenant: &str) -> Problem {
    let title = format!("there is no tenant {tenant:?}");
    Problem::new(404, "no-such-tenant", title, "`evenkeel disk list` has the names of those that have a socket")
}

pub(crate) fn no_such_disk(name: &str) -> Problem {
    Problem::new(404, "no-such-disk", format!("there is no disk {name:?}"), "`evenkeel disk list` has their names")
}

pub(crate) fn declared(name: &str, config: &Config) -> Problem {
    let file = config.file().display();
    let title = format!("{name:?} is declared in {file}");
    Problem::new(409, "declared", title, format!("change it there, and run `evenkeel apply {file}`"))
}

pub(crate) fn not_durable(error: &LayoutError) -> Problem {
    Problem::new(507, "not-durable", error.what(), error.remedy())
}

pub(crate) fn broken() -> Problem {
    Problem::new(500, "failed", "the daemon has lost track of it", "please report this, with the daemon's log")
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use anyhow::anyhow;

    use super::*;

    /// Only here: a full file system is told as a failure of the daemon's.
    #[test]
    fn a_full_file_system_has_a_status_of_its_own() {
        for (kind, status) in
            [(ErrorKind::StorageFull, 507), (ErrorKind::QuotaExceeded, 507), (ErrorKind::PermissionDenied, 500)]
        {
            let error = anyhow!(io::Error::from(kind)).context("can't make the socket's directory");
            assert_eq!(not_added(&error).status, status, "{kind}");
        }
    }
}
