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
    /// `shared` or `own-poller`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub isolation: Option<String>,
    /// Serve it even if its promise can't be kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub overcommit: Option<bool>,
    /// I/O queues offered to the guest, 1 to 64.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u16>,
    /// Requests of each queue of a block device that the kernel hands over at a time: 1 to 4096, 128 if left out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queue_depth: Option<u16>,
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
    /// Bytes of a block: 512 or 4096.
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

/// Instead of a limit: there is none from now on.
const NO_LIMIT: &str = "none";

/// What a disk is promised and held to from now on, and how large it is; what is left out stays. A limit or a least
/// that is `none` is taken away, and the burst goes with the last limit.
///
/// From `frontend` on: how its guest reaches it, which changes only while no client is attached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskChange {
    /// A larger one than it has: it grows, while it is in use. See [`NewDisk::size`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<String>,
    /// `best-effort` takes the latency target away, `guaranteed` the weight.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<String>,
    /// See [`NewDisk::latency_target`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_target: Option<String>,
    /// See [`NewDisk::latency_percentile`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_percentile: Option<f64>,
    /// See [`NewDisk::min_iops`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min_iops: Option<String>,
    /// See [`NewDisk::min_bandwidth`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min_bandwidth: Option<String>,
    /// See [`NewDisk::weight`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub weight: Option<u32>,
    /// See [`NewDisk::priority`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub priority: Option<String>,
    /// See [`NewDisk::rw_iops`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rw_iops: Option<String>,
    /// See [`NewDisk::r_iops`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r_iops: Option<String>,
    /// See [`NewDisk::w_iops`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w_iops: Option<String>,
    /// See [`NewDisk::rw_bandwidth`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rw_bandwidth: Option<String>,
    /// See [`NewDisk::r_bandwidth`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r_bandwidth: Option<String>,
    /// See [`NewDisk::w_bandwidth`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w_bandwidth: Option<String>,
    /// See [`NewDisk::burst`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst: Option<String>,
    /// See [`NewDisk::overcommit`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub overcommit: Option<bool>,
    /// See [`NewDisk::frontend`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub frontend: Option<String>,
    /// See [`NewDisk::isolation`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub isolation: Option<String>,
    /// See [`NewDisk::queues`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u16>,
    /// See [`NewDisk::queue_depth`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queue_depth: Option<u16>,
    /// See [`NewDisk::read_only`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub read_only: Option<bool>,
    /// See [`NewDisk::doorbells`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub doorbells: Option<String>,
    /// See [`NewDisk::threads`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub threads: Option<String>,
    /// See [`NewDisk::mode`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// See [`NewDisk::cpus`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<Vec<u32>>,
    /// See [`NewDisk::max_memory`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_memory: Option<String>,
    /// See [`NewDisk::max_maps`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_maps: Option<u32>,
    /// See [`NewDisk::socket_user`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub socket_user: Option<String>,
    /// See [`NewDisk::socket_group`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub socket_group: Option<String>,
    /// See [`NewDisk::socket_mode`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub socket_mode: Option<String>,
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

impl DiskChange {
    /// The disk with the change.
    pub fn apply(&self, disk: &NewDisk) -> NewDisk {
        let limit = |new: &Option<String>, old: &Option<String>| {
            new.as_ref().or(old.as_ref()).filter(|limit| *limit != NO_LIMIT).cloned()
        };
        let mut disk = disk.clone();
        match self.class.as_deref() {
            Some("best-effort") => (disk.latency_target, disk.latency_percentile, disk.overcommit) = (None, None, None),
            Some("guaranteed") => (disk.weight, disk.min_iops, disk.min_bandwidth) = (None, None, None),
            _ => {}
        }
        let mut changed = NewDisk {
            size: self.size.clone().unwrap_or_else(|| disk.size.clone()),
            class: self.class.clone().or_else(|| disk.class.clone()),
            latency_target: self.latency_target.clone().or_else(|| disk.latency_target.clone()),
            latency_percentile: self.latency_percentile.or(disk.latency_percentile),
            weight: self.weight.or(disk.weight),
            min_iops: limit(&self.min_iops, &disk.min_iops),
            min_bandwidth: limit(&self.min_bandwidth, &disk.min_bandwidth),
            priority: self.priority.clone().or_else(|| disk.priority.clone()),
            rw_iops: limit(&self.rw_iops, &disk.rw_iops),
            r_iops: limit(&self.r_iops, &disk.r_iops),
            w_iops: limit(&self.w_iops, &disk.w_iops),
            rw_bandwidth: limit(&self.rw_bandwidth, &disk.rw_bandwidth),
            r_bandwidth: limit(&self.r_bandwidth, &disk.r_bandwidth),
            w_bandwidth: limit(&self.w_bandwidth, &disk.w_bandwidth),
            burst: limit(&self.burst, &disk.burst),
            overcommit: self.overcommit.or(disk.overcommit),
            ..disk
        };
        let NewDisk { rw_iops, r_iops, w_iops, rw_bandwidth, r_bandwidth, w_bandwidth, .. } = &changed;
        let is_limited =
            [rw_iops, r_iops, w_iops, rw_bandwidth, r_bandwidth, w_bandwidth].iter().any(|it| it.is_some());
        if !is_limited && self.burst.is_none() {
            changed.burst = None;
        }
        self.apply_front_end(&mut changed);
        changed
    }

