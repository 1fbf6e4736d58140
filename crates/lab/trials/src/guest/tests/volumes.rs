//! Disks as volumes for systemd's own tools, in a Debian whose systemd has them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::inside::Inside;
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;
use crate::guest::system;
use crate::guest::system_image::System;

const VERSION: &str = "0.1.0-1";
const PROVIDER: &str = "/run/systemd/io.systemd.StorageProvider/evenkeel";
const INTERFACE: &str = "io.systemd.StorageProvider";
/// A start of the daemon or a file system, emulated.
const LIMIT: Duration = Duration::from_secs(120);

/// `varlinkctl` creates disks and takes their descriptors, `storagectl` lists them, and `mount` mounts one.
pub fn acquired_and_mounted(lab: &mut Lab) -> Result<()> {
    let Some(packages) = system::packages(lab, "volumes-of-systemd", &[VERSION])? else { return Ok(()) };
    let mut guest = system::boot(Inside::new("volumes"), lab, System::Volumes, &packages)?;
    let done = start(&mut guest)
        .and_then(|()| create_and_write(&mut guest))
        .and_then(|()| mount(&mut guest))
        .and_then(|()| fail(&mut guest));
    done.with_context(|| guest.journal())
}

fn start(guest: &mut Guest) -> Result<()> {
    guest.install_version(VERSION)?;
    guest.run("! systemctl is-enabled evenkeel-storage-provider.socket")?;
    guest.run("systemd-analyze verify --man=no evenkeel-storage-provider.socket 2>&1 | { ! grep evenkeel; }")?;
    guest.run_within("systemctl enable --now evenkeeld evenkeel-storage-provider.socket", LIMIT)?;
    guest.run("storagectl providers --no-legend | grep -E '^evenkeel +yes'")?;
    guest.run("! storagectl volumes --no-legend | grep ^evenkeel")?;
    guest
        .run(&format!("varlinkctl introspect {PROVIDER} {INTERFACE} >/run/idl && varlinkctl validate-idl /run/idl"))?;
    let told = guest.run("systemd-analyze security --no-pager evenkeel-storage-provider@ | tail -n 1")?;
    println!("{}", told.trim());
    Ok(())
}

/// The arguments of a call of `Acquire` with these parameters. The default of 45 s is little for an emulated guest.
fn acquire(parameters: &str) -> String {
    format!("--timeout=300 call {PROVIDER} {INTERFACE}.Acquire '{{{parameters}}}'")
}

/// Through the descriptor goes what the disk's device then has.
fn create_and_write(guest: &mut Guest) -> Result<()> {
    let new = acquire("\"name\":\"web\",\"createMode\":\"new\",\"createSizeBytes\":67108864");
    guest.run("dd if=/dev/urandom of=/run/data bs=64k count=16")?;
    let write = "stat -L -c %F /dev/fd/3 && dd if=/run/data of=/dev/fd/3 bs=64k conv=fsync,notrunc";
    let told = guest.run_within(&format!("varlinkctl --exec {new} -- sh -ec '{write}'"), LIMIT)?;
    ensure!(told.contains("block special file"), "{told}");
    guest.run("test $(blockdev --getsize64 /dev/evenkeel/web) = 67108864")?;
    guest.run("cmp -n 1048576 /run/data /dev/evenkeel/web")?;
    let again = acquire("\"name\":\"web\",\"createSizeBytes\":4096");
    let told =
        guest.run(&format!("varlinkctl --exec {again} -- sh -ec 'cmp -n 1048576 /run/data /dev/fd/3 && echo same'"))?;
    ensure!(told.contains("same"), "{told}");
    let told = guest.run("storagectl volumes --no-legend 'w?b'")?;
    let columns: Vec<_> = told.split_whitespace().collect();
    ensure!(columns == ["evenkeel", "web", "blk", "no", "64M", "-"], "{told}");
    Ok(())
}

fn mount(guest: &mut Guest) -> Result<()> {
    guest.run_within("mkfs.ext4 -q /dev/evenkeel/web && mount -t storage.ext4 evenkeel:web /mnt", LIMIT)?;
    let number = "cat /sys/class/block/$(basename $(readlink /dev/evenkeel/web))/dev";
    guest.run(&format!("test $(findmnt -n -o MAJ:MIN /mnt) = $({number})"))?;
    guest.run_within("cp /run/data /mnt/ && umount /mnt", LIMIT)?;
    guest.run_within("mount -t storage.ext4 -o ro evenkeel:web /mnt && cmp /run/data /mnt/data", LIMIT)?;
    guest.run_within("! touch /mnt/data && umount /mnt", LIMIT)?;

    guest.evenkeel("disk create old --size 16MiB --frontend ublk --read-only --wait")?;
    guest.run("storagectl volumes --no-legend old | grep -E ' yes +16M'")?;
    let told = guest.run(&format!("varlinkctl -j {}", acquire("\"name\":\"old\"")))?;
    ensure!(told.contains("\"readOnly\":true"), "{told}");
    fails(guest, "\"name\":\"old\",\"readOnly\":false", &format!("{INTERFACE}.ReadOnlyVolume"))
}

fn fails(guest: &mut Guest, parameters: &str, error: &str) -> Result<()> {
    guest.run(&format!("varlinkctl --graceful={error} {}", acquire(parameters))).map(drop)
}

fn fail(guest: &mut Guest) -> Result<()> {
    guest.evenkeel("disk create db --size 16MiB --wait")?;
    for (parameters, error) in [
        ("\"name\":\"web\",\"createMode\":\"new\",\"createSizeBytes\":67108864", "VolumeExists"),
        ("\"name\":\"none\",\"createMode\":\"open\"", "NoSuchVolume"),
        ("\"name\":\"none\"", "CreateSizeRequired"),
        ("\"name\":\"db\"", "WrongType"),
        ("\"name\":\"web\",\"requestAs\":\"dir\"", "WrongType"),
        ("\"name\":\"none\",\"createSizeBytes\":8192,\"requestAs\":\"dir\"", "TypeNotSupported"),
        ("\"name\":\"web\",\"template\":\"sparse-file\"", "NoSuchTemplate"),
    ] {
        fails(guest, parameters, &format!("{INTERFACE}.{error}"))?;
    }
    fails(guest, "\"name\":\"../sda\"", "org.varlink.service.InvalidParameter")?;
    // Nothing of all that has harmed a unit, and whatever it opened is closed.
    guest.run("test -z \"$(systemctl list-units --failed --no-legend 'evenkeel*')\"")?;
    guest.evenkeel("disk delete web --yes --wait").map(drop)
}
