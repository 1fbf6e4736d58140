//! The NVMe drives of a host, as sysfs, procfs and /dev show them.

use std::fs;
use std::path::{Path, PathBuf};

use config::Assignments;
use config::in_use::{InUse, Kernel};
use nvme_driver::PciAddress;
use serde::Serialize;

use crate::Refused;

/// Class code of an NVMe controller: mass storage, non-volatile memory, NVMe (PCI Code and ID Assignment 1.9).
const NVME_CLASS: &str = "0x010802";
/// Class code of PCI bridges. They share an IOMMU group with the devices behind them, and are harmless.
const BRIDGE_CLASS: &str = "0x0604";
/// The driver that gives PCI functions to user space.
pub(crate) const VFIO: &str = "vfio-pci";

/// A host, given by the directories in which its kernel shows its devices.
#[derive(Debug, Clone)]
pub struct Host {
    pub(crate) sys: PathBuf,
    pub(crate) proc: PathBuf,
    pub(crate) dev: PathBuf,
    pub(crate) assignments: Assignments,
}

/// An NVMe controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NvmeDevice {
    /// PCI address.
    #[serde(serialize_with = "shown")]
    pub address: PciAddress,
    /// Model name. `None`: only the kernel's driver knows it.
    pub model: Option<String>,
    /// Serial number. `None`: only the kernel's driver knows it.
    pub serial: Option<String>,
    /// PCI vendor and device ID, such as `1b36:0010`.
    pub pci_id: String,
    /// The driver that is bound to it.
    pub driver: Option<String>,
    /// The kernel's name of the controller, such as `nvme0`.
    pub controller: Option<String>,
    /// Number of its IOMMU group. `None`: it is not behind an IOMMU.
    pub iommu_group: Option<String>,
    /// Other devices in that group, except bridges.
    pub neighbours: Vec<Neighbour>,
    /// Its namespaces that are block devices of the kernel.
    pub disks: Vec<BlockDevice>,
    /// Whether the whole drive is assigned to a VM, or was and has not been wiped since.
    pub is_assigned: bool,
    /// A process that uses it through VFIO, as far as this process may see.
    pub held_by: Option<Holder>,
    /// Its role in SR-IOV.
    pub function: Function,
}

/// Another device of an IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// PCI address.
    #[serde(serialize_with = "shown")]
    pub address: PciAddress,
    /// The driver that is bound to it.
    pub driver: Option<String>,
}

/// A namespace that is a block device of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockDevice {
    /// Path, such as `/dev/nvme0n1`.
    pub path: PathBuf,
    /// Namespace identifier, if the kernel shows it.
    pub nsid: Option<u32>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// What uses it, for people.
    pub uses: Vec<String>,
    /// What uses it, for programs.
    #[serde(skip)]
    pub(crate) in_use: Vec<InUse>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Process ID.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
}

/// Role of a PCI function in SR-IOV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Function {
    /// It does not support virtual functions.
    Only,
    /// A physical function, which can have virtual functions.
    Physical(Functions),
    /// A virtual function.
    Virtual {
        /// The physical function that it belongs to.
        #[serde(serialize_with = "shown")]
        of: PciAddress,
        /// Its number, from 1.
        number: u16,
    },
}

/// The virtual functions of a physical function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Functions {
    /// How many it can have.
    pub max: u16,
    /// Those that exist.
    #[serde(serialize_with = "all_shown")]
    pub addresses: Vec<PciAddress>,
}

fn shown<S: serde::Serializer>(address: &PciAddress, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(address)
}

fn all_shown<S: serde::Serializer>(addresses: &[PciAddress], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(ToString::to_string))
}

impl NvmeDevice {
    /// Whether it is bound to the driver for user space.
    pub fn is_claimed(&self) -> bool {
        self.driver.as_deref() == Some(VFIO)
    }
}

