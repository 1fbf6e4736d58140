//! A daemon that is killed under file systems. In the end each guest crashes, and the daemon with it: the journal is
//! replayed, and each file that was on the disk is there, whole.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::rig::Rig;
use crate::guest::daemon::Daemon;
use crate::guest::load::ENDLESS;

const LIMIT: Duration = Duration::from_secs(240);

/// Kills the daemon under guests that write files, and once more as the guests crash.
///
/// # Errors
/// When a file is not as it was written, a file system is not in order, or something was noticed before the crash.
pub fn under_kills(rig: &mut Rig<'_>, daemon: Daemon, kills: (u32, u64)) -> Result<()> {
    for member in rig.members() {
        let device = format!("/dev/{}", member.drive);
        member
            .guest
            .run_within(&format!("/usr/sbin/mke2fs -q -t ext4 -F {device} && mount -t ext4 {device} /mnt"), LIMIT)?;
        member.guest.start_job("files", "sh /usr/sbin/numbered-files write /mnt", ENDLESS)?;
        member.guest.wait_for("the first file", "test -e /run/written")?;
    }
    let (daemon, went_on) = rig.kill_at_random(daemon, kills, |_, _| Ok(()))?;
    let mut written = Vec::new();
    for member in rig.members() {
        ensure!(member.guest.job_runs("files")?, "{}: nothing is written any more", member.tenant.name());
        member.noticed_nothing()?;
        written.push(member.guest.run("cat /run/written")?.trim().to_owned());
    }
    daemon.kill()?;
    rig.members().try_for_each(|member| member.guest.crash())?;
    let daemon = rig.start_daemon()?;
    rig.wait_ready()?;
    for (member, written) in rig.members().zip(&written) {
        let (name, device) = (member.tenant.name(), format!("/dev/{}", member.drive));
        member.guest.run(&format!("mount -t ext4 {device} /mnt"))?;
        let log = member.guest.run("dmesg")?;
        ensure!(log.contains("recovery complete"), "{name}: no journal was replayed, so nothing was tested:\n{log}");
        let check = "sh /usr/sbin/numbered-files check /mnt";
        member.guest.run_within(&format!("{check} {written}"), LIMIT).with_context(|| name)?;
        // Of numbers that were never written it must say so.
        member.guest.run_within(&format!("! {check} 1{written}"), LIMIT).with_context(|| name)?;
        member.guest.run_within(&format!("umount /mnt && e2fsck -f -n {device}"), LIMIT).with_context(|| name)?;
        println!(
            "{name}: {written} files were written, the last of each name is there and whole, its file system clean"
        );
    }
    println!("{} kills under file systems: {went_on} times a client went on, and nobody noticed", kills.0);
    daemon.stop().map(drop)
}
