//! What is read is what was written: fio with verification, and trim.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::guest::lab::{Lab, NVME, Tenant};

const LIMIT: Duration = Duration::from_secs(300);

/// `verify.fio` in both guests at once, through io_uring.
pub fn verify_io_uring(lab: &mut Lab) -> Result<()> {
    const COMMAND: &str = "DEVICE=/dev/nvme0n1 ENGINE=io_uring fio --minimal /etc/verify.fio";
    for guest in lab.guests(NVME)? {
        guest.start_job("verify", COMMAND, LIMIT)?;
    }
    for (guest, tenant) in lab.guests(NVME)?.into_iter().zip(NVME) {
        let output = guest.finish_job("verify", LIMIT)?;
        ensure!(output.code == 0, "fio in {}:\n{}", tenant.name(), output.text);
    }
    Ok(())
}

/// Trimmed blocks read as zeros, their neighbours as they were; trims and writes mixed do not harm
/// what was written.
pub fn trim(lab: &mut Lab) -> Result<()> {
    let guest = lab.guest(Tenant::BestEffort)?;
    guest.run("dd if=/dev/urandom of=/tmp/data bs=1M count=4")?;
    guest.run("dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct")?;
    // Two ranges, one of a single block and one of a MiB with ends inside larger blocks.
    guest.run("blkdiscard -o 512 -l 512 /dev/nvme0n1")?;
    guest.run("blkdiscard -o 1049088 -l 1048576 /dev/nvme0n1")?;
    guest.run("dd if=/dev/zero of=/tmp/data bs=512 seek=1 count=1 conv=notrunc")?;
    guest.run("dd if=/dev/zero of=/tmp/data bs=512 seek=2049 count=2048 conv=notrunc")?;
    guest.run("dd if=/dev/nvme0n1 of=/tmp/read bs=1M count=4 iflag=direct")?;
    guest.run("cmp /tmp/data /tmp/read")?;
    guest.run("rm /tmp/data /tmp/read")?;

    let mixed = "fio --name=trim --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=16 \
                 --rw=randtrimwrite --bs=16k --size=32m --verify=crc32c --verify_fatal=1";
    guest.run_within(mixed, LIMIT)?;
    Ok(())
}
