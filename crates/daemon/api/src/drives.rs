//! Drives: what the API accepts to add one and reports about each.

use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A drive that the daemon serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drive {
    /// The drive's name. No other drive has it.
    pub name: String,
    /// `file`, `block`, `nvme`, `memory`, `null` or `model`.
    pub backend: String,
    /// Path of the file or block device, or the PCI address.
    pub path: Option<String>,
    /// Capacity for disks, in bytes.
    pub size_bytes: u64,
    /// Bytes available to new disks.
    pub free_bytes: u64,
    /// What thin disks share. Absent: the drive has no pool.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pool: Option<PoolRoom>,
    /// Bytes of deleted disks that are not overwritten yet. They become free then.
    pub wiping_bytes: u64,
    /// The scheduling policy.
    pub policy: String,
    /// `true`: the drive comes from the configuration file and can be changed only there.
    pub declared: bool,
    /// The drive's own identifier (WWID or serial number), if the kernel knows it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Why the drive failed to open when the daemon started, or was given up later. Its disks are not served.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
    /// Known disks of a drive that failed to open. Their names can't be used for other disks.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub disks_not_served: Vec<String>,
    /// The drive's own health report, at most a minute old. Absent if a kernel driver owns the drive: ask the kernel.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health: Option<DriveHealth>,
}

/// How much of a pool is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolRoom {
    /// Bytes in all.
    pub size_bytes: u64,
    /// Bytes that thin disks can still get.
    pub free_bytes: u64,
    /// Bytes that a disk gets at a time.
    pub piece_bytes: u64,
    /// Bytes of all thin disks, if all of them were written.
    pub promised_bytes: u64,
}

/// A drive's SMART / Health Information log page (NVM Express Base 5.16.1.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveHealth {
    /// Composite temperature, in degrees Celsius.
    pub temperature_celsius: i32,
    /// Spare capacity left, in percent.
    pub available_spare_percent: u8,
    /// The drive warns if the spare capacity falls below this percentage.
    pub spare_threshold_percent: u8,
    /// Percentage of the drive's expected life that is used. It may exceed 100.
    pub used_percent: u8,
    /// Number of times that the drive could not read data correctly.
    pub media_errors: u64,
    /// The drive's warnings, in words.
    pub warnings: Vec<String>,
}

/// How to remove a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DriveRemoval {
    /// Remove a drive that failed to open, and forget its disks. Or remove a drive without disks before deleted data on
    /// it is overwritten.
    #[serde(default)]
    pub force: bool,
}

/// A drive to add. Keys, units and defaults are those of a `[[drive]]` section of the configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDrive {
    /// Name of 1 to 63 characters of `a-z 0-9 _ -`. No other drive may have it.
    pub name: String,
    /// `file`, `block`, `nvme`, `memory`, `null` or `model`. Some need file descriptors (`SCM_RIGHTS`, sent beside the
    /// request's first bytes).
    ///
    /// `file` and `block` need one, open for reading and writing; a block device is opened exclusively. `nvme` needs
    /// three from VFIO: the container with its IOMMU set, the group in it, and the device.
    pub backend: String,
    /// Path of the file or block device of the descriptor. The daemon opens this path when it starts next.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// PCI address of an `nvme` drive, such as `0000:03:00.0`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// Namespace of an `nvme` drive, default 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nsid: Option<u16>,
    /// Time limit of a command of an `nvme` drive, such as `30s`; then the daemon aborts the command.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub command_timeout: Option<String>,
    /// Part of the drive to use, such as `64GiB`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<String>,
    /// Name of the built-in profile that describes the drive's performance.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub profile: Option<String>,
    /// Total number of hardware queues (HWQs), 1 to 1024.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<u16>,
    /// The scheduling policy, with its default settings. Absent: the policy at the top of the configuration file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<String>,
    /// How deleted disks are overwritten with zeros: `overwrite` or `write-zeroes`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wipe: Option<String>,
    /// Overwrite the drive, although it has data that no layout file describes. Destroys that data.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub discard_content: bool,
}

impl NewDrive {
    /// Writes the drive as a `[[drive]]` section of a configuration, with its layout kept in `layout_file`.
    ///
    /// # Errors
    /// TOML can't represent a value.
    pub fn to_section(&self, layout_file: Option<&Path>) -> Result<String, toml::ser::Error> {
        let policy =
            self.policy.as_ref().map(|name| toml::Table::from_iter([("name".to_owned(), name.as_str().into())]));
        let mut section = toml::Table::try_from(Self { policy: None, discard_content: false, ..self.clone() })?;
        // With `nofail` the daemon serves its other drives if this one is missing at the next start.
        section.extend(layout_file.map(|_| ("nofail".to_owned(), true.into())));
        section.extend(layout_file.map(|path| ("layout_file".to_owned(), path.display().to_string().into())));
        section.extend(policy.map(|policy| ("policy".to_owned(), policy.into())));
        toml::to_string(&toml::Table::from_iter([("drive".to_owned(), vec![section].into())]))
    }
}
