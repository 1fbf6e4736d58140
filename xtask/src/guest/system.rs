//! A guest that is a whole Debian with systemd, on a drive of which nothing is kept.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::inside::Inside;
use super::lab::Lab;
use super::qemu::Guest;

/// Where such a guest has the files that it was given.
pub const FILES: &str = "/root/files";

/// Boots a guest so, with `files` in [`FILES`]; it has an IOMMU, and the modules for block devices that a process
/// serves and for user-space drivers. Its own drive takes slot 4.
///
/// # Errors
/// When the system can't be made, or does not boot; the error holds its console.
pub fn boot(guest: Inside, lab: &Lab, files: &[PathBuf]) -> Result<Guest> {
    let image = lab.machine().images().system()?;
    // What is written goes with QEMU.
    let drive = format!("file={},format=raw,if=none,id=system,snapshot=on", image.display());
    let guest = guest.iommu().kernel(&["evenkeel.system"]).qemu(&[
        "-drive",
        &drive,
        "-device",
        "nvme,serial=system,drive=system,addr=0x4",
    ]);
    let guest = files.iter().try_fold(guest, |guest, file| {
        let name = file.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        anyhow::Ok(guest.program(&format!("for-system{FILES}/{name}"), file.clone()))
    })?;
    guest.boot_without_programs(lab)
}
