//! Firmware of Debian's, and the programs that make disks which it boots from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::{PrivateApt, quietly};
use super::prepare::{RELEASE, run_in};
use super::{debian, mirror};

/// Names the cached folder; raise it when the packages change.
const RECIPE: u32 = 1;

const PACKAGES: [&str; 6] = ["ovmf", "systemd-boot-efi", "dosfstools", "mtools", "grub-common", "grub-pc-bin"];

/// The cached folder.
pub struct Firmware(PathBuf);

impl Firmware {
    /// QEMU's arguments for UEFI (OVMF); the variables that it writes are `guest`'s own, in `dir`.
    ///
    /// # Errors
    /// When `dir` can't be written.
    pub fn uefi(&self, dir: &Path, guest: &str) -> Result<Vec<String>> {
        let variables = dir.join(format!("{guest}.variables"));
        fs::copy(self.0.join("usr/share/OVMF/OVMF_VARS_4M.fd"), &variables).context("ovmf")?;
        let code = self.0.join("usr/share/OVMF/OVMF_CODE_4M.fd");
        let flash = [format!("readonly=on,file={}", code.display()), format!("file={}", variables.display())];
        let flash = flash.iter().enumerate();
        Ok(flash.flat_map(|(unit, it)| ["-drive".into(), format!("if=pflash,format=raw,unit={unit},{it}")]).collect())
    }

    /// The start of a UEFI program, to which a kernel is added.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn stub(&self) -> Result<Vec<u8>> {
        fs::read(self.0.join("usr/lib/systemd/boot/efi/linuxx64.efi.stub")).context("systemd-boot-efi")
    }

    /// Runs a program of the folder.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, program: &str, arguments: impl FnOnce(&mut Command)) -> Result<()> {
        let mut command = run_in(&self.0, program);
        arguments(&mut command);
        quietly(&mut command).with_context(|| program.to_owned())
    }

    /// GRUB's parts for a BIOS.
    pub fn grub(&self) -> PathBuf {
        self.0.join("usr/lib/grub/i386-pc")
    }
}

/// The folder, made before or now.
///
/// # Errors
/// When this machine cannot make it; the message says why.
pub fn find_or_make(cache: &Path) -> Result<Firmware> {
    let dir = debian::once(cache, "firmware", RECIPE, |dir| {
        println!("guest-prepare {}", PACKAGES.join(", "));
        let apt_dir = dir.join("apt");
        PrivateApt::new(&apt_dir, &mirror::find()?, &[RELEASE])?.unpack(RELEASE, &PACKAGES, &dir.join("root"))?;
        Ok(fs::remove_dir_all(&apt_dir)?)
    })?;
    Ok(Firmware(dir.join("root").canonicalize()?))
}
