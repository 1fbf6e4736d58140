//! The NUMA node that a drive is attached to, and its CPUs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::cpus::AllowedCpus;
use super::sys_of;
use crate::config::{Backend, Config};
use crate::problem::Sink;

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub number: u32,
    /// Its CPUs.
    pub cpus: AllowedCpus,
}

impl Node {
    /// The node of a device, by the device's directory in sysfs; `nodes`: the directory of all nodes. `None`: the host
    /// has one node only, or the kernel does not know the device's.
    fn of_device(device: &Path, nodes: &Path) -> Option<Self> {
        let read = |path: PathBuf| fs::read_to_string(path).ok();
        let device = device.canonicalize().ok()?;
        // -1: not known. A parent may know.
        let known = |above: &Path| read(above.join("numa_node"))?.trim().parse::<u32>().ok();
        let number = device.ancestors().find_map(known)?;
        let cpus = AllowedCpus::from_list(&read(nodes.join(format!("node{number}/cpulist")))?);
        let is_only = read(nodes.join("online")).is_none_or(|online| online.trim().parse::<u32>().is_ok());
        (!is_only).then_some(Self { number, cpus })
    }

    fn of_drive(backend: &Backend) -> Option<Self> {
        let device = match backend {
            Backend::Block { path, .. } => sys_of(&path.metadata().ok()?),
            // The image may not be there yet.
            Backend::File { path, .. } => {
                let number = path.parent()?.metadata().ok()?.dev();
                PathBuf::from(format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
            }
            Backend::Nvme { address, .. } => Path::new("/sys/bus/pci/devices").join(address),
            Backend::Memory | Backend::Null | Backend::Model { .. } => return None,
        };
        Self::of_device(&device, Path::new("/sys/devices/system/node"))
    }
}

impl Config {
    /// The drive's node. Warns of CPUs that the configuration names and that are on other nodes.
    pub(super) fn check_node(&self, warnings: &mut Sink<'_>) -> Option<Node> {
        let node = Node::of_drive(&self.device.backend)?;
        self.warn_far_cpus(warnings, &node);
        Some(node)
    }

    fn warn_far_cpus(&self, warnings: &mut Sink<'_>, Node { number, cpus }: &Node) {
        for (named, mark) in self.named_cpus() {
            let far: Vec<String> = named.iter().filter(|cpu| !cpus.has(**cpu)).map(u32::to_string).collect();
            if !far.is_empty() {
                let what = format!(
                    "CPU {} is not on the drive's NUMA node {number}: each command crosses between nodes",
                    far.join(", ")
                );
                warnings.maybe_at(mark, what, format!("choose from the node's CPUs, {cpus}"));
            }
        }
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
        Node::of_device(&device, &root.join("node"))
    }

    #[test]
    fn a_drive_is_on_the_node_of_its_controller() {
        let host = host();
        assert_eq!(node(host.path()), Some(Node { number: 1, cpus: AllowedCpus::from_list("8-15") }));
        fs::write(host.path().join("node/online"), "0\n").unwrap();
        assert_eq!(node(host.path()), None, "one node has all CPUs");
    }

    #[test]
    fn named_cpus_of_other_nodes_are_warned_of() {
        let text = "[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n[policy]\nname = \"passthrough\"\n\
                    [pollers]\ncpus = [8, 3, 4]\n[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n";
        let config = Config::parse(Path::new("ek.toml"), text).unwrap();
        let mut warnings = Sink::new(&config.text);
        config.warn_far_cpus(&mut warnings, &node(host().path()).unwrap());
        let [told] = &warnings.into_problems()[..] else { panic!("one warning") };
        assert_eq!(told.place.as_ref().map(|place| place.line), Some(7));
        assert_eq!(told.what, "CPU 3, 4 is not on the drive's NUMA node 1: each command crosses between nodes");
        assert_eq!(told.remedy, "choose from the node's CPUs, 8-15");
    }
}
