//! A change to a disk's settings.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::DiskSpec;

/// Changes of a [`DiskSpec`], as a JSON Merge Patch (RFC 7396): a key that is absent stays as it is, `null` removes it.
/// Of `labels` it changes single ones.
///
/// A setting that the new class or front end does not have goes away with the old one, and the burst with the last
/// limit, unless the patch sets it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DiskPatch(Map<String, Value>);

/// What a disk has from its start.
const FIXED: [&str; 8] = ["name", "drive", "lba_size", "encryption", "thin", "clone_of", "attach", "nsid"];
const OF_GUARANTEED: [&str; 3] = ["latency_target", "latency_percentile", "overcommit"];
const OF_BEST_EFFORT: [&str; 3] = ["weight", "min_iops", "min_bandwidth"];
const LIMITS: [&str; 6] = ["rw_iops", "r_iops", "w_iops", "rw_bandwidth", "r_bandwidth", "w_bandwidth"];
const OF_VIRTIO: [&str; 2] = ["mode", "read_only"];
const OF_NVME: [&str; 1] = ["doorbells"];
const OF_SOCKETS: [&str; 5] = ["max_memory", "max_maps", "socket_user", "socket_group", "socket_mode"];

impl DiskPatch {
    /// Sets what `disk` sets, but for its name.
    pub fn of(disk: &DiskSpec) -> Self {
        let mut keys = keys(disk);
        keys.remove("name");
        Self(keys)
    }

    /// And removes this.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        self.0.insert(key.to_owned(), Value::Null);
        self
    }

    /// With `null` for each text that is `none`, as the command line spells it.
    #[must_use]
    pub fn with_none_as_null(mut self) -> Self {
        none_as_null(&mut self.0);
        self
    }

    /// The new size, if that is all it changes.
    pub fn only_size(&self) -> Option<&str> {
        self.size().filter(|_| self.0.len() == 1)
    }

    /// The new size.
    pub fn size(&self) -> Option<&str> {
        self.0.get("size")?.as_str()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The disk's settings with this change applied.
    ///
    /// # Errors
    /// A key that does not exist or can't change, or a value of another type.
    pub fn apply(&self, disk: &DiskSpec) -> Result<DiskSpec, String> {
        if let Some(key) = self.0.keys().find(|key| FIXED.contains(&key.as_str())) {
            return Err(format!("{key} can't change"));
        }
        let mut settings = keys(disk);
        let lost = self.lost();
        settings.retain(|key, _| !lost.contains(&key.as_str()));
        let (refused, changes): (Map<_, _>, Map<_, _>) =
            self.0.clone().into_iter().partition(|(key, value)| value.is_null() && !can_be_absent(key));
        merge(&mut settings, changes);
        settings.extend(refused);
        if !self.0.contains_key("burst") && !LIMITS.iter().any(|limit| settings.contains_key(*limit)) {
            settings.remove("burst");
        }
        serde_json::from_value(Value::Object(settings)).map_err(|error| error.to_string())
    }

    /// The settings that a disk loses because its class or front end changes.
    pub fn drops(&self, disk: &DiskSpec) -> Dropped {
        let settings = keys(disk);
        let told = |lost: Vec<&str>| -> Vec<String> {
            let lost = lost.into_iter().filter(|key| !self.0.contains_key(*key));
            lost.filter_map(|key| Some(format!("{key} = {}", settings.get(key)?))).collect()
        };
        // The percentile and the consent go with the target.
        let with_class = self.lost_with_class().into_iter().filter(|key| !OF_GUARANTEED[1..].contains(key));
        Dropped { with_class: told(with_class.collect()), with_front_end: told(self.lost_with_front_end()) }
    }

    fn lost(&self) -> Vec<&'static str> {
        let mut lost = self.lost_with_class();
        lost.extend(self.lost_with_front_end());
        if self.text("threads") == Some("shared") {
            lost.push("cpus");
        }
        lost
    }

    fn lost_with_class(&self) -> Vec<&'static str> {
        match self.text("class") {
            Some("best-effort") => OF_GUARANTEED.into(),
            Some("guaranteed") => OF_BEST_EFFORT.into(),
            _ => Vec::new(),
        }
    }

    fn lost_with_front_end(&self) -> Vec<&'static str> {
        match self.text("frontend") {
            Some("vfio-user") => OF_VIRTIO.into(),
            Some("vhost-user-blk") => OF_NVME.into(),
            Some("ublk") => OF_NVME.into_iter().chain(OF_SOCKETS).collect(),
            _ => Vec::new(),
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }
}

/// What a disk sets.
fn keys(disk: &DiskSpec) -> Map<String, Value> {
    match serde_json::to_value(disk) {
        Ok(Value::Object(keys)) => keys,
        // It is a struct of plain values.
        _ => Map::new(),
    }
}

fn none_as_null(keys: &mut Map<String, Value>) {
    for value in keys.values_mut() {
        match value {
            Value::Object(within) => none_as_null(within),
            value if value == "none" => *value = Value::Null,
            _ => {}
        }
    }
}

/// RFC 7396, section 2: MergePatch.
fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => _ = target.remove(&key),
            Value::Object(within) => {
                let old = target.remove(&key);
                let mut merged = old.and_then(|old| old.as_object().cloned()).unwrap_or_default();
                merge(&mut merged, within);
                target.insert(key, Value::Object(merged));
            }
            value => _ = target.insert(key, value),
        }
    }
}

/// Whether a disk may have no such setting. Of an unknown key it is not true, so that it stays and is refused.
fn can_be_absent(key: &str) -> bool {
    let may_be =
        |value: Value| serde_json::from_value::<DiskSpec>(serde_json::json!({ "name": "", key: value })).is_ok();
    may_be(Value::Null) || may_be(Value::Object(Map::new()))
}

