//! Whether a drive is in use: by mounts, swap and devices on top of it, as the kernel tells, and by the lock of
//! daemons.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nvme_driver::PciAddress;
use rustix::fs::{OFlags, major, minor};

use crate::assigned::{self, Assignments};

/// One use of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InUse {
    /// A file system on it is mounted.
    Mounted {
        /// The partition that is; `None`: the whole drive.
        part: Option<String>,
        /// Where.
        at: String,
    },
    /// A device is made of it: device mapper, RAID, LVM or bcache.
    Held {
        /// The partition that is; `None`: the whole drive.
        part: Option<String>,
        /// The device's name in `/sys/block`.
        holder: String,
    },
    /// Memory is swapped out to it.
    Swap {
        /// The partition that is; `None`: the whole drive, or a file.
        part: Option<String>,
        /// As `swapoff` takes it.
        device: PathBuf,
    },
    /// A loop device is made of the file or block device.
    Loop {
        /// Such as `/dev/loop0`.
        device: PathBuf,
    },
    /// A VM has its NVMe drive as a whole.
    Assigned {
        /// The drive.
        address: PciAddress,
    },
    /// Another process has locked it.
    Locked,
}

/// Devices made of devices made of devices: deeper is nobody's.
const DEEPEST_STACK: u32 = 8;

/// Why a drive can't be locked.
#[derive(Debug)]
pub enum LockError {
    /// By [`InUse::Locked`].
    InUse,
    /// It can't be opened.
    Io(io::Error),
}

/// Where the kernel's files are.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// `/proc`
    pub proc: PathBuf,
    /// `/sys`
    pub sys: PathBuf,
}

impl InUse {
    /// What is wrong with using the drive at `path`.
    pub fn what(&self, path: &Path) -> String {
        let shown = |part: &Option<String>| match part {
            Some(part) => format!("{} (its partition {part})", path.display()),
            None => path.display().to_string(),
        };
        match self {
            Self::Mounted { part, at } => format!("{} is mounted at {at}", shown(part)),
            Self::Held { part, holder } => {
                format!("{} is part of {holder} (device mapper, RAID, LVM or bcache)", shown(part))
            }
            Self::Swap { part, .. } => format!("{} is used as swap", shown(part)),
            Self::Loop { device } => format!("{} is what {} is made of", path.display(), device.display()),
            Self::Assigned { address } => {
                format!("{} is on {address}, which is assigned to a VM", path.display())
            }
            Self::Locked => format!("{} is in use by another process", path.display()),
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Mounted { at, .. } => format!("choose another drive, or unmount it: umount {at}"),
            Self::Held { holder, .. } => {
                format!("choose another drive, or take {holder} apart first (`lsblk` shows what it is)")
            }
            Self::Swap { device, .. } => {
                format!("choose another drive, or stop using it: swapoff {}", device.display())
            }
            Self::Loop { device } => format!("choose another one, or detach it: losetup -d {}", device.display()),
            Self::Assigned { address } => assigned::remedy(*address),
            Self::Locked => {
                "stop the other daemon or calibration (`fuser -v` names it), or choose another drive".to_owned()
            }
        }
    }
}

/// Takes the lock by which users of Evenkeel keep each other from a drive; it lasts until the file is closed.
///
/// # Errors
/// Another process has it, or the drive can't be opened.
pub fn lock(path: &Path) -> Result<File, LockError> {
    // Opening a pipe without this flag would wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let locked = opened.map_err(TryLockError::Error).and_then(|file| file.try_lock().map(|()| file));
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => LockError::InUse,
        TryLockError::Error(error) => LockError::Io(error),
    })
}

