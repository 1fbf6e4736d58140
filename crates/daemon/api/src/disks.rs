//! Disks: what the API accepts to create one and reports about each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Attachment, Ceilings};

/// Heading of the options that say how a guest reaches its disk.
const REACHED: &str = "How it is reached (changes only while no client is attached)";

/// A percentage. JSON can't represent NaN or infinity; the daemon checks the rest.
fn percentile(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|percent: &f64| percent.is_finite());
    found.ok_or_else(|| "expected a number from 50 to 99.9".to_owned())
}

/// Settings of a disk. Keys, units and defaults are those of a `[[tenant]]` section of the configuration file, and of
/// the options of `evenkeel disk create`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Name of 1 to 63 characters of `a-z 0-9 _ -`. No other disk may have it.
    pub name: String,
    /// Size, a multiple of 4096 bytes, such as `16GiB`.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    #[schema(required)]
    #[arg(long, default_value = "", hide_default_value = true)]
    pub size: String,
    /// The drive to create the disk on. Absent: the daemon picks a drive on which all promises hold. It prefers
    /// persistent drives, then the one with the least space left.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "NAME")]
    pub drive: Option<String>,
    /// Labels for other tools, such as a volume claim: at most 16. Keys are 1 to 63 of `a-z 0-9 _`, first a letter.
    /// Values are at most 253 characters without control characters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    #[arg(skip)]
    pub labels: BTreeMap<String, String>,
    /// `vfio-user` (the default; an NVMe controller), `vhost-user-blk` (virtio) or `ublk` (a block device of the host).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, help_heading = REACHED)]
    pub frontend: Option<String>,
    /// `best-effort` (the default) or `guaranteed`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long)]
    pub class: Option<String>,
    /// The latency promised to a guaranteed tenant, such as `50us`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "TIME")]
    pub latency_target: Option<String>,
    /// The percentage of commands that must meet `latency_target`: 50 to 99.9, default 99.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "PERCENT", value_parser = percentile)]
    pub latency_percentile: Option<f64>,
    /// Minimum of commands per second for a best-effort tenant while it has that demand, such as `20k`. Only the policy
    /// `evenkeel` keeps this.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "RATE")]
    pub min_iops: Option<String>,
    /// Minimum bandwidth for a best-effort tenant while it has that demand, in whole MiB, such as `200MiB/s`. Only the
    /// policy `evenkeel` keeps this.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "RATE")]
    pub min_bandwidth: Option<String>,
    /// Weight of a best-effort tenant, 1 to 10000. Best-effort tenants share the drive in proportion to their weights.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "N")]
    pub weight: Option<u32>,
    /// Priority under the policies `wrr` and `drr`: `urgent`, `high`, `medium`, `low` or `client`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long)]
    pub priority: Option<String>,
    /// Limit of commands per second, such as `20k`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "RATE")]
    pub rw_iops: Option<String>,
    /// Limit of reads per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "RATE")]
    pub r_iops: Option<String>,
    /// Limit of writes and all other commands except reads per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "RATE")]
    pub w_iops: Option<String>,
    /// Limit of bytes read and written per second, in whole MiB, such as `200MiB/s`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "RATE")]
    pub rw_bandwidth: Option<String>,
    /// Limit of bytes read per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "RATE")]
    pub r_bandwidth: Option<String>,
    /// Limit of bytes written per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "RATE")]
    pub w_bandwidth: Option<String>,
    /// How long unused quota of these limits is kept, such as `2s`. At most `60s`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "TIME")]
    pub burst: Option<String>,
    /// The group whose ceiling holds for this disk too: a `[[group]]` of the configuration file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Whether data is encrypted on the drive: with a key of the host's, with the tenant's own, or not at all.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "host|tenant|none")]
    pub encryption: Option<String>,
    /// `true`: the disk takes room from the drive's pool as it is written, instead of a range of its own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub thin: Option<bool>,
    /// The disk begins as a snapshot of a thin disk, `DISK@SNAPSHOT`, and shares its pieces. It has the snapshot's
    /// drive, block size and encryption, and at least its size.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "DISK@SNAPSHOT")]
    pub clone_of: Option<String>,
    /// How much of the pool is kept for a thin disk, such as `4GiB`: wiped and ready for its first writes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "SIZE")]
    pub reserve: Option<String>,
    /// `true`: create the disk even if its promise can't be kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub overcommit: Option<bool>,
    /// Number of I/O queues offered to the guest, 1 to 64.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "N", help_heading = REACHED)]
    pub queues: Option<u16>,
    /// How an NVMe controller's doorbells reach the daemon: `mapped` (the default) or `trapped`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, help_heading = REACHED)]
    pub doorbells: Option<String>,
    /// Which threads serve the queues: `shared`, `dedicated` or `per-queue`. Absent: `dedicated` for a guaranteed
    /// tenant where the policy gives it a thread, else `shared`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, help_heading = REACHED)]
    pub threads: Option<String>,
    /// When the threads of a virtio or ublk disk sleep: `adaptive` (the default), `polling` or `event`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, help_heading = REACHED)]
    pub mode: Option<String>,
    /// CPUs that the disk's own threads are pinned to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = REACHED)]
    pub cpus: Option<Vec<u32>>,
    /// Memory that the client may map, such as `8GiB`. At least the guest's memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "SIZE", help_heading = REACHED)]
    pub max_memory: Option<String>,
    /// Number of memory regions that the client may map, 4 to 4096.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "N", help_heading = REACHED)]
    pub max_maps: Option<u32>,
    /// User that owns the disk's socket, by name or number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "USER", help_heading = REACHED)]
    pub socket_user: Option<String>,
    /// Group of the disk's socket, by name or number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "GROUP", help_heading = REACHED)]
    pub socket_group: Option<String>,
    /// Permissions of the disk's socket: `0600`, `0660` or `0666`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "MODE", help_heading = REACHED)]
    pub socket_mode: Option<String>,
    /// Block size in bytes: 512 or 4096. Absent: 512, or the drive's block size if that is larger.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "BYTES")]
    pub lba_size: Option<u32>,
    /// `true`: the guest can't write. For virtio and ublk disks, and for a namespace with `attach`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = REACHED)]
    pub read_only: Option<bool>,
    /// Create a namespace and attach it to this NVMe tenant. It becomes part of the tenant's controller and has no
    /// socket. It takes only `name`, `size`, `nsid`, `lba_size` and `read_only`: promises and limits are the tenant's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "TENANT")]
    pub attach: Option<String>,
    /// The namespace's identifier on every controller, 2 to 32. Absent: the lowest one that is free on the controller.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[arg(long, value_name = "N", requires = "attach")]
    pub nsid: Option<u32>,
}

