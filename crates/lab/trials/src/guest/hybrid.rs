//! LPNS's hybrid deployment: a VM, a container and a process of the host share one drive under one policy. The host is
//! a guest of ours, the VM a driver in a process of its own: a second emulation inside of the first is too slow.

use std::time::Duration;

use anyhow::Result;

use super::inside::{Inside, UBLK_MODULES};
use super::qemu::Guest;

/// Each tenant's disk.
pub const DISK_MIB: u32 = 64;
/// What each uses of it.
pub const USED_MIB: u32 = 24;
/// Where the host has the container's file system.
const MOUNT: &str = "/mnt";
const CONTAINERS_DISK: &str = "/dev/evenkeel/container";
const PROCESS_DISK: &str = "/dev/evenkeel/process";
const LIMIT: Duration = Duration::from_secs(240);

/// A tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An NVMe controller over vfio-user.
    Vm,
    /// An ext4 on a block device, mounted into a container.
    Container,
    /// A block device.
    Process,
}

/// All of them.
pub const KINDS: [Kind; 3] = [Kind::Vm, Kind::Container, Kind::Process];

impl Kind {
    /// The name in the daemon's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Container => "container",
            Self::Process => "process",
        }
    }

    /// The command line of a load where this tenant would have it, with results in fio's JSON. `words` are what fio and
    /// `evenkeel load` have in common; `fio` and `ours` what only one of them knows.
    pub fn load(self, words: &str, fio: &str, ours: &str) -> String {
        let of_fio = format!(
            "fio --name={} --ioengine=libaio --direct=1 --output-format=json --size={USED_MIB}m {words} {fio}",
            self.name()
        );
        match self {
            Self::Vm => format!("evenkeel load /run/ek/{} --json --size {USED_MIB}m {words} {ours}", self.name()),
            Self::Container => format!("container {MOUNT} {of_fio} --filename=/data/file"),
            Self::Process => format!("{of_fio} --filename={PROCESS_DISK}"),
        }
    }
}

/// The host, before anything is added to it.
pub fn host() -> Inside {
    Inside::new("hybrid").modules(&UBLK_MODULES)
}

/// The daemon's tenants; `terms` says what each is promised, in lines of its section.
pub fn tenants(terms: impl Fn(Kind) -> String) -> String {
    let tenant = |kind: Kind| {
        let frontend = if kind == Kind::Vm { "vfio-user" } else { "ublk" };
        let (name, terms) = (kind.name(), terms(kind));
        format!("[[tenant]]\nname = \"{name}\"\nsize = \"{DISK_MIB}MiB\"\nfrontend = \"{frontend}\"\n{terms}")
    };
    KINDS.map(tenant).concat()
}

/// Waits for the block devices, and gives the container its file system with the file that loads use.
///
/// # Errors
/// When a device does not come or the file system can't be made.
pub fn set_up(guest: &mut Guest) -> Result<()> {
    guest.wait_for("the devices", &format!("test -b {CONTAINERS_DISK} && test -b {PROCESS_DISK}"))?;
    let make = format!("/usr/sbin/mke2fs -q -t ext4 {CONTAINERS_DISK} && mount -t ext4 {CONTAINERS_DISK} {MOUNT}");
    let fill = format!("dd if=/dev/zero of={MOUNT}/file bs=1M count={USED_MIB} conv=fsync");
    guest.run_within(&format!("{make} && {fill}"), LIMIT).map(drop)
}

/// Takes the container's file system off again.
///
/// # Errors
/// When it is still in use.
pub fn tear_down(guest: &mut Guest) -> Result<()> {
    guest.run_within(&format!("umount {MOUNT} && /usr/sbin/e2fsck -f -n {CONTAINERS_DISK}"), LIMIT).map(drop)
}