/// Every use of the file or block device at `path`, [`InUse::Locked`] last; none where nothing is there. Changes
/// nothing. The answer is of this moment.
pub fn uses(path: &Path) -> Vec<InUse> {
    let kernel = Kernel { proc: "/proc".into(), sys: "/sys".into() };
    let Ok(metadata) = path.metadata() else { return Vec::new() };
    let mut found = match metadata.file_type() {
        kind if kind.is_block_device() => {
            let number = number_of(metadata.rdev());
            // After a restart of the host the kernel has what VMs had.
            let controllers = kernel.controllers_of(&number).into_iter();
            let assigned = controllers.filter(|address| Assignments::of_this_host().find_at(*address).is_some());
            let assigned = assigned.map(|address| InUse::Assigned { address });
            kernel.uses_of_block(&number).into_iter().chain(assigned).collect()
        }
        kind if kind.is_file() => path.canonicalize().map(|path| kernel.uses_of_file(&path)).unwrap_or_default(),
        _ => Vec::new(),
    };
    if matches!(lock(path), Err(LockError::InUse)) {
        found.push(InUse::Locked);
    }
    found
}

/// A block device's number as sysfs and procfs write it.
pub(super) fn number_of(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

impl Kernel {
    /// Every use of a block device and its partitions that the kernel tells; `number` is its `major:minor`.
    pub fn uses_of_block(&self, number: &str) -> Vec<InUse> {
        let mounts = fs::read_to_string(self.proc.join("self/mountinfo")).unwrap_or_default();
        let sys = self.sys.join("dev/block").join(number);
        let mut found = Vec::new();
        for (part, number, directory) in parts(&sys, number) {
            let mount = mount_point(&mounts, &number);
            found.extend(mount.map(|at| InUse::Mounted { part: part.clone(), at }));
            let holder = first_entry(&directory.join("holders"));
            found.extend(holder.map(|holder| InUse::Held { part: part.clone(), holder }));
            let name =
                directory.canonicalize().ok().and_then(|at| Some(at.file_name()?.to_string_lossy().into_owned()));
            let device = name.map(|name| PathBuf::from(format!("/dev/{name}")));
            let Some(device) = device else { continue };
            found.extend(self.loops_over(&device));
            if self.is_swap(&device) {
                found.push(InUse::Swap { part, device });
            }
        }
        found
    }

    /// The PCI functions behind a block device, by its number: of an NVMe disk with several paths, all; of a device
    /// made of others (device mapper, RAID), those of all of them.
    fn controllers_of(&self, number: &str) -> Vec<PciAddress> {
        let Ok(device) = self.sys.join("dev/block").join(number).canonicalize() else { return Vec::new() };
        functions_behind(&device, DEEPEST_STACK)
    }

    /// `path` is without links.
    fn uses_of_file(&self, path: &Path) -> Vec<InUse> {
        let swap = self.is_swap(path).then(|| InUse::Swap { part: None, device: path.to_owned() });
        swap.into_iter().chain(self.loops_over(path)).collect()
    }

    fn loops_over(&self, path: &Path) -> Vec<InUse> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.sys.join("block")).into_iter().flatten().flatten() {
            let behind = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            let behind = Path::new(behind.trim_end_matches('\n'));
            if behind == path || is_same_file(behind, path) {
                found.push(InUse::Loop { device: Path::new("/dev").join(entry.file_name()) });
            }
        }
        found
    }

    /// Whether swap is on it (proc_swaps(5): the first field; spaces are `\040`).
    fn is_swap(&self, path: &Path) -> bool {
        let swaps = fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        let named = |line: &str| line.split_whitespace().next().map(|name| name.replace("\\040", " "));
        swaps
            .lines()
            .skip(1)
            .filter_map(named)
            .any(|name| Path::new(&name) == path || is_same_file(Path::new(&name), path))
    }
}

/// See [`Kernel::controllers_of`]; `device` is a directory of sysfs without links.
fn functions_behind(device: &Path, levels: u32) -> Vec<PciAddress> {
    let function = |path: &Path| path.iter().rev().find_map(|part| part.to_str()?.parse().ok());
    let linked = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.path().canonicalize().ok()).collect::<Vec<PathBuf>>()
    };
    let is_subsystem =
        |at: &&Path| at.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"nvme-subsys"));
    match device.ancestors().find(is_subsystem) {
        Some(subsystem) => linked(subsystem).iter().filter_map(|path| function(path)).collect(),
        None if levels == 0 => Vec::new(),
        None => {
            let below = linked(&device.join("slaves"));
            let below = below.iter().flat_map(|device| functions_behind(device, levels - 1));
            function(device).into_iter().chain(below).collect()
        }
    }
}

