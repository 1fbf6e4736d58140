//! A drive that stays with the kernel's driver and gets NVMe commands past the block layer.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::guest::daemon::make_image;
use crate::guest::inside::{Inside, PROGRAM_LIMIT, UBLK_MODULES};
use crate::guest::lab::Lab;
use crate::guest::qemu::{Disk, Guest, PORTS};

const DRIVE_MIB: u64 = 192;
/// Where the block device's disk lies.
const RAW_AT_MIB: u64 = 64;
const RAW: &str = "/dev/evenkeel/raw";
const FIO: &str = "fio --name=v --ioengine=libaio --direct=1 --iodepth=8 --verify=crc32c --verify_fatal=1 \
                   --verify_state_save=0 --output-format=terse";

/// QEMU's name for a drive that can be unplugged.
const ID: &str = "hot0";
/// Beyond what is read before a drive is served, and what the tests write.
const BAD_SECTOR: u64 = (24 << 20) / 512;

/// Data of all kinds of tenants, of blocks of 512 bytes and of 4 KiB, over a kill; discards, zeroing, flushes, wiping.
pub fn past_the_block_layer(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("nvme-commands").modules(&UBLK_MODULES).nvme("ek0", 4, DRIVE_MIB).image("large", 64);
    let large = "nvme,serial=ek1,drive=large,logical_block_size=4096,physical_block_size=4096,addr=0x5";
    let Some(mut guest) = guest.qemu(&["-device", large]).boot(lab)? else { return Ok(()) };
    let served = refuse_others(&mut guest).and_then(|disks| serve(&mut guest, disks));
    served.with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

/// What takes no NVMe commands. Returns the kernel's disks, of small and of large blocks.
fn refuse_others(guest: &mut Guest) -> Result<[String; 2]> {
    guest.wait_for("the drives", "test -b /dev/nvme0n1 && test -b /dev/nvme1n1")?;
    let found = guest.run("grep -l '^ek1 *$' /sys/class/nvme/nvme*/serial")?;
    let disks = if found.contains("nvme0") { ["nvme1n1", "nvme0n1"] } else { ["nvme0n1", "nvme1n1"] };
    let [small, large] = disks.map(|disk| format!("/dev/{disk}"));
    let device = |path: &str| {
        format!("[device]\nbackend = \"block\"\npath = \"{path}\"\nnvme_commands = true\n[policy]\nname = \"lpns\"\n")
    };
    let character_device = small.replace("nvme", "ng");
    guest.write_file("/run/wrong.toml", &device(&character_device))?;
    let told = guest.attempt_evenkeel("check /run/wrong.toml")?;
    let remedy = format!("write path = \"{small}\" and nvme_commands = true");
    ensure!(told.code == 2 && told.text.contains(&remedy), "{told:?}");
    guest.run(&format!("mv {character_device} /run/elsewhere"))?;
    guest.write_file("/run/wrong.toml", &device(&small))?;
    let told = guest.attempt_evenkeel("check /run/wrong.toml")?;
    let why = format!("{small} takes no NVMe commands: {character_device} is missing");
    ensure!(told.code == 2 && told.text.contains(&why), "{told:?}");
    guest.run(&format!("mv /run/elsewhere {character_device}"))?;
    Ok([small, large])
}

fn serve(guest: &mut Guest, [small, large]: [String; 2]) -> Result<()> {
    let drive = |name: &str, path: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\nbackend = \"block\"\npath = \"{path}\"\nnvme_commands = true\n\
             wipe = \"write-zeroes\"\n"
        )
    };
    let tenant = |name: &str, drive: &str, offset_mib: u64, rest: &str| {
        format!(
            "[[tenant]]\nname = \"{name}\"\ndrive = \"{drive}\"\nsize = \"32MiB\"\noffset = \"{offset_mib}MiB\"\n{rest}"
        )
    };
    guest.serve(&format!(
        "{}{}[policy]\nname = \"lpns\"\n{}{}{}{}",
        drive("small", &small),
        drive("large", &large),
        tenant("db", "small", 0, "class = \"guaranteed\"\nlatency_target = \"900ms\"\n"),
        tenant("vm", "small", 32, "frontend = \"vhost-user-blk\"\n"),
        tenant("raw", "small", RAW_AT_MIB, "frontend = \"ublk\"\nqueues = 1\n"),
        tenant("wide", "large", 0, "lba_size = 4096\n"),
    ))?;
    guest.wait_for("the block device", &format!("test -b {RAW}"))?;
    guest.run(&format!("! /usr/sbin/mke2fs -q -F {small}")).context("somebody else may have the drive")?;

    // Requests of the block layer are counted, and these are none. They were for zeroing new disks, which is over.
    let counted = format!("cat /sys/block/{}/stat", small.trim_start_matches("/dev/"));
    for name in ["db", "vm", "wide"] {
        guest.verify_tenant(name)?;
    }
    let before = guest.run(&counted)?;
    // Longer than the drive takes at once.
    let told = guest.evenkeel("load /run/ek/db --rw write --bs 1m --iodepth 4 --size 16m --verify --json")?;
    ensure!(told.contains("\"bad_blocks\":0"), "{told}");
    guest.run_within(
        &format!("{FIO} --filename={RAW} --rw=randtrimwrite --bs=16k --size=8m --fsync=8"),
        PROGRAM_LIMIT,
    )?;
    let after = guest.run(&counted)?;
    ensure!(before == after, "the block layer had requests: {before}, then {after}");

    discard_and_zero(guest, &small)?;
    kill_under_load(guest)?;
    wipe(guest)?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0 && !ended.text.contains("panicked"), "{ended:?}");
    Ok(())
}

