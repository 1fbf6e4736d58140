//! Parameters of StorageClasses and VolumeAttributesClasses: a disk's settings, as Kubernetes spells them.

use std::collections::{BTreeMap, HashMap};

use api::{DiskPatch, DiskSpec};
use serde_json::{Map, Value};
use tonic::Status;

/// Parameters that Kubernetes adds or keeps for itself.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";

/// Parameters of Kubernetes that become labels of the disk.
const LABELS: [(&str, &str); 2] =
    [("csi.storage.k8s.io/pvc/name", "pvc"), ("csi.storage.k8s.io/pvc/namespace", "namespace")];

/// A parameter farther from all others than this is no misspelling: half of the letters of `weight`.
const MAX_EDITS: usize = 3;

/// What a parameter's text stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Truth,
}

/// A setting of disks that a class may have.
struct Parameter {
    name: &'static str,
    /// Its key in [`DiskSpec`].
    key: &'static str,
    kind: Kind,
    /// Whether it may change while pods use the volume.
    is_mutable: bool,
}

const fn parameter(name: &'static str, key: &'static str, kind: Kind, is_mutable: bool) -> Parameter {
    Parameter { name, key, kind, is_mutable }
}

/// All parameters.
const PARAMETERS: [Parameter; 25] = [
    parameter("class", "class", Kind::Text, true),
    parameter("latencyTarget", "latency_target", Kind::Text, true),
    parameter("latencyPercentile", "latency_percentile", Kind::Number, true),
    parameter("overcommit", "overcommit", Kind::Truth, true),
    parameter("minIops", "min_iops", Kind::Text, true),
    parameter("minBandwidth", "min_bandwidth", Kind::Text, true),
    parameter("weight", "weight", Kind::Number, true),
    parameter("priority", "priority", Kind::Text, true),
    parameter("rwIops", "rw_iops", Kind::Text, true),
    parameter("rIops", "r_iops", Kind::Text, true),
    parameter("wIops", "w_iops", Kind::Text, true),
    parameter("rwBandwidth", "rw_bandwidth", Kind::Text, true),
    parameter("rBandwidth", "r_bandwidth", Kind::Text, true),
    parameter("wBandwidth", "w_bandwidth", Kind::Text, true),
    parameter("burst", "burst", Kind::Text, true),
    parameter("group", "group", Kind::Text, true),
    parameter("reserve", "reserve", Kind::Text, true),
    parameter("drive", "drive", Kind::Text, false),
    parameter("thin", "thin", Kind::Truth, false),
    parameter("encryption", "encryption", Kind::Text, false),
    parameter("lbaSize", "lba_size", Kind::Number, false),
    parameter("queues", "queues", Kind::Number, false),
    parameter("threads", "threads", Kind::Text, false),
    parameter("mode", "mode", Kind::Text, false),
    parameter("cpus", "cpus", Kind::Text, false),
];

/// The disk that a volume of this class is, without name, size and front end. `mutable` are parameters of the
/// VolumeAttributesClass, which go before those of the StorageClass.
///
/// # Errors
/// `INVALID_ARGUMENT`: a parameter does not exist, can't change, or has a value of another type.
pub fn disk(class: &HashMap<String, String>, mutable: &HashMap<String, String>) -> Result<DiskSpec, Status> {
    let mut settings = settings(class)?;
    settings.extend(mutable_settings(mutable)?);
    settings.insert("name".into(), "".into());
    let mut spec: DiskSpec = serde_json::from_value(Value::Object(settings)).map_err(not_understood)?;
    spec.labels = labels(class);
    Ok(spec)
}

/// The change of a volume to a VolumeAttributesClass.
///
/// # Errors
/// As [`disk`].
pub fn change(mutable: &HashMap<String, String>) -> Result<DiskPatch, Status> {
    serde_json::from_value(Value::Object(mutable_settings(mutable)?)).map_err(not_understood)
}

fn not_understood(error: serde_json::Error) -> Status {
    Status::invalid_argument(format!("the parameters are not understood: {error}"))
}

fn labels(class: &HashMap<String, String>) -> BTreeMap<String, String> {
    let label = |(parameter, label): (&str, &str)| Some((label.to_owned(), class.get(parameter)?.clone()));
    LABELS.into_iter().filter_map(label).collect()
}

fn settings(class: &HashMap<String, String>) -> Result<Map<String, Value>, Status> {
    // In order: of several wrong ones, a retry names the same.
    let given: BTreeMap<_, _> = class.iter().filter(|(name, _)| !name.starts_with(OF_KUBERNETES)).collect();
    given.into_iter().map(|(name, text)| Ok((find(name)?.key.to_owned(), value(find(name)?, text)?))).collect()
}

fn mutable_settings(mutable: &HashMap<String, String>) -> Result<Map<String, Value>, Status> {
    let fixed = mutable.keys().find(|name| find(name).is_ok_and(|found| !found.is_mutable));
    if let Some(name) = fixed {
        let words = format!("{name} can't change; set it in the StorageClass, and remove it here");
        return Err(Status::invalid_argument(words));
    }
    settings(mutable)
}

