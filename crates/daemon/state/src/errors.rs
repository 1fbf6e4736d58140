//! Errors of commands to disks: the problem and its remedy.

use api::{DiskError, Reason};
use config::{Config, ConfigErrors, KeyChange};
use io_model::TenantId;
use io_model::units::Size;
use layout::{Contradiction, RANGE_STEP_BYTES};

/// Every problem, then every remedy. The file is generated, so line numbers would only mislead.
pub fn in_words(errors: &ConfigErrors) -> (String, String) {
    let all = |part: fn(&config::Problem) -> &str| errors.problems.iter().map(part).collect::<Vec<_>>().join("; ");
    (all(|problem| &problem.what), all(|problem| &problem.remedy))
}

/// It has no form in TOML.
pub fn not_writable(error: impl std::fmt::Display) -> DiskError {
    DiskError::new(Reason::Invalid, format!("TOML can't represent the request: {error}"), "use plain text")
}

/// A change that no disk takes.
pub fn not_changeable(why: &str) -> DiskError {
    DiskError::new(
        Reason::Invalid,
        why,
        "a change has the keys of a new disk except name, drive, lba_size, attach and nsid",
    )
}

/// A disk, or all disks together, break a rule.
pub fn invalid(errors: &ConfigErrors) -> DiskError {
    let (title, remedy) = in_words(errors);
    DiskError::new(Reason::Invalid, title, remedy)
}

/// Another disk has the name.
pub fn name_taken(name: &str) -> DiskError {
    let title = format!("there is another disk {name:?} already");
    DiskError::new(Reason::NameTaken, title, "choose another name, or delete that one first")
}

/// The disk is on its way out.
pub fn being_deleted(name: &str) -> DiskError {
    let remedy = "wait until `evenkeel disk list` no longer shows it, or choose another name";
    DiskError::new(Reason::Leaving, format!("{name:?} is being deleted"), remedy)
}

/// It is there with other settings.
pub fn otherwise(name: &str, others: &[KeyChange]) -> DiskError {
    let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let each = others.iter().map(|it| format!("{} {}, not {}", it.key, word(&it.old), word(&it.new)));
    let each = each.collect::<Vec<_>>().join("; ");
    let remedy = "change it by `evenkeel disk set` or `grow`, or choose another name";
    DiskError::new(Reason::NameTaken, format!("there is another disk {name:?} already: it has {each}"), remedy)
}

/// Only an encrypted disk can be erased by its key.
pub fn not_encrypted(name: &str) -> DiskError {
    let title = format!("{name:?} is not encrypted, so there is no key whose loss would erase it");
    DiskError::new(Reason::Invalid, title, "overwrite it: `evenkeel disk delete`, or `nvme format` in its guest")
}

/// Disks only grow.
pub fn no_shrinking(name: &str, has_bytes: u64) -> DiskError {
    let title = format!("{name:?} has {}, and a disk can't shrink", Size(has_bytes));
    DiskError::new(Reason::NoShrinking, title, "make a smaller disk, copy the data in a guest, and delete this one")
}

/// `most_bytes` more is available.
pub fn no_room_to_grow(name: &str, has_bytes: u64, most_bytes: u64) -> DiskError {
    let title = format!("no room for {name:?} to grow so far: {} more is available", Size(most_bytes));
    let remedy = match most_bytes - most_bytes % RANGE_STEP_BYTES {
        0 => "delete unused disks, or wait until deleted disks are wiped".to_owned(),
        more => format!("ask for a size of {}", Size(has_bytes + more)),
    };
    DiskError::new(Reason::NoRoom, title, remedy)
}

/// Data of an earlier disk lies on the drive.
pub fn name_reserved(name: &str) -> DiskError {
    let title = format!("a drive has data of an earlier disk {name:?}");
    let remedy = "choose another name, delete that data by `evenkeel disk delete`, or configure that disk again";
    DiskError::new(Reason::NameReserved, title, remedy)
}

/// Planning the layout failed.
pub fn no_room(found: &[Contradiction]) -> DiskError {
    let all = |part: fn(&Contradiction) -> &str| found.iter().map(part).collect::<Vec<_>>().join("; ");
    DiskError::new(Reason::NoRoom, all(|it| &it.what), all(|it| &it.remedy))
}

/// No tenant or namespace has that identifier, or not any more.
pub fn nobody(id: TenantId) -> DiskError {
    let title = format!("there is no tenant with the identifier {}", id.0);
    DiskError::new(Reason::NoSuchTenant, title, "`evenkeel disk list` has the names")
}

/// No tenant has that name.
pub fn no_such_tenant(tenant: &str) -> DiskError {
    let title = format!("there is no tenant {tenant:?}");
    DiskError::new(Reason::NoSuchTenant, title, "`evenkeel disk list` has the names of those that have a socket")
}

/// The configuration file has the disk.
pub fn declared(name: &str, config: &Config) -> DiskError {
    let file = config.file().display();
    let title = format!("{name:?} is declared in {file}");
    DiskError::new(Reason::Declared, title, format!("change it there, and run `evenkeel apply {file}`"))
}

/// A disk is on its way from one key to another.
pub fn being_reencrypted(name: &str) -> DiskError {
    let title = format!("disk {name:?} is being re-encrypted");
    DiskError::new(Reason::Reencrypting, title, "`evenkeel operations` shows how far that is; ask again after it")
}

/// A bug.
pub fn broken() -> DiskError {
    DiskError::new(Reason::Failed, "the daemon has lost track of it", "please report this, with the daemon's log")
}

/// There is no snapshot of that name.
pub fn no_such_snapshot(disk: &str, snapshot: &str) -> DiskError {
    let title = format!("disk {disk:?} has no snapshot {snapshot:?}");
    DiskError::new(Reason::NoSuchDisk, title, format!("`evenkeel disk show {disk}` lists its snapshots"))
}
