//! A whole drive that a VM has: bound, left alone by everybody else, and wiped before anybody has it again.

use anyhow::{Context, Result, ensure};

use super::drives::{disk_of, end_reading, refused, start_reading};
use crate::guest::inside::{Inside, VFIO_MODULES};
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;

const DRIVE: &str = "0000:00:04.0";
const MIB: u64 = 64;

/// A drive is assigned, refused to everybody else even after a restart of the host, and comes back without its data.
pub fn assigned_and_returned(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("assigned").iommu().modules(&VFIO_MODULES).nvme("ek0", 4, MIB);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    let told = assign(&mut guest).and_then(|()| take_back(&mut guest));
    told.with_context(|| guest.logs())
}

fn assign(guest: &mut Guest) -> Result<()> {
    let disk = disk_of(guest, DRIVE)?;
    guest.run(&format!("dd if=/dev/urandom of={disk} bs=1M count={MIB} oflag=direct"))?;
    refused(guest, &format!("return {DRIVE} --yes"), &["is assigned to no VM"])?;
    let told = guest.evenkeel(&format!("drive assign {DRIVE} --dry-run"))?;
    ensure!(told.contains("would unbind it from nvme"), "{told}");
    guest.run(&format!("test -b {disk}"))?;
    let told = guest.evenkeel(&format!("drive assign {DRIVE}"))?;
    let says =
        ["is assigned to a VM", "-device vfio-pci,host=0000:00:04.0", "slot='0x04'", "No latency can be promised"];
    ensure!(says.iter().all(|words| told.contains(words)), "{told}");
    let told = guest.evenkeel(&format!("drive assign {DRIVE} --json"))?;
    ensure!(told.contains("\"vfio-pci,host=0000:00:04.0\""), "{told}");
    let listed = guest.evenkeel("drive list")?;
    ensure!(listed.contains("assigned to a VM"), "{listed}");

    let remedy = "evenkeel drive return 0000:00:04.0";
    refused(guest, &format!("claim {DRIVE}"), &["is assigned to a VM", remedy])?;
    refused(guest, &format!("release {DRIVE}"), &["is assigned to a VM", remedy])?;
    let told = guest.attempt_evenkeel(&format!("calibrate --path {DRIVE} --output /run/not.toml"))?;
    ensure!(told.code == 2 && told.text.contains(remedy), "{told:?}");
    refused(guest, &format!("return {DRIVE} --forget"), &["is there, with the VM's data on it"])?;
    let section = format!("[[drive]]\nname = \"whole\"\nbackend = \"nvme\"\naddress = \"{DRIVE}\"\n");
    guest.write_file("/run/served.toml", &section)?;
    let told = guest.attempt_evenkeel("check /run/served.toml")?;
    ensure!(told.code == 2 && told.text.contains(remedy), "{told:?}");
    Ok(())
}

fn take_back(guest: &mut Guest) -> Result<()> {
    // The user of the function stands for the VM.
    start_reading(guest, DRIVE)?;
    refused(guest, &format!("return {DRIVE} --yes"), &["is in use by evenkeel"])?;
    end_reading(guest)?;
    refused(guest, &format!("return {DRIVE}"), &["nothing is erased"])?;
    // As a restart of the host leaves it.
    let sys = format!("/sys/bus/pci/devices/{DRIVE}");
    guest.run(&format!(
        "echo >{sys}/driver_override && echo {DRIVE} >{sys}/driver/unbind && echo {DRIVE} >/sys/bus/pci/drivers_probe"
    ))?;
    let disk = disk_of(guest, DRIVE)?;
    refused(guest, &format!("claim {DRIVE}"), &["is assigned to a VM"])?;
    guest.run(&format!("! cmp -s -n 4096 {disk} /dev/zero"))?;
    guest.write_file("/run/block.toml", &format!("[device]\nbackend = \"block\"\npath = \"{disk}\"\n"))?;
    let told = guest.attempt_evenkeel("check /run/block.toml")?;
    ensure!(told.code == 2 && told.text.contains("which is assigned to a VM"), "{told:?}");
    let told = guest.evenkeel(&format!("drive return {DRIVE} --yes"))?;
    ensure!(told.contains("is wiped (namespace 1:") && told.contains("and claimed"), "{told}");
    guest.evenkeel(&format!("drive release {DRIVE}"))?;
    let disk = disk_of(guest, DRIVE)?;
    guest.run(&format!("cmp -n {} {disk} /dev/zero", MIB << 20))?;
    let listed = guest.evenkeel("drive list")?;
    ensure!(!listed.contains("assigned"), "{listed}");
    Ok(())
}

/// A drive of a daemon's, two assignments at a time, and a namespace that would stay behind.
pub fn what_others_have(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("assigned-others").iommu().modules(&VFIO_MODULES).nvme("ek1", 5, MIB);
    let guest = guest.image("seen", 16).image("unseen", 16).qemu(&[
        "-device",
        "nvme-subsys,id=subsystem",
        "-device",
        "nvme,id=two,serial=two,addr=0x4,subsys=subsystem",
        "-device",
        "nvme-ns,drive=seen,bus=two,nsid=1,shared=on",
        "-device",
        "nvme-ns,drive=unseen,bus=two,nsid=2,shared=on,detached=on",
    ]);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    let told = daemons_disks(&mut guest).and_then(|()| at_once(&mut guest)).and_then(|()| left_behind(&mut guest));
    told.with_context(|| guest.logs())
}

/// The second drive.
const OTHER: &str = "0000:00:05.0";

/// The layout that the daemon made when the kernel had the drive is known of a claimed one too.
fn daemons_disks(guest: &mut Guest) -> Result<()> {
    let disk = disk_of(guest, OTHER)?;
    guest.run("mkdir -p /var/lib && ln -s /run/state /var/lib/evenkeel")?;
    guest.serve(&format!(
        "[device]\nbackend = \"block\"\npath = \"{disk}\"\n[[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n"
    ))?;
    guest.end_daemon("TERM")?;
    let assign = format!("assign {OTHER}");
    refused(guest, &assign, &["has the daemon's disks"])?;
    ensure!(disk_of(guest, OTHER).is_ok(), "the kernel has it again");
    guest.evenkeel(&format!("drive claim {OTHER}"))?;
    refused(guest, &assign, &["has the daemon's disks"])?;
    guest.evenkeel(&format!("drive release {OTHER}"))?;
    guest.run("rm /run/state/layout*.toml")?;
    Ok(())
}

/// Of two processes, the second takes nothing from the first.
fn at_once(guest: &mut Guest) -> Result<()> {
    disk_of(guest, OTHER)?;
    let assign = format!("evenkeel drive assign {OTHER}");
    guest.run(&format!(
        "{assign} >/run/one 2>&1 & {assign} >/run/two 2>&1 & wait; grep -q 'is assigned' /run/one /run/two"
    ))?;
    refused(guest, &format!("claim {OTHER}"), &["is assigned to a VM"])?;
    guest.evenkeel(&format!("drive return {OTHER} --yes"))?;
    guest.evenkeel(&format!("drive release {OTHER}"))?;
    Ok(())
}

/// What a VM detached can't be reached to be wiped, and the drive stays assigned.
fn left_behind(guest: &mut Guest) -> Result<()> {
    guest.evenkeel(&format!("drive assign {DRIVE}"))?;
    let told = guest.attempt_evenkeel(&format!("drive return {DRIVE} --yes"))?;
    ensure!(told.code == 1 && told.text.contains("namespaces that are not attached"), "{told:?}");
    refused(guest, &format!("release {DRIVE}"), &["is assigned to a VM"])
}
