//! Foreign places: guests whose firmware, buses or settings the other tests do not have.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::guest::daemon::Daemon;
use crate::guest::inside::Inside;
use crate::guest::lab::Lab;
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Disk, Extras, Guest};
use crate::wait;

const LIMIT: Duration = Duration::from_secs(300);

/// A guest without MSI and MSI-X: the pin is level triggered, and only a register write lowers it. A pin that stays up
/// is a storm of interrupts, which ends as "nobody cared".
pub fn pin_interrupts(lab: &mut Lab) -> Result<()> {
    const WRITES: u64 = 2048;
    let extras = Extras { kernel_arguments: vec!["pci=nomsi".into()], ..Extras::default() };
    let (daemon, mut guest) = start(lab, "foreign-pin", extras)?;
    let told = guest.wait_ready().and_then(|()| {
        verify(&mut guest, "/dev/nvme0n1")?;
        let count = "awk '/nvme/ { for (cpu = 2; cpu <= 5; cpu++) all += $cpu } END { print all }' /proc/interrupts";
        let interrupts: u64 = guest.run(count)?.trim().parse()?;
        // Each write and each read back may have one of its own. QEMU may raise the pin late, after the guest has read
        // what it was raised for, and lowers it at the guest's next register write only: some, where CPUs are short. A
        // storm is 60,000 and more.
        ensure!((1..=16 * WRITES).contains(&interrupts), "{interrupts} interrupts for {} commands", 2 * WRITES);
        let log = guest.run("dmesg")?;
        ensure!(!log.contains("nobody cared"), "{log}");
        Ok(())
    });
    told.with_context(|| guest.logs())?;
    drop(guest);
    daemon.stop().map(drop)
}

/// The tenants that most guests here are.
pub const TENANTS: &str = "[[tenant]]\nname = \"disk\"\nsize = \"64MiB\"\nmax_maps = 4096\n\
                           [[tenant]]\nname = \"vdisk\"\nsize = \"64MiB\"\nfrontend = \"vhost-user-blk\"\n";

/// A daemon with an NVMe disk and a virtio one, and a guest that has both and is about to boot.
pub fn start(lab: &Lab, name: &str, extras: Extras) -> Result<(Daemon, Guest)> {
    let (daemon, disks) = serve(lab, name, TENANTS, &["disk/cntrl", "vdisk/vhost.sock"])?;
    let guest = Guest::spawn_with(lab.machine(), lab.accel(), name, Qemu::Newest, &disks, extras)?;
    Ok((daemon, guest))
}

/// A daemon of its own with `tenants` on a drive of 128 MiB, and the disks of which `sockets` are in its folder.
pub fn serve(lab: &Lab, name: &str, tenants: &str, sockets: &[&str]) -> Result<(Daemon, Vec<Disk>)> {
    let binary = lab.binary().context("QEMU's own drives are not in question here")?;
    let dir = lab.dir().join(name);
    fs::create_dir_all(&dir)?;
    let run = dir.join("run");
    let configuration = format!(
        "runtime_dir = {run:?}\n[device]\nbackend = \"memory\"\nsize = \"128MiB\"\n[policy]\n\
         name = \"passthrough\"\n{tenants}"
    );
    let sockets: Vec<PathBuf> = sockets.iter().map(|socket| run.join(socket)).collect();
    let daemon = Daemon::start_with(&binary, &dir, &configuration, &sockets)?;
    let disk =
        |socket: PathBuf| if socket.ends_with("cntrl") { Disk::VfioUser(socket) } else { Disk::VhostUser(socket) };
    Ok((daemon, sockets.into_iter().map(disk).collect()))
}

/// Writes 8 MiB in pieces of 4 KiB, and reads them back.
pub fn verify(guest: &mut Guest, node: &str) -> Result<()> {
    let job = format!(
        "fio --name=verify --filename={node} --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k --size=8m \
         --verify=crc32c --verify_fatal=1"
    );
    guest.run_within(&job, LIMIT).map(drop)
}

