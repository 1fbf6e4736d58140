//! Two guests at once: queues, sizes, and that neither sees the other's blocks.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::guest::daemon::TENANT_SIZE_MIB;
use crate::guest::lab::{Lab, NVME};
use crate::guest::qemu::{Guest, VCPUS};

/// Each guest has one I/O queue per CPU, each queue completes commands, and the namespace has the
/// size that the config gives it.
pub fn four_queues(lab: &mut Lab) -> Result<()> {
    for guest in lab.guests(NVME)? {
        let cpus = guest.run("nproc")?;
        ensure!(cpus.trim() == VCPUS.to_string(), "the guest has {cpus} CPUs");
        let queues = guest.run("ls /sys/block/nvme0n1/mq")?;
        ensure!(queues.split_whitespace().count() == VCPUS as usize, "queues: {queues}");
        let size = guest.run("blockdev --getsize64 /dev/nvme0n1")?;
        ensure!(size.trim() == (TENANT_SIZE_MIB << 20).to_string(), "size: {size}");

        let before = interrupts(guest)?;
        for cpu in 0..VCPUS {
            guest.run(&format!("taskset -c {cpu} dd if=/dev/nvme0n1 of=/dev/null bs=4k count=64 iflag=direct"))?;
        }
        let after = interrupts(guest)?;
        ensure!(before.len() == VCPUS as usize, "interrupts of I/O queues: {before:?}");
        ensure!(
            before.iter().zip(&after).all(|(before, after)| after > before),
            "a queue interrupted nobody: {before:?}, then {after:?}"
        );
    }
    Ok(())
}

/// Both guests write their own pattern over the same blocks at the same time; afterwards each
/// finds its own everywhere.
pub fn keep_apart(lab: &mut Lab) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(180);
    let job = |pattern: &str, action: &str| {
        format!(
            "fio --name=pattern --filename=/dev/nvme0n1 --direct=1 --ioengine=io_uring --iodepth=32 \
             --rw=randwrite --bs=32k --size=64m --verify=pattern --verify_pattern={pattern} \
             --verify_fatal=1 {action}"
        )
    };
    let patterns = ["0xa5a5a5a5", "0x3c3c3c3c"];
    // All is written before anything is verified.
    for action in ["--do_verify=0", "--verify_only"] {
        for (guest, pattern) in lab.guests(NVME)?.into_iter().zip(patterns) {
            guest.start_job("pattern", &job(pattern, action), LIMIT)?;
        }
        for (guest, tenant) in lab.guests(NVME)?.into_iter().zip(NVME) {
            let output = guest.finish_job("pattern", LIMIT)?;
            ensure!(output.code == 0, "{} {action}:\n{}", tenant.name(), output.text);
        }
    }
    Ok(())
}

/// Interrupts so far of each I/O queue, over all CPUs.
fn interrupts(guest: &mut Guest) -> Result<Vec<u64>> {
    let table = guest.run("grep nvme0q[1-9] /proc/interrupts")?;
    Ok(table
        .lines()
        .map(|line| {
            let counts = line.split_whitespace().skip(1).take(VCPUS as usize);
            counts.filter_map(|count| count.parse::<u64>().ok()).sum()
        })
        .collect())
}
