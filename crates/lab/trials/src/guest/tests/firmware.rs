//! Guests that boot from our disks: their firmware reads 100 MB of kernel before any driver of Linux's does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::foreign::verify;
use crate::guest::boot_image::{self, Kernel};
use crate::guest::daemon::Daemon;
use crate::guest::lab::Lab;
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Disk, Extras, Guest, Machine, VCPUS};

/// Of kernel and initrd together: requests of firmware are as large as a file's parts that lie in a row.
const KERNEL_BYTES: u64 = 100_000_000;
const LIMIT: Duration = Duration::from_secs(300);

/// What a guest starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Uefi,
    Bios,
}

/// Only here: a request of virtio-blk as large as a kernel, and commands of a driver that is not Linux's.
pub fn uefi_512(lab: &mut Lab) -> Result<()> {
    boot_from_each(lab, "foreign-uefi-512", Start::Uefi, 512)
}

/// Only here: as before, where a block is not a sector.
pub fn uefi_4096(lab: &mut Lab) -> Result<()> {
    boot_from_each(lab, "foreign-uefi-4096", Start::Uefi, 4096)
}

/// Only here: a controller and a ring that 16-bit code drives.
///
/// It boots from 512-byte blocks alone: SeaBIOS (1.17) takes no virtio disk of others, and GRUB's first sectors count
/// in them. Disks of 4096-byte blocks may stand beside, which takes a `bootindex`: SeaBIOS tries one hard disk alone,
/// and an NVMe disk of 4096-byte blocks may be that one.
pub fn bios_512(lab: &mut Lab) -> Result<()> {
    boot_from_each(lab, "foreign-bios-512", Start::Bios, 512)
}

/// Boots a guest from an NVMe disk, and another one from a virtio disk with the same content.
fn boot_from_each(lab: &mut Lab, name: &str, start: Start, block_bytes: u64) -> Result<()> {
    let binary = lab.binary().context("QEMU's own drives are not in question here")?;
    let firmware = lab.machine().images().firmware()?;
    let dir = lab.dir().join(name);
    fs::create_dir_all(&dir)?;
    let image = dir.join("boot.img");
    let (machine, padding) = padded(lab, name, &dir)?;
    let kernel = machine.images().kernel();
    boot_image::make(&firmware, &image, block_bytes, &Kernel { kernel: &kernel, initrd: machine.initrd() })?;
    // Some 100 MB, which nobody reads any more.
    fs::remove_file(padding)?;
    fs::remove_file(machine.initrd())?;
    let sum = sum_of(&image)?;
    for (frontend, socket) in [("vfio-user", "cntrl"), ("vhost-user-blk", "vhost.sock")] {
        let run = dir.join(format!("run-{frontend}"));
        let served = configuration(&run, &image, frontend, block_bytes);
        let sockets = [run.join("boot").join(socket), run.join("nvme/cntrl"), run.join("virtio/vhost.sock")];
        let daemon = Daemon::start_with(&binary, &dir, &served, &sockets)?;
        let [boot, nvme, virtio] = sockets;
        let boot = if frontend == "vfio-user" { Disk::VfioUser(boot) } else { Disk::VhostUser(boot) };
        let disks = [boot, Disk::VfioUser(nvme), Disk::VhostUser(virtio)];
        let qemu_arguments = match start {
            Start::Uefi => firmware.uefi(lab.dir(), &format!("{name}-{frontend}"))?,
            Start::Bios => Vec::new(),
        };
        let extras = Extras { qemu_arguments, boots_from_disk: true, ..Extras::default() };
        let name = format!("{name}-{frontend}");
        let mut guest = Guest::spawn_with(lab.machine(), lab.accel(), &name, Qemu::Newest, &disks, extras)?;
        let read = guest.wait_ready().and_then(|()| {
            let node = node_of(&mut guest, "boot")?;
            let read = guest.run_within(&format!("sha256sum /dev/{node}"), LIMIT)?;
            ensure!(read.split_whitespace().next() == Some(&*sum), "{node} reads as {read}, and not as {sum}");
            let block = guest.run(&format!("cat /sys/block/{node}/queue/logical_block_size"))?;
            ensure!(block.trim() == block_bytes.to_string(), "{node} has blocks of {block}");
            for serial in ["nvme", "virtio"] {
                let node = node_of(&mut guest, serial)?;
                verify(&mut guest, &format!("/dev/{node}"))?;
            }
            let log = daemon.log_text();
            ensure!(!["refused", "disconnected", "failed"].iter().any(|word| log.contains(word)), "{log}");
            Ok(())
        });
        read.with_context(|| format!("{frontend}: {}\n{}", daemon.log_text(), guest.logs()))?;
        drop(guest);
        daemon.stop()?;
    }
    fs::remove_dir_all(dir)?;
    Ok(())
}

/// A disk with the content of `image`, and one of each kind with 4096-byte blocks.
fn configuration(run: &Path, image: &Path, frontend: &str, block_bytes: u64) -> String {
    let size = boot_image::SIZE_BYTES >> 20;
    let others = [("nvme", "vfio-user"), ("virtio", "vhost-user-blk")].map(|(name, frontend)| {
        format!(
            "[[tenant]]\nname = {name:?}\ndrive = \"other\"\nsize = \"16MiB\"\nlba_size = 4096\n\
             frontend = {frontend:?}\nqueues = {VCPUS}\n"
        )
    });
    format!(
        "runtime_dir = {run:?}\n[[drive]]\nname = \"image\"\nbackend = \"file\"\npath = {image:?}\n\
         size = \"{size}MiB\"\n[[drive]]\nname = \"other\"\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         [policy]\nname = \"passthrough\"\n[[tenant]]\nname = \"boot\"\ndrive = \"image\"\noffset = 0\n\
         size = \"{size}MiB\"\nlba_size = {block_bytes}\nfrontend = {frontend:?}\nqueues = {VCPUS}\n{}",
        others.concat()
    )
}

/// What a guest calls the disk with a serial number: it numbers controllers as it finds them.
fn node_of(guest: &mut Guest, serial: &str) -> Result<String> {
    let find = format!("grep -lw {serial} /sys/block/*/serial /sys/block/*/device/serial | cut -d / -f 4");
    Ok(guest.run(&find)?.trim().to_owned())
}

/// A machine whose kernel and initrd have [`KERNEL_BYTES`] together, and what the initrd was filled up with.
fn padded(lab: &Lab, name: &str, dir: &Path) -> Result<(Machine, PathBuf)> {
    let machine = lab.machine();
    let has = fs::metadata(machine.images().kernel())?.len() + fs::metadata(machine.initrd())?.len();
    let lacks = KERNEL_BYTES.checked_sub(has).with_context(|| format!("kernel and initrd have {has} bytes"))?;
    let padding = dir.join("padding");
    let mut content = vec![0; usize::try_from(lacks)?];
    fastrand::Rng::with_seed(1).fill(&mut content);
    fs::write(&padding, content)?;
    Ok((machine.with_programs(name, &[("padding".to_owned(), padding.clone())])?, padding))
}

fn sum_of(image: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(image).output().context("sha256sum is coreutils'")?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("sha256sum says nothing")?.to_owned())
}