/// Only here: a VM that does not start since some of its memory is in a file that is no memory.
pub fn memory_in_a_file(lab: &mut Lab) -> Result<()> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let is_on_disk = |place: &PathBuf| rustix::fs::statfs(place).is_ok_and(|it| it.f_type != TMPFS_MAGIC);
    let place = [lab.dir().to_owned(), env::current_dir()?].into_iter().find(is_on_disk);
    let place = place.context("this test needs a folder on a disk's file system")?;
    let image = tempfile::NamedTempFile::new_in(place)?;
    image.as_file().set_len(64 << 20)?;
    let object = format!("memory-backend-file,id=nv,mem-path={},size=64M,share=on", image.path().display());
    let qemu_arguments = ["-machine", "nvdimm=on", "-object", &object, "-device", "nvdimm,memdev=nv"];
    let extras = Extras { qemu_arguments: qemu_arguments.map(str::to_owned).to_vec(), ..Extras::default() };
    let (daemon, mut guest) = start(lab, "foreign-memory", extras)?;
    let verified = guest.wait_ready().and_then(|()| {
        verify(&mut guest, "/dev/nvme0n1")?;
        verify(&mut guest, "/dev/vda")
    });
    verified.with_context(|| format!("{}\n{}", daemon.log_text(), guest.logs()))?;
    drop(guest);
    let log = daemon.stop()?;
    for name in ["disk", "vdisk"] {
        let named = format!("{}, which can't be mapped", image.path().display());
        let is_hole = |line: &&str| line.contains(&format!(" {name}: ")) && line.contains(&named);
        ensure!(log.lines().filter(is_hole).count() == 1, "{name}: {log}");
    }
    Ok(())
}

/// Only here: a VMM whose memory is private, which nobody is told, while the guest waits for its disk.
pub fn private_memory(lab: &mut Lab) -> Result<()> {
    for (memory, said) in [
        ("memory-backend-ram", "are not in memory that the VMM shares"),
        ("memory-backend-memfd,share=off", "its driver's first command is blank"),
    ] {
        let (mut daemon, guest) = start(lab, "foreign-private", Extras { memory: Some(memory), ..Extras::default() })?;
        let told = wait::for_this("a line of the log", LIMIT, || {
            daemon.check()?;
            Ok(daemon.log_text().contains(said).then_some(()))
        });
        told.with_context(|| format!("{memory}: {}\n{}", daemon.log_text(), guest.logs()))?;
    }
    Ok(())
}

/// Only here: a guest behind an IOMMU, whose memory comes and goes by the page.
pub fn translated(lab: &mut Lab) -> Result<()> {
    for words in [&["iommu.strict=0"][..], &["iommu.strict=1"], &["iommu.passthrough=1"]] {
        let iommu = ["-machine", "kernel-irqchip=split", "-device", "intel-iommu,intremap=on,caching-mode=on"];
        let extras = Extras {
            qemu_arguments: iommu.map(str::to_owned).to_vec(),
            kernel_arguments: ["intel_iommu=on"].iter().chain(words).map(|word| (*word).to_owned()).collect(),
            ..Extras::default()
        };
        let (daemon, mut guest) = start(lab, "foreign-iommu", extras)?;
        let verified = guest.wait_ready().and_then(|()| {
            verify(&mut guest, "/dev/nvme0n1")?;
            // Pages by the hundred in flight, and by the thousand with those that are not unmapped yet.
            let job = "fio --name=large --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=8 \
                       --rw=randwrite --bs=256k --size=32m --verify=crc32c --verify_fatal=1";
            guest.run_within(job, LIMIT)?;
            let log = daemon.log_text();
            ensure!(!log.contains("refused") && !log.contains("disconnected"), "{log}");
            Ok(())
        });
        verified.with_context(|| format!("{words:?}: {}\n{}", daemon.log_text(), guest.logs()))?;
        drop(guest);
        daemon.stop()?;
    }
    Ok(())
}

/// Only here: a drive that can't say who it is, and that another one of its size is taken for after both changed names.
pub fn drives_without_identity(lab: &mut Lab) -> Result<()> {
    let Some(mut guest) = Inside::new("foreign-drives").modules(&["loop"]).boot(lab)? else { return Ok(()) };
    exchange_drives(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn exchange_drives(guest: &mut Guest) -> Result<()> {
    let configuration = |path: &str| {
        format!(
            "[device]\nbackend = \"block\"\npath = \"{path}\"\n[policy]\nname = \"passthrough\"\n[[tenant]]\n\
             name = \"db\"\nsize = \"16MiB\"\n"
        )
    };
    guest.run("truncate -s 32M /run/one.img /run/two.img && losetup /dev/loop0 /run/one.img")?;
    guest.serve(&configuration("/dev/loop0"))?;
    guest.verify_tenant("db")?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0, "{ended:?}");

    guest.run("losetup -d /dev/loop0 && losetup /dev/loop0 /run/two.img && losetup /dev/loop1 /run/one.img")?;
    for command in ["check", "serve"] {
        let told = guest.attempt_evenkeel(&format!("{command} /run/evenkeel.toml"))?;
        let is_named = told.text.contains("/dev/loop0 is not the drive that was served under this path before");
        ensure!(told.code == 2 && is_named, "{command}: {told:?}");
    }
    guest.serve(&configuration("/dev/loop1"))?;
    let told = guest.daemon_log();
    ensure!(told.contains("the device moved from /dev/loop0 to /dev/loop1"), "{told}");
    guest.verify_tenant("db")?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0, "{ended:?}");
    Ok(())
}
