//! Drives of a guest's own, which are taken from its kernel and given back.

use anyhow::{Context, Result, bail, ensure};

use crate::guest::inside::{Inside, PROGRAM_LIMIT, VFIO_MODULES};
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;

/// The drive with data, and the one in use.
const DRIVE: &str = "0000:00:04.0";
const USED: &str = "0000:00:05.0";

/// A drive with data is claimed, driven by VFIO, and given back with its data; one that is used stays with the kernel.
pub fn claimed_and_given_back(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("drives").iommu().nvme("ek0", 4, 64).nvme("ek1", 5, 64);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    let told = refuses_what_is_used(&mut guest).and_then(|()| claim_and_release(&mut guest));
    told.with_context(|| guest.logs())
}

/// The kernel's disk of a drive.
pub(super) fn disk_of(guest: &mut Guest, address: &str) -> Result<String> {
    guest.wait_for("the drive", &format!("ls -d /sys/bus/pci/devices/{address}/nvme/nvme*/nvme*n1"))?;
    let name = guest.run(&format!("basename /sys/bus/pci/devices/{address}/nvme/nvme*/nvme*n1"))?;
    Ok(format!("/dev/{}", name.trim()))
}

/// `evenkeel drive COMMAND` is refused by these words.
pub(super) fn refused(guest: &mut Guest, command: &str, words: &[&str]) -> Result<()> {
    let told = guest.attempt_evenkeel(&format!("drive {command}"))?;
    ensure!(told.code == 2, "drive {command}: {told:?}");
    words.iter().try_for_each(|words| {
        ensure!(told.text.contains(words), "drive {command} says nothing of {words:?}: {}", told.text);
        Ok(())
    })
}

/// A process has the drive until [`end_reading`].
pub(super) fn start_reading(guest: &mut Guest, address: &str) -> Result<()> {
    let load = format!("exec evenkeel load {address} --rw randread --bs 4k --size 4m --runtime 300s");
    guest.start_job("load", &load, PROGRAM_LIMIT)?;
    guest.wait_for("the load", "ls -l /proc/[0-9]*/fd | grep -q '/dev/vfio/[0-9]'")
}

pub(super) fn end_reading(guest: &mut Guest) -> Result<()> {
    guest.run("kill -TERM $(pidof evenkeel)")?;
    guest.finish_job("load", PROGRAM_LIMIT).map(drop)
}

fn refuses_what_is_used(guest: &mut Guest) -> Result<()> {
    let disk = disk_of(guest, USED)?;
    refused(guest, &format!("claim {USED}"), &["vfio-pci", "modprobe vfio-pci"])?;
    guest.run(&format!("load-modules {} loop", VFIO_MODULES.join(" ")))?;
    refused(guest, "claim 0000:00:00.0", &["is no NVMe controller"])?;
    refused(guest, "claim 0000:1f:00.0", &["there is no PCI device"])?;

    let claim = format!("claim {USED}");
    guest.run(&format!("mke2fs -q {disk} && mount {disk} /mnt"))?;
    refused(guest, &claim, &["is mounted at /mnt", "umount /mnt"])?;
    guest.run(&format!("umount /mnt && mkswap {disk} && swapon {disk}"))?;
    refused(guest, &claim, &["is used as swap", "swapoff"])?;
    guest.run(&format!("swapoff {disk} && losetup /dev/loop0 {disk}"))?;
    refused(guest, &claim, &["is what /dev/loop0 is made of", "losetup -d"])?;
    guest.run("losetup -d /dev/loop0")?;
    guest.start_job("reader", &format!("sleep 300 <{disk}"), PROGRAM_LIMIT)?;
    guest.wait_for("the reader", &format!("ls -l /proc/[0-9]*/fd | grep -q {disk}"))?;
    refused(guest, &claim, &["is in use by sleep"])?;
    guest.run("kill $(pidof sleep)")?;
    let listed = guest.evenkeel("drive list")?;
    ensure!(listed.contains("no daemon runs") && listed.contains(USED) && listed.contains(&disk), "{listed}");
    guest.run(&format!("test -b {disk} && test $(cat /sys/bus/pci/devices/{USED}/driver_override) = '(null)'"))?;
    Ok(())
}