/// What a thin disk held at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskSnapshot {
    /// Unique among those of its disk.
    pub name: String,
    /// The disk's size then, in bytes.
    pub size_bytes: u64,
    /// Bytes of the pool that it has, shared ones included.
    pub pool_bytes: u64,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
}

/// Snapshots to make, all of them at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshots {
    /// Each `DISK@SNAPSHOT`: 1 to 63 of `a-z 0-9 _ -`. All disks are on one drive.
    pub snapshots: Vec<String>,
}

/// The snapshot that a disk becomes like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// Its name.
    pub snapshot: String,
}

/// The `[[tenant]]` sections of a configuration, as [`DiskSpec::to_section`] writes them.
#[derive(Serialize, Deserialize)]
struct Sections {
    tenant: Vec<DiskSpec>,
}

impl DiskSpec {
    /// Writes the disk as a `[[tenant]]` section of a configuration.
    ///
    /// # Errors
    /// TOML can't represent a value.
    pub fn to_section(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&Sections { tenant: vec![self.clone()] })
    }

    /// Reads what [`DiskSpec::to_section`] wrote.
    ///
    /// # Errors
    /// The text is not exactly one `[[tenant]]` section.
    pub fn from_section(section: &str) -> Result<Self, String> {
        let sections: Sections = toml::from_str(section).map_err(|error| error.message().to_owned())?;
        let mut disks = sections.tenant.into_iter();
        disks.next().filter(|_| disks.len() == 0).ok_or_else(|| "it is not one [[tenant]] section".to_owned())
    }
}

/// Labels as people read them, such as `pod=db-0, pvc=data-0`.
pub fn labels_in_words(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

/// State of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// Ready: a client can attach.
    Served,
    /// The daemon zeroes the disk's range of the drive. No client can attach yet.
    Zeroing,
    /// Zeroing failed, so no client can attach. The daemon tries again when it starts next.
    Failed,
    /// The daemon does not have the disk's key. No client can attach until it has.
    Locked,
    /// The disk is being deleted.
    Leaving,
}

