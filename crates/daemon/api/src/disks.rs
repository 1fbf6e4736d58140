//! Disks, as the API tells of them and takes them.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Attachment, Ceilings};

/// A disk to be made. Its keys are those of a `[[tenant]]` section, with the same words and units; what is left out has
/// the same default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDisk {
    /// 1 to 63 of `a-z 0-9 _ -`, unique among the living.
    pub name: String,
    /// A multiple of 4096 bytes, such as `16GiB`.
    pub size: String,
    /// The drive that it is to be on. Left out: one where its promise and everybody else's hold, and of those the one
    /// that has the least left over.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub drive: Option<String>,
    /// `vfio-user` (the default), `vhost-user-blk` or `ublk`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub frontend: Option<String>,
    /// `best-effort` (the default) or `guaranteed`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<String>,
    /// The promise to a guaranteed tenant, such as `50us`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_target: Option<String>,
    /// The percentage of its commands that this is for, 50 to 99.9; 99 if left out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_percentile: Option<f64>,
    /// What a best-effort tenant gets at least while it asks for it, under `evenkeel`: commands per second, such as
    /// `20k`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min_iops: Option<String>,
    /// The same in bytes per second, in whole MiB, such as `200MiB/s`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min_bandwidth: Option<String>,
    /// The share of a best-effort tenant, 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub weight: Option<u32>,
    /// `urgent`, `high`, `medium`, `low` or `client`, under `wrr` and `drr`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub priority: Option<String>,
    /// Commands per second at most, such as `20k`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rw_iops: Option<String>,
    /// Reads per second at most.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r_iops: Option<String>,
    /// Commands per second at most that are no reads.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w_iops: Option<String>,
    /// Bytes per second at most, both ways, in whole MiB, such as `200MiB/s`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rw_bandwidth: Option<String>,
    /// Bytes per second read at most.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r_bandwidth: Option<String>,
    /// Bytes per second written at most.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w_bandwidth: Option<String>,
    /// For how long unused quota of these limits is kept, such as `2s`; up to `60s`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst: Option<String>,
    /// Serve it even if its promise can't be kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub overcommit: Option<bool>,
    /// I/O queues offered to the guest, 1 to 64.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u16>,
    /// How the doorbells of an NVMe controller reach the daemon: `mapped` (the default) or `trapped`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub doorbells: Option<String>,
    /// Which threads serve its queues: `shared` (the default), `dedicated` or `per-queue`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub threads: Option<String>,
    /// When the threads of a virtio disk sleep: `adaptive` (the default), `polling` or `event`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// CPUs of its own threads.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<Vec<u32>>,
    /// Memory that its client may have mapped, such as `8GiB`; at least that of its guest.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_memory: Option<String>,
    /// Pieces of memory that its client may have mapped, 4 to 4096.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_maps: Option<u32>,
    /// Who owns its socket, by name or number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub socket_user: Option<String>,
    /// The group of its socket, by name or number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub socket_group: Option<String>,
    /// The permissions of its socket: `0600`, `0660` or `0666`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub socket_mode: Option<String>,
    /// Bytes of a block: 512 or 4096. Left out: 512, or what the drive has at least.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lba_size: Option<u32>,
    /// A virtio disk that can't be written to, or a namespace that the guest of `attach` can't write to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub read_only: Option<bool>,
    /// An NVMe tenant: the disk is a namespace of its controller from now on, and has no socket. Beside this it has a
    /// name, a size, an `nsid`, a `lba_size` and `read_only`; promised and held to something are tenants.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attach: Option<String>,
    /// The namespace's identifier on every controller, 2 to 32. The lowest that is free
    /// on that controller, if left out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nsid: Option<u32>,
}

/// Sections of a configuration, as [`NewDisk::to_section`] writes them.
#[derive(Serialize, Deserialize)]
struct Sections {
    tenant: Vec<NewDisk>,
}

impl NewDisk {
    /// As a `[[tenant]]` section of a configuration.
    ///
    /// # Errors
    /// A text that TOML has no form for.
    pub fn to_section(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&Sections { tenant: vec![self.clone()] })
    }

    /// What [`NewDisk::to_section`] wrote.
    ///
    /// # Errors
    /// It is not one such section.
    pub fn from_section(section: &str) -> Result<Self, String> {
        let sections: Sections = toml::from_str(section).map_err(|error| error.message().to_owned())?;
        let mut disks = sections.tenant.into_iter();
        disks.next().filter(|_| disks.len() == 0).ok_or_else(|| "it is not one [[tenant]] section".to_owned())
    }
}

/// How far a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// A client can attach.
    Served,
    /// Its range of the drive is zeroed first.
    Zeroing,
    /// Its range can't be zeroed, so no client can attach; the next start tries again.
    Failed,
    /// It is being deleted.
    Leaving,
}

impl DiskState {
    /// As tables have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Zeroing => "zeroing",
            Self::Failed => "failed",
            Self::Leaving => "leaving",
        }
    }
}

