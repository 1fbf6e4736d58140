//! A guest that is a whole Debian with systemd, on a drive of which nothing is kept, and Evenkeel's package in it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::agent::Output;
use super::inside::{Inside, PROGRAM_LIMIT};
use super::lab::Lab;
use super::qemu::Guest;
use super::required;
use super::system_image::System;
use crate::package::{self, Effort};

/// Where such a guest has the files that it was given.
pub const FILES: &str = "/root/files";

const JOURNAL_LIMIT: Duration = Duration::from_secs(120);

/// Boots a guest so, with `files` in [`FILES`]; it has an IOMMU, and the modules for block devices that a process
/// serves and for user-space drivers. Its own drive takes slot 4.
///
/// # Errors
/// When the system can't be made, or does not boot; the error holds its console.
pub fn boot(guest: Inside, lab: &Lab, system: System, files: &[PathBuf]) -> Result<Guest> {
    let image = lab.machine().images().system(system)?;
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

/// Packs the lab's programs for a test, in each of these versions. None where the lab has no programs, in a
/// self-check, or this machine can't make packages, which is said.
///
/// # Errors
/// When a package can't be made, or none where one is required.
pub fn packages(lab: &Lab, test: &str, versions: &[&str]) -> Result<Option<Vec<PathBuf>>> {
    let Some(binary) = lab.binary() else { return Ok(None) };
    if let Err(why) = package::find_cargo_deb() {
        ensure!(!required(), "{why}");
        println!("guest test {test}: skipped, {why}");
        return Ok(None);
    }
    let folder = lab.dir().join("debian");
    let packages: Vec<PathBuf> = versions.iter().map(|version| folder.join(archive(version))).collect();
    // Another test of the run may have made them.
    if !packages.iter().all(|package| package.exists()) {
        package::stage(binary.parent().context("the programs' folder")?)?;
        versions.iter().try_for_each(|version| package::pack(Some(version), &folder, Effort::Quick).map(drop))?;
    }
    Ok(Some(packages))
}

/// The file that a version of the package is.
fn archive(version: &str) -> String {
    format!("evenkeel_{version}_amd64.deb")
}

/// The package in the guest.
impl Guest {
    /// Runs `dpkg` with `arguments`, whatever its exit code.
    ///
    /// # Errors
    /// As [`Guest::attempt`].
    pub fn dpkg(&mut self, arguments: &str) -> Result<Output> {
        self.attempt(&format!("DEBIAN_FRONTEND=noninteractive dpkg {arguments} 2>&1"), PROGRAM_LIMIT)
    }

    /// Installs a version of the package, which is among [`FILES`], and returns what is said meanwhile.
    ///
    /// # Errors
    /// When that fails.
    pub fn install_version(&mut self, version: &str) -> Result<String> {
        let told = self.dpkg(&format!("-i {FILES}/{}", archive(version)))?;
        ensure!(told.code == 0, "{}", told.text);
        Ok(told.text)
    }

    /// The end of the journal and how the daemon is, for a failure's report.
    pub fn journal(&mut self) -> String {
        let journal = "journalctl --no-pager -n 60 -o short-monotonic; systemctl --no-pager status evenkeeld";
        let told = self.attempt(journal, JOURNAL_LIMIT).map_or_else(|error| error.to_string(), |output| output.text);
        format!("--- journal ---\n{told}\n--- end of the journal ---")
    }
}
