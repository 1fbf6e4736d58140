//! Evenkeel's programs inside of a guest, on kernels and devices that the host may not have.

use anyhow::{Context, Result, ensure};

use crate::guest::inside::{Inside, UBLK_MODULES, VFIO_MODULES};
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;

const TENANT: &str = "db";

/// The daemon serves a disk of the guest's memory, and the load generator verifies what it writes there. The guest has
/// what later tests stand on: an IOMMU, VFIO, ublk.
pub fn run_inside(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("programs").iommu().modules(&VFIO_MODULES).modules(&UBLK_MODULES).nvme("ek0", 4, 64);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    serve_and_load(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn serve_and_load(guest: &mut Guest) -> Result<()> {
    guest.run("test -c /dev/vfio/vfio && test -c /dev/ublk-control && test -b /dev/nvme0n1")?;
    // Alone in its group: its IOMMU can keep it from everything else.
    let group = guest.run("ls /sys/bus/pci/devices/0000:00:04.0/iommu_group/devices")?;
    ensure!(group.trim() == "0000:00:04.0", "the drive's IOMMU group: {group}");

    let version = guest.evenkeel("--version")?;
    ensure!(version.starts_with("evenkeel "), "{version}");
    guest.serve(&format!(
        "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
         [[tenant]]\nname = \"{TENANT}\"\nsize = \"32MiB\"\nclass = \"best-effort\"\n"
    ))?;
    let load = format!("load /run/ek/{TENANT} --rw randwrite --bs 4k --iodepth 4 --size 4m --verify --json");
    let told = guest.evenkeel(&load)?;
    ensure!(told.contains("\"total_ios\": 1024") && told.contains("\"bad_blocks\": 0"), "{told}");
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0 && !ended.text.contains("panicked"), "{ended:?}");
    Ok(())
}
