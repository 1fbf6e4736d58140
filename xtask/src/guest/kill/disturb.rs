//! A daemon that is killed while its guests reset and format their drives, take the driver away and put it back, which
//! makes all queues anew, and get more memory, which is mapped anew.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rig::{Member, Rig};
use crate::guest::daemon::Daemon;
use crate::guest::lab::complaints;

/// Between two kills. A round of a guest takes some seconds.
const PAUSE_MS: std::ops::Range<u64> = 20..900;
/// A guest's last round, over whatever was left of it.
const ROUND_LIMIT: Duration = Duration::from_secs(400);
/// Each guest gets this at once.
const MEMORY_MIB: u32 = 2048;

/// Kills the daemon so often while booted guests do that, and holds them to having noticed nothing: no command may
/// fail, and what was written is read.
///
/// # Errors
/// When one fails, or a kernel or QEMU complains.
pub fn under_kills(rig: &mut Rig<'_>, mut daemon: Daemon, (kills, seed): (u32, u64)) -> Result<()> {
    for member in rig.members() {
        let round = round_of(member);
        member.guest.run("dd if=/dev/urandom of=/run/data bs=1M count=4 2>&1")?;
        member.guest.start_rounds("disturb", &round)?;
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut taken_over = 0;
    for kill in 0..kills {
        // Not to wait for anything: for the guest to be at ever other places.
        std::thread::sleep(Duration::from_millis(random.u64(PAUSE_MS)));
        if kill == kills / 2 {
            rig.members().try_for_each(|member| member.guest.monitor()?.plug_memory(MEMORY_MIB))?;
        }
        taken_over += daemon.kill()?.matches("a client goes on").count();
        daemon = rig.start_daemon()?;
    }
    for member in rig.members() {
        let name = member.tenant.name();
        let ended = member.guest.finish_rounds("disturb", ROUND_LIMIT)?;
        let log = member.guest.run("dmesg -r")?;
        ensure!(ended.code == 0, "{name}: a round failed: {}\n{log}", ended.text);
        let complaints = complaints(&log, true);
        ensure!(complaints.is_empty(), "{name}: its kernel complains: {complaints:?}");
        ensure!(member.guest.output().is_empty(), "{name}: QEMU says {}", member.guest.output());
    }
    ensure!(taken_over > 0, "no kill hit a client, so nothing was tested");
    println!("{kills} kills while guests reset their drives: {taken_over} times a client went on, and nobody noticed");
    daemon.stop().map(drop)
}

/// What a guest does again and again.
fn round_of(Member { tenant, drive, .. }: &Member) -> String {
    let written = format!(
        "dd if=/run/data of=/dev/{drive} bs=256k oflag=direct conv=fsync 2>&1 && cmp -n 4194304 /run/data /dev/{drive}"
    );
    let rebound = format!("sh /usr/sbin/rebind /dev/{drive} && cmp -n 4194304 /run/data /dev/{drive}");
    if tenant.is_virtio() {
        return format!("{written} && {rebound}");
    }
    format!(
        "nvme format /dev/{drive} --lbaf=0 --force && {written} && nvme reset /dev/nvme0 \
         && cmp -n 4194304 /run/data /dev/{drive} && {rebound}"
    )
}
