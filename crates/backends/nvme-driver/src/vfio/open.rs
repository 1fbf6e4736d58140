//! Finding a PCI function and opening what VFIO has for it.

use std::ffi::CString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;

use vfio_bindings::bindings::vfio as sys;

use super::{VfioError, ioctl};

/// Mass storage, non-volatile memory, NVMe (PCI Code and ID Assignment 1.9).
const NVME_CLASS: &str = "0x010802";
const DRIVER: &str = "vfio-pci";

/// Where a PCI function is: domain, bus, device and function, as in `0000:03:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text is no PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PCI address is written as 0000:03:00.0 (`lspci -D` has them)")]
pub struct NotAnAddress;

impl PciAddress {
    /// The function that `path` stands for: it is an address, and nothing has that name here.
    pub fn named_by(path: &Path) -> Option<Self> {
        if path.exists() { None } else { path.to_str()?.parse().ok() }
    }
}

impl FromStr for PciAddress {
    type Err = NotAnAddress;

    /// The domain may be left out, as `lspci` does.
    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let hexadecimal = |text: &str, digits_max: usize| {
            let fits =
                !text.is_empty() && text.len() <= digits_max && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            fits.then(|| u32::from_str_radix(text, 16).ok()).flatten().ok_or(NotAnAddress)
        };
        let (domain, rest) = match text.split(':').count() {
            3 => text.split_once(':').ok_or(NotAnAddress)?,
            _ => ("0", text),
        };
        let (bus, rest) = rest.split_once(':').ok_or(NotAnAddress)?;
        let (device, function) = rest.split_once('.').ok_or(NotAnAddress)?;
        let (domain, bus) = (hexadecimal(domain, 8)?, hexadecimal(bus, 2)? as u8);
        let (device, function) = (hexadecimal(device, 2)? as u8, hexadecimal(function, 1)? as u8);
        if device > 0x1f || function > 7 {
            return Err(NotAnAddress);
        }
        Ok(Self { domain, bus, device, function })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// A device of an IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where it is.
    pub address: PciAddress,
    /// Which driver has it.
    pub driver: Option<String>,
}

/// VFIO's descriptors of a function, opened by a process with the right to: the group is in the container, which has
/// its IOMMU model.
#[derive(Debug)]
pub struct VfioDescriptors {
    /// The function.
    pub address: PciAddress,
    /// `/dev/vfio/vfio`.
    pub container: OwnedFd,
    /// `/dev/vfio/GROUP`.
    pub group: OwnedFd,
    /// The function itself.
    pub device: OwnedFd,
}

impl VfioDescriptors {
    /// Opens a function that is bound to vfio-pci.
    ///
    /// # Errors
    /// See [`VfioError`]. Nothing has changed then.
    pub fn open(address: PciAddress) -> Result<Self, VfioError> {
        Self::open_at(address, Path::new("/sys"), Path::new("/dev"))
    }

    fn open_at(address: PciAddress, sys: &Path, dev: &Path) -> Result<Self, VfioError> {
        let group_number = group_of(address, sys)?;
        let container = open_node(&dev.join("vfio/vfio"))?;
        let group = open_node(&dev.join("vfio").join(&group_number))?;
        let failed =
            |what: &'static str| move |error: io::Error| VfioError::Kernel { what, address, reason: error.to_string() };
        let version = ioctl::api_version(container.as_fd()).map_err(failed("asking for VFIO's version"))?;
        if version != sys::VFIO_API_VERSION {
            return Err(VfioError::Lacks { what: "version 0 of its interface", remedy: "that, say 6.12" });
        }
        if !ioctl::has_extension(container.as_fd(), sys::VFIO_TYPE1v2_IOMMU).unwrap_or(false) {
            return Err(VfioError::Lacks { what: "type 1 IOMMUs", remedy: "CONFIG_VFIO_IOMMU_TYPE1" });
        }
        if !ioctl::is_viable(group.as_fd()).map_err(failed("asking for the IOMMU group's state"))? {
            let others = members_at(address, sys);
            let others =
                others.into_iter().filter(|member| member.driver.as_deref().is_some_and(|name| name != DRIVER));
            return Err(VfioError::NotViable { group: group_number, others: others.collect() });
        }
        ioctl::set_container(group.as_fd(), container.as_fd()).map_err(failed("taking the IOMMU group"))?;
        ioctl::set_iommu(container.as_fd(), sys::VFIO_TYPE1v2_IOMMU).map_err(failed("setting the IOMMU up"))?;
        let name = CString::new(address.to_string()).unwrap_or_default();
        let device = ioctl::device(group.as_fd(), &name).map_err(failed("opening"))?;
        Ok(Self { address, container, group, device })
    }
}

/// All devices in the IOMMU group of a function, itself included.
pub fn group_members(address: PciAddress) -> Vec<Member> {
    members_at(address, Path::new("/sys"))
}

fn members_at(address: PciAddress, sys: &Path) -> Vec<Member> {
    let directory = device_directory(address, sys).join("iommu_group/devices");
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let addresses = names.filter_map(|name| name.to_string_lossy().parse().ok());
    let mut members: Vec<_> = addresses.map(|address| Member { address, driver: driver_of(address, sys) }).collect();
    members.sort_by_key(|member| member.address);
    members
}

