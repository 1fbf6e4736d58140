//! The controller is reset, and its driver taken away and put back, while commands are in flight.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::guest::lab::{Lab, NVME, Tenant};
use crate::guest::load::ENDLESS;

const LIMIT: Duration = Duration::from_secs(400);
const ROUNDS: u32 = 3;

/// The driver requeues what a reset interrupts: the load sees no error.
pub fn reset_under_load(lab: &mut Lab) -> Result<()> {
    let guest = lab.guest(Tenant::BestEffort)?;
    guest.start_rounds(
        "load",
        "fio --name=load --filename=/dev/nvme0n1 --direct=1 --ioengine=io_uring --iodepth=32 \
         --rw=randwrite --bs=4k --size=4m --time_based --runtime=5 --verify=crc32c --verify_fatal=1",
    )?;
    for _ in 0..ROUNDS {
        guest.wait_for_requests("nvme0n1", 500)?;
        guest.run("nvme reset /dev/nvme0")?;
        ensure!(guest.job_runs("load")?, "the load ended before the resets did");
    }
    guest.wait_for_requests("nvme0n1", 500)?;
    let output = guest.finish_rounds("load", LIMIT)?;
    ensure!(output.code == 0, "the load failed:\n{}", output.text);
    Ok(())
}

/// The load ends with errors, as it must when its drive is taken away; what was written before
/// stays, the drive works again, and the other guest notices nothing.
pub fn rebind_under_load(lab: &mut Lab) -> Result<()> {
    lab.guests(NVME)?;
    lab.guest(Tenant::Guaranteed)?.start_rounds(
        "verify",
        "fio --name=verify --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=16 \
         --rw=randwrite --bs=4k --size=4m --time_based --runtime=5 --verify=crc32c --verify_fatal=1",
    )?;
    let guest = lab.guest(Tenant::BestEffort)?;
    guest.run("dd if=/dev/urandom of=/tmp/data bs=1M count=8")?;
    guest.run("dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct")?;
    for round in 0..ROUNDS {
        guest.start_job(
            "load",
            "fio --name=load --filename=/dev/nvme0n1 --direct=1 --ioengine=io_uring --iodepth=64 \
             --rw=randrw --bs=16k --offset=64m --size=256m --time_based --runtime=1h",
            ENDLESS,
        )?;
        guest.wait_for_requests("nvme0n1", 200)?;
        ensure!(guest.job_runs("load")?, "the load ended before the driver was taken away");
        guest.run_within("sh /usr/sbin/rebind /dev/nvme0n1", LIMIT)?;
        let output = guest.finish_job("load", LIMIT)?;
        ensure!(output.code != 0, "round {round}: the load did not notice:\n{}", output.text);
        guest.run("cmp -n 8388608 /tmp/data /dev/nvme0n1")?;
    }
    guest.run("rm /tmp/data")?;
    let output = lab.guest(Tenant::Guaranteed)?.finish_rounds("verify", LIMIT)?;
    ensure!(output.code == 0, "the other guest's fio failed:\n{}", output.text);
    Ok(())
}
