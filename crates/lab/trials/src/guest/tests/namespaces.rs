//! A namespace is added to a guest that runs, grows, comes to a second one, and goes, while both work.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::lab::{Lab, Tenant};
use crate::guest::qemu::Guest;

const LIMIT: Duration = Duration::from_secs(400);
const NAME: &str = "scratch";
const FIRST_MIB: u64 = 64;
const GROWS_TO_MIB: [u64; 3] = [96, 160, 256];
/// More than the loads write to.
const SHARED_AT_MIB: u64 = 32;

/// Without a hotplug slot: `/dev/nvme0n2` appears, its size follows, and what is written there and to the disk beside
/// it is read back all the while.
pub fn come_grow_and_go(lab: &mut Lab) -> Result<()> {
    // QEMU's own controllers have no command for it.
    let Some(binary) = lab.binary() else { return Ok(()) };
    let dir = lab.dir().to_path_buf();
    let disk = |arguments: &str| disk(&binary, &dir, arguments);
    lab.guests([Tenant::Guaranteed, Tenant::BestEffort])?;

    let guest = lab.guest(Tenant::Guaranteed)?;
    guest.start_rounds("one", &load("nvme0n1"))?;
    guest.wait_for_requests("nvme0n1", 100)?;
    disk(&format!("create {NAME} --size {FIRST_MIB}MiB --attach {}", Tenant::Guaranteed.name()))?;
    wait_for_size(guest, FIRST_MIB)?;
    guest.start_rounds("two", &load("nvme0n2"))?;
    let mut had_mib = FIRST_MIB;
    for size_mib in GROWS_TO_MIB {
        guest.wait_for_requests("nvme0n2", 200)?;
        guest.wait_for_requests("nvme0n1", 200)?;
        disk(&format!("grow {NAME} --size {size_mib}MiB"))?;
        wait_for_size(guest, size_mib)?;
        guest.run(&format!(
            "dd if=/dev/nvme0n2 of=/tmp/new bs=1M skip={had_mib} count=8 iflag=direct && cmp -n 8388608 /tmp/new \
             /dev/zero"
        ))?;
        for job in ["one", "two"] {
            ensure!(guest.job_runs(job)?, "load {job} ended before the disk had grown to {size_mib} MiB");
        }
        had_mib = size_mib;
    }

    guest.run("dd if=/dev/urandom of=/tmp/data bs=1M count=4")?;
    guest.run(&format!("dd if=/tmp/data of=/dev/nvme0n2 bs=1M seek={SHARED_AT_MIB} oflag=direct"))?;
    let (sum, nguid) = (guest.run("sha256sum </tmp/data")?, guest.run("cat /sys/block/nvme0n2/nguid")?);
    disk(&format!("attach {NAME} --to {} --read-only", Tenant::BestEffort.name()))?;
    let reader = lab.guest(Tenant::BestEffort)?;
    wait_for_size(reader, had_mib)?;
    ensure!(reader.run("cat /sys/block/nvme0n2/nguid")? == nguid, "it is another disk to the second guest");
    ensure!(reader.run("cat /sys/block/nvme0n2/ro")?.trim() == "1", "the second guest may write to it");
    reader.run(&format!("dd if=/dev/nvme0n2 of=/tmp/data bs=1M skip={SHARED_AT_MIB} count=4 iflag=direct"))?;
    ensure!(reader.run("sha256sum </tmp/data")? == sum, "the second guest reads something else");
    disk(&format!("detach {NAME} --from {}", Tenant::BestEffort.name()))?;
    reader.wait_for("the second guest to lose it", "! test -e /sys/block/nvme0n2")?;
    reader.run("rm /tmp/data")?;

    let guest = lab.guest(Tenant::Guaranteed)?;
    for job in ["two", "one"] {
        let output = guest.finish_rounds(job, LIMIT)?;
        ensure!(output.code == 0, "load {job} failed:\n{}", output.text);
    }
    disk(&format!("detach {NAME} --from {}", Tenant::Guaranteed.name()))?;
    guest.wait_for("the guest to lose it", "! test -e /sys/block/nvme0n2")?;
    guest.run("rm /tmp/data /tmp/new; dd if=/dev/nvme0n1 of=/dev/null bs=1M count=8 iflag=direct")?;
    disk(&format!("delete {NAME} --yes --wait"))
}

/// Some seconds of writes that are read back.
fn load(drive: &str) -> String {
    format!(
        "fio --name={drive} --filename=/dev/{drive} --direct=1 --ioengine=io_uring --iodepth=16 --rw=randwrite --bs=4k \
         --size=4m --time_based --runtime=5 --verify=crc32c --verify_fatal=1"
    )
}

/// The second namespace is there, and so large.
fn wait_for_size(guest: &mut Guest, size_mib: u64) -> Result<()> {
    let condition =
        format!("test -b /dev/nvme0n2 && test $(cat /sys/block/nvme0n2/size) -eq {}", (size_mib << 20) / 512);
    guest.wait_for(&format!("/dev/nvme0n2 with {size_mib} MiB"), &condition)
}

/// `evenkeel disk`.
fn disk(binary: &Path, dir: &Path, arguments: &str) -> Result<()> {
    let mut command = Command::new(binary);
    command.arg("disk").args(arguments.split_whitespace()).env("EVENKEEL_SOCKET", dir.join("run/api.sock"));
    let output = command.output().with_context(|| format!("running {}", binary.display()))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "evenkeel disk {arguments}: {told}");
    Ok(())
}
