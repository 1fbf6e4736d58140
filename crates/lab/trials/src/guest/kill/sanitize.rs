//! A guest overwrites its drive by Sanitize, and the daemon is killed meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::rig::Rig;
use crate::guest::daemon::Daemon;
use crate::guest::qemu::Guest;

/// The first two words of the Sanitize Status log page: progress; status, with passes from bit 3.
pub const STATUS: &str = "nvme get-log /dev/nvme0 --log-id=0x81 --log-len=512 -b | od -An -tu2 -N4";
const DRIVE: &str = "/dev/nvme0n1";
/// For commands that wait for a daemon that comes back.
const LIMIT: Duration = Duration::from_secs(120);
/// As nvme-cli asks for unless told otherwise.
const PASSES: u16 = 16;

/// The daemon is killed once amid an overwrite, which must end by itself.
///
/// # Errors
/// When data is still there or can be read meanwhile, or the overwrite does not end.
pub fn once(rig: &mut Rig<'_>, daemon: Daemon) -> Result<()> {
    let write = format!("dd if=/run/data of={DRIVE} bs=256k oflag=direct && cmp -n 4194304 /run/data {DRIVE}");
    let guest = first(rig)?;
    guest.run(&format!("dd if=/dev/urandom of=/run/data bs=1M count=4 && {write}"))?;
    guest.run_within("nvme sanitize /dev/nvme0 -a 3", LIMIT)?;
    let read = guest.attempt(&format!("dd if={DRIVE} of=/dev/null bs=4k count=1 iflag=direct"), LIMIT)?;
    ensure!(read.code != 0, "what is being erased is read");
    daemon.kill()?;
    let daemon = rig.start_daemon()?;
    let guest = first(rig)?;
    let status = guest.run_within(STATUS, LIMIT)?;
    ensure!(status.trim().ends_with(" 2"), "it was over before the kill, so nothing was tested: {status}");
    wait_for_status(guest, 1 | PASSES << 3)?;
    guest.run(&format!("cmp -n 4194304 /dev/zero {DRIVE} && {write}"))?;
    println!("an overwrite went on after a kill");
    daemon.stop().map(drop)
}

fn first<'a>(rig: &'a mut Rig<'_>) -> Result<&'a mut Guest> {
    Ok(&mut rig.members().next().context("no guest")?.guest)
}

/// Waits for the end of a sanitize operation, which must have this status (SSTAT bits 7:0).
///
/// # Errors
/// When it does not end so.
pub fn wait_for_status(guest: &mut Guest, status: u16) -> Result<()> {
    guest.wait_for(
        "the sanitize operation",
        &format!("(set -- $({STATUS}); test $1 = 65535 && test $(($2 & 255)) = {status})"),
    )
}