impl BlockDevice {
    /// Whether a device path, which is not a link, is this disk or one of its partitions.
    pub fn has(&self, path: &Path) -> bool {
        let part = path.to_str().zip(self.path.to_str()).and_then(|(path, own)| path.strip_prefix(own));
        let is_part = |rest: &str| rest.strip_prefix('p').is_some_and(|number| number.parse::<u16>().is_ok());
        part.is_some_and(|rest| rest.is_empty() || is_part(rest))
    }
}

impl Host {
    /// The host that this program runs on.
    pub fn this() -> Self {
        Self::below(Path::new("/"))
    }

    /// A host whose `sys`, `proc` and `dev` are in a folder.
    pub fn below(root: &Path) -> Self {
        let assignments = Assignments::below(root);
        Self { sys: root.join("sys"), proc: root.join("proc"), dev: root.join("dev"), assignments }
    }

    /// All NVMe controllers, by address.
    pub fn drives(&self) -> Vec<NvmeDevice> {
        let names = names_in(&self.sys.join("bus/pci/devices"));
        let mut addresses: Vec<PciAddress> = names.iter().filter_map(|name| name.parse().ok()).collect();
        addresses.sort_unstable();
        addresses.into_iter().filter(|address| self.class(*address) == NVME_CLASS).map(|at| self.look(at)).collect()
    }

    /// The controller at an address.
    ///
    /// # Errors
    /// There is no device, or it is not an NVMe controller.
    pub fn drive(&self, address: PciAddress) -> Result<NvmeDevice, Refused> {
        let listed = "`evenkeel drive list` has the addresses of the host's drives";
        if !self.directory(address).exists() {
            return Err(Refused::new("no-such-device", format!("there is no PCI device {address}"), listed));
        }
        let class = self.class(address);
        if class != NVME_CLASS {
            let what = format!("{address} is no NVMe controller (its PCI class is {class}, not {NVME_CLASS})");
            return Err(Refused::new("not-nvme", what, listed));
        }
        Ok(self.look(address))
    }

    pub(crate) fn directory(&self, address: PciAddress) -> PathBuf {
        self.sys.join("bus/pci/devices").join(address.to_string())
    }

    fn class(&self, address: PciAddress) -> String {
        text(&self.directory(address).join("class")).unwrap_or_default()
    }

    pub(crate) fn driver(&self, address: PciAddress) -> Option<String> {
        target_name(&self.directory(address).join("driver"))
    }

    fn look(&self, address: PciAddress) -> NvmeDevice {
        let directory = self.directory(address);
        let controller = names_in(&directory.join("nvme")).into_iter().next();
        let of_controller = |name: &str| text(&directory.join("nvme").join(controller.as_ref()?).join(name));
        let iommu_group = target_name(&directory.join("iommu_group"));
        let number = |name: &str| text(&directory.join(name)).unwrap_or_default().replace("0x", "");
        NvmeDevice {
            address,
            model: of_controller("model"),
            serial: of_controller("serial"),
            pci_id: format!("{}:{}", number("vendor"), number("device")),
            driver: self.driver(address),
            is_assigned: self.assignments.find_at(address).is_some(),
            held_by: iommu_group.as_deref().and_then(|group| self.holder(group)),
            neighbours: self.neighbours(address),
            iommu_group,
            disks: controller.as_ref().map(|name| self.disks(&directory.join("nvme").join(name))).unwrap_or_default(),
            controller,
            function: self.function(address),
        }
    }

    fn neighbours(&self, address: PciAddress) -> Vec<Neighbour> {
        let names = names_in(&self.directory(address).join("iommu_group/devices"));
        let others = names.iter().filter_map(|name| name.parse().ok()).filter(|other| *other != address);
        let others = others.filter(|other| !self.class(*other).starts_with(BRIDGE_CLASS));
        others.map(|address| Neighbour { address, driver: self.driver(address) }).collect()
    }