fn device_directory(address: PciAddress, sys: &Path) -> std::path::PathBuf {
    sys.join("bus/pci/devices").join(address.to_string())
}

/// The last part of a link's target, say of `driver`.
fn target_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

fn driver_of(address: PciAddress, sys: &Path) -> Option<String> {
    target_name(&device_directory(address, sys).join("driver"))
}

/// The IOMMU group of a function that vfio-pci has.
fn group_of(address: PciAddress, sys: &Path) -> Result<String, VfioError> {
    let directory = device_directory(address, sys);
    let class = fs::read_to_string(directory.join("class")).map_err(|_| VfioError::NoDevice { address })?;
    if class.trim() != NVME_CLASS {
        return Err(VfioError::NotNvme { address, class: class.trim().to_owned() });
    }
    let group = target_name(&directory.join("iommu_group")).ok_or(VfioError::NoIommu { address })?;
    match driver_of(address, sys) {
        Some(driver) if driver == DRIVER => Ok(group),
        driver => Err(VfioError::NotClaimed { address, driver }),
    }
}

fn open_node(path: &Path) -> Result<OwnedFd, VfioError> {
    let opened: io::Result<File> = OpenOptions::new().read(true).write(true).open(path);
    let path = path.display().to_string();
    opened.map(OwnedFd::from).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => VfioError::NoPermission { path },
        ErrorKind::ResourceBusy => VfioError::Busy { path },
        _ => VfioError::NoModule { path },
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn an_address_is_read_with_and_without_its_domain() {
        for (text, shown) in
            [("0000:03:00.0", "0000:03:00.0"), ("3:1f.7", "0000:03:1f.7"), ("10000:e1:00.0", "10000:e1:00.0")]
        {
            assert_eq!(text.parse::<PciAddress>().expect(text).to_string(), shown);
        }
        for text in ["", "nvme0", "0000:03:00", "03:20.0", "03:00.8", "0:0:0:0.0", "+3:00.0", "03:00.00", "../x:00.0"] {
            assert_eq!(text.parse::<PciAddress>(), Err(NotAnAddress), "{text}");
        }
    }

    #[test]
    fn a_path_that_is_an_address_and_no_file_names_a_function() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("0000:03:00.0");
        assert!(PciAddress::named_by(Path::new("0000:03:00.0")).is_some());
        assert!(PciAddress::named_by(&path).is_none());
        assert!(PciAddress::named_by(Path::new("db")).is_none());
    }

    /// A host with one function.
    fn host(class: &str, driver: Option<&str>, group: Option<&str>) -> (TempDir, PciAddress) {
        let root = tempfile::tempdir().expect("a folder");
        let address: PciAddress = "0000:03:00.0".parse().expect("an address");
        let directory = device_directory(address, root.path());
        fs::create_dir_all(&directory).expect("made");
        fs::write(directory.join("class"), format!("{class}\n")).expect("written");
        if let Some(driver) = driver {
            symlink(Path::new("../../drivers").join(driver), directory.join("driver")).expect("linked");
        }
        if let Some(group) = group {
            let devices = root.path().join("kernel/iommu_groups").join(group).join("devices");
            fs::create_dir_all(&devices).expect("made");
            symlink(&directory, devices.join(address.to_string())).expect("linked");
            symlink(devices.parent().expect("a group"), directory.join("iommu_group")).expect("linked");
        }
        (root, address)
    }

    fn refusal(class: &str, driver: Option<&str>, group: Option<&str>) -> VfioError {
        let (root, address) = host(class, driver, group);
        VfioDescriptors::open_at(address, root.path(), root.path()).expect_err("refused")
    }

    #[test]
    fn what_is_no_claimed_drive_is_told_so() {
        let (root, _) = host(NVME_CLASS, None, None);
        let nothing: PciAddress = "0000:04:00.0".parse().expect("an address");
        let told = VfioDescriptors::open_at(nothing, root.path(), root.path()).expect_err("refused");
        assert_eq!(told, VfioError::NoDevice { address: nothing });
        let told = refusal("0x020000", Some(DRIVER), Some("3"));
        assert!(matches!(&told, VfioError::NotNvme { class, .. } if class == "0x020000"), "{told}");
        let told = refusal(NVME_CLASS, Some("nvme"), None);
        assert!(matches!(told, VfioError::NoIommu { .. }), "{told}");
        let told = refusal(NVME_CLASS, Some("nvme"), Some("3"));
        assert!(matches!(&told, VfioError::NotClaimed { driver: Some(driver), .. } if driver == "nvme"), "{told}");
        let told = refusal(NVME_CLASS, Some(DRIVER), Some("3"));
        assert!(matches!(&told, VfioError::NoModule { path } if path.ends_with("vfio/vfio")), "{told}");
    }

    #[test]
    fn a_file_that_is_no_container_is_refused() {
        let (root, address) = host(NVME_CLASS, Some(DRIVER), Some("3"));
        fs::create_dir(root.path().join("vfio")).expect("made");
        for name in ["vfio", "3"] {
            fs::write(root.path().join("vfio").join(name), "").expect("written");
        }
        let told = VfioDescriptors::open_at(address, root.path(), root.path()).expect_err("refused");
        assert!(matches!(told, VfioError::Kernel { .. }), "{told}");
        assert_eq!(members_at(address, root.path()), [Member { address, driver: Some(DRIVER.to_owned()) }]);
    }
}