fn find(name: &str) -> Result<&'static Parameter, Status> {
    PARAMETERS.iter().find(|parameter| parameter.name == name).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Status {
    let near = PARAMETERS.iter().map(|parameter| (edits(name, parameter.name), parameter.name)).min();
    let remedy = match near {
        Some((edits, near)) if edits <= MAX_EDITS => format!("did you mean {near}?"),
        _ => {
            let all: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
            format!("there are {}", all.join(", "))
        }
    };
    Status::invalid_argument(format!("unknown parameter {name:?}; {remedy}"))
}

fn value(parameter: &Parameter, text: &str) -> Result<Value, Status> {
    let wrong = |expected: &str| {
        let words = format!("parameter {} is {text:?}; expected {expected}", parameter.name);
        Status::invalid_argument(words)
    };
    match (parameter.kind, parameter.key) {
        (Kind::Truth, _) => text.parse::<bool>().map(Value::from).map_err(|_| wrong("true or false")),
        (Kind::Number, "latency_percentile") => {
            let percent = text.parse::<f64>().ok().filter(|percent| percent.is_finite());
            percent.map(Value::from).ok_or_else(|| wrong("a number from 50 to 99.9"))
        }
        (Kind::Number, _) => text.parse::<u32>().map(Value::from).map_err(|_| wrong("a whole number")),
        (Kind::Text, "cpus") => {
            let cpus: Result<Vec<u32>, _> = text.split(',').map(|cpu| cpu.trim().parse()).collect();
            cpus.map(Value::from).map_err(|_| wrong("numbers with commas between them"))
        }
        (Kind::Text, _) => Ok(text.into()),
    }
}

/// Letters to insert, remove or replace until one word is the other (Levenshtein distance). Capitals don't count.
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    // No parameter is as long as that: a longer one needs no exact distance.
    for (i, letter) in one.to_lowercase().chars().take(64).enumerate() {
        let mut before = i;
        row[0] = i + 1;
        for (j, its) in other.iter().enumerate() {
            let replaced = before + usize::from(letter != *its);
            before = row[j + 1];
            row[j + 1] = replaced.min(before + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn given<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    fn refusal(class: &HashMap<String, String>, mutable: &HashMap<String, String>) -> String {
        let status = disk(class, mutable).expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
        status.message().to_owned()
    }

    /// Only here: a parameter of the table has a key or type that disks don't have.
    #[test]
    fn each_parameter_is_a_setting_of_disks() {
        for parameter in &PARAMETERS {
            let text = match parameter.kind {
                Kind::Truth => "true",
                _ => "4",
            };
            let spec = disk(&given([(parameter.name, text)]), &given([])).expect(parameter.name);
            let shown = serde_json::to_value(spec).expect("plain values");
            assert!(shown.get(parameter.key).is_some(), "{}: {shown}", parameter.name);
        }
    }

    /// Only here: what a class says gets lost, or Kubernetes' own parameters are refused.
    #[test]
    fn a_class_becomes_a_disk() {
        let class = given([
            ("class", "guaranteed"),
            ("latencyTarget", "60us"),
            ("thin", "true"),
            ("csi.storage.k8s.io/pvc/name", "data-0"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("csi.storage.k8s.io/fstype", "xfs"),
        ]);
        let spec = disk(&class, &given([("latencyTarget", "80us"), ("latencyPercentile", "99.5")])).expect("a disk");
        assert_eq!(spec.latency_target.as_deref(), Some("80us"), "the VolumeAttributesClass goes first");
        assert_eq!((spec.class.as_deref(), spec.thin), (Some("guaranteed"), Some(true)));
        assert_eq!(spec.latency_percentile, Some(99.5));
        let labels = [("namespace", "shop"), ("pvc", "data-0")].map(|(key, value)| (key.into(), value.into()));
        assert_eq!(spec.labels, BTreeMap::from(labels));
    }

    /// Only here: an operator is not told which parameter is wrong.
    #[test]
    fn a_wrong_parameter_is_named_with_the_nearest() {
        let none = given([]);
        assert!(refusal(&given([("latency_target", "1ms")]), &none).contains("did you mean latencyTarget?"));
        assert!(refusal(&given([("wieght", "3")]), &none).contains("did you mean weight?"));
        assert!(refusal(&given([("colour", "red")]), &none).contains("there are class, "));
        assert!(refusal(&given([("weight", "many")]), &none).contains("weight is \"many\"; expected a whole number"));
        assert!(refusal(&given([("latencyPercentile", "NaN")]), &none).contains("from 50 to 99.9"));
        assert!(refusal(&none, &given([("drive", "fast")])).contains("drive can't change"));
        assert!(refusal(&none, &given([("wieght", "3")])).contains("did you mean weight?"));
    }
}
