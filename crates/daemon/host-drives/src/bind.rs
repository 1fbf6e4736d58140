//! Giving a drive to user space, and back to the kernel.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use config::in_use::{InUse, LockError, lock};
use config::{Content, content_of};
use nvme_driver::PciAddress;
use rustix::fs::OFlags;

use crate::look::{BlockDevice, Function, Host, NvmeDevice, VFIO, text};
use crate::refused::Refused;

/// The kernel's own driver.
const NVME: &str = "nvme";

/// One change of how a drive is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The only driver that may have it from now on; `None`: whichever fits.
    Prefer(Option<&'static str>),
    /// Takes it from its driver.
    Unbind(String),
    /// Has the kernel look for a driver.
    Probe,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What was done, or would be; nothing: it is as it should be.
    pub steps: Vec<Step>,
    /// The drive as it was before.
    pub before: NvmeDevice,
    /// What its disks held when they were taken from the kernel, as far as that could be read.
    pub contents: Vec<(PathBuf, Content)>,
}

/// A step for people.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefer(Some(driver)) => write!(f, "set driver_override to {driver}"),
            Self::Prefer(None) => f.write_str("clear driver_override"),
            Self::Unbind(driver) => write!(f, "unbind it from {driver}"),
            Self::Probe => f.write_str("have the kernel look for its driver"),
        }
    }
}

impl Host {
    /// Takes a drive from the kernel, for vfio-pci. Done once more it does nothing. `dry_run`: only says what it would
    /// do.
    ///
    /// # Errors
    /// It is in use, it can't be isolated from the rest of the host, or the kernel failed. The drive is then as it was.
    pub fn claim(&self, address: PciAddress, dry_run: bool) -> Result<Outcome, Refused> {
        let _lock = self.lock_unless(dry_run)?;
        self.refuse_assigned(address)?;
        self.bind(self.drive(address)?, dry_run)
    }

    /// Binds a drive to vfio-pci.
    pub(crate) fn bind(&self, before: NvmeDevice, dry_run: bool) -> Result<Outcome, Refused> {
        if before.driver.as_deref() == Some(VFIO) {
            return Ok(Outcome { steps: Vec::new(), before, contents: Vec::new() });
        }
        self.may_claim(&before)?;
        let unbind = before.driver.clone().map(Step::Unbind);
        let steps: Vec<Step> = [Step::Prefer(Some(VFIO))].into_iter().chain(unbind).chain([Step::Probe]).collect();
        // Held until the kernel's driver has let go, so that nobody mounts anything in between.
        let held = self.hold(&before.disks)?;
        let content = |disk: &BlockDevice| {
            let content = File::open(&disk.path).and_then(|disk| content_of(&disk)).ok()??;
            Some((disk.path.clone(), content))
        };
        let contents = before.disks.iter().filter_map(content).collect();
        if !dry_run {
            self.carry_out(&before, &steps, VFIO)?;
        }
        drop(held);
        Ok(Outcome { steps, before, contents })
    }

    /// Gives a claimed drive back to the kernel. Done once more it does nothing. `dry_run`: only says what it would do.
    ///
    /// # Errors
    /// A process has it, or no driver took it.
    pub fn release(&self, address: PciAddress, dry_run: bool) -> Result<Outcome, Refused> {
        let _lock = self.lock_unless(dry_run)?;
        let before = self.drive(address)?;
        self.refuse_assigned(address)?;
        let preferred = text(&self.directory(address).join("driver_override")).unwrap_or_default();
        let is_claimed = before.driver.as_deref() == Some(VFIO) || preferred == VFIO;
        if !is_claimed {
            return Ok(Outcome { steps: Vec::new(), before, contents: Vec::new() });
        }
        let held = self.hold_group(&before)?;
        let unbind = before.driver.clone().map(Step::Unbind);
        let steps: Vec<Step> = [Step::Prefer(None)].into_iter().chain(unbind).chain([Step::Probe]).collect();
        if !dry_run {
            self.carry_out(&before, &steps, NVME)?;
        }
        drop(held);
        Ok(Outcome { steps, before, contents: Vec::new() })
    }

    /// A dry run changes nothing, and waits for nobody.
    pub(crate) fn lock_unless(&self, dry_run: bool) -> Result<Option<File>, Refused> {
        (!dry_run).then(|| self.lock()).transpose()
    }