/// Each of a MiB that held other data, and neither of its neighbours.
fn discard_and_zero(guest: &mut Guest, drive: &str) -> Result<()> {
    guest.run(&format!("tr '\\0' a </dev/zero | dd of={RAW} bs=1M seek=16 count=5 iflag=fullblock oflag=direct"))?;
    guest.run(&format!("/usr/sbin/blkdiscard -f -o 17M -l 1M {RAW}"))?;
    guest.run(&format!("/usr/sbin/blkdiscard -f -z -o 19M -l 1M {RAW}"))?;
    for (at_mib, is_zero) in [(16, false), (17, true), (18, false), (19, true), (20, false)] {
        let not = if is_zero { "" } else { "! " };
        // As a tenant and as the host sees it.
        for (path, skip_mib) in [(RAW, at_mib), (drive, RAW_AT_MIB + at_mib)] {
            guest
                .run(&format!(
                    "dd if={path} bs=1M skip={skip_mib} count=1 iflag=direct of=/run/read && \
                     {not}cmp -s -n 1048576 /run/read /dev/zero"
                ))
                .with_context(|| format!("{at_mib} MiB of {path}"))?;
        }
    }
    Ok(())
}

fn kill_under_load(guest: &mut Guest) -> Result<()> {
    let fio = format!("{FIO} --filename={RAW} --rw=randwrite --bs=4k --size=16m");
    guest.start_job("fio", &fio, PROGRAM_LIMIT)?;
    let sectors = format!("awk '{{print $7}}' /sys/block/$(basename $(readlink {RAW}))/stat");
    let before: u64 = guest.run(&sectors)?.trim().parse()?;
    guest.wait_for("writes", &format!("test $({sectors}) -gt {}", before + 4000))?;
    guest.end_daemon("KILL")?;
    guest.run("! test -e /run/fio.code")?;
    guest.serve_again()?;
    let told = guest.finish_job("fio", PROGRAM_LIMIT)?;
    ensure!(told.code == 0, "fio over a kill: {told:?}");
    guest.verify_tenant("db")
}

/// What a deleted disk left becomes zeros, by the drive's own command.
fn wipe(guest: &mut Guest) -> Result<()> {
    guest.ask_daemon("disk create old --size 32MiB --drive small --wait")?;
    guest.verify_tenant("old")?;
    guest.ask_daemon("disk delete old --yes --wait")?;
    let log = guest.run("cat /run/daemon.out")?;
    ensure!(!log.contains("it fails wipe"), "the drive's Write Zeroes is not believed: {log}");
    Ok(())
}

/// A sector that can't be read is that read's error; a drive with commands of a dead daemon is nobody's; one that is
/// unplugged fails what is sent to it, and the daemon serves the others.
pub fn what_goes_wrong(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("nvme-commands-fail").modules(&UBLK_MODULES);
    let image = lab.dir().join("nvme-commands-fail.img");
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    make_image(&image, DRIVE_MIB)?;
    go_wrong(&mut guest, &image).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn go_wrong(guest: &mut Guest, image: &Path) -> Result<()> {
    let disk = Disk::QemuNvme(image.to_owned());
    guest.monitor()?.with_bad_sector(BAD_SECTOR).plug(&disk, ID, PORTS[0])?;
    guest.wait_for("the kernel's disk", "test -b /dev/nvme0n1")?;
    let tenant = |name: &str, drive: &str, rest: &str| {
        format!("[[tenant]]\nname = \"{name}\"\nsize = \"32MiB\"\ndrive = \"{drive}\"\n{rest}")
    };
    guest.serve(&format!(
        "[[drive]]\nname = \"calm\"\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         [[drive]]\nname = \"fast\"\nbackend = \"block\"\npath = \"/dev/nvme0n1\"\nnvme_commands = true\n\
         [policy]\nname = \"passthrough\"\n{}{}{}",
        tenant("other", "calm", ""),
        tenant("db", "fast", "offset = \"0\"\n"),
        tenant("raw", "fast", "offset = \"32MiB\"\nfrontend = \"ublk\"\nqueues = 1\n"),
    ))?;
    guest.wait_for("the block device", &format!("test -b {RAW}"))?;
    guest.verify_tenant("db")?;
    let told = guest.attempt_evenkeel("load /run/ek/db --rw read --bs 64k --iodepth 1 --size 32m --json")?;
    ensure!(told.code != 0, "a bad sector is read: {told:?}");
    guest.verify_tenant("db")?;

    // One command a second: most of what the daemon sent is under way when it is killed.
    guest.monitor()?.throttle(ID, 1)?;
    let fio = "fio --name=w --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16 --size=128k";
    guest.start_job("fio", &format!("{fio} --filename={RAW} --output-format=terse"), PROGRAM_LIMIT)?;
    let device = format!("/sys/block/$(basename $(readlink {RAW}))");
    let written = format!("$(awk '{{print $5}}' {device}/stat)");
    let before = guest.run(&format!("echo {written}"))?;
    guest.wait_for("writes", &format!("test {written} -gt {}", before.trim()))?;
    guest.end_daemon("KILL")?;
    guest.run("! /usr/sbin/mke2fs -q -F /dev/nvme0n1").context("the drive of a killed daemon is free too soon")?;
    guest.monitor()?.throttle(ID, 0)?;
    guest.serve_again()?;
    let told = guest.finish_job("fio", PROGRAM_LIMIT)?;
    ensure!(told.code == 0, "fio over a kill: {told:?}");

    guest.monitor()?.unplug(&disk, ID)?;
    let told = guest.attempt_evenkeel("load /run/ek/db --rw read --bs 4k --iodepth 1 --size 4m --json")?;
    ensure!(told.code != 0, "a drive that is away is read: {told:?}");
    guest.verify_tenant("other")?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(!ended.text.contains("panicked"), "{ended:?}");
    Ok(())
}
