//! A guest that dies in the middle of writing harms no other guest and can come back.

use std::time::Duration;

use anyhow::{Result, ensure};

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
