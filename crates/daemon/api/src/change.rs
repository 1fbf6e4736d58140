//! What is to be different of a disk.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::NewDisk;

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
    /// See [`NewDisk::queues`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u16>,
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

    /// What a disk loses since its class or its front end changes, as it was: `weight = 5`. What only the other one has
    /// goes with it.
    pub fn drops(&self, disk: &NewDisk) -> Dropped {
        let changed = self.apply(disk);
        let lost = |is_asked: bool, of: fn(&NewDisk) -> Vec<Option<String>>| -> Vec<String> {
            let each = of(disk).into_iter().zip(of(&changed));
            each.filter(|(_, new)| is_asked && new.is_none()).filter_map(|(old, _)| old).collect()
        };
        let with_class = lost(self.class.is_some(), |disk| {
            let NewDisk { latency_target, weight, min_iops, min_bandwidth, .. } = disk;
            vec![
                setting("latency_target", latency_target),
                setting("weight", weight),
                setting("min_iops", min_iops),
                setting("min_bandwidth", min_bandwidth),
            ]
        });
        let with_front_end = lost(self.frontend.is_some(), |disk| {
            let NewDisk { mode, read_only, doorbells, max_memory, max_maps, .. } = disk;
            let NewDisk { socket_user, socket_group, socket_mode, .. } = disk;
            vec![
                setting("mode", mode),
                setting("read_only", read_only),
                setting("doorbells", doorbells),
                setting("max_memory", max_memory),
                setting("max_maps", max_maps),
                setting("socket_user", socket_user),
                setting("socket_group", socket_group),
                setting("socket_mode", socket_mode),
            ]
        });
        Dropped { with_class, with_front_end }
    }

    /// What only the other front end, or other threads, have goes with them, unless it is asked for now.
    fn apply_front_end(&self, disk: &mut NewDisk) {
        fn or<T: Clone>(new: &Option<T>, old: &mut Option<T>) {
            if new.is_some() {
                old.clone_from(new);
            }
        }
        match self.frontend.as_deref() {
            Some("vfio-user") => (disk.mode, disk.read_only) = (None, None),
            Some("vhost-user-blk" | "ublk") => disk.doorbells = None,
            _ => {}
        }
        if self.frontend.as_deref() == Some("ublk") {
            (disk.max_memory, disk.max_maps) = (None, None);
            (disk.socket_user, disk.socket_group, disk.socket_mode) = (None, None, None);
        }
        if self.threads.as_deref() == Some("shared") {
            disk.cpus = None;
        }
        or(&self.frontend, &mut disk.frontend);
        or(&self.queues, &mut disk.queues);
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

/// What a disk had that it can't have any more, each as it stood in its section.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// What tenants of its class don't have.
    pub with_class: Vec<String>,
    /// What its front end does not have.
    pub with_front_end: Vec<String>,
}

fn setting<T: std::fmt::Debug>(key: &str, value: &Option<T>) -> Option<String> {
    value.as_ref().map(|value| format!("{key} = {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> NewDisk {
        let (name, size) = ("db \"x\"\n[[tenant]]".to_owned(), "1GiB".to_owned());
        NewDisk { name, size, weight: Some(7), rw_iops: Some("20k".into()), ..NewDisk::default() }
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
        assert_eq!(target.drops(&with_floor).with_class, ["weight = 7", "min_iops = \"20k\""]);
        assert_eq!(DiskChange { weight: Some(2), ..DiskChange::default() }.drops(&with_floor), Dropped::default());
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
        let lost = nvme.drops(&NewDisk { read_only: Some(true), mode: some("event"), ..virtio.clone() });
        assert_eq!(
            (lost.with_class, lost.with_front_end.join(", ")),
            (vec![], "mode = \"event\", read_only = true".into())
        );
        let nvme = nvme.apply(&virtio);
        assert_eq!((nvme.threads.as_deref(), &nvme.cpus, nvme.queues), (Some("dedicated"), &Some(vec![1]), Some(4)));
        assert_eq!(nvme.doorbells, some("trapped"));
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