/// The settings that a change drops, each with its value, such as `weight = 5`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Dropped because the new class does not have them.
    pub with_class: Vec<String>,
    /// Dropped because the new front end does not have them.
    pub with_front_end: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn disk() -> DiskSpec {
        let (name, size) = ("db \"x\"\n[[tenant]]".to_owned(), "1GiB".to_owned());
        DiskSpec { name, size, weight: Some(7), rw_iops: Some("20k".into()), ..DiskSpec::default() }
    }

    fn patch(value: Value) -> DiskPatch {
        serde_json::from_value(value).expect("an object")
    }

    fn changed(disk: &DiskSpec, value: Value) -> DiskSpec {
        patch(value).apply(disk).expect("good")
    }

    #[test]
    fn a_change_leaves_the_rest_as_it_is() {
        let target = patch(json!({ "class": "guaranteed", "latency_target": "50us" }));
        let promised = target.apply(&disk()).expect("good");
        assert_eq!((promised.weight, promised.latency_target.as_deref()), (None, Some("50us")));
        let with_floor = DiskSpec { min_iops: Some("20k".into()), ..disk() };
        assert_eq!(target.drops(&with_floor).with_class, ["weight = 7", "min_iops = \"20k\""]);
        assert_eq!(patch(json!({ "weight": 2 })).drops(&with_floor), Dropped::default());
        assert_eq!((&promised.name, &promised.size, &promised.rw_iops), (&disk().name, &disk().size, &disk().rw_iops));
        let back = changed(&promised, json!({ "class": "best-effort", "rw_iops": null }));
        assert_eq!((back.latency_target, back.rw_iops, back.weight), (None, None, None));
    }

    #[test]
    fn what_can_not_be_changed_is_refused() {
        let refused = |value: Value| patch(value).apply(&disk()).expect_err("refused");
        for key in FIXED {
            assert_eq!(refused(json!({ key: "x" })), format!("{key} can't change"));
        }
        for (value, part) in [
            (json!({ "wieght": 2 }), "wieght"),
            (json!({ "wieght": null }), "wieght"),
            (json!({ "weight": "2" }), "invalid type"),
            (json!({ "size": null }), "null"),
        ] {
            let told = refused(value);
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(changed(&disk(), json!({ "weight": null })).weight, None);
    }

    #[test]
    fn labels_change_one_by_one() {
        let labels =
            |disk: &DiskSpec| disk.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
        let one = changed(&disk(), json!({ "labels": { "pvc": "data-0", "pod": null } }));
        assert_eq!(labels(&one), ["pvc=data-0"]);
        let two = changed(&one, json!({ "labels": { "pod": "db-0" } }));
        assert_eq!(labels(&two), ["pod=db-0", "pvc=data-0"]);
        let told: DiskPatch = patch(json!({ "labels": { "pvc": "none", "pod": "db-1" } }));
        assert_eq!(labels(&told.with_none_as_null().apply(&two).expect("good")), ["pod=db-1"]);
        assert_eq!(labels(&changed(&two, json!({ "labels": null }))), [""; 0]);
        for wrong in [json!({ "labels": { "pvc": 7 } }), json!({ "labels": ["pvc"] })] {
            assert!(patch(wrong).apply(&two).expect_err("refused").contains("invalid type"));
        }
    }

    #[test]
    fn what_only_the_other_front_end_has_goes_with_it() {
        let virtio = json!({ "frontend": "vhost-user-blk", "threads": "dedicated", "cpus": [1], "queues": 4 });
        let virtio = changed(&disk(), virtio);
        assert_eq!(
            (virtio.threads.as_deref(), &virtio.cpus, virtio.weight),
            (Some("dedicated"), &Some(vec![1]), Some(7))
        );
        let shared = changed(&virtio, json!({ "threads": "shared" }));
        assert_eq!((shared.threads.as_deref(), shared.cpus), (Some("shared"), None));
        let nvme = patch(json!({ "frontend": "vfio-user", "doorbells": "trapped" }));
        let lost = nvme.drops(&DiskSpec { read_only: Some(true), mode: Some("event".into()), ..virtio.clone() });
        assert_eq!(
            (lost.with_class, lost.with_front_end.join(", ")),
            (vec![], "mode = \"event\", read_only = true".into())
        );
        let nvme = nvme.apply(&virtio).expect("good");
        assert_eq!((nvme.threads.as_deref(), &nvme.cpus, nvme.queues), (Some("dedicated"), &Some(vec![1]), Some(4)));
        assert_eq!(nvme.doorbells.as_deref(), Some("trapped"));
    }

    #[test]
    fn a_burst_goes_with_the_last_limit_and_not_before() {
        let some = |text: &str| Some(text.to_owned());
        let limited = changed(&disk(), json!({ "w_bandwidth": "2MiB/s", "burst": "2s" }));
        assert_eq!(
            (&limited.rw_iops, &limited.w_bandwidth, &limited.burst),
            (&some("20k"), &some("2MiB/s"), &some("2s"))
        );
        let one_less = changed(&limited, json!({ "rw_iops": null }));
        assert_eq!((one_less.rw_iops.as_ref(), one_less.burst.as_deref()), (None, Some("2s")));
        let free = changed(&one_less, json!({ "w_bandwidth": null }));
        assert_eq!((free.w_bandwidth, free.burst), (None, None));
        // A burst that this change sets must be refused, not dropped silently.
        let asked = changed(&disk(), json!({ "rw_iops": null, "burst": "1s" }));
        assert_eq!(asked.burst, some("1s"));
    }
}