/// A disk that is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Unique among the living.
    pub name: String,
    /// The drive that it is on.
    pub drive: String,
    /// Bytes that its guest sees.
    pub size_bytes: u64,
    /// Bytes that it will have once what is new is zeroed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grows_to_bytes: Option<u64>,
    /// Bytes of a block, as last formatted.
    pub lba_bytes: u32,
    /// `vfio-user`, `vhost-user-blk`, `ublk`, or `namespace`: it has no socket, and is a part of its tenants'
    /// controllers.
    pub frontend: String,
    /// I/O queues that its guest is offered; a namespace has those of its tenants.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u16>,
    /// Which threads serve its queues: `shared`, `dedicated` or `per-queue`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub threads: Option<String>,
    /// When the threads of a virtio disk or block device sleep: `adaptive`, `polling` or `event`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// CPUs of its own threads, where they are pinned.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub cpus: Vec<u32>,
    /// A namespace's identifier on these controllers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nsid: Option<u32>,
    /// Tenants whose controllers a namespace is a part of.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub attachments: Vec<Attachment>,
    /// `guaranteed` or `best-effort`; a namespace is neither, and gets what its tenants do.
    pub class: Option<String>,
    /// The share of a best-effort tenant.
    pub weight: Option<u32>,
    /// The promise to a guaranteed one, in microseconds.
    pub latency_target_us: Option<f64>,
    /// The percentage of its commands that this is for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_percentile: Option<f64>,
    /// What a best-effort disk gets at least, in words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub floor: Option<String>,
    /// It is served even if what it was promised can't be kept.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub overcommit: bool,
    /// What it may do at most, in words.
    pub limits: Option<String>,
    /// The same in numbers.
    pub ceilings: Ceilings,
    /// Where a VMM attaches it, or the block device; a namespace comes with its tenants' controllers.
    pub socket: Option<String>,
    /// How far it is.
    pub state: DiskState,
    /// A client has it now; of a namespace, one of its tenants' clients.
    pub attached: bool,
    /// A client that has it goes on if the daemon ends and another one comes. That takes a drive whose data outlive the
    /// daemon and, for an NVMe client, a keeper that has it; for a virtio one that, or a VMM that connects again.
    #[serde(default)]
    pub survives_restart: bool,
    /// The configuration file has it; it changes there alone.
    pub declared: bool,
    /// What an operator should know of its promise, such as that nobody can check it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// How a deleted disk is overwritten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Wipe {
    /// Once, with zeros.
    #[default]
    Zeros,
    /// With ones, with random numbers, and with zeros, each read back and compared.
    ThreePasses,
}

/// How a disk is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Deletion {
    /// Even if a client is attached: its connection ends. A namespace that is attached to tenants is detached.
    #[serde(default)]
    pub force: bool,
    /// How what it leaves is overwritten.
    #[serde(default)]
    pub wipe: Wipe,
}

/// How far something is that goes on by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    /// Others come first.
    Waiting,
    /// It is being done.
    Running,
    /// It can't be done; the next start of the daemon tries again.
    Failed,
}

impl OperationState {
    /// As tables have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Failed => "failed",
        }
    }
}

/// Something that goes on by itself. It is gone once it is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// `wipe`: what a deleted disk left is overwritten. Nobody gets it before. `zero`: what a new disk has, or one
    /// grows by, is zeroed before its guest sees it.
    pub kind: String,
    /// Whose.
    pub disk: String,
    /// How far it is.
    pub state: OperationState,
    /// Bytes that are done, over all passes.
    pub done_bytes: u64,
    /// Bytes to be done in all.
    pub total_bytes: u64,
    /// Its rate until now, where it is known.
    pub bytes_per_second: Option<u64>,
    /// What is left at that rate.
    pub seconds_left: Option<u64>,
    /// Why it failed, where that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
}

/// What is wrong with a request, as `application/problem+json` (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// For programs: it stays the same.
    pub code: String,
    /// For people.
    pub title: String,
    /// What to do.
    pub remedy: String,
    /// Each of several problems with its own remedy, where there are some.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub details: Vec<String>,
}

impl Problem {
    /// One with these words.
    pub fn new(status: u16, code: &str, title: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), title: title.into(), remedy: remedy.into(), details: Vec::new() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.details[..] {
            [] => write!(f, "{}; {}", self.title, self.remedy),
            _ => f.write_str(&self.details.join("\n")),
        }
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> NewDisk {
        let (name, size) = ("db \"x\"\n[[tenant]]".to_owned(), "1GiB".to_owned());
        NewDisk { name, size, weight: Some(7), rw_iops: Some("20k".into()), ..NewDisk::default() }
    }

    #[test]
    fn a_section_says_all_and_nothing_else() {
        let section = disk().to_section().unwrap();
        assert_eq!(section.matches("[[tenant]]\n").count(), 1, "{section}");
        assert_eq!(NewDisk::from_section(&section), Ok(disk()));
        assert!(NewDisk::from_section(&section.repeat(2)).is_err());
        assert!(NewDisk::from_section("size = \"1GiB\"").is_err());
    }
}