    /// A lock, so that only one process changes the drivers of drives at a time.
    pub(crate) fn lock(&self) -> Result<File, Refused> {
        self.assignments.lock().map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                let what = "another `evenkeel drive` command is changing drives";
                Refused::new("busy", what, "wait for it, or answer what it asks")
            }
            _ => Refused::new("not-locked", format!("can't lock the drives' records: {error}"), "run this as root"),
        })
    }

    pub(crate) fn refuse_assigned(&self, address: PciAddress) -> Result<(), Refused> {
        match self.assignments.refusal(address) {
            Some((what, remedy)) => Err(Refused::new("assigned", what, remedy)),
            None => Ok(()),
        }
    }

    /// Whether a drive can be taken from the kernel, by what was seen of it.
    fn may_claim(&self, drive: &NvmeDevice) -> Result<(), Refused> {
        let address = drive.address;
        if let Some(other) = drive.driver.as_deref().filter(|driver| *driver != NVME) {
            let what = format!("{address} is bound to {other}: another program did that");
            return Err(Refused::new("bound-elsewhere", what, format!("unbind it from {other} first")));
        }
        if let Function::Physical(functions) = &drive.function
            && !functions.addresses.is_empty()
        {
            let what = format!("{address} has {} virtual functions", functions.addresses.len());
            let remedy = format!("claim those, or take them away: evenkeel drive vfs {address} --count 0");
            return Err(Refused::new("has-functions", what, remedy));
        }
        if drive.iommu_group.is_none() {
            let what = format!("{address} has no IOMMU: it could reach all of the host's memory");
            let remedy = "turn it on in the firmware (VT-d, AMD-Vi) and, on Intel, by intel_iommu=on in the kernel's \
                          command line, and restart";
            return Err(Refused::new("no-iommu", what, remedy));
        }
        if let Some(other) = drive.neighbours.first() {
            let driver = other.driver.as_deref().unwrap_or("no driver");
            let what = format!("{address} shares its IOMMU group with {} ({driver})", other.address);
            let remedy = "move one of them to another slot, behind a port that keeps its devices apart (ACS)";
            return Err(Refused::new("shared-group", what, remedy));
        }
        if !self.sys.join("bus/pci/drivers").join(VFIO).exists() {
            return Err(Refused::new("no-vfio", "the kernel has no vfio-pci driver", "load it: modprobe vfio-pci"));
        }
        Ok(())
    }

    /// Keeps everybody else from disks until what is returned is dropped.
    pub(crate) fn hold<'a>(&self, disks: impl IntoIterator<Item = &'a BlockDevice>) -> Result<Vec<File>, Refused> {
        let mut held = Vec::new();
        for disk in disks {
            if let Some(used) = disk.in_use.first() {
                return Err(Refused::new("in-use", used.what(&disk.path), used.remedy()));
            }
            if let Some(by) = self.opener(&disk.path) {
                let what = format!("{} is in use by {} (process {})", disk.path.display(), by.name, by.pid);
                return Err(Refused::new("in-use", what, "end that, or choose another drive"));
            }
            match lock(&disk.path) {
                Ok(file) => held.push(file),
                Err(LockError::InUse) => {
                    return Err(Refused::new("in-use", InUse::Locked.what(&disk.path), InUse::Locked.remedy()));
                }
                Err(LockError::Io(error)) => return Err(not_opened(&disk.path, &error)),
            }
            // O_EXCL without O_CREAT: the kernel refuses while something in it has the device (open(2)).
            let flags = (OFlags::EXCL | OFlags::NONBLOCK).bits() as i32;
            match OpenOptions::new().read(true).custom_flags(flags).open(&disk.path) {
                Ok(file) => held.push(file),
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    let what = format!("{} is in use by a file system, RAID, LVM or a process", disk.path.display());
                    let remedy = "take that apart first (`lsblk`, `fuser -v`, `zpool status`), or choose another drive";
                    return Err(Refused::new("in-use", what, remedy));
                }
                Err(error) => return Err(not_opened(&disk.path, &error)),
            }
        }
        Ok(held)
    }

    /// Keeps others from opening the IOMMU group of a claimed drive until what is returned is dropped.
    pub(crate) fn hold_group(&self, drive: &NvmeDevice) -> Result<Option<File>, Refused> {
        let Some(group) = drive.iommu_group.as_ref().filter(|_| drive.driver.as_deref() == Some(VFIO)) else {
            return Ok(None);
        };
        let node = self.dev.join("vfio").join(group);
        match OpenOptions::new().read(true).write(true).open(&node) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                let address = drive.address;
                let who = drive.held_by.as_ref().map(|by| format!(" by {} (process {})", by.name, by.pid));
                let what = format!("{address} is in use{}", who.unwrap_or_default());
                let remedy = format!("stop the daemon or virtual machine that has it (`fuser -v {}`)", node.display());
                Err(Refused::new("in-use", what, remedy))
            }
            Err(error) => Err(not_opened(&node, &error)),
        }
    }

    /// Takes all steps, after which `wanted` has the drive; or takes them back.
    fn carry_out(&self, before: &NvmeDevice, steps: &[Step], wanted: &str) -> Result<(), Refused> {
        let address = before.address;
        let taken = steps.iter().map(|step| self.take(address, step));
        let mut done = 0;
        let outcome = taken.map(|taken| taken.map(|()| done += 1)).find(Result::is_err).unwrap_or(Ok(()));
        let has = self.driver(address);
        let why = match (outcome, has.as_deref()) {
            (Ok(()), Some(driver)) if driver == wanted => return Ok(()),
            // Nothing has changed, so there is nothing to undo.
            (Err(why), _) if done == 0 => return Err(why),
            (Err(why), _) => why,
            (Ok(()), Some(other)) => {
                let what = format!("{other} has {address}, not {wanted}");
                Refused::new("not-bound", what, format!("unload {other}, or keep it from this drive"))
            }
            (Ok(()), None) => {
                let what = format!("{wanted} did not take {address}");
                Refused::new("not-bound", what, format!("look at `dmesg`; is its module loaded (modprobe {wanted})?"))
            }
        };
        Err(self.undo(before, why))
    }

    /// Brings a drive back to the driver that it had; what was wrong, and what of that did not work.
    pub(crate) fn undo(&self, before: &NvmeDevice, mut why: Refused) -> Refused {
        let address = before.address;
        let has = self.driver(address);
        let mut back = vec![Step::Prefer((before.driver.as_deref() == Some(VFIO)).then_some(VFIO))];
        if has != before.driver {
            back.extend(has.map(Step::Unbind));
            back.push(Step::Probe);
        }
        // Each is tried, whatever became of the one before.
        let failed = back.iter().filter_map(|step| self.take(address, step).err());
        let failed: String = failed.map(|error| format!("; {}", error.what)).collect();
        let has = self.driver(address);
        if has != before.driver || !failed.is_empty() {
            let now = has.as_deref().unwrap_or("no driver");
            why.what += &format!("; and it could not be given back ({now} has it now{failed})");
        }
        why
    }

    fn take(&self, address: PciAddress, step: &Step) -> Result<(), Refused> {
        let (path, text) = match step {
            // A line end alone clears it.
            Step::Prefer(driver) => {
                (self.directory(address).join("driver_override"), driver.unwrap_or("\n").to_owned())
            }
            Step::Unbind(driver) => (self.sys.join("bus/pci/drivers").join(driver).join("unbind"), address.to_string()),
            Step::Probe => (self.sys.join("bus/pci/drivers_probe"), address.to_string()),
        };
        // Not created where it is missing: sysfs has it, or the kernel can't do it.
        let written = OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| Refused::unwritten(&path, &error))
    }
}

