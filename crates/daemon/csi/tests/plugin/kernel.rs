//! The host as it is, on a loop device in place of a disk of ublk's. Needs root.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use csi::{Content, FileSystem, Host, Linux};
use tempfile::TempDir;

/// A loop device with the mounts of a test, which go with it.
struct Loop {
    home: TempDir,
    device: PathBuf,
}

impl Loop {
    /// `None`, in words: this process may not make one.
    fn make(mib: u64) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let image = home.path().join("image");
        File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            eprintln!("skipped: a loop device takes root, the kernel's driver and losetup");
            return None;
        };
        let device = String::from_utf8(made.stdout).unwrap().trim().into();
        for name in ["staged", "pod"] {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        Some(Self { home, device })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn grow(&self, mib: u64) {
        File::options().write(true).open(self.path("image")).unwrap().set_len(mib << 20).unwrap();
        assert!(Command::new("losetup").arg("--set-capacity").arg(&self.device).status().unwrap().success());
    }

    fn mount_count(&self) -> usize {
        Linux.mounts().unwrap().iter().filter(|mount| mount.is_of(&self.device)).count()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        for name in ["pod", "staged"] {
            let _ = Command::new("umount").arg("--quiet").arg(self.path(name)).status();
        }
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// Whether this process may resize mounted file systems (CAP_SYS_RESOURCE, bit 24 of capability(7)).
fn may_resize() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let may = u64::from_str_radix(effective, 16).unwrap() & (1 << 24) != 0;
    if !may {
        eprintln!("skipped: a mounted file system grows with CAP_SYS_RESOURCE only");
    }
    may
}

/// Only here: a program of the host is called with a wrong option, so that nothing is formatted, mounted or read-only.
#[test]
fn a_file_system_is_made_mounted_bound_and_grown() {
    let Some(disk) = Loop::make(64) else { return };
    let (staged, pod) = (disk.path("staged"), disk.path("pod"));
    assert_eq!(Linux.content(&disk.device).unwrap(), Content::Nothing);
    Linux.format(&disk.device, FileSystem::Ext4).unwrap();
    assert_eq!(Linux.content(&disk.device).unwrap(), Content::Of(FileSystem::Ext4));
    Linux.mount(&disk.device, &staged, FileSystem::Ext4, &["noatime".to_owned()]).unwrap();
    Linux.bind(&staged, &pod, true).unwrap();
    fs::write(staged.join("file"), "kept").unwrap();
    assert_eq!(fs::read_to_string(pod.join("file")).unwrap(), "kept");
    assert_eq!(fs::write(pod.join("file"), "lost").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(disk.mount_count(), 2);
    let is_read_only = |path: &Path| Linux.mounts().unwrap().iter().any(|it| it.target == path && it.read_only);
    assert!(is_read_only(&pod) && !is_read_only(&staged));

    Linux.grow(&disk.device, &staged, FileSystem::Ext4).unwrap();
    let before = Linux.usage(&staged).unwrap();
    disk.grow(256);
    assert_eq!(Linux.device_bytes(&disk.device).unwrap(), 256 << 20);
    if may_resize() {
        Linux.grow(&disk.device, &staged, FileSystem::Ext4).unwrap();
        let after = Linux.usage(&staged).unwrap();
        assert!(after.total_bytes > 3 * before.total_bytes, "{before:?}, {after:?}");
        assert!(after.total_inodes > before.total_inodes && after.available_bytes <= after.total_bytes);
    }

    assert!(Linux.unmount(&disk.path("nowhere")).is_err());
    Linux.unmount(&pod).unwrap();
    Linux.unmount(&staged).unwrap();
    assert_eq!(disk.mount_count(), 0);
}

/// Only here: a disk with data of another kind is formatted.
#[test]
fn a_device_with_other_data_is_not_empty() {
    let Some(disk) = Loop::make(16) else { return };
    let made = Command::new("mkswap").arg(&disk.device).output().unwrap();
    assert!(made.status.success());
    assert_eq!(Linux.content(&disk.device).unwrap(), Content::Other("swap".to_owned()));
}
