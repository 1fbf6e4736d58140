//! What a virtio disk says of itself, and that its driver may come and go.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::daemon::{READ_ONLY_SIZE_MIB, TENANT_SIZE_MIB};
use crate::guest::lab::{Lab, Tenant, VIRTIO};
use crate::guest::load::ENDLESS;
use crate::guest::qemu::{Guest, VCPUS};

const LIMIT: Duration = Duration::from_secs(400);
const ROUNDS: u32 = 2;

/// Feature bits that the driver must have taken (virtio 1.2, §5.2.3 and §6). QEMU passes no back end's
/// SIZE_MAX on.
const FEATURES: [(usize, &str); 11] = [
    (2, "SEG_MAX"),
    (6, "BLK_SIZE"),
    (9, "FLUSH"),
    (10, "TOPOLOGY"),
    (11, "CONFIG_WCE"),
    (12, "MQ"),
    (13, "DISCARD"),
    (14, "WRITE_ZEROES"),
    (28, "INDIRECT_DESC"),
    (29, "EVENT_IDX"),
    (32, "VERSION_1"),
];
const FEATURE_RO: usize = 5;

/// Each guest has one queue per CPU, each queue completes requests, and the disk has the size, the
/// name and the features that it should.
pub fn queues_and_features(lab: &mut Lab) -> Result<()> {
    let is_evenkeel = lab.is_evenkeel();
    for (guest, tenant) in lab.guests(VIRTIO)?.into_iter().zip(VIRTIO) {
        let queues = guest.run("ls /sys/block/vda/mq")?;
        ensure!(queues.split_whitespace().count() == VCPUS as usize, "queues: {queues}");
        let size = guest.run("blockdev --getsize64 /dev/vda")?;
        ensure!(size.trim() == (TENANT_SIZE_MIB << 20).to_string(), "size: {size}");
        ensure!(guest.run("cat /sys/block/vda/ro")?.trim() == "0", "the disk is read-only");

        let bits = guest.run("cat /sys/block/vda/device/features")?;
        let has = |bit: usize| bits.as_bytes().get(bit) == Some(&b'1');
        for (bit, name) in FEATURES {
            ensure!(has(bit), "{} was not negotiated: {bits}", name);
        }
        ensure!(!has(FEATURE_RO), "the disk says that it is read-only: {bits}");
        if is_evenkeel {
            let serial = guest.run("cat /sys/block/vda/serial")?;
            ensure!(serial.trim() == tenant.name(), "serial: {serial}");
        }

        let before = interrupts(guest)?;
        for cpu in 0..VCPUS {
            guest.run(&format!("taskset -c {cpu} dd if=/dev/vda of=/dev/null bs=4k count=64 iflag=direct"))?;
        }
        let after = interrupts(guest)?;
        ensure!(before.len() == VCPUS as usize, "interrupts of queues: {before:?}");
        ensure!(
            before.iter().zip(&after).all(|(before, after)| after > before),
            "a queue interrupted nobody: {before:?}, then {after:?}"
        );
    }
    Ok(())
}

/// A read-only disk shows what is on it, and the guest can't change that.
pub fn read_only(lab: &mut Lab) -> Result<()> {
    for tenant in VIRTIO {
        lab.guest(tenant)?;
        let (image, offset_bytes) = lab.place_of(&tenant.read_only_name())?;
        let image = fs::File::options().read(true).write(true).open(image)?;
        let content: Vec<u8> = (0..READ_ONLY_SIZE_MIB << 17).flat_map(|word: u64| word.to_le_bytes()).collect();
        image.write_all_at(&content, offset_bytes)?;

        let guest = lab.guest(tenant)?;
        ensure!(guest.run("cat /sys/block/vdb/ro")?.trim() == "1", "the disk is not read-only");
        let words = "od -An -v -t u8 -w8 | awk '$1 != n { exit 1 } { n++ } END { print n }'";
        let read =
            guest.run_within(&format!("dd if=/dev/vdb bs=64k count=16 iflag=direct 2>/dev/null | {words}"), LIMIT)?;
        ensure!(read.trim() == (1 << 17).to_string(), "read: {read}");

        for write in ["dd if=/dev/zero of=/dev/vdb bs=4k count=1 oflag=direct", "/usr/sbin/blkdiscard -f /dev/vdb"] {
            let output = guest.attempt(write, LIMIT)?;
            ensure!(output.code != 0, "`{write}` changed a read-only disk: {output:?}");
        }
        let mut now = vec![0; content.len()];
        image.read_exact_at(&mut now, offset_bytes)?;
        ensure!(now == content, "the read-only disk of {} has changed", tenant.name());
    }
    Ok(())
}

/// The load ends with errors, as it must when its disk is taken away; what was written before
/// stays, the disk works again, and the other guest notices nothing.
pub fn rebind_under_load(lab: &mut Lab) -> Result<()> {
    lab.guests(VIRTIO)?;
    VIRTIO.into_iter().try_for_each(|tenant| rebind_one(lab, tenant))
}

fn rebind_one(lab: &mut Lab, tenant: Tenant) -> Result<()> {
    lab.guest(tenant.other())?.start_rounds(
        "verify",
        "fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 \
         --rw=randwrite --bs=4k --size=4m --time_based --runtime=5 --verify=crc32c --verify_fatal=1",
    )?;
    let guest = lab.guest(tenant)?;
    guest.run("dd if=/dev/urandom of=/tmp/data bs=1M count=8")?;
    guest.run("dd if=/tmp/data of=/dev/vda bs=1M oflag=direct")?;
    for round in 0..ROUNDS {
        guest.start_job(
            "load",
            "fio --name=load --filename=/dev/vda --direct=1 --ioengine=io_uring --iodepth=64 \
             --rw=randrw --bs=16k --offset=64m --size=256m --time_based --runtime=1h",
            ENDLESS,
        )?;
        guest.wait_for_requests("vda", 200)?;
        ensure!(guest.job_runs("load")?, "the load ended before the driver was taken away");
        guest.run_within("sh /usr/sbin/rebind /dev/vda", LIMIT)?;
        let output = guest.finish_job("load", LIMIT)?;
        ensure!(output.code != 0, "round {round}: the load did not notice:\n{}", output.text);
        guest.run("cmp -n 8388608 /tmp/data /dev/vda")?;
    }
    guest.run("rm /tmp/data")?;
    let output = lab.guest(tenant.other())?.finish_rounds("verify", LIMIT)?;
    ensure!(output.code == 0, "the other guest's fio failed:\n{}", output.text);
    Ok(())
}

/// Interrupts so far of each of `/dev/vda`'s queues, over all CPUs.
fn interrupts(guest: &mut Guest) -> Result<Vec<u64>> {
    let table = guest.run("grep $(basename $(readlink -f /sys/block/vda/device))-req /proc/interrupts")?;
    table
        .lines()
        .map(|line| {
            let counts = line.split_whitespace().skip(1).take(VCPUS as usize);
            counts.map(|count| count.parse::<u64>().with_context(|| line.to_owned())).sum()
        })
        .collect()
}
