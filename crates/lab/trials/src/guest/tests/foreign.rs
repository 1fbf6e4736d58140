//! Foreign places: guests whose firmware, buses or settings the other tests do not have.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::daemon::Daemon;
use crate::guest::lab::Lab;
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Disk, Extras, Guest};

const LIMIT: Duration = Duration::from_secs(300);

/// A guest without MSI and MSI-X: the pin is level triggered, and only a register write lowers it. A pin that stays up
/// is a storm of interrupts, which ends as "nobody cared".
pub fn pin_interrupts(lab: &mut Lab) -> Result<()> {
    const WRITES: u64 = 2048;
    let binary = lab.binary().context("QEMU's own drives are not in question here")?;
    let dir = lab.dir().join("foreign");
    fs::create_dir_all(&dir)?;
    let run = dir.join("run");
    let configuration = format!(
        "runtime_dir = {run:?}\n[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
         [[tenant]]\nname = \"pin\"\nsize = \"64MiB\"\n"
    );
    let socket = run.join("pin/cntrl");
    let daemon = Daemon::start_with(&binary, &dir, &configuration, std::slice::from_ref(&socket))?;
    let extras = Extras { kernel_arguments: vec!["pci=nomsi".into()], ..Extras::default() };
    let disks = [Disk::VfioUser(socket)];
    let mut guest = Guest::spawn_with(lab.machine(), lab.accel(), "foreign-pin", Qemu::Newest, &disks, extras)?;
    let told = guest.wait_ready().and_then(|()| {
        let job = "fio --name=pin --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite \
                   --bs=4k --size=8m --verify=crc32c --verify_fatal=1";
        guest.run_within(job, LIMIT)?;
        let count = "awk '/nvme/ { for (cpu = 2; cpu <= 5; cpu++) all += $cpu } END { print all }' /proc/interrupts";
        let interrupts: u64 = guest.run(count)?.trim().parse()?;
        // Each write and each read back may have one of its own, and the driver's start some.
        ensure!((1..=3 * WRITES).contains(&interrupts), "{interrupts} interrupts for {} commands", 2 * WRITES);
        let log = guest.run("dmesg")?;
        ensure!(!log.contains("nobody cared"), "{log}");
        Ok(())
    });
    told.with_context(|| guest.logs())?;
    drop(guest);
    daemon.stop()?;
    Ok(())
}