fn claim_and_release(guest: &mut Guest) -> Result<()> {
    let disk = disk_of(guest, DRIVE)?;
    guest.run(&format!(
        "dd if=/dev/urandom of=/run/secret bs=1M count=4 && dd if=/run/secret of={disk} bs=1M seek=16 oflag=direct"
    ))?;
    let told = guest.evenkeel(&format!("drive claim {DRIVE} --dry-run"))?;
    ensure!(told.contains("would unbind it from nvme"), "{told}");
    guest.run(&format!("test -b {disk}"))?;
    let told = guest.evenkeel(&format!("drive claim {DRIVE}"))?;
    ensure!(told.contains(&format!("{DRIVE} is claimed")), "{told}");
    guest.run(&format!("! test -e {disk}"))?;
    let again = guest.evenkeel(&format!("drive claim {DRIVE}"))?;
    ensure!(again.contains("there is nothing to do"), "{again}");

    // Registers, doorbells and memory through VFIO. The error names the drive's user, which keeps the drive.
    let load = format!("load {DRIVE} --rw randwrite --bs 4k --iodepth 8 --size 4m --verify --json");
    let told = guest.evenkeel(&load)?;
    ensure!(told.contains("\"total_ios\":1024") && told.contains("\"bad_blocks\":0"), "{told}");
    start_reading(guest, DRIVE)?;
    let listed = guest.evenkeel("drive list --json")?;
    ensure!(listed.contains("\"name\":\"evenkeel\""), "{listed}");
    refused(guest, &format!("release {DRIVE}"), &["is in use by evenkeel"])?;
    end_reading(guest)?;

    let told = guest.evenkeel(&format!("drive release {DRIVE}"))?;
    ensure!(told.contains("the kernel's again") && told.contains("/dev/nvme"), "{told}");
    let disk = disk_of(guest, DRIVE)?;
    guest.run(&format!("dd if={disk} bs=1M skip=16 count=4 iflag=direct of=/run/read && cmp /run/read /run/secret"))?;
    let again = guest.evenkeel(&format!("drive release {DRIVE}"))?;
    ensure!(again.contains("there is nothing to do"), "{again}");
    Ok(())
}

/// Virtual functions are made with queues, driven by VFIO, and taken away; while one is in use they stay.
pub fn virtual_functions(lab: &mut Lab) -> Result<()> {
    let controller = "nvme,id=pf,serial=pf,bus=root0,subsys=subsystem,max_ioqpairs=8,msix_qsize=9,\
                      sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2,\
                      sriov_max_vq_per_vf=4";
    let guest = Inside::new("functions").iommu().modules(&VFIO_MODULES).image("drive-pf", 64).qemu(&[
        "-device",
        "pcie-root-port,id=root0,chassis=9,slot=9,addr=0x6",
        "-device",
        "nvme-subsys,id=subsystem",
        "-device",
        controller,
        "-device",
        "nvme-ns,drive=drive-pf,bus=pf,nsid=1,shared=on",
    ]);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    make_and_use(&mut guest).with_context(|| guest.logs())
}

fn make_and_use(guest: &mut Guest) -> Result<()> {
    // Its bus is numbered by the firmware.
    let look = "grep -l '^pf' /sys/bus/pci/devices/*/nvme/nvme*/serial";
    guest.wait_for("the drive", look)?;
    let physical = guest.run(&format!("{look} | cut -d / -f 6"))?;
    let physical = physical.trim();
    refused(guest, &format!("vfs {physical} --count 3"), &["can have 2 virtual functions"])?;
    let told = guest.evenkeel(&format!("drive vfs {physical} --count 2"))?;
    let made = told.trim().split_once("has virtual functions: ").map(|(_, addresses)| addresses.split(", ").collect());
    let made: Vec<&str> = made.unwrap_or_default();
    let [function, _] = made[..] else { bail!("two functions: {told}") };
    let listed = guest.evenkeel("drive list")?;
    ensure!(listed.contains("2 of 2 virtual functions") && listed.contains("virtual function 2 of"), "{listed}");
    refused(guest, &format!("claim {physical}"), &["has 2 virtual functions", "--count 0"])?;

    let told = guest.evenkeel(&format!("drive claim {function}"))?;
    ensure!(told.contains("It may share namespaces with"), "{told}");
    refused(guest, &format!("assign {function}"), &["is also that of controller", "nvme detach-ns"])?;
    let load = format!("load {function} --rw randwrite --bs 4k --iodepth 4 --size 4m --verify --json");
    let told = guest.evenkeel(&load)?;
    ensure!(told.contains("\"bad_blocks\":0"), "{told}");
    start_reading(guest, function)?;
    refused(guest, &format!("vfs {physical} --count 0"), &["is in use by evenkeel"])?;
    end_reading(guest)?;
    let told = guest.evenkeel(&format!("drive vfs {physical} --count 0"))?;
    ensure!(told.contains("has no virtual functions"), "{told}");
    guest.run(&format!("! test -e /sys/bus/pci/devices/{function}"))?;

    // One has all that was shared out before.
    guest.evenkeel(&format!("drive vfs {physical} --count 1"))?;
    let lent = guest.run("nvme list-secondary /dev/nvme0 -o json | tr -d '[:space:]'")?;
    ensure!(lent.contains("\"num-virtual-queues\":4"), "{lent}");
    guest.evenkeel(&format!("drive claim {function}"))?;
    // A queue for each job.
    guest.evenkeel(&format!("load {function} --rw randread --bs 4k --numjobs 3 --iodepth 4 --size 4m"))?;
    Ok(())
}