impl DiskState {
    /// The state's name, as tables show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Zeroing => "zeroing",
            Self::Failed => "failed",
            Self::Locked => "locked",
            Self::Leaving => "leaving",
        }
    }
}

/// How a disk's promise fares. Spans are counted anew when the daemon starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskVerdict {
    /// `true`: kept in the last span; `false`: broken. Absent: too few commands came to judge.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept: Option<bool>,
    /// Length of the last span, in milliseconds.
    pub span_ms: u64,
    /// Latency at `latency_percentile` in that span, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at_percentile_us: Option<f64>,
    /// Judged spans of the last 24 hours in which the promise was kept.
    pub day_kept: u64,
    /// Judged spans of the last 24 hours in which it was broken.
    pub day_broken: u64,
}

/// An existing disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// The disk's name. No other disk has it.
    pub name: String,
    /// The disk's labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// The drive that the disk is on.
    pub drive: String,
    /// The serial number that its guest sees, at most 20 characters. Absent for a namespace and for `ublk`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub serial: Option<String>,
    /// Size in bytes, as its guest sees it.
    pub size_bytes: u64,
    /// Size in bytes once the added range is zeroed, while the disk grows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grows_to_bytes: Option<u64>,
    /// Bytes of the pool that a thin disk has, shared ones included. Absent: the disk is not thin.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pool_bytes: Option<u64>,
    /// The file that the disk is, on a drive that is a directory of images.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub image: Option<String>,
    /// What a thin disk held at earlier times, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub snapshots: Vec<DiskSnapshot>,
    /// Block size in bytes, as last formatted.
    pub lba_bytes: u32,
    /// `vfio-user`, `vhost-user-blk`, `ublk` or `namespace`. A namespace has no socket: it is part of its tenants'
    /// controllers.
    pub frontend: String,
    /// Number of I/O queues offered to the guest. Absent for a namespace, which has the queues of its tenants.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u16>,
    /// Which threads serve the queues: `shared`, `dedicated` or `per-queue`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub threads: Option<String>,
    /// When the threads of a virtio or ublk disk sleep: `adaptive`, `polling` or `event`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// CPUs that the disk's own threads are pinned to. Empty: they are not pinned.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub cpus: Vec<u32>,
    /// A namespace's identifier on each of its controllers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nsid: Option<u32>,
    /// The tenants whose controllers have this namespace.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub attachments: Vec<Attachment>,
    /// `guaranteed` or `best-effort`. Absent for a namespace, which shares its tenants' promises and weights.
    pub class: Option<String>,
    /// Weight of a best-effort tenant.
    pub weight: Option<u32>,
    /// Latency promised to a guaranteed tenant, in microseconds.
    pub latency_target_us: Option<f64>,
    /// The percentage of commands that must meet `latency_target_us`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_percentile: Option<f64>,
    /// What a best-effort disk gets at least, in words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub floor: Option<String>,
    /// Whether the promise is kept. Absent until it was judged.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<DiskVerdict>,
    /// `true`: the disk is served even if its promise can't be kept.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub overcommit: bool,
    /// The group whose ceiling holds for the disk too.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub group: Option<String>,
    /// Owner of the key that encrypts the disk's data: `host` or `tenant`. Absent: it is not encrypted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encryption: Option<String>,
    /// The limits, in words. Absent: none.
    pub limits: Option<String>,
    /// The limits, as numbers.
    pub ceilings: Ceilings,
    /// Path of the socket that a VMM attaches to, or of the block device. Absent for a namespace.
    pub socket: Option<String>,
    /// The disk's state.
    pub state: DiskState,
    /// Why the disk is `locked`, and what unlocks it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub locked_why: Option<String>,
    /// A client is attached. For a namespace: a client of one of its tenants.
    pub attached: bool,
    /// `true`: an attached client keeps working if the daemon ends and is started again.
    ///
    /// This needs a drive whose data outlives the daemon. An NVMe client also needs the keeper to hold it. A virtio
    /// client needs the keeper, or a VMM that reconnects. A disk with its tenant's own key is locked after a restart.
    #[serde(default)]
    pub survives_restart: bool,
    /// Why an attached client would lose the disk. Absent: it would not, or no client is attached.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost_on_restart: Option<String>,
    /// `true`: the disk comes from the configuration file and can be changed only there.
    pub declared: bool,
    /// What the operator should know about the promise, such as that it can't be checked.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

