//! The NUMA node that a drive is attached to, and its CPUs.

use std::fs;
use std::path::{Path, PathBuf};

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub number: u32,
    /// Its CPUs, as the kernel lists them.
    pub cpu_list: String,
}

impl Node {
    /// The node of a device, by the device's directory in sysfs. `None`: the host has one node only, or the kernel does
    /// not know the device's.
    pub(super) fn of_device(device: &Path) -> Option<Self> {
        Self::among(Path::new("/sys/devices/system/node"), device)
    }

    fn among(nodes: &Path, device: &Path) -> Option<Self> {
        let read = |path: PathBuf| fs::read_to_string(path).ok();
        let device = device.canonicalize().ok()?;
        // -1: not known. A parent may know.
        let known = |above: &Path| read(above.join("numa_node"))?.trim().parse::<u32>().ok();
        let number = device.ancestors().find_map(known)?;
        let cpu_list = read(nodes.join(format!("node{number}/cpulist")))?.trim().to_owned();
        let is_only = read(nodes.join("online")).is_none_or(|online| online.trim().parse::<u32>().is_ok());
        (!is_only).then_some(Self { number, cpu_list })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive behind a controller on node 1 of two.
    fn host() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.ancestors().nth(3).unwrap().join("numa_node"), "1\n").unwrap();
        // A virtual device below it may say that it has none.
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        let nodes = root.path().join("node");
        fs::create_dir_all(nodes.join("node1")).unwrap();
        fs::write(nodes.join("node1/cpulist"), "8-15\n").unwrap();
        fs::write(nodes.join("online"), "0-1\n").unwrap();
        root
    }

    fn node(root: &Path) -> Option<Node> {
        let device = root.join("devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1");
        Node::among(&root.join("node"), &device)
    }

    #[test]
    fn a_drive_is_on_the_node_of_its_controller() {
        let host = host();
        assert_eq!(node(host.path()), Some(Node { number: 1, cpu_list: "8-15".to_owned() }));
        fs::write(host.path().join("node/online"), "0\n").unwrap();
        assert_eq!(node(host.path()), None, "one node has all CPUs");
    }
}