    /// The block devices of a controller, from its directory in sysfs.
    fn disks(&self, controller: &Path) -> Vec<BlockDevice> {
        let kernel = Kernel { proc: self.proc.clone(), sys: self.sys.clone() };
        let mut names: Vec<String> = names_in(controller).iter().filter_map(|name| disk_name(name)).collect();
        names.sort_unstable();
        let look = |name: String| {
            let directory = self.sys.join("block").join(&name);
            let path = self.dev.join(&name);
            let number = |file: &str| text(&directory.join(file))?.parse::<u64>().ok();
            let in_use = text(&directory.join("dev")).map(|number| kernel.uses_of_block(&number)).unwrap_or_default();
            BlockDevice {
                nsid: number("nsid").and_then(|nsid| nsid.try_into().ok()),
                // The kernel counts in sectors of 512 bytes, whatever the drive's block size.
                size_bytes: number("size").unwrap_or(0).saturating_mul(512),
                uses: in_use.iter().map(|used| used.what(&path)).collect(),
                path,
                in_use,
            }
        };
        names.into_iter().map(look).collect()
    }

    fn function(&self, address: PciAddress) -> Function {
        let directory = self.directory(address);
        if let Some(of) = target_name(&directory.join("physfn")).and_then(|name| name.parse().ok()) {
            let all = self.functions(of);
            let place = all.iter().position(|other| *other == address).unwrap_or(0);
            return Function::Virtual { of, number: place as u16 + 1 };
        }
        let max = text(&directory.join("sriov_totalvfs")).and_then(|max| max.parse().ok()).unwrap_or(0);
        if max == 0 {
            return Function::Only;
        }
        Function::Physical(Functions { max, addresses: self.functions(address) })
    }

    /// The virtual functions of a physical function, by number.
    fn functions(&self, of: PciAddress) -> Vec<PciAddress> {
        let at = |number: usize| {
            let link = self.directory(of).join(format!("virtfn{number}"));
            target_name(&link).and_then(|name| name.parse().ok())
        };
        (0..).map_while(at).collect()
    }

    /// A process that has the IOMMU group's device file open. Only root sees all processes.
    fn holder(&self, group: &str) -> Option<Holder> {
        self.opener(&Path::new("/dev/vfio").join(group))
    }

    /// A process that has this device file open. udev opens each for a moment, which does not count.
    pub(crate) fn opener(&self, node: &Path) -> Option<Holder> {
        let holds = |pid: &u32| {
            let files = self.proc.join(pid.to_string()).join("fd");
            names_in(&files).iter().any(|fd| fs::read_link(files.join(fd)).is_ok_and(|file| file == node))
        };
        let mut pids = names_in(&self.proc).into_iter().filter_map(|name| name.parse().ok());
        let named = |pid: u32| {
            let name = text(&self.proc.join(pid.to_string()).join("comm")).unwrap_or_default();
            (!name.contains("udev")).then_some(Holder { pid, name })
        };
        pids.by_ref().filter(holds).find_map(named)
    }
}

/// The block device of an entry in a controller's directory. One of several paths to a disk has the controller in its
/// name.
fn disk_name(entry: &str) -> Option<String> {
    let (controller, rest) = entry.strip_prefix("nvme")?.rsplit_once('n')?;
    let (subsystem, path) = controller.split_once('c').map_or((controller, None), |(one, other)| (one, Some(other)));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let named = is_number(subsystem) && is_number(rest) && path.is_none_or(is_number);
    named.then(|| format!("nvme{subsystem}n{rest}"))
}

