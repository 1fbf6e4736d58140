//! A guest whose own daemon encrypts its block devices: what `cryptsetup` makes of them, and kills of that daemon.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::guest::inside::{Inside, UBLK_MODULES};
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;

const DRIVE: &str = "/dev/nvme0n1";
const OWN: &str = "/dev/evenkeel/own";
const DATA: &str = "/dev/evenkeel/data";
const OWN_MIB: u64 = 8;
const KILLS: u32 = 5;
/// A checksum of all files, emulated.
const LIMIT: Duration = Duration::from_secs(120);

const CONFIGURATION: &str = "[device]\nbackend = \"block\"\npath = \"/dev/nvme0n1\"\n[policy]\nname = \"lpns\"\n\
     [keys]\nhost_key = \"/run/host.key\"\n\
     [[tenant]]\nname = \"own\"\nsize = \"8MiB\"\nfrontend = \"ublk\"\nencryption = \"tenant\"\n\
     [[tenant]]\nname = \"data\"\nsize = \"48MiB\"\nfrontend = \"ublk\"\nencryption = \"host\"\n";

/// `cryptsetup` opens a raw copy of a disk, given its key; and a file system lives through kills while its disk gets
/// another key.
pub fn block_devices(lab: &mut Lab) -> Result<()> {
    let modules = [&UBLK_MODULES[..], &["loop", "dm-mod", "dm-crypt", "xts"]].concat();
    let guest = Inside::new("encrypted").modules(&modules).nvme("ek0", 4, 256);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    guest.wait_for("the drive", &format!("test -b {DRIVE}"))?;
    let used = open_by_cryptsetup(&mut guest).and_then(|()| reencrypt_over_kills(&mut guest));
    used.with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

/// 64 random bytes in /run/key, and in hexadecimal in /run/key.hex; the host's key.
const MAKE_KEYS: &str = "dd if=/dev/urandom of=/run/key bs=64 count=1 2>/dev/null && \
     hexdump -v -e '1/1 \"%02x\"' /run/key >/run/key.hex && umask 077 && \
     dd if=/dev/urandom bs=32 count=1 2>/dev/null | hexdump -v -e '1/1 \"%02x\"' >/run/host.key";

fn open_by_cryptsetup(guest: &mut Guest) -> Result<()> {
    guest.run(MAKE_KEYS)?;
    guest.serve(CONFIGURATION)?;
    guest.run(&format!("! test -e {OWN}")).context("a locked disk has a device")?;
    guest.ask_daemon("disk unlock own --key-file /run/key.hex")?;
    guest.wait_for("the device", &format!("test -b {OWN}"))?;
    guest.run(&format!(
        "dd if=/dev/urandom of=/run/plain bs=1M count={OWN_MIB} && dd if=/run/plain of={OWN} bs=1M oflag=direct"
    ))?;
    let told = guest.end_daemon("TERM")?;
    ensure!(told.code == 0, "{told:?}");
    let checked: Value = serde_json::from_str(&guest.evenkeel("check --json /run/evenkeel.toml")?)?;
    let tenant = &checked["items"][0]["tenants"][0];
    let offset_bytes = tenant["offset_bytes"].as_u64().with_context(|| format!("no offset in {tenant}"))?;
    guest.run(&format!(
        "dd if={DRIVE} of=/run/raw bs=4096 skip={} count={} && ! cmp -s /run/raw /run/plain",
        offset_bytes >> 12,
        OWN_MIB << 8
    ))?;
    guest.run_within(
        "loop=$(losetup -f) && losetup $loop /run/raw && cryptsetup open --type plain --cipher aes-xts-plain64 \
         --key-size 512 --key-file /run/key --sector-size 4096 $loop opened && \
         cmp /dev/mapper/opened /run/plain && cryptsetup close opened && losetup -d $loop && rm /run/raw /run/plain",
        LIMIT,
    )?;
    Ok(())
}

fn reencrypt_over_kills(guest: &mut Guest) -> Result<()> {
    guest.serve_again()?;
    guest.wait_for("the device", &format!("test -b {DATA}"))?;
    guest.run_within(&format!("/usr/sbin/mke2fs -q -t ext4 {DATA} && mount -t ext4 {DATA} /mnt"), LIMIT)?;
    guest
        .run_within("dd if=/dev/urandom of=/mnt/file bs=1M count=8 && sha256sum /mnt/file >/run/sum && sync", LIMIT)?;
    for kill in 1..=KILLS {
        if guest.ask_daemon("operations --json")?.contains("\"items\":[]") {
            guest.ask_daemon("disk reencrypt data")?;
        }
        guest.run_within("cp /mnt/file /mnt/copy && sync", LIMIT)?;
        guest.end_daemon("KILL")?;
        guest.serve_again()?;
        let check = "echo 3 >/proc/sys/vm/drop_caches; sha256sum -c /run/sum && cmp /mnt/file /mnt/copy";
        guest.run_within(check, LIMIT).with_context(|| format!("after kill {kill}"))?;
    }
    let over = "evenkeel operations --json --socket /run/ek/api.sock | grep -q '\"items\":\\[\\]'";
    guest.wait_for("the end of the re-encryption", over)?;
    guest.run_within("umount /mnt", LIMIT)?;
    guest.run_within(&format!("/usr/sbin/e2fsck -f -n {DATA}"), LIMIT)?;
    let told = guest.end_daemon("TERM")?;
    ensure!(told.code == 0 && !told.text.contains("panicked"), "{told:?}");
    Ok(())
}
