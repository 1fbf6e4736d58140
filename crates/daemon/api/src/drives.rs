//! Drives, as the API tells of them and takes them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A drive that disks lie on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drive {
    /// Unique among the drives.
    pub name: String,
    /// `file`, `block`, `nvme`, `memory`, `null` or `model`.
    pub backend: String,
    /// The file or block device, or the PCI address.
    pub path: Option<String>,
    /// Bytes that disks may have.
    pub size_bytes: u64,
    /// Bytes that new disks could have in all.
    pub free_bytes: u64,
    /// Bytes that deleted disks left, and that are free once they are wiped.
    pub wiping_bytes: u64,
    /// The scheduling policy.
    pub policy: String,
    /// The configuration file has it; it changes there alone.
    pub declared: bool,
    /// What the drive itself says who it is (its WWID or serial number), where the kernel knows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Why it could not be had when the daemon started, or was given up since; its disks are not served.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
    /// The disks of a drive that could not be had, as far as they are known: their names are taken.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub disks_not_served: Vec<String>,
    /// What the drive says of itself, a minute ago at most. Where the kernel has the drive, ask the kernel.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health: Option<DriveHealth>,
}

/// A drive's SMART / Health Information log page (NVM Express Base 5.16.1.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveHealth {
    /// Composite temperature.
    pub temperature_celsius: i32,
    /// Spare that is left.
    pub available_spare_percent: u8,
    /// Below this the drive warns.
    pub spare_threshold_percent: u8,
    /// Of the life that its maker expects; may pass 100.
    pub used_percent: u8,
    /// Data that could not be read, as the drive counts them.
    pub media_errors: u64,
    /// What it warns of, in words.
    pub warnings: Vec<String>,
}

/// How a drive is taken away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DriveRemoval {
    /// One that could not be had at the start is forgotten with its disks; one that has no disks goes although what
    /// deleted ones left is not wiped.
    #[serde(default)]
    pub force: bool,
}

/// A drive to be added. Its keys are those of a `[[drive]]` section, with the same words and units; what is left out
/// has the same default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDrive {
    /// 1 to 63 of `a-z 0-9 _ -`, unique among the drives.
    pub name: String,
    /// `file`, `block`, `nvme`, `memory`, `null` or `model`. The first two come with a descriptor (`SCM_RIGHTS`, beside
    /// the request's first bytes) that is open for reading and writing, exclusively for a block device. `nvme` comes
    /// with three of VFIO's: the container with its IOMMU set, the group in it, and the function.
    pub backend: String,
    /// What the descriptor is of; the daemon opens it by that at its next start.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// The PCI address that `nvme`'s descriptors are of, such as `0000:03:00.0`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// Which of its namespaces, 1 unless it is said.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nsid: Option<u16>,
    /// What a command of such a drive may take before something is done about it, such as `30s`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub command_timeout: Option<String>,
    /// How much of it is used, such as `64GiB`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<String>,
    /// Which drive it is, by the name of a built-in profile.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profile: Option<String>,
    /// HWQs in all, 1 to 1024.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u16>,
    /// The scheduling policy, with its defaults; left out: that of the top of the file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<String>,
    /// `overwrite` or `write-zeroes`: how what deleted disks leave becomes zeros.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wipe: Option<String>,
}

impl NewDrive {
    /// As a `[[drive]]` section of a configuration, with its layout kept in `layout_file`.
    ///
    /// # Errors
    /// A text that TOML has no form for.
    pub fn to_section(&self, layout_file: Option<&Path>) -> Result<String, toml::ser::Error> {
        let policy =
            self.policy.as_ref().map(|name| toml::Table::from_iter([("name".to_owned(), name.as_str().into())]));
        let mut section = toml::Table::try_from(Self { policy: None, ..self.clone() })?;
        // Others are not to wait for it at a start that nobody watches.
        section.extend(layout_file.map(|_| ("nofail".to_owned(), true.into())));
        section.extend(layout_file.map(|path| ("layout_file".to_owned(), path.display().to_string().into())));
        section.extend(policy.map(|policy| ("policy".to_owned(), policy.into())));
        toml::to_string(&toml::Table::from_iter([("drive".to_owned(), vec![section].into())]))
    }
}
