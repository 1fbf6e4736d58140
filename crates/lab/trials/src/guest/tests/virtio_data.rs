//! What is on a virtio disk is what was written, trimmed or zeroed; with the write cache on or off,
//! and across reboots.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::ext4;
use crate::guest::lab::{Lab, VIRTIO};
use crate::guest::qemu::Guest;
use crate::wait;

const LIMIT: Duration = Duration::from_secs(300);

/// This many requests of the load in [`write_cache`] include several syncs.
const SYNCED_REQUESTS: u64 = 400;

/// `verify.fio`, in one guest through io_uring and in the other through Linux's native asynchronous I/O.
pub fn verify(lab: &mut Lab) -> Result<()> {
    for (guest, engine) in lab.guests(VIRTIO)?.into_iter().zip(["io_uring", "libaio"]) {
        let command = format!("DEVICE=/dev/vda ENGINE={engine} fio --minimal /etc/verify.fio");
        guest.start_job("verify", &command, LIMIT)?;
    }
    finish(lab)
}

/// Waits for the jobs named verify, which must succeed.
fn finish(lab: &mut Lab) -> Result<()> {
    for (guest, tenant) in lab.guests(VIRTIO)?.into_iter().zip(VIRTIO) {
        let output = guest.finish_job("verify", LIMIT)?;
        ensure!(output.code == 0, "fio in {}:\n{}", tenant.name(), output.text);
    }
    Ok(())
}

/// Trimmed and zeroed blocks read as zeros, their neighbours as they were; what is trimmed takes no
/// place on the host any more; trims and writes mixed do not harm what was written.
pub fn trim_and_zeroes(lab: &mut Lab) -> Result<()> {
    for tenant in VIRTIO {
        lab.guest(tenant)?;
        let (image, _) = lab.place_of(tenant.name())?;
        let allocated_bytes = || fs::metadata(&image).map(|metadata| metadata.blocks() * 512);
        let guest = lab.guest(tenant)?;
        blocks_become_zeros(guest).with_context(|| tenant.name())?;

        const SPAN_BYTES: u64 = 16 << 20;
        let trim = "/usr/sbin/blkdiscard -f -o 64M -l 16M /dev/vda";
        guest.run(trim)?;
        let empty = allocated_bytes()?;
        guest.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=64 count=16 oflag=direct")?;
        let full = allocated_bytes()?;
        ensure!(full >= empty + SPAN_BYTES, "written, the image grew from {empty} to {full} bytes");
        guest.run(trim)?;
        let trimmed = allocated_bytes()?;
        ensure!(trimmed + SPAN_BYTES <= full, "trimmed, the image went from {full} to {trimmed} bytes");
        guest.run("dd if=/dev/vda bs=1M skip=64 count=16 iflag=direct | cmp -n 16777216 - /dev/zero")?;
    }

    let mixed = "fio --name=trim --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 \
                 --rw=randtrimwrite --bs=16k --size=16m --verify=crc32c --verify_fatal=1";
    for guest in lab.guests(VIRTIO)? {
        guest.start_job("verify", mixed, LIMIT)?;
    }
    finish(lab)
}

/// Zeroes and trims parts of 4 MiB of random data and compares all of it.
fn blocks_become_zeros(guest: &mut Guest) -> Result<()> {
    guest.run("dd if=/dev/urandom of=/tmp/data bs=1M count=4 && dd if=/tmp/data of=/dev/vda bs=1M oflag=direct")?;
    // By their paths: busybox's blkdiscard can't zero. Each with its range in sectors; the first two of
    // one block and of a MiB with ends inside larger blocks. Zeroing is asked for with and without
    // leave to deallocate.
    let cases = [
        ("/usr/sbin/blkdiscard -f", 1, 1),
        ("/usr/sbin/blkdiscard -f", 2049, 2048),
        ("/usr/sbin/blkdiscard -f -z", 4100, 3),
        ("/usr/sbin/blkdiscard -f -z", 4200, 1001),
        ("/usr/bin/fallocate --punch-hole", 5400, 801),
    ];
    for (command, start, count) in cases {
        let (offset_bytes, size_bytes) = (start * 512, count * 512);
        guest.run(&format!(
            "{command} -o {offset_bytes} -l {size_bytes} /dev/vda && \
             dd if=/dev/zero of=/tmp/data bs=512 seek={start} count={count} conv=notrunc"
        ))?;
    }
    guest.run("dd if=/dev/vda of=/tmp/read bs=1M count=4 iflag=direct")?;
    guest.run("cmp /tmp/data /tmp/read && rm /tmp/data /tmp/read")?;
    Ok(())
}

/// The guest turns the disk's write cache off and on under a load, which reads what it wrote; only
/// with the cache on does it send flushes.
pub fn write_cache(lab: &mut Lab) -> Result<()> {
    for guest in lab.guests(VIRTIO)? {
        guest.start_rounds(
            "verify",
            "fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \
             --size=4m --fsync=32 --time_based --runtime=5 --verify=crc32c --verify_backlog=128 --verify_fatal=1",
        )?;
    }
    for guest in lab.guests(VIRTIO)? {
        for _ in 0..2 {
            for (mode, flushes) in [("write through", false), ("write back", true)] {
                guest.run(&format!("echo '{mode}' >/sys/block/vda/cache_type"))?;
                let now = guest.run("cat /sys/block/vda/cache_type")?;
                ensure!(now.trim() == mode, "set to {mode}, it is {now}");
                if flushes {
                    let before = flushes_of(guest)?;
                    guest.run("sync -d /dev/vda")?;
                    ensure!(flushes_of(guest)? > before, "{mode}: a sync flushes nothing");
                    continue;
                }
                // What was under way at the change may still flush.
                wait::for_this(&format!("{mode} without flushes"), LIMIT, || {
                    let before = flushes_of(guest)?;
                    guest.run("sync -d /dev/vda")?;
                    guest.wait_for_requests("vda", SYNCED_REQUESTS)?;
                    Ok((flushes_of(guest)? == before).then_some(()))
                })?;
            }
        }
    }
    for guest in lab.guests(VIRTIO)? {
        let output = guest.finish_rounds("verify", LIMIT)?;
        ensure!(output.code == 0, "fio:\n{}", output.text);
    }
    Ok(())
}

/// Flushes that the disk has completed.
fn flushes_of(guest: &mut Guest) -> Result<u64> {
    let text = guest.run("awk '{print $16}' /sys/block/vda/stat")?;
    text.trim().parse().context(text)
}

/// An ext4 is filled in each guest; its files are unchanged after the guest's reboot.
pub fn ext4_survives_reboot(lab: &mut Lab) -> Result<()> {
    for guest in lab.guests(VIRTIO)? {
        guest.start_job("verify", "sh /usr/sbin/ext4-fill /dev/vda && umount /mnt", LIMIT)?;
    }
    finish(lab).context("filling")?;
    for guest in lab.guests(VIRTIO)? {
        guest.start_reboot()?;
    }
    for guest in lab.guests(VIRTIO)? {
        guest.wait_ready()?;
        guest.run_within("e2fsck -f -n /dev/vda", LIMIT)?;
        ext4::check_files(guest, "/dev/vda").context("after the guest's reboot")?;
        guest.run("umount /mnt")?;
    }
    Ok(())
}