/// The device itself, then its partitions: name, number, directory in sysfs.
fn parts(sys: &Path, number: &str) -> Vec<(Option<String>, String, PathBuf)> {
    let mut parts = vec![(None, number.to_owned(), sys.to_owned())];
    for entry in fs::read_dir(sys).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists()
            && let Ok(number) = fs::read_to_string(entry.path().join("dev"))
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            parts.push((Some(name), number.trim().to_owned(), entry.path()));
        }
    }
    parts
}

fn first_entry(directory: &Path) -> Option<String> {
    let entry = fs::read_dir(directory).ok()?.flatten().next()?;
    Some(entry.file_name().to_string_lossy().into_owned())
}

/// Where a device is mounted (proc_pid_mountinfo(5): fields 3 and 5).
fn mount_point(mounts: &str, number: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let found = fields.next()? == number;
        fields.nth(1).filter(|_| found).map(|at| at.replace("\\040", " "))
    })
}

/// Whether two names are of one file: links have names of their own.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let inode = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((inode(one), inode(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// A machine with the drive sda (8:0) of two partitions, and a loop device.
    fn machine(mounts: &str, swaps: &str, backing_file: &str) -> (TempDir, Kernel) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let kernel = Kernel { proc: dir.path().join("proc"), sys: dir.path().join("sys") };
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, text).expect("written");
        };
        write(kernel.proc.join("self/mountinfo"), mounts);
        write(kernel.proc.join("swaps"), &format!("Filename Type Size Used Priority\n{swaps}"));
        write(kernel.sys.join("block/loop3/loop/backing_file"), &format!("{backing_file}\n"));
        let sda = kernel.sys.join("block/sda");
        for (part, number) in [("sda1", "8:1\n"), ("sda2", "8:2\n")] {
            write(sda.join(part).join("dev"), number);
            write(sda.join(part).join("partition"), "1\n");
            fs::create_dir(sda.join(part).join("holders")).expect("directory");
        }
        fs::create_dir_all(kernel.sys.join("dev/block")).expect("directory");
        for (number, device) in [("8:0", "block/sda"), ("8:1", "block/sda/sda1")] {
            symlink(kernel.sys.join(device), kernel.sys.join("dev/block").join(number)).expect("link");
        }
        (dir, kernel)
    }

    #[test]
    fn a_disks_controllers_are_found_whichever_way_the_kernel_shows_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let kernel = Kernel { proc: dir.path().join("proc"), sys: dir.path().join("sys") };
        let link = |at: &str, to: &str| {
            let (at, to) = (kernel.sys.join(at), kernel.sys.join(to));
            fs::create_dir_all(at.parent().expect("a parent")).expect("directory");
            fs::create_dir_all(&to).expect("directory");
            symlink(to, at).expect("linked");
        };
        let (one, other) = ("devices/pci0000:00/0000:00:1c.0/0000:03:00.0", "devices/pci0000:00/0000:04:00.0");
        link("dev/block/259:0", &format!("{one}/nvme/nvme0/nvme0n1"));
        link("dev/block/259:1", &format!("{one}/nvme/nvme0/nvme0n1/nvme0n1p1"));
        link("dev/block/259:2", "devices/virtual/nvme-subsystem/nvme-subsys1/nvme1n1");
        link("devices/virtual/nvme-subsystem/nvme-subsys1/nvme1", &format!("{one}/nvme/nvme1"));
        link("devices/virtual/nvme-subsystem/nvme-subsys1/nvme2", &format!("{other}/nvme/nvme2"));
        link("dev/block/7:0", "devices/virtual/block/loop0");
        link("dev/block/253:0", "devices/virtual/block/dm-0");
        link("devices/virtual/block/dm-0/slaves/md1", "devices/virtual/block/md1");
        link("devices/virtual/block/md1/slaves/nvme0n1", &format!("{one}/nvme/nvme0/nvme0n1"));
        let of = |number: &str| {
            let mut found: Vec<String> = kernel.controllers_of(number).iter().map(ToString::to_string).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(of("259:0"), ["0000:03:00.0"]);
        assert_eq!(of("259:1"), ["0000:03:00.0"]);
        assert_eq!(of("259:2"), ["0000:03:00.0", "0000:04:00.0"]);
        assert_eq!(of("7:0"), [""; 0]);
        assert_eq!(of("253:0"), ["0000:03:00.0"], "by what it is made of");
    }

    #[test]
    fn a_drive_that_nobody_uses() {
        let (_dir, kernel) = machine("22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\nshort line\n", "", "/srv/other.img");
        assert_eq!(kernel.uses_of_block("8:0"), []);
        assert_eq!(kernel.uses_of_file(Path::new("/srv/drive.img")), []);
        assert_eq!(kernel.uses_of_block("9:9"), [], "no such drive");
    }

    #[test]
    fn every_use_of_a_drive_and_its_partitions_is_told() {
        let mounts = "22 1 8:1 / /srv/my\\040data rw,relatime - ext4 /dev/sda1 rw\n";
        let (_dir, kernel) = machine(mounts, "/dev/sda2 partition 100 0 -2\n", "");
        fs::create_dir(kernel.sys.join("block/sda/sda2/holders/dm-0")).expect("directory");
        let found = kernel.uses_of_block("8:0");
        let part = |name: &str| Some(name.to_owned());
        for used in [
            InUse::Mounted { part: part("sda1"), at: "/srv/my data".into() },
            InUse::Held { part: part("sda2"), holder: "dm-0".into() },
            InUse::Swap { part: part("sda2"), device: "/dev/sda2".into() },
        ] {
            assert!(found.contains(&used), "{used:?}: {found:?}");
        }
        assert_eq!(found.len(), 3);
        assert_eq!(kernel.uses_of_block("8:1"), [InUse::Mounted { part: None, at: "/srv/my data".into() }]);
        let told: Vec<String> = found.iter().map(|used| used.what(Path::new("/dev/sda"))).collect();
        assert!(told.contains(&"/dev/sda (its partition sda2) is used as swap".to_owned()), "{told:?}");
    }

    #[test]
    fn a_file_may_be_swap_or_behind_a_loop_device() {
        let (_dir, kernel) = machine("", "/swap\\040file file 100 0 -3\n", "/srv/drive.img");
        let swap = Path::new("/swap file");
        assert_eq!(kernel.uses_of_file(swap), [InUse::Swap { part: None, device: swap.to_owned() }]);
        let behind = kernel.uses_of_file(Path::new("/srv/drive.img"));
        assert_eq!(behind, [InUse::Loop { device: "/dev/loop3".into() }]);
        assert_eq!(behind[0].remedy(), "choose another one, or detach it: losetup -d /dev/loop3");
        assert_eq!(kernel.uses_of_file(Path::new("Filename")), [], "the heading is no file");
    }

    #[test]
    fn a_partition_may_be_behind_a_loop_device() {
        let (_dir, kernel) = machine("", "", "/dev/sda1");
        assert_eq!(kernel.uses_of_block("8:0"), [InUse::Loop { device: "/dev/loop3".into() }]);
    }

    #[test]
    fn a_locked_file_is_in_use_until_it_is_let_go() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("drive.img");
        assert_eq!(uses(&path), [], "nothing is there");
        fs::write(&path, "data").expect("written");
        let locked = lock(&path).expect("free");
        assert_eq!(uses(&path), [InUse::Locked]);
        drop(locked);
        assert_eq!(uses(&path), []);
    }

    #[test]
    fn another_name_of_the_file_behind_a_loop_device_is_no_way_around() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (image, link) = (dir.path().join("drive.img"), dir.path().join("link.img"));
        fs::write(&image, "data").expect("written");
        fs::hard_link(&image, &link).expect("linked");
        let (_machine, kernel) = machine("", "", &image.to_string_lossy());
        assert_eq!(kernel.uses_of_file(&link), [InUse::Loop { device: "/dev/loop3".into() }]);
        assert_eq!(kernel.uses_of_file(&dir.path().join("other.img")), []);
    }
}