    /// What a disk loses since its class changes, as it was: `weight = 5`. What only the other class has goes with it.
    pub fn drops(&self, disk: &NewDisk) -> Vec<String> {
        let of = |disk: &NewDisk| {
            let text = |key: &str, value: &Option<String>| value.as_ref().map(|value| format!("{key} = {value:?}"));
            [
                text("latency_target", &disk.latency_target),
                disk.weight.map(|weight| format!("weight = {weight}")),
                text("min_iops", &disk.min_iops),
                text("min_bandwidth", &disk.min_bandwidth),
            ]
        };
        let each = of(disk).into_iter().zip(of(&self.apply(disk)));
        each.filter(|(_, new)| new.is_none() && self.class.is_some()).filter_map(|(old, _)| old).collect()
    }

    /// What only the other front end, or other threads, have goes with them, unless it is asked for now.
    fn apply_front_end(&self, disk: &mut NewDisk) {
        fn or<T: Clone>(new: &Option<T>, old: &mut Option<T>) {
            if new.is_some() {
                old.clone_from(new);
            }
        }
        match self.frontend.as_deref() {
            Some("vfio-user") => (disk.threads, disk.mode, disk.cpus, disk.read_only) = (None, None, None, None),
            Some("vhost-user-blk" | "ublk") => disk.doorbells = None,
            _ => {}
        }
        match self.frontend.as_deref() {
            Some("ublk") => {
                (disk.max_memory, disk.max_maps) = (None, None);
                (disk.socket_user, disk.socket_group, disk.socket_mode) = (None, None, None);
            }
            Some(_) => disk.queue_depth = None,
            None => {}
        }
        if self.threads.as_deref() == Some("shared") {
            disk.cpus = None;
        }
        or(&self.frontend, &mut disk.frontend);
        or(&self.isolation, &mut disk.isolation);
        or(&self.queues, &mut disk.queues);
        or(&self.queue_depth, &mut disk.queue_depth);
        or(&self.read_only, &mut disk.read_only);
        or(&self.doorbells, &mut disk.doorbells);
        or(&self.threads, &mut disk.threads);
        or(&self.mode, &mut disk.mode);
        or(&self.cpus, &mut disk.cpus);
        or(&self.max_memory, &mut disk.max_memory);
        or(&self.max_maps, &mut disk.max_maps);
        or(&self.socket_user, &mut disk.socket_user);
        or(&self.socket_group, &mut disk.socket_group);
        or(&self.socket_mode, &mut disk.socket_mode);
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

    #[test]
    fn a_change_leaves_the_rest_as_it_is() {
        let target = DiskChange {
            class: Some("guaranteed".into()),
            latency_target: Some("50us".into()),
            ..DiskChange::default()
        };
        let promised = target.apply(&disk());
        assert_eq!((promised.weight, promised.latency_target.as_deref()), (None, Some("50us")));
        let with_floor = NewDisk { min_iops: Some("20k".into()), ..disk() };
        assert_eq!(target.drops(&with_floor), ["weight = 7", "min_iops = \"20k\""]);
        assert_eq!(DiskChange { weight: Some(2), ..DiskChange::default() }.drops(&with_floor), [""; 0]);
        assert_eq!((promised.name, promised.size, promised.rw_iops), (disk().name, disk().size, disk().rw_iops));
        let best_effort = Some("best-effort".into());
        let back = DiskChange { class: best_effort, rw_iops: Some("none".into()), ..DiskChange::default() };
        let back = back.apply(&target.apply(&disk()));
        assert_eq!((back.latency_target, back.rw_iops, back.weight), (None, None, None));
    }

    #[test]
    fn what_only_the_other_front_end_has_goes_with_it() {
        let some = |text: &str| Some(text.to_owned());
        let frontend = some("vhost-user-blk");
        let (threads, cpus) = (some("dedicated"), Some(vec![1]));
        let virtio = DiskChange { frontend, threads, cpus, queues: Some(4), ..DiskChange::default() }.apply(&disk());
        assert_eq!(
            (virtio.threads.as_deref(), &virtio.cpus, virtio.weight),
            (Some("dedicated"), &Some(vec![1]), Some(7))
        );
        let shared = DiskChange { threads: some("shared"), ..DiskChange::default() }.apply(&virtio);
        assert_eq!((shared.threads.as_deref(), shared.cpus), (Some("shared"), None));
        let nvme = DiskChange { frontend: some("vfio-user"), doorbells: some("trapped"), ..DiskChange::default() };
        let nvme = nvme.apply(&virtio);
        assert_eq!((nvme.threads, nvme.cpus, nvme.queues, nvme.doorbells), (None, None, Some(4), some("trapped")));
    }

    #[test]
    fn a_burst_goes_with_the_last_limit_and_not_before() {
        let some = |text: &str| Some(text.to_owned());
        let limits = DiskChange { w_bandwidth: some("2MiB/s"), burst: some("2s"), ..DiskChange::default() };
        let limited = limits.apply(&disk());
        assert_eq!((limited.rw_iops, limited.w_bandwidth, limited.burst), (some("20k"), some("2MiB/s"), some("2s")));
        let one_less = DiskChange { rw_iops: some("none"), ..DiskChange::default() }.apply(&limits.apply(&disk()));
        assert_eq!((one_less.rw_iops.as_ref(), one_less.burst.as_deref()), (None, Some("2s")));
        let free = DiskChange { w_bandwidth: some("none"), ..DiskChange::default() }.apply(&one_less);
        assert_eq!((free.w_bandwidth, free.burst), (None, None));
        // A burst that was asked for now is not dropped without a word.
        let asked = DiskChange { rw_iops: some("none"), burst: some("1s"), ..DiskChange::default() }.apply(&disk());
        assert_eq!(asked.burst, some("1s"));
    }
}
