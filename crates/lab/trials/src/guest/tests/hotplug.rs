//! A drive without the kernel that is added while the daemon runs, unplugged under load, and plugged in again.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::guest::daemon::make_image;
use crate::guest::inside::{Inside, PROGRAM_LIMIT, UBLK_MODULES, VFIO_MODULES};
use crate::guest::lab::Lab;
use crate::guest::qemu::{Disk, Guest, PORTS};
use crate::guest::qmp::Qmp;

const DRIVE_MIB: u64 = 128;
/// QEMU's name for it, and its serial number.
const ID: &str = "hot0";
/// The block device of a tenant on it.
const VOLUME: &str = "/dev/evenkeel/vol";

/// Tenants of a drive that goes get errors, others notice nothing, and once it is back it serves what they wrote.
pub fn unplugged_and_plugged_again(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("hotplug").iommu().modules(&VFIO_MODULES).modules(&UBLK_MODULES);
    let image = lab.dir().join("hotplug-drive.img");
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    make_image(&image, DRIVE_MIB)?;
    unplug_and_plug(&mut guest, &image).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn unplug_and_plug(guest: &mut Guest, image: &Path) -> Result<()> {
    let disk = Disk::QemuNvme(image.to_owned());
    guest.serve(
        "[[drive]]\nname = \"calm\"\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         [[tenant]]\nname = \"other\"\nsize = \"32MiB\"\ndrive = \"calm\"\n",
    )?;
    let address = plug(guest, &disk)?;
    let add = format!("drive add fast --backend nvme --address {address}");
    guest.evenkeel(&format!("drive release {address}"))?;
    let told = guest.attempt_evenkeel(&format!("{add} --socket /run/ek/api.sock"))?;
    ensure!(told.code == 2 && told.text.contains("evenkeel drive claim"), "{told:?}");
    guest.evenkeel(&format!("drive claim {address}"))?;
    guest.ask_daemon(&add)?;
    // Repeating it finds the drive there.
    guest.ask_daemon(&add)?;
    guest.ask_daemon("disk create db --size 32MiB --drive fast --class guaranteed --latency-target 200ms")?;
    guest.ask_daemon("disk create vol --size 32MiB --drive fast --frontend ublk")?;
    guest.verify_tenant("db")?;
    guest.wait_for("the block device", &format!("test -b {VOLUME}"))?;
    guest.run(&format!(
        "dd if=/dev/urandom of=/run/written bs=1M count=16 && dd if=/run/written of={VOLUME} bs=1M oflag=direct"
    ))?;
    let shown = guest.ask_daemon("drive show fast")?;
    ensure!(shown.contains("°C") && shown.contains("0 media errors"), "{shown}");
    let shown = guest.evenkeel("stats --once --runtime-dir /run/ek")?;
    ensure!(shown.contains("drive fast: ") && shown.contains("°C"), "{shown}");

    guest.start_job("load", "exec evenkeel load /run/ek/db --rw randread --bs 4k --runtime 300s", PROGRAM_LIMIT)?;
    let is_attached = "evenkeel disk show db --json --socket /run/ek/api.sock | grep -q '\"attached\": *true'";
    guest.wait_for("the client", is_attached)?;
    guest.monitor()?.unplug(&disk, ID)?;
    let ended = guest.finish_job("load", PROGRAM_LIMIT)?;
    ensure!(ended.code != 0 && !ended.text.contains("panicked"), "{ended:?}");
    let listed = guest.ask_daemon("drive list")?;
    ensure!(listed.contains("failed: it was unplugged"), "{listed}");
    guest.run(&format!("! dd if={VOLUME} of=/dev/null bs=4k count=1 iflag=direct"))?;
    guest.verify_tenant("other")?;

    let address = plug(guest, &disk)?;
    guest.evenkeel(&format!("drive claim {address}"))?;
    guest.ask_daemon(&add)?;
    guest.wait_for("the block device", &format!("dd if={VOLUME} of=/dev/null bs=4k count=1 iflag=direct"))?;
    guest.run(&format!("dd if={VOLUME} bs=1M count=16 iflag=direct | cmp - /run/written"))?;
    guest.verify_tenant("db")?;
    guest.verify_tenant("other")?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0 && !ended.text.contains("panicked"), "{ended:?}");
    Ok(())
}

/// A drive that is late within the time limit loses nothing; beyond it, commands fail once and the drive goes on. What
/// it can't read is an error of that command alone.
pub fn late_and_wrong(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("late").iommu().modules(&VFIO_MODULES);
    let image = lab.dir().join("late-drive.img");
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    make_image(&image, DRIVE_MIB)?;
    be_late_and_wrong(&mut guest, &image).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

/// Beyond what is read before a drive is served, and what the tests write first.
const BAD_SECTOR: u64 = (24 << 20) / 512;
/// So few commands a second that a queue of them takes longer than the shortest time limit.
const SLOW_IOPS: u32 = 2;

fn be_late_and_wrong(guest: &mut Guest, image: &Path) -> Result<()> {
    let disk = Disk::QemuNvme(image.to_owned());
    let monitor = guest.monitor()?.with_bad_sector(BAD_SECTOR);
    let address = plug_by(guest, monitor, &disk)?;
    guest.evenkeel(&format!("drive claim {address}"))?;
    let tenant = "[[tenant]]\nname = \"db\"\nsize = \"64MiB\"\noffset = \"0\"\n";
    let serve = |guest: &mut Guest, limit: &str| {
        guest.serve(&format!(
            "[device]\nbackend = \"nvme\"\naddress = \"{address}\"\ncommand_timeout = \"{limit}\"\n{tenant}"
        ))
    };
    let few = "load /run/ek/db --rw randwrite --bs 4k --iodepth 16 --size 64k --verify --json";
    serve(guest, "60s")?;
    guest.monitor()?.throttle(ID, SLOW_IOPS)?;
    let told = guest.evenkeel(few)?;
    ensure!(told.contains("\"total_ios\":16") && told.contains("\"bad_blocks\":0"), "{told}");
    guest.monitor()?.throttle(ID, 0)?;
    let told = guest.attempt_evenkeel("load /run/ek/db --rw read --bs 64k --iodepth 1 --size 32m --json")?;
    ensure!(told.code != 0, "a bad sector is read: {told:?}");
    guest.verify_tenant("db")?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0 && !ended.text.contains("aborted"), "{ended:?}");

    serve(guest, "1s")?;
    guest.monitor()?.throttle(ID, SLOW_IOPS)?;
    let told = guest.attempt_evenkeel(few)?;
    ensure!(told.code != 0, "no command was too late: {told:?}");
    guest.monitor()?.throttle(ID, 0)?;
    guest.verify_tenant("db")?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0 && ended.text.contains("did not end within 1s and is aborted"), "{ended:?}");
    Ok(())
}

/// Plugs the drive in; its address.
fn plug(guest: &mut Guest, disk: &Disk) -> Result<String> {
    let monitor = guest.monitor()?;
    plug_by(guest, monitor, disk)
}

fn plug_by(guest: &mut Guest, mut monitor: Qmp, disk: &Disk) -> Result<String> {
    monitor.plug(disk, ID, PORTS[0])?;
    guest.wait_for("the kernel's disk", "test -b /dev/nvme0n1")?;
    let address = guest.run("basename $(readlink -f /sys/block/nvme0n1/device/device)")?;
    Ok(address.trim().to_owned())
}
