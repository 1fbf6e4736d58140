//! A guest that runs Evenkeel on an NVMe drive of its own, which erases itself.

use anyhow::{Context, Result, ensure};

use crate::guest::inside::{API_SOCKET, Inside};
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;

const DRIVE: &str = "/dev/nvme0n1";
const DRIVE_MIB: u64 = 256;
/// Behind all disks.
const SECRET_AT_MIB: u64 = 200;
const SECRET_MIB: u64 = 8;

/// QEMU's controller knows Format with secure erase, and no Sanitize.
pub fn erases_itself(lab: &mut Lab) -> Result<()> {
    // The drive is QEMU's anyway.
    let Some(mut guest) = Inside::new("sanitize").nvme("spare", 4, DRIVE_MIB).boot(lab)? else { return Ok(()) };
    guest.wait_for("the drive", &format!("test -b {DRIVE}"))?;
    erase(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn erase(guest: &mut Guest) -> Result<()> {
    guest.serve(&format!(
        "[[drive]]\nname = \"spare\"\nbackend = \"block\"\npath = \"{DRIVE}\"\nwipe = \"write-zeroes\"\n\
         [policy]\nname = \"passthrough\"\n"
    ))?;
    guest.ask_daemon("disk create old --size 32MiB")?;
    let told = guest.attempt_evenkeel(&format!("drive sanitize spare --yes --socket {API_SOCKET}"))?;
    ensure!(told.code == 2 && told.text.contains("has disks: old"), "a drive with a disk is sanitized: {told:?}");
    // As if somebody had been there before.
    guest.run(&format!("dd if=/dev/urandom of=/run/secret bs=1M count={SECRET_MIB}"))?;
    guest.run(&format!("dd if=/run/secret of={DRIVE} bs=1M seek={SECRET_AT_MIB} oflag=direct"))?;
    guest.ask_daemon("disk delete old --yes --wait")?;
    let log = guest.run("cat /run/daemon.out")?;
    ensure!(!log.contains("does not make zeros"), "the drive's Write Zeroes is not believed: {log}");

    let told = guest.ask_daemon("drive sanitize spare --yes")?;
    ensure!(told.contains("spare is sanitized (Format with user data erase), and free"), "{told}");
    guest.run(&format!(
        "dd if={DRIVE} bs=1M skip={SECRET_AT_MIB} count={SECRET_MIB} iflag=direct of=/run/read && \
         cmp -n $(({SECRET_MIB} << 20)) /run/read /dev/zero"
    ))?;
    let told = guest.ask_daemon("drive list --json")?;
    ensure!(told.contains(&format!("\"free_bytes\":{}", DRIVE_MIB << 20)) && !told.contains("sanitizing"), "{told}");
    let told =
        guest.attempt_evenkeel(&format!("drive sanitize spare --yes --action crypto-erase --socket {API_SOCKET}"))?;
    ensure!(told.code == 2 && told.text.contains("it has no Sanitize by crypto erase"), "{told:?}");

    // And goes on, over a kill.
    guest.ask_daemon("disk create new --size 32MiB")?;
    guest.end_daemon("KILL")?;
    guest.serve_again()?;
    let told = guest.ask_daemon("disk list")?;
    ensure!(told.contains("new"), "{told}");
    Ok(())
}
