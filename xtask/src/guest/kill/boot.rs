//! A daemon that is killed while guests boot from it: firmware and kernel set the disk up meanwhile, reset it, and find
//! its blocks and queues.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::rig::Rig;
use crate::guest::daemon::Daemon;
use crate::guest::lab::complaints;

/// Between two kills. A boot takes some seconds, so most of the kills are in one.
const PAUSE_MS: std::ops::Range<u64> = 20..900;

/// Kills the daemon so often while guests boot, which a keeper outlives, reads from each one's disk, and holds them to
/// having noticed nothing.
///
/// # Errors
/// When a guest does not boot, reads nothing, or something was noticed by a kernel or by QEMU.
pub fn under_kills(rig: &mut Rig<'_>, mut daemon: Daemon, (kills, seed): (u32, u64)) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut taken_over = 0;
    for _ in 0..kills {
        // Not to wait for anything: for the guest to be at ever other places.
        std::thread::sleep(Duration::from_millis(random.u64(PAUSE_MS)));
        taken_over += daemon.kill()?.matches("a client goes on").count();
        daemon = rig.start_daemon()?;
    }
    rig.wait_ready().context("no guest may notice that the daemon was killed while it booted")?;
    for member in rig.members() {
        let name = member.tenant.name();
        member.guest.run(&format!("dd if=/dev/{} of=/dev/null bs=1M count=8 2>&1", member.drive))?;
        let log = member.guest.run("dmesg -r")?;
        let complaints = complaints(&log, true);
        ensure!(complaints.is_empty(), "{name}: its kernel complains: {complaints:?}");
        ensure!(member.guest.output().is_empty(), "{name}: QEMU says {}", member.guest.output());
    }
    ensure!(taken_over > 0, "no kill hit a client, so nothing was tested");
    println!("{kills} kills while guests booted: {taken_over} times a client went on, and nobody noticed");
    daemon.stop().map(drop)
}
