//! A guest whose own daemon makes thin block devices: an import, and file systems over snapshots, clones, kills and a
//! rollback.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::guest::inside::{Inside, UBLK_MODULES};
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;

const DRIVE: &str = "/dev/nvme0n1";
const DATA: &str = "/dev/evenkeel/data";
const COPY: &str = "/dev/evenkeel/copy";
/// A checksum of all files, emulated.
const LIMIT: Duration = Duration::from_secs(120);

const CONFIGURATION: &str = "[device]\nbackend = \"block\"\npath = \"/dev/nvme0n1\"\npool = \"96MiB\"\n\
     pool_overcommit = 400\n[policy]\nname = \"lpns\"\n\
     [[tenant]]\nname = \"data\"\nsize = \"64MiB\"\nthin = true\nfrontend = \"ublk\"\n";

/// A file system that a snapshot, a clone, a kill or a rollback damages, and room that a trim does not give back.
pub fn block_devices(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("thin").modules(&UBLK_MODULES).nvme("ek0", 4, 256);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    guest.wait_for("the drive", &format!("test -b {DRIVE}"))?;
    let used = use_disks(&mut guest);
    used.with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn use_disks(guest: &mut Guest) -> Result<()> {
    guest.serve(CONFIGURATION)?;
    guest.wait_for("the device", &format!("test -b {DATA}"))?;
    guest.run_within(&format!("/usr/sbin/mke2fs -q -t ext4 {DATA} && mount -t ext4 {DATA} /mnt"), LIMIT)?;
    let fill = "dd if=/dev/urandom of=/mnt/file bs=1M count=8 && mkdir /mnt/more && cp /mnt/file /mnt/more && \
                (cd /mnt && sha256sum file more/file >/run/sums) && sync";
    guest.run_within(fill, LIMIT)?;
    import(guest)?;
    guest.ask_daemon("disk snapshot data@before")?;
    guest.run_within("rm -r /mnt/more && dd if=/dev/urandom of=/mnt/file bs=1M count=8 && sync", LIMIT)?;

    guest.ask_daemon("disk create copy --clone-of data@before --frontend ublk")?;
    guest.wait_for("the clone", &format!("test -b {COPY}"))?;
    guest.run(&format!("mkdir -p /run/copy && mount -t ext4 {COPY} /run/copy"))?;
    guest.run_within("cd /run/copy && sha256sum -c /run/sums", LIMIT).context("the clone")?;
    guest.run_within("rm /run/copy/file && cp /mnt/file /run/copy/mine && sync", LIMIT)?;
    guest.end_daemon("KILL")?;
    guest.serve_again()?;
    let both = "echo 3 >/proc/sys/vm/drop_caches; cmp /mnt/file /run/copy/mine";
    guest.run_within(both, LIMIT).context("after the kill")?;

    guest.run_within("umount /mnt && umount /run/copy", LIMIT)?;
    guest.run_within(&format!("/usr/sbin/e2fsck -f -n {COPY}"), LIMIT)?;
    guest.ask_daemon("disk rollback data@before --yes")?;
    guest.run_within(&format!("mount -t ext4 {DATA} /mnt && cd /mnt && sha256sum -c /run/sums"), LIMIT)?;
    guest.ask_daemon("disk delete data@before --yes")?;
    guest.ask_daemon("disk delete copy --yes")?;
    let before = taken(guest)?;
    guest.run_within("rm -r /mnt/file /mnt/more && sync && fstrim /mnt", LIMIT)?;
    let after = taken(guest)?;
    ensure!(after + (8 << 20) < before, "{before} bytes before the trim, {after} after it");
    guest.run_within("umount /mnt", LIMIT)?;
    guest.run_within(&format!("/usr/sbin/e2fsck -f -n {DATA}"), LIMIT)?;
    let told = guest.end_daemon("TERM")?;
    ensure!(told.code == 0 && !told.text.contains("panicked"), "{told:?}");
    Ok(())
}

/// An image goes into a new disk through its block device.
fn import(guest: &mut Guest) -> Result<()> {
    guest.run("cp /mnt/file /run/image")?;
    guest.ask_daemon("disk create made --from /run/image --thin --frontend ublk")?;
    guest.run_within("cmp /run/image /dev/evenkeel/made && rm /run/image", LIMIT).context("the import")?;
    guest.ask_daemon("disk delete made --yes").map(drop)
}

/// Bytes of the pool that the disk has.
fn taken(guest: &mut Guest) -> Result<u64> {
    let shown: Value = serde_json::from_str(&guest.ask_daemon("disk show data --json")?)?;
    shown["pool_bytes"].as_u64().with_context(|| format!("no pool_bytes in {shown}"))
}
