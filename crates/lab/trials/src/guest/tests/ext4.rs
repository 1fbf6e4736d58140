//! A file system outlives its guest and the daemon.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::lab::{Lab, Tenant};
use crate::guest::qemu::Guest;

const LIMIT: Duration = Duration::from_secs(180);

/// An ext4 is filled; its files are unchanged after the guest's reboot, and again after the daemon
/// was stopped under a guest that had it mounted.
pub fn survives_restarts(lab: &mut Lab) -> Result<()> {
    let guest = lab.guest(Tenant::Guaranteed)?;
    guest.run_within("sh /usr/sbin/ext4-fill /dev/nvme0n1", LIMIT).context("filling")?;
    guest.run("umount /mnt")?;
    guest.reboot()?;
    check_files(guest, "/dev/nvme0n1").context("after the guest's reboot")?;

    // Still mounted, with files that are newer than the reboot.
    guest.run("cp -r /mnt/large /mnt/copy; sync")?;
    lab.restart_daemon()?;
    let guest = lab.guest(Tenant::Guaranteed)?;
    check_files(guest, "/dev/nvme0n1").context("after the daemon's restart")?;
    guest.run("for i in 1 2 3 4; do cmp /mnt/large/$i /mnt/copy/$i || exit 1; done")?;
    guest.run("umount /mnt")?;
    guest.run_within("e2fsck -f -n /dev/nvme0n1", LIMIT)?;
    Ok(())
}

/// Mounts the file system and compares every file with the checksum made when it was written.
pub fn check_files(guest: &mut Guest, device: &str) -> Result<()> {
    guest.run(&format!("mount -t ext4 {device} /mnt"))?;
    let checked = guest.run_within("cd /mnt && sha256sum -c SHA256SUMS", LIMIT)?;
    let files = checked.lines().filter(|line| line.ends_with(": OK")).count();
    // 200 small files less the ten that the script removes, and four large ones.
    ensure!(files == 194, "{files} files were checked:\n{checked}");
    Ok(())
}
