//! A daemon that is killed while its guests reset and format their drives, take the driver away and put it back, which
//! makes all queues anew, and get more memory, which is mapped anew.

use std::time::Duration;

use anyhow::{Result, bail};

use super::rig::{Member, Rig};
use crate::guest::daemon::Daemon;
use crate::guest::lab::complaints;

/// A guest's last round, over whatever was left of it.
const ROUND_LIMIT: Duration = Duration::from_secs(400);
/// Each guest gets this at once.
const MEMORY_MIB: u32 = 2048;
/// The job of a guest that resets its drive and the rest.
const ROUNDS: &str = "disturb";

/// Kills the daemon so often while booted guests do that, and holds them to having noticed nothing: no command may
/// fail, and what was written is read.
///
/// # Errors
/// When one fails, or a kernel or QEMU complains.
pub fn under_kills(rig: &mut Rig<'_>, daemon: Daemon, kills: (u32, u64)) -> Result<()> {
    for member in rig.members() {
        member.guest.run("dd if=/dev/urandom of=/run/data bs=1M count=4 2>&1")?;
        member.guest.start_rounds(ROUNDS, &round_of(member))?;
    }
    let (daemon, went_on) = rig.kill_at_random(daemon, kills, |rig, kill| {
        if kill != kills.0 / 2 {
            return Ok(());
        }
        rig.members().try_for_each(|member| member.guest.monitor()?.plug_memory(MEMORY_MIB))
    })?;
    for member in rig.members() {
        finish(member)?;
        member.noticed_nothing()?;
    }
    println!("{} kills while guests reset their drives: {went_on} times a client went on, and nobody noticed", kills.0);
    daemon.stop().map(drop)
}

fn finish(member: &mut Member) -> Result<()> {
    let ended = member.guest.finish_rounds(ROUNDS, ROUND_LIMIT)?;
    if ended.code == 0 {
        return Ok(());
    }
    let log = member.guest.run("dmesg -r")?;
    let kernel = complaints(&log, true).join("\n");
    bail!("{}: a round failed: {}its kernel complains: {kernel}", member.tenant.name(), ended.text)
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