pub(crate) fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The last part of a link's target.
fn target_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// A fake host made of files.
    pub(crate) struct Made {
        root: TempDir,
    }

    impl Made {
        pub(crate) fn new() -> Self {
            let root = tempfile::tempdir().expect("a folder");
            let made = Self { root };
            for driver in ["nvme", VFIO] {
                made.write(&format!("sys/bus/pci/drivers/{driver}/unbind"), "");
            }
            made.write("sys/bus/pci/drivers_probe", "");
            made
        }

        pub(crate) fn host(&self) -> Host {
            Host::below(self.root.path())
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }

        pub(crate) fn read(&self, path: &str) -> String {
            fs::read_to_string(self.root.path().join(path)).expect("read")
        }

        pub(crate) fn link(&self, at: &str, to: &str) {
            let (at, to) = (self.root.path().join(at), self.root.path().join(to));
            fs::create_dir_all(at.parent().expect("a parent")).expect("made");
            symlink(to, at).expect("linked");
        }

        /// A PCI function of this class, in a group.
        pub(crate) fn function(&self, address: &str, class: &str, driver: Option<&str>, group: Option<&str>) {
            let directory = format!("sys/bus/pci/devices/{address}");
            self.write(&format!("{directory}/class"), &format!("{class}\n"));
            self.write(&format!("{directory}/vendor"), "0x1b36\n");
            self.write(&format!("{directory}/device"), "0x0010\n");
            self.write(&format!("{directory}/driver_override"), "(null)\n");
            if let Some(driver) = driver {
                self.link(&format!("{directory}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
            }
            if let Some(group) = group {
                let group = format!("sys/kernel/iommu_groups/{group}");
                self.link(&format!("{group}/devices/{address}"), &directory);
                self.link(&format!("{directory}/iommu_group"), &group);
            }
        }

        /// The first of up to four virtual functions of a drive. No driver is bound to them.
        pub(crate) fn virtual_function(&self, address: &str, of: &str) {
            let directory = "sys/bus/pci/devices";
            self.write(&format!("{directory}/{of}/sriov_totalvfs"), "4\n");
            self.function(address, NVME_CLASS, None, Some("8"));
            self.link(&format!("{directory}/{of}/virtfn0"), &format!("{directory}/{address}"));
        }

        /// A drive that the kernel has as `nvme0`, with the disk `nvme0n1` of 1 GiB.
        pub(crate) fn drive(&self, address: &str) {
            self.function(address, NVME_CLASS, Some("nvme"), Some("7"));
            let controller = format!("sys/bus/pci/devices/{address}/nvme/nvme0");
            self.write(&format!("{controller}/model"), "QEMU NVMe Ctrl          \n");
            self.write(&format!("{controller}/serial"), "ek0\n");
            self.write(&format!("{controller}/nvme0c0n1/size"), "");
            self.write("sys/block/nvme0n1/dev", "259:0\n");
            self.write("sys/block/nvme0n1/size", "2097152\n");
            self.write("sys/block/nvme0n1/nsid", "1\n");
            self.link("sys/dev/block/259:0", "sys/block/nvme0n1");
            self.write("dev/nvme0n1", "");
        }
    }

    pub(crate) fn address(text: &str) -> PciAddress {
        text.parse().expect("an address")
    }

    #[test]
    fn a_drive_of_the_kernels_is_known_with_its_disks_and_their_users() {
        let made = Made::new();
        made.drive("0000:03:00.0");
        made.function("0000:03:00.1", "0x020000", Some("e1000e"), Some("7"));
        made.function("0000:00:1c.0", "0x060400", Some("pcieport"), Some("7"));
        made.write("proc/self/mountinfo", "22 1 259:0 / /srv rw - ext4 /dev/nvme0n1 rw\n");
        made.write("proc/42/comm", "qemu\n");
        made.link("proc/42/fd/7", "elsewhere");
        let drives = made.host().drives();
        let [drive] = &drives[..] else { panic!("{drives:?}") };
        assert_eq!((drive.model.as_deref(), drive.serial.as_deref()), (Some("QEMU NVMe Ctrl"), Some("ek0")));
        assert_eq!((drive.driver.as_deref(), drive.iommu_group.as_deref()), (Some("nvme"), Some("7")));
        assert_eq!((&drive.pci_id[..], &drive.held_by), ("1b36:0010", &None));
        let neighbour = Neighbour { address: address("0000:03:00.1"), driver: Some("e1000e".into()) };
        assert_eq!(drive.neighbours, [neighbour], "the bridge is none");
        let [disk] = &drive.disks[..] else { panic!("{drive:?}") };
        assert!(disk.path.ends_with("dev/nvme0n1"), "{disk:?}");
        assert_eq!((disk.nsid, disk.size_bytes), (Some(1), 1 << 30));
        assert!(disk.uses[0].ends_with("is mounted at /srv"), "{disk:?}");
    }

    #[test]
    fn who_has_a_drive_through_vfio_is_named() {
        let made = Made::new();
        made.function("0000:03:00.0", NVME_CLASS, Some(VFIO), Some("7"));
        made.write("proc/42/comm", "qemu-system-x86\n");
        fs::create_dir_all(made.root.path().join("proc/42/fd")).expect("made");
        symlink("/dev/vfio/7", made.root.path().join("proc/42/fd/9")).expect("linked");
        let drives = made.host().drives();
        assert_eq!(drives[0].held_by, Some(Holder { pid: 42, name: "qemu-system-x86".into() }));
        assert_eq!((&drives[0].model, drives[0].disks.len()), (&None, 0));
    }

    #[test]
    fn functions_know_each_other() {
        let made = Made::new();
        made.function("0000:03:00.0", NVME_CLASS, Some("nvme"), Some("7"));
        made.write("sys/bus/pci/devices/0000:03:00.0/sriov_totalvfs", "4\n");
        for (number, function) in ["0000:03:00.1", "0000:03:00.2"].iter().enumerate() {
            made.function(function, NVME_CLASS, None, Some("8"));
            let directory = "sys/bus/pci/devices";
            made.link(&format!("{directory}/0000:03:00.0/virtfn{number}"), &format!("{directory}/{function}"));
            made.link(&format!("{directory}/{function}/physfn"), &format!("{directory}/0000:03:00.0"));
        }
        let found: Vec<Function> = made.host().drives().into_iter().map(|drive| drive.function).collect();
        let (one, two) = (address("0000:03:00.1"), address("0000:03:00.2"));
        let of = address("0000:03:00.0");
        let expected = [
            Function::Physical(Functions { max: 4, addresses: vec![one, two] }),
            Function::Virtual { of, number: 1 },
            Function::Virtual { of, number: 2 },
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_disks_name_is_found_in_the_names_of_its_paths() {
        let disk = |name: &str| Some(name.to_owned());
        for (entry, expected) in [
            ("nvme0n1", disk("nvme0n1")),
            ("nvme2c10n3", disk("nvme2n3")),
            ("ng0n1", None),
            ("nvme0", None),
            ("nvmen1", None),
            ("nvme0cn1", None),
            ("hwmon1", None),
        ] {
            assert_eq!(disk_name(entry), expected, "{entry}");
        }
    }

    #[test]
    fn a_disk_has_its_partitions() {
        let made = Made::new();
        made.drive("0000:03:00.0");
        let disk = made.host().drives().remove(0).disks.remove(0);
        let path = disk.path.display().to_string();
        assert!(disk.has(&disk.path) && disk.has(Path::new(&format!("{path}p2"))));
        for other in [format!("{path}0"), format!("{path}px"), "/dev/sda".to_owned()] {
            assert!(!disk.has(Path::new(&other)), "{other}");
        }
    }

    #[test]
    fn what_is_no_drive_is_told_so() {
        let made = Made::new();
        made.function("0000:05:00.0", "0x020000", Some("e1000e"), Some("1"));
        let told = made.host().drive(address("0000:05:00.0")).expect_err("a network card").to_string();
        assert!(told.contains("0000:05:00.0 is no NVMe controller (its PCI class is 0x020000"), "{told}");
        let told = made.host().drive(address("0000:06:00.0")).expect_err("nothing").to_string();
        assert!(told.contains("there is no PCI device 0000:06:00.0"), "{told}");
        assert!(made.host().drives().is_empty());
    }
}
