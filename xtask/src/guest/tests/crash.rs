//! A guest that dies in the middle of writing harms nobody else and can come back; a daemon that
//! is told to stop in the middle of writing loses nothing that it acknowledged.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::lab::{Lab, NVME, Tenant};
use crate::guest::load::ENDLESS;

const LIMIT: Duration = Duration::from_secs(240);

/// Each guest in turn is killed with SIGKILL while it writes and the other verifies; the other
/// sees no error, and the killed one's tenant takes a new guest.
pub fn killed_mid_write(lab: &mut Lab) -> Result<()> {
    NVME.into_iter().try_for_each(|victim| kill_one(lab, victim))
}

fn kill_one(lab: &mut Lab, victim: Tenant) -> Result<()> {
    lab.guests(NVME)?;
    let survivor = victim.other();
    let guest = lab.guest(survivor)?;
    guest.start_rounds(
        "verify",
        "fio --name=verify --filename=/dev/nvme0n1 --direct=1 --ioengine=io_uring --iodepth=16 \
         --rw=randwrite --bs=4k --size=4m --time_based --runtime=5 --verify=crc32c --verify_fatal=1",
    )?;
    guest.wait_for_requests("nvme0n1", 100)?;
    let guest = lab.guest(victim)?;
    guest.start_job(
        "write",
        "fio --name=write --filename=/dev/nvme0n1 --direct=1 --ioengine=io_uring --iodepth=64 \
         --rw=randwrite --bs=128k --size=512m --time_based --runtime=1h",
        ENDLESS,
    )?;
    guest.wait_for_requests("nvme0n1", 20)?;
    ensure!(guest.job_runs("write")?, "the victim was no longer writing");
    lab.kill(victim);

    let guest = lab.guest(survivor)?;
    guest.wait_for_requests("nvme0n1", 100)?;
    let output = guest.finish_rounds("verify", LIMIT)?;
    ensure!(output.code == 0, "the survivor's fio failed:\n{}", output.text);
    lab.guest(victim)?.run_within(
        "fio --name=again --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=32 \
         --rw=randwrite --bs=64k --size=64m --verify=crc32c --verify_fatal=1",
        LIMIT,
    )?;
    Ok(())
}

/// The daemon ends with exit code 0 while both guests write, and every write that a guest saw
/// completed before is on the drive afterwards.
pub fn daemon_stopped_mid_write(lab: &mut Lab) -> Result<()> {
    const MAKE_DATA: &str = "seq 300000 >/tmp/data; rm -f /run/acknowledged";
    for guest in lab.guests(NVME)? {
        guest.run(MAKE_DATA)?;
        guest.start_job("write", "sh /usr/sbin/write-in-order", ENDLESS)?;
        guest.start_job(
            "load",
            "fio --name=load --filename=/dev/nvme0n1 --direct=1 --ioengine=io_uring --iodepth=32 \
             --rw=randwrite --bs=16k --offset=64m --size=256m --time_based --runtime=1h",
            ENDLESS,
        )?;
    }
    let mut blocks = Vec::new();
    for guest in lab.guests(NVME)? {
        guest.wait_for("100 acknowledged blocks", "test $(cat /run/acknowledged) -gt 100")?;
        guest.wait_for_requests("nvme0n1", 100)?;
        let written = guest.run("cat /run/acknowledged")?;
        blocks.push(written.trim().parse::<u64>().context(written)?);
        ensure!(guest.job_runs("load")?, "the load ended too early");
    }
    lab.restart_daemon()?;
    for (guest, blocks) in lab.guests(NVME)?.into_iter().zip(blocks) {
        guest.run(MAKE_DATA)?;
        guest.run(&format!("cmp -n {} /tmp/data /dev/nvme0n1", blocks * 4096))?;
        guest.run("rm /tmp/data")?;
    }
    Ok(())
}