fn not_opened(path: &Path, error: &std::io::Error) -> Refused {
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied => "run this as root",
        _ => "look at `dmesg`",
    };
    let what = format!("can't open {}: {error}", path.display());
    Refused::new("not-opened", what, remedy)
}

/// Writes one of sysfs' files that holds a number.
pub(crate) fn write_number(path: &Path, number: u16) -> Result<(), Refused> {
    fs::write(path, number.to_string()).map_err(|error| Refused::unwritten(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::{Made, address};

    const DRIVE: &str = "0000:03:00.0";

    fn refusal(made: &Made) -> Refused {
        made.host().claim(address(DRIVE), false).expect_err("refused")
    }

    #[test]
    fn a_dry_run_says_what_would_be_done_and_changes_nothing() {
        let made = Made::new();
        made.drive(DRIVE);
        let outcome = made.host().claim(address(DRIVE), true).expect("it could be claimed");
        let unbind = Step::Unbind(NVME.into());
        assert_eq!(outcome.steps, [Step::Prefer(Some(VFIO)), unbind, Step::Probe]);
        assert_eq!(made.read("sys/bus/pci/drivers/nvme/unbind"), "");
        assert_eq!(made.read(&format!("sys/bus/pci/devices/{DRIVE}/driver_override")), "(null)\n");
    }

    #[test]
    fn a_claim_says_what_the_disks_hold() {
        let made = Made::new();
        made.drive(DRIVE);
        let node = made.host().dev.join("nvme0n1");
        let mut start = vec![0; 1 << 20];
        start[1080..1082].copy_from_slice(b"\x53\xef");
        std::fs::write(&node, start).expect("written");
        let outcome = made.host().claim(address(DRIVE), true).expect("it could be claimed");
        let told: Vec<String> = outcome.contents.iter().map(|(path, it)| format!("{}: {it}", path.display())).collect();
        assert_eq!(told, [format!("{}: an ext2, ext3 or ext4 file system at byte 1080", node.display())]);
    }

    #[test]
    fn what_the_kernel_does_not_do_is_taken_back() {
        let made = Made::new();
        made.drive(DRIVE);
        // These files are no kernel: the drive stays with its driver, whatever is written.
        let told = refusal(&made);
        assert_eq!(told.code, "not-bound");
        assert!(told.what.contains("nvme has 0000:03:00.0, not vfio-pci"), "{told}");
        assert!(!told.what.contains("could not be given back"), "{told}");
        let preferred = made.read(&format!("sys/bus/pci/devices/{DRIVE}/driver_override"));
        assert!(preferred.starts_with('\n'), "{preferred:?}");
    }

    #[test]
    fn a_step_that_fails_undoes_those_before_it() {
        let made = Made::new();
        made.drive(DRIVE);
        let remove = |path: &str| std::fs::remove_file(made.host().sys.join(path)).expect("removed");
        remove("bus/pci/drivers/nvme/unbind");
        let told = refusal(&made);
        assert_eq!(told.code, "not-written");
        assert!(told.what.contains("nvme/unbind") && !told.what.contains("could not be given back"), "{told}");
        assert!(made.read(&format!("sys/bus/pci/devices/{DRIVE}/driver_override")).starts_with('\n'));
        remove(&format!("bus/pci/devices/{DRIVE}/driver_override"));
        let told = refusal(&made);
        assert!(told.what.contains("driver_override") && !told.what.contains("could not"), "nothing to undo: {told}");
    }

    #[test]
    fn what_is_used_is_not_claimed() {
        let made = Made::new();
        made.drive(DRIVE);
        made.write("proc/self/mountinfo", "22 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n");
        let told = refusal(&made);
        assert!(told.what.contains("is mounted at /") && told.remedy.contains("umount"), "{told}");
        made.write("proc/self/mountinfo", "");
        made.write("sys/block/nvme0n1/holders/md127", "");
        let told = refusal(&made);
        assert!(told.what.contains("is part of md127"), "{told}");
        std::fs::remove_file(made.host().sys.join("block/nvme0n1/holders/md127")).expect("removed");
        let node = made.host().dev.join("nvme0n1");
        let locked = lock(&node).expect("locked");
        let told = refusal(&made);
        assert!(told.what.contains("is in use by another process"), "{told}");
        drop(locked);
        assert!(made.host().claim(address(DRIVE), true).is_ok());
    }

    #[test]
    fn a_drive_that_can_not_be_kept_apart_is_not_claimed() {
        let made = Made::new();
        made.drive(DRIVE);
        made.function("0000:03:00.1", "0x020000", Some("e1000e"), Some("7"));
        let told = refusal(&made);
        assert!(told.what.contains("shares its IOMMU group with 0000:03:00.1 (e1000e)"), "{told}");
        let alone = Made::new();
        alone.function(DRIVE, "0x010802", Some(NVME), None);
        let told = refusal(&alone);
        assert!(told.what.contains("has no IOMMU") && told.remedy.contains("intel_iommu=on"), "{told}");
    }

    #[test]
    fn a_kernel_without_vfio_is_told_so() {
        let made = Made::new();
        made.drive(DRIVE);
        std::fs::remove_dir_all(made.host().sys.join("bus/pci/drivers/vfio-pci")).expect("removed");
        let told = refusal(&made);
        assert!(told.remedy.contains("modprobe vfio-pci"), "{told}");
    }

    #[test]
    fn what_is_as_it_should_be_is_left_alone() {
        let made = Made::new();
        made.drive(DRIVE);
        made.function("0000:04:00.0", "0x010802", Some(VFIO), Some("9"));
        let claimed = made.host().claim(address("0000:04:00.0"), false).expect("it is claimed");
        assert_eq!(claimed.steps, []);
        let released = made.host().release(address(DRIVE), false).expect("it is the kernel's");
        assert_eq!(released.steps, []);
    }

    #[test]
    fn a_drive_with_virtual_functions_stays_with_the_kernel() {
        let made = Made::new();
        made.drive(DRIVE);
        made.virtual_function("0000:03:00.1", DRIVE);
        let told = refusal(&made);
        assert!(told.what.contains("1 virtual function") && told.remedy.contains("--count 0"), "{told}");
    }
}
