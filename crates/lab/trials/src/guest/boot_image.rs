//! Disks that firmware boots from: one FAT partition, with a kernel for UEFI and one for a BIOS.
//!
//! For UEFI it is one file, as distributions have it (a unified kernel image): the firmware reads all of it at once. A
//! BIOS starts GRUB, which lies before the partition.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::firmware::Firmware;
use super::qemu::KERNEL_ARGUMENTS;

/// Where the partition starts.
const START_BYTES: u64 = 1 << 20;
/// Of the disk, with two kernels of 100 MB.
pub const SIZE_BYTES: u64 = 256 << 20;

/// A kernel and what it unpacks.
pub struct Kernel<'a> {
    pub kernel: &'a Path,
    pub initrd: &'a Path,
}

/// Makes a disk of blocks of `block_bytes`; `path` names it and GRUB's files beside it.
///
/// # Errors
/// When a file can't be read or written, or a program fails.
pub fn make(firmware: &Firmware, path: &Path, block_bytes: u64, kernel: &Kernel) -> Result<()> {
    let disk = fs::File::create_new(path)?;
    disk.set_len(SIZE_BYTES)?;
    let grub = path.with_extension("grub");
    make_grub(firmware, &grub)?;
    let mut first = fs::read(firmware.grub().join("boot.img"))?;
    ensure!(first.len() == 512, "GRUB's first sector has {} bytes", first.len());
    // Instead of GRUB's code for floppy disks.
    first[446..510].fill(0);
    first[446..462].copy_from_slice(&entry(block_bytes));
    first[510..].copy_from_slice(&[0x55, 0xaa]);
    disk.write_all_at(&first, 0)?;
    let core = fs::read(&grub)?;
    ensure!(512 + core.len() as u64 <= START_BYTES, "GRUB has {} bytes", core.len());
    disk.write_all_at(&core, 512)?;

    let unified = path.with_extension("efi");
    fs::write(&unified, unify(firmware.stub()?, kernel)?)?;
    let kibibytes = (SIZE_BYTES - START_BYTES) >> 10;
    let start = (START_BYTES / block_bytes).to_string();
    firmware.run("usr/sbin/mkfs.fat", |command| {
        command.args(["-S", &block_bytes.to_string(), "--offset", &start]).arg(path).arg(kibibytes.to_string());
    })?;
    let partition = format!("{}@@{START_BYTES}", path.display());
    for folder in ["::/EFI", "::/EFI/BOOT"] {
        firmware.run("usr/bin/mtools", |command| {
            command.args(["-c", "mmd", "-i", &partition, folder]);
        })?;
    }
    let files = [(&*unified, "::/EFI/BOOT/BOOTX64.EFI"), (kernel.kernel, "::/vmlinuz"), (kernel.initrd, "::/initrd")];
    for (file, to) in files {
        firmware.run("usr/bin/mtools", |command| {
            command.args(["-c", "mcopy", "-i", &partition]).arg(file).arg(to);
        })?;
    }
    fs::remove_file(unified)?;
    Ok(())
}

/// The one entry of a partition table: an EFI system partition, by its blocks alone.
fn entry(block_bytes: u64) -> [u8; 16] {
    let mut entry = [0, 0xff, 0xff, 0xff, 0xef, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    let blocks = [START_BYTES, SIZE_BYTES - START_BYTES].map(|bytes| (bytes / block_bytes) as u32);
    entry[8..12].copy_from_slice(&blocks[0].to_le_bytes());
    entry[12..].copy_from_slice(&blocks[1].to_le_bytes());
    entry
}

/// GRUB as it lies behind a disk's first sector: by default that finds it there.
fn make_grub(firmware: &Firmware, to: &Path) -> Result<()> {
    let script = to.with_extension("cfg");
    let commands = format!(
        "serial --unit=0 --speed=115200\nterminal_output serial\nset root=(hd0,msdos1)\n\
         linux /vmlinuz {KERNEL_ARGUMENTS}\ninitrd /initrd\nboot\n"
    );
    fs::write(&script, commands)?;
    firmware.run("usr/bin/grub-mkimage", |command| {
        command.args(["-O", "i386-pc", "-p", "/grub", "-d"]).arg(firmware.grub());
        command.arg("-c").arg(script).arg("-o").arg(to);
        command.args(["biosdisk", "part_msdos", "fat", "linux", "serial", "terminal"]);
    })
}

/// Adds sections to a UEFI program (Microsoft's "PE Format"): its kernel, what that unpacks and its command line.
fn unify(mut program: Vec<u8>, kernel: &Kernel) -> Result<Vec<u8>> {
    const SECTION_BYTES: usize = 40;
    const READABLE_DATA: u32 = 0x4000_0040;
    let sections = [
        (b".cmdline", format!("{KERNEL_ARGUMENTS}\0").into_bytes()),
        (b".linux\0\0", fs::read(kernel.kernel)?),
        (b".initrd\0", fs::read(kernel.initrd)?),
    ];
    let header = word(&program, 0x3c)? as usize;
    let count = usize::from(half(&program, header + 6)?);
    let optional = header + 24;
    let table = optional + usize::from(half(&program, header + 20)?);
    let (alignment, file_alignment) = (word(&program, optional + 32)?, word(&program, optional + 36)?);
    let headers_bytes = word(&program, optional + 60)? as usize;
    let end = table + (count + sections.len()) * SECTION_BYTES;
    ensure!(end <= headers_bytes, "the program has no room for sections");

    let mut address = word(&program, optional + 56)?;
    for (index, (name, content)) in sections.iter().enumerate() {
        program.resize(program.len().next_multiple_of(file_alignment as usize), 0);
        let size = u32::try_from(content.len())?;
        let place = u32::try_from(program.len())?;
        let fields = [size, address, size.next_multiple_of(file_alignment), place, 0, 0, 0, READABLE_DATA];
        let at = table + (count + index) * SECTION_BYTES;
        program[at..at + 8].copy_from_slice(*name);
        for (field, value) in fields.iter().enumerate() {
            program[at + 8 + field * 4..][..4].copy_from_slice(&value.to_le_bytes());
        }
        program.extend_from_slice(content);
        address = (address + size).next_multiple_of(alignment);
    }
    program.resize(program.len().next_multiple_of(file_alignment as usize), 0);
    program[header + 6..header + 8].copy_from_slice(&u16::try_from(count + sections.len())?.to_le_bytes());
    program[optional + 56..optional + 60].copy_from_slice(&address.to_le_bytes());
    Ok(program)
}

fn word(program: &[u8], at: usize) -> Result<u32> {
    let bytes = program.get(at..at + 4).context("the program is cut")?;
    Ok(u32::from_le_bytes(bytes.try_into()?))
}

fn half(program: &[u8], at: usize) -> Result<u16> {
    Ok(word(program, at)? as u16)
}
