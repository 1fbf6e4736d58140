//! A guest whose own daemon gives it block devices, over kills and stops of that daemon.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::inside::{API_SOCKET, Inside, PROGRAM_LIMIT, UBLK_MODULES};
use crate::guest::lab::Lab;
use crate::guest::load::ENDLESS;
use crate::guest::qemu::Guest;

const DRIVE: &str = "/dev/nvme0n1";
const DATA: &str = "/dev/evenkeel/data";
const RAW: &str = "/dev/evenkeel/raw";
/// A checksum of all files, emulated.
const LIMIT: Duration = Duration::from_secs(120);

/// Ext4 and `fio` on block devices, a daemon that is killed and stopped under them, disks that come and go.
pub fn block_devices(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("ublk").modules(&UBLK_MODULES).nvme("ek0", 4, 256);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    guest.wait_for("the drive", &format!("test -b {DRIVE}"))?;
    let used = use_them(&mut guest).and_then(|()| change_them(&mut guest));
    used.with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn use_them(guest: &mut Guest) -> Result<()> {
    guest.serve(&format!(
        "[device]\nbackend = \"block\"\npath = \"{DRIVE}\"\n[policy]\nname = \"lpns\"\n\
         [[tenant]]\nname = \"data\"\nsize = \"96MiB\"\nfrontend = \"ublk\"\n\
         [[tenant]]\nname = \"raw\"\nsize = \"32MiB\"\nfrontend = \"ublk\"\nqueues = 1\n"
    ))?;
    guest.wait_for("the devices", &format!("test -b {DATA} && test -b {RAW}"))?;
    guest.run_within(&format!("/usr/sbin/mke2fs -q -t ext4 {DATA} && mount -t ext4 {DATA} /mnt"), LIMIT)?;
    guest
        .run_within("dd if=/dev/urandom of=/mnt/file bs=1M count=24 && sha256sum /mnt/file >/run/sum && sync", LIMIT)?;

    // Killed during writes: all that was answered is there, and the rest goes on.
    let fio = "fio --name=v --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=8 --size=24m --verify=crc32c \
               --verify_fatal=1 --verify_state_save=0 --output-format=terse";
    guest.start_job("fio", &format!("{fio} --filename={RAW}"), PROGRAM_LIMIT)?;
    let sectors = format!("awk '{{print $7}}' /sys/block/$(basename $(readlink {RAW}))/stat");
    guest.wait_for("writes", &format!("test $({sectors}) -gt 4000"))?;
    let before = guest.run(&format!("readlink {RAW}; readlink {DATA}"))?;
    guest.end_daemon("KILL")?;
    guest.run("! test -e /run/fio.code")?;
    guest.serve_again()?;
    let told = guest.finish_job("fio", PROGRAM_LIMIT)?;
    ensure!(told.code == 0, "fio over a kill: {told:?}");
    let after = guest.run(&format!("readlink {RAW}; readlink {DATA}"))?;
    ensure!(before == after, "the devices are others: {before} and {after}");
    check_file(guest).context("after the kill")?;

    // Stopped with a file system mounted: that stays, the other device goes.
    guest.run("dd if=/mnt/file of=/mnt/copy bs=1M && sync")?;
    let told = guest.end_daemon("TERM")?;
    ensure!(told.code == 0 && told.text.contains("is in use: its requests wait"), "{told:?}");
    guest.run(&format!("! test -e {RAW} && test -b {DATA}"))?;
    guest.serve_again()?;
    check_file(guest).context("after the stop")?;
    guest.run_within("cmp /mnt/file /mnt/copy && umount /mnt", LIMIT)?;
    guest.run_within(&format!("/usr/sbin/e2fsck -f -n {DATA}"), LIMIT)?;
    let told = guest.end_daemon("TERM")?;
    ensure!(told.code == 0 && !told.text.contains("is in use"), "{told:?}");
    guest.run(&format!("! test -e {DATA} && ! ls /dev/ublkb*"))?;
    Ok(())
}

/// Reads from the device, not from memory.
fn check_file(guest: &mut Guest) -> Result<()> {
    guest.run_within("echo 3 >/proc/sys/vm/drop_caches; sha256sum -c /run/sum", LIMIT).map(drop)
}

fn change_them(guest: &mut Guest) -> Result<()> {
    guest.serve(&format!("[device]\nbackend = \"block\"\npath = \"{DRIVE}\"\n[policy]\nname = \"passthrough\"\n"))?;
    guest.ask_daemon("disk create web --size 16MiB --frontend ublk --rw-iops 200 --wait")?;
    let told = guest.ask_daemon("disk list")?;
    ensure!(told.contains("/dev/evenkeel/web"), "{told}");
    let reads = "fio --name=r --filename=/dev/evenkeel/web --ioengine=libaio --direct=1 --rw=randread --bs=4k \
                 --iodepth=8 --runtime=2 --time_based --output-format=terse";
    let told = guest.run_within(reads, LIMIT)?;
    let iops: f64 = told.split(';').nth(7).context("fio's IOPS")?.parse()?;
    ensure!((100.0..=260.0).contains(&iops), "{iops} reads per second where 200 are allowed");

    guest.start_job("holds", "exec 3</dev/evenkeel/web; sleep 1000", ENDLESS)?;
    guest.wait_for("the holder", "ls -l /proc/*/fd 2>/dev/null | grep -q ublkb")?;
    let told = guest.attempt_evenkeel(&format!("disk delete web --yes --socket {API_SOCKET}"))?;
    ensure!(told.code != 0 && told.text.contains("is attached"), "an open device is deleted: {told:?}");
    guest.ask_daemon("disk delete web --yes --force")?;
    guest.wait_for("the end of the device", "! test -e /dev/evenkeel/web")?;
    let told = guest.end_daemon("TERM")?;
    ensure!(told.code == 0 && !told.text.contains("panicked"), "{told:?}");
    Ok(())
}

/// Without the driver: a clear error, and how to get it.
pub fn no_driver(lab: &mut Lab) -> Result<()> {
    let Some(mut guest) = Inside::new("no-ublk").boot(lab)? else { return Ok(()) };
    let file = "runtime_dir = \"/run/ek\"\n[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n\
                [policy]\nname = \"passthrough\"\n[[tenant]]\nname = \"data\"\nsize = \"16MiB\"\nfrontend = \"ublk\"\n";
    guest.write_file("/run/evenkeel.toml", file)?;
    let told = guest.attempt_evenkeel("serve /run/evenkeel.toml")?;
    ensure!(told.code != 0 && told.text.contains("modprobe ublk_drv"), "{told:?}");
    Ok(())
}
