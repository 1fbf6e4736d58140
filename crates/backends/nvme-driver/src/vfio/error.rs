//! What keeps a PCI function from being driven through VFIO, and what the operator can do about it.

use super::{Member, PciAddress};

/// Why a drive can't be had, or its memory not be reached, through VFIO.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VfioError {
    /// Nothing is there.
    #[error("there is no PCI device {address}: `evenkeel drive list` has the addresses of the host's drives")]
    NoDevice {
        /// Where it was looked for.
        address: PciAddress,
    },
    /// It is something else, say a network card.
    #[error(
        "{address} is no NVMe controller (its PCI class is {class}, not 0x010802): `evenkeel drive list` has those"
    )]
    NotNvme {
        /// What was asked for.
        address: PciAddress,
        /// As the kernel says it.
        class: String,
    },
    /// The kernel's driver has it, another one, or none.
    #[error("{address} is bound to {}, not to vfio-pci: `evenkeel drive claim {address}` takes it from the kernel",
        driver.as_deref().unwrap_or("no driver"))]
    NotClaimed {
        /// The function.
        address: PciAddress,
        /// Which driver has it.
        driver: Option<String>,
    },
    /// It has no IOMMU group.
    #[error(
        "{address} has no IOMMU, so it could reach all of the host's memory: turn the IOMMU on in the firmware \
        (VT-d, AMD-Vi) and in the kernel's command line (intel_iommu=on on Intel), and restart"
    )]
    NoIommu {
        /// The function.
        address: PciAddress,
    },
    /// `/dev/vfio` lacks what it should have.
    #[error("there is no {path}: load the module, modprobe vfio-pci")]
    NoModule {
        /// What is missing.
        path: String,
    },
    /// We may not open it.
    #[error(
        "no permission to open {path}: run as root, or give it to this user (chown), who then has the drive and \
        nothing else"
    )]
    NoPermission {
        /// The group's node.
        path: String,
    },
    /// Another process has the group open.
    #[error("{path} is in use: a virtual machine or another daemon has the drive (`fuser -v {path}` names it)")]
    Busy {
        /// The group's node.
        path: String,
    },
    /// Others in the group could be reached by the drive.
    #[error(
        "IOMMU group {group} can't be given away, since these devices of it are in other hands: {}; \
        bind them to vfio-pci too, or move the drive to another slot",
        listed(others)
    )]
    NotViable {
        /// Its number.
        group: String,
        /// Those that a kernel's driver has.
        others: Vec<Member>,
    },
    /// More memory is to be pinned than this process may.
    #[error("no more than {} of memory may be locked, and {len_bytes} bytes more are to be pinned for the drive: \
        raise it, by LimitMEMLOCK=infinity in the service's unit or ulimit -l unlimited; it takes the memory of all \
        guests, and some", limit(*limit_bytes))]
    MemoryLock {
        /// `RLIMIT_MEMLOCK`; `None`: there is none, and the host is out of memory.
        limit_bytes: Option<u64>,
        /// What was to be pinned.
        len_bytes: u64,
    },
    /// The kernel keeps no more mappings.
    #[error("the IOMMU's list of mappings is full{}: let guests have their memory in fewer pieces, or raise \
        dma_entry_limit (/sys/module/vfio_iommu_type1/parameters) before the daemon starts", entries(*entries_max))]
    EntryLimit {
        /// How many there can be; `None`: the kernel does not say.
        entries_max: Option<u32>,
    },
    /// No range of device addresses is large enough.
    #[error("the IOMMU has no {len_bytes} bytes of addresses left for the drive")]
    NoAddresses {
        /// What was to be mapped.
        len_bytes: u64,
    },
    /// Something that the kernel does not have.
    #[error("the kernel's VFIO lacks {what}: use a kernel with {remedy}")]
    Lacks {
        /// What.
        what: &'static str,
        /// What has it.
        remedy: &'static str,
    },
    /// The kernel refused.
    #[error("{what} of {address} failed: {reason}")]
    Kernel {
        /// What was asked for.
        what: &'static str,
        /// The function.
        address: PciAddress,
        /// The kernel's reason.
        reason: String,
    },
}

fn listed(members: &[Member]) -> String {
    let shown = |member: &Member| match &member.driver {
        Some(driver) => format!("{} ({driver})", member.address),
        None => format!("{} (no driver)", member.address),
    };
    members.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn entries(entries_max: Option<u32>) -> String {
    entries_max.map_or_else(String::new, |max| format!(" ({max} at most)"))
}

fn limit(limit_bytes: Option<u64>) -> String {
    limit_bytes.map_or_else(|| "what the host has".to_owned(), |bytes| format!("{} KiB", bytes >> 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_the_thing_and_the_remedy() {
        let address: PciAddress = "0000:03:00.0".parse().expect("an address");
        let other = Member { address: "0000:03:00.1".parse().expect("an address"), driver: Some("e1000e".into()) };
        let told = VfioError::NotViable { group: "7".into(), others: vec![other] }.to_string();
        assert!(told.contains("group 7") && told.contains("0000:03:00.1 (e1000e)"), "{told}");
        let told = VfioError::MemoryLock { limit_bytes: Some(8 << 20), len_bytes: 1 << 30 }.to_string();
        assert!(told.contains("8192 KiB") && told.contains("1073741824") && told.contains("LimitMEMLOCK"), "{told}");
        let told = VfioError::NotClaimed { address, driver: Some("nvme".into()) }.to_string();
        assert!(
            told.starts_with("0000:03:00.0 is bound to nvme") && told.contains("drive claim 0000:03:00.0"),
            "{told}"
        );
        assert!(!told.contains("  "), "{told}");
        let told = VfioError::EntryLimit { entries_max: Some(65535) }.to_string();
        assert!(told.contains("is full (65535 at most)") && !told.contains("  "), "{told}");
    }
}
