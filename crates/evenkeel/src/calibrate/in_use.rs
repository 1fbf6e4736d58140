//! Whether a drive is in use: what the kernel tells about mounts, swap and devices on top of others.

use std::fs;
use std::path::{Path, PathBuf};

use super::Refused;

/// Refuses a block device that is in use as a whole or in part. `number` is its `major:minor`.
pub fn refuse_block(path: &Path, number: &str) -> Result<(), Refused> {
    let sys = PathBuf::from(format!("/sys/dev/block/{number}"));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for (part, number, directory) in parts(&sys, number) {
        let shown =
            if part.is_empty() { path.display().to_string() } else { format!("{} (its {part})", path.display()) };
        if let Some(at) = mount_point(&mounts, &number) {
            let remedy = format!("choose another drive, or unmount it: umount {at}");
            return Err(Refused::new(format!("{shown} is mounted at {at}"), remedy));
        }
        if let Some(holder) = first_entry(&directory.join("holders")) {
            let remedy = format!("choose another drive, or take {holder} apart first (`lsblk` shows what it is)");
            return Err(Refused::new(
                format!("{shown} is part of {holder} (device mapper, RAID, LVM or bcache)"),
                remedy,
            ));
        }
        let name = directory.canonicalize().ok().and_then(|at| Some(at.file_name()?.to_string_lossy().into_owned()));
        if let Some(name) = name {
            refuse_swap(&PathBuf::from(format!("/dev/{name}")), &shown)?;
        }
    }
    Ok(())
}

/// Refuses a file that is used as swap or behind a loop device.
pub fn refuse_file(path: &Path) -> Result<(), Refused> {
    let shown = path.display().to_string();
    let Ok(path) = path.canonicalize() else { return Ok(()) };
    refuse_swap(&path, &shown)?;
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let behind = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if behind.trim_end_matches('\n') == path.to_string_lossy() {
            let device = format!("/dev/{}", entry.file_name().to_string_lossy());
            let remedy = format!("choose another file, or detach it: losetup -d {device}");
            return Err(Refused::new(format!("{shown} is what {device} is made of"), remedy));
        }
    }
    Ok(())
}

fn refuse_swap(path: &Path, shown: &str) -> Result<(), Refused> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if !is_swap(&swaps, &path.to_string_lossy()) {
        return Ok(());
    }
    let remedy = format!("choose another drive, or stop using it: swapoff {}", path.display());
    Err(Refused::new(format!("{shown} is used as swap"), remedy))
}

/// The device itself, then its partitions: name, number, directory in sysfs.
fn parts(sys: &Path, number: &str) -> Vec<(String, String, PathBuf)> {
    let mut parts = vec![(String::new(), number.to_owned(), sys.to_owned())];
    for entry in fs::read_dir(sys).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists()
            && let Ok(number) = fs::read_to_string(entry.path().join("dev"))
        {
            let name = format!("partition {}", entry.file_name().to_string_lossy());
            parts.push((name, number.trim().to_owned(), entry.path()));
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

/// Whether swap is on it (proc_swaps(5): the first field; spaces are `\040`).
fn is_swap(swaps: &str, path: &str) -> bool {
    let named = |line: &str| line.split_whitespace().next().map(|name| name.replace("\\040", " "));
    swaps.lines().skip(1).filter_map(named).any(|name| name == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_the_devices_number() {
        let mounts = "22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n30 22 8:16 / /srv/my\\040data rw - xfs /dev/sdb rw\n";
        assert_eq!(mount_point(mounts, "259:1").as_deref(), Some("/"));
        assert_eq!(mount_point(mounts, "8:16").as_deref(), Some("/srv/my data"));
        assert_eq!(mount_point(mounts, "8:1"), None);
        assert_eq!(mount_point("", "8:1"), None);
    }

    #[test]
    fn swap_is_found_by_its_path() {
        let swaps = "Filename Type Size Used Priority\n/dev/sda2 partition 100 0 -2\n/swap\\040file file 100 0 -3\n";
        assert!(is_swap(swaps, "/dev/sda2") && is_swap(swaps, "/swap file"));
        assert!(!is_swap(swaps, "/dev/sda") && !is_swap(swaps, "Filename") && !is_swap("", "/dev/sda"));
    }
}
