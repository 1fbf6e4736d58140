//! How volumes may be used: access modes, file systems and topology.

use tonic::Status;

use crate::host::FileSystem;
use crate::names::TOPOLOGY;
use crate::spec::volume_capability::access_mode::Mode;
use crate::spec::volume_capability::{AccessType, MountVolume};
use crate::spec::{CapacityRange, Topology, TopologyRequirement, VolumeCapability};

/// Sizes of disks are multiples of it, in bytes.
const SIZE_STEP_BYTES: u64 = 4096;

/// How a volume is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// `None`: as a raw block device.
    pub mounted: Option<Mounted>,
    /// No pod writes.
    pub reads_only: bool,
    /// One pod alone has the volume.
    pub is_exclusive: bool,
}

/// A volume with a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// `None`: the volume keeps its file system; an empty volume gets the default.
    pub file_system: Option<FileSystem>,
    /// Options of `mount`.
    pub options: Vec<String>,
}

/// Reads a capability.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is not complete, or local disks can't have it.
pub fn usage(capability: Option<&VolumeCapability>) -> Result<Usage, Status> {
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
    let (reads_only, is_exclusive) = match mode {
        Some(Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter) => (false, false),
        Some(Mode::SingleNodeSingleWriter) => (false, true),
        Some(Mode::SingleNodeReaderOnly) => (true, false),
        None | Some(Mode::Unknown) => return Err(Status::invalid_argument("access_mode is missing")),
        Some(other) => {
            let words = format!("{}: a disk of this node has no pods on others", other.as_str_name());
            return Err(Status::invalid_argument(words));
        }
    };
    let mounted = match &capability.access_type {
        None => return Err(Status::invalid_argument("access_type is missing")),
        Some(AccessType::Block(_)) => None,
        Some(AccessType::Mount(asked)) => Some(mounted(asked)?),
    };
    Ok(Usage { mounted, reads_only, is_exclusive })
}

fn mounted(asked: &MountVolume) -> Result<Mounted, Status> {
    let name = asked.fs_type.as_str();
    let file_system = FileSystem::named(name);
    if file_system.is_none() && !name.is_empty() {
        return Err(Status::invalid_argument(format!("fsType is {name:?}; expected ext4 or xfs")));
    }
    Ok(Mounted { file_system, options: asked.mount_flags.clone() })
}

/// Checks all capabilities of a volume.
///
/// # Errors
/// As [`usage`], or there is none.
pub fn check(all: &[VolumeCapability]) -> Result<(), Status> {
    if all.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are missing"));
    }
    all.iter().try_for_each(|one| usage(Some(one)).map(|_| ()))
}

/// Sizes that a volume may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// In bytes, a multiple of 4096. `None`: none was asked for.
    pub least: Option<u64>,
    most: Option<u64>,
}

impl Sizes {
    /// Reads a range.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`: no size of a disk is in it.
    pub fn of(range: Option<&CapacityRange>) -> Result<Self, Status> {
        let bytes = |value: i64| u64::try_from(value).map_err(|_| Status::out_of_range("a size is negative"));
        let (least, most) = match range {
            Some(range) => (bytes(range.required_bytes)?, bytes(range.limit_bytes)?),
            None => (0, 0),
        };
        let least = (least > 0).then(|| least.next_multiple_of(SIZE_STEP_BYTES));
        let most = (most > 0).then_some(most);
        if most.is_some_and(|most| most < least.unwrap_or(SIZE_STEP_BYTES)) {
            let words = format!("no multiple of {SIZE_STEP_BYTES} is within the sizes that were asked for");
            return Err(Status::out_of_range(words));
        }
        Ok(Self { least, most })
    }

    /// Whether this size is one of them.
    pub fn allow(&self, bytes: u64) -> bool {
        self.least.is_none_or(|least| least <= bytes) && self.most.is_none_or(|most| bytes <= most)
    }

    /// The size to make: the least, else the usual one or the largest allowed below it.
    pub fn choose(&self, usual: u64) -> u64 {
        let below = |most: u64| most / SIZE_STEP_BYTES * SIZE_STEP_BYTES;
        self.least.unwrap_or_else(|| self.most.map_or(usual, |most| usual.min(below(most))))
    }
}

/// Bytes, as the specification's messages have them.
pub fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The place of this node's volumes.
pub fn topology(node: &str) -> Topology {
    Topology { segments: [(TOPOLOGY.to_owned(), node.to_owned())].into() }
}

/// Whether a volume may be on this node.
pub fn may_be_here(asked: Option<&TopologyRequirement>, node: &str) -> bool {
    let Some(asked) = asked else { return true };
    let given = if asked.requisite.is_empty() { &asked.preferred } else { &asked.requisite };
    given.is_empty() || given.iter().any(|place| is_here(place, node))
}

/// Whether a place is this node.
pub fn is_here(place: &Topology, node: &str) -> bool {
    place.segments.get(TOPOLOGY).is_none_or(|name| name == node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> Option<CapacityRange> {
        Some(CapacityRange { required_bytes, limit_bytes })
    }

    /// Only here: a volume is larger than its limit, or smaller than was asked for.
    #[test]
    fn sizes_are_within_what_was_asked_for() {
        let usual = 1 << 30;
        for (least, most, made) in [(0, 0, usual), (1, 0, 4096), (4097, 8192, 8192), (0, 9000, 8192)] {
            let sizes = Sizes::of(range(least, most).as_ref()).expect("a size");
            assert_eq!(sizes.choose(usual), made, "{least} to {most}");
            assert!(sizes.allow(made));
        }
        for (least, most) in [(4097, 5000), (0, 4095), (8192, 4096), (-1, 0), (0, -1)] {
            assert!(Sizes::of(range(least, most).as_ref()).is_err(), "{least} to {most}");
        }
    }

    /// Only here: a volume is made on a node that its pod can't run on.
    #[test]
    fn other_nodes_are_told_apart() {
        let asked = |nodes: &[&str]| TopologyRequirement {
            requisite: nodes.iter().map(|node| topology(node)).collect(),
            preferred: vec![topology("a")],
        };
        assert!(may_be_here(None, "a") && may_be_here(Some(&asked(&["b", "a"])), "a"));
        assert!(!may_be_here(Some(&asked(&["b"])), "a"));
        assert!(!may_be_here(Some(&asked(&[])), "b"));
    }
}
