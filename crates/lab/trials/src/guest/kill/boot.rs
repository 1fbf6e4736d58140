//! A daemon that is killed while guests boot from it: firmware and kernel set the disk up meanwhile, reset it, and find
//! its blocks and queues.

use anyhow::{Context, Result};

use super::rig::Rig;
use crate::guest::daemon::Daemon;

/// Kills the daemon while guests boot, which a keeper outlives, reads from each one's disk, and holds them to having
/// noticed nothing.
///
/// # Errors
/// When a guest does not boot, reads nothing, or something was noticed by a kernel or by QEMU.
pub fn under_kills(rig: &mut Rig<'_>, daemon: Daemon, kills: (u32, u64)) -> Result<()> {
    let (daemon, went_on) = rig.kill_at_random(daemon, kills, |_, _| Ok(()))?;
    rig.wait_ready().context("no guest may notice that the daemon was killed while it booted")?;
    for member in rig.members() {
        member.guest.run(&format!("dd if=/dev/{} of=/dev/null bs=1M count=8 2>&1", member.drive))?;
        member.noticed_nothing()?;
    }
    println!("{} kills while guests booted: {went_on} times a client went on, and nobody noticed", kills.0);
    daemon.stop().map(drop)
}