impl Disk {
    /// Whether the daemon does not have the disk's key.
    pub fn is_locked(&self) -> bool {
        self.state == DiskState::Locked
    }
}

/// How a deleted disk is overwritten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Wipe {
    /// Once, with zeros.
    #[default]
    Zeros,
    /// Three times, with ones, random numbers and zeros. Each pass is read back and compared.
    ThreePasses,
}

/// How to delete a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Deletion {
    /// Delete the disk even if a client is attached; its connection ends. A namespace is detached from its tenants.
    #[serde(default)]
    pub force: bool,
    /// How the deleted data is overwritten. Absent: with zeros; an encrypted disk's data is not overwritten, since its
    /// key is gone.
    #[serde(default)]
    pub wipe: Option<Wipe>,
}

/// A tenant's own key of a disk. The daemon keeps it in memory alone, until the client detaches or the daemon ends.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantKey {
    /// 64 bytes in hexadecimal: the two AES-256 keys of XTS.
    pub key: String,
    /// The disk takes this key in place of its former one, and its data can't be read any more.
    #[serde(default)]
    pub erase: bool,
    /// Erase the disk even if a client is attached: it finds noise.
    #[serde(default)]
    pub force: bool,
}

impl std::fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantKey").field("erase", &self.erase).finish_non_exhaustive()
    }
}

/// Host keys, which wrap the keys of disks.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostKeys {
    /// Lines of 64 hexadecimal digits: the present key, and then former keys.
    pub lines: String,
}

impl std::fmt::Debug for HostKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKeys")
    }
}

/// Keys of disks that were wrapped anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rewrapped {
    /// How many.
    pub disks: usize,
    /// The number of the host key that wraps them now.
    pub host_key: String,
}

/// How to erase an encrypted disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Erasure {
    /// Erase the disk even if a client is attached: it finds noise.
    #[serde(default)]
    pub force: bool,
}

/// State of a background operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    /// It waits for other operations to finish.
    Waiting,
    /// It is running.
    Running,
    /// It failed. The daemon tries again when it starts next.
    Failed,
}

impl OperationState {
    /// The state's name, as tables show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Failed => "failed",
        }
    }
}

/// A background operation. It disappears once it is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// `wipe`: a deleted disk's data is overwritten; its space is reserved until then. `zero`: a new or added range is
    /// zeroed before the guest sees it.
    pub kind: String,
    /// The disk.
    pub disk: String,
    /// The operation's state.
    pub state: OperationState,
    /// Bytes done, over all passes.
    pub done_bytes: u64,
    /// Bytes to do, over all passes.
    pub total_bytes: u64,
    /// Bytes that a wipe writes since it began, or since the daemon started: what reads as zeros in a file already is
    /// not written. Absent: not known yet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub write_bytes: Option<u64>,
    /// Bytes per second so far. Absent: not known yet.
    pub bytes_per_second: Option<u64>,
    /// Seconds left at this rate. Before there is one: what `write_bytes` take at least, by the drive's profile.
    pub seconds_left: Option<u64>,
    /// Why it failed, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
}

/// An error, as `application/problem+json` (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// Name of the error, for programs. It does not change between versions.
    pub code: String,
    /// What is wrong, for people.
    pub title: String,
    /// What to do about it.
    pub remedy: String,
    /// Each problem with its own remedy, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub details: Vec<String>,
}

impl Problem {
    /// An error without `details`.
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

    fn disk() -> DiskSpec {
        let (name, size) = ("db \"x\"\n[[tenant]]".to_owned(), "1GiB".to_owned());
        DiskSpec { name, size, weight: Some(7), rw_iops: Some("20k".into()), ..DiskSpec::default() }
    }

    #[test]
    fn a_percentage_has_a_form_in_json() {
        assert_eq!(["50", "99.9"].map(percentile), [Ok(50.0), Ok(99.9)]);
        for text in ["nan", "inf", "-inf", "most"] {
            assert!(percentile(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_section_says_all_and_nothing_else() {
        let section = disk().to_section().unwrap();
        assert_eq!(section.matches("[[tenant]]\n").count(), 1, "{section}");
        assert_eq!(DiskSpec::from_section(&section), Ok(disk()));
        assert!(DiskSpec::from_section(&section.repeat(2)).is_err());
        assert!(DiskSpec::from_section("size = \"1GiB\"").is_err());
    }
}
