//! Foreign places, of VMs: names and sizes that others don't have, sleep, and old VMMs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::foreign::{TENANTS, serve, start, verify};
use crate::guest::daemon::{Daemon, evenkeel};
use crate::guest::lab::{Lab, complaints};
use crate::guest::prepare::{QEMUS, Qemu};
use crate::guest::qemu::{Disk, Extras, Guest};
use crate::guest::required;
use crate::wait;

const LIMIT: Duration = Duration::from_secs(300);

/// Only here: a guest that takes one disk for another since their long names begin alike.
pub fn long_names(lab: &mut Lab) -> Result<()> {
    const NAME: &str = "foreign-names";
    // Of 22 characters each, of which serial numbers hold 20.
    let disks = [
        ("accounting-database-01", "vfio-user", "cntrl"),
        ("accounting-database-02", "vfio-user", "cntrl"),
        ("accounting-archives-01", "vhost-user-blk", "vhost.sock"),
        ("accounting-archives-02", "vhost-user-blk", "vhost.sock"),
    ];
    let tenants = disks.map(|(name, frontend, _)| {
        format!("[[tenant]]\nname = {name:?}\nsize = \"16MiB\"\nfrontend = {frontend:?}\nqueues = 4\n")
    });
    let sockets = disks.map(|(name, _, socket)| format!("{name}/{socket}"));
    let (daemon, attached) = serve(lab, NAME, &tenants.concat(), &sockets.each_ref().map(String::as_str))?;
    let binary = lab.binary().context("there is a daemon")?;
    let mut guest = Guest::spawn_with(lab.machine(), lab.accel(), NAME, Qemu::Newest, &attached, Extras::default())?;
    let told = guest.wait_ready().and_then(|()| {
        for (name, ..) in disks {
            let told = evenkeel(&binary, &lab.dir().join(NAME), &["disk", "show", name])?;
            let serial = told.lines().find_map(|line| line.strip_prefix("serial number: ")).context(told.clone())?;
            ensure!(serial.len() <= 20 && serial.starts_with(&name[..10]), "{name} has serial number {serial:?}");
            // Controllers are numbered as they are found, in whichever order.
            let found = guest.run(&format!("grep -lw -e {serial} /sys/block/*/serial /sys/block/*/device/serial"))?;
            ensure!(found.lines().count() == 1, "{name}: {serial} is that of {found}");
        }
        Ok(())
    });
    told.with_context(|| guest.logs())?;
    drop(guest);
    daemon.stop().map(drop)
}

/// Only here: a disk that is gone, or another, once its VM has slept (S3): the VMM resets every device.
pub fn sleep(lab: &mut Lab) -> Result<()> {
    const NODES: [&str; 2] = ["/dev/nvme0n1", "/dev/vda"];
    let (daemon, mut guest) = start(lab, "foreign-sleep", Extras::default())?;
    let slept = guest.wait_ready().and_then(|()| {
        let sums = |guest: &mut Guest| guest.run_within(&format!("sha256sum {}", NODES.join(" ")), LIMIT);
        for node in NODES {
            guest.run_within(&format!("dd if=/dev/urandom of={node} bs=1M count=16 oflag=direct"), LIMIT)?;
        }
        let before = sums(&mut guest)?;
        // Once: QEMU 11.1 tells of no second time.
        let mut monitor = guest.monitor()?;
        guest.start_job("sleep", "echo mem >/sys/power/state", LIMIT)?;
        monitor.wake_sleeper()?;
        let ended = guest.finish_job("sleep", LIMIT)?;
        ensure!(ended.code == 0, "{ended:?}");
        guest.run("echo 3 >/proc/sys/vm/drop_caches")?;
        let after = sums(&mut guest)?;
        ensure!(before == after, "before:\n{before}after:\n{after}");
        NODES.iter().try_for_each(|node| verify(&mut guest, node))?;
        let log = guest.run("dmesg -r")?;
        let complaints = complaints(&log, true);
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    });
    slept.with_context(|| format!("{}\n{}", daemon.log_text(), guest.logs()))?;
    drop(guest);
    daemon.stop().map(drop)
}

/// Only here: a VM larger than a client may be that nobody said anything of; with `max_memory` its last page is read
/// and written as any other.
pub fn large(lab: &mut Lab) -> Result<()> {
    let extras = || Extras {
        memory: Some("memory-backend-memfd,share=on,reserve=off"),
        memory_mib: Some(300 << 10),
        // A kernel that knew of all of it would need 5 GiB for tables: it gets what is below 4 GiB, and the last GiB.
        kernel_arguments: vec!["memmap=297G$0x100000000".into()],
        ..Extras::default()
    };
    let tenants = TENANTS.replace("size =", "max_memory = \"320GiB\"\nsize =");
    let (daemon, disks) = serve(lab, "foreign-large", &tenants, &["disk/cntrl", "vdisk/vhost.sock"])?;
    let mut guest = Guest::spawn_with(lab.machine(), lab.accel(), "foreign-large", Qemu::Newest, &disks, extras())?;
    let verified = guest.wait_ready().and_then(|()| {
        let top = guest.run("awk '/System RAM/ { last = $1 } END { print last }' /proc/iomem")?;
        let end = top.trim().split_once('-').and_then(|(_, end)| u64::from_str_radix(end, 16).ok());
        ensure!(end.is_some_and(|end| end > 300 << 30), "the guest's memory ends at {top}");
        verify(&mut guest, "/dev/nvme0n1")?;
        verify(&mut guest, "/dev/vda")
    });
    verified.with_context(|| format!("{}\n{}", daemon.log_text(), guest.logs()))?;
    let log = daemon.log_text();
    ensure!(!log.contains("refused"), "{log}");
    drop(guest);
    daemon.stop()?;

    let (mut daemon, guest) = start(lab, "foreign-large-refused", extras())?;
    let told = wait::for_this("a line of the log", LIMIT, || {
        daemon.check()?;
        Ok(daemon.log_text().contains("max_memory allows 274877906944: raise max_memory").then_some(()))
    });
    told.with_context(|| format!("{}\n{}", daemon.log_text(), guest.logs()))
}

/// Only here: words of the daemon's for QEMU that a QEMU does not take, and an old one that does not come back to it.
pub fn printed_arguments(lab: &mut Lab) -> Result<()> {
    for qemu in QEMUS {
        let name = format!("foreign-qemu-{}", qemu.version());
        let (daemon, _) = serve(lab, &name, TENANTS, &["disk/cntrl", "vdisk/vhost.sock"])?;
        let printed = wait::for_this("what serve prints", LIMIT, || {
            let text = daemon.log_text();
            Ok(text.contains("stop with SIGTERM").then_some(text))
        })?;
        let mut qemu_arguments = arguments_of(&printed, "vdisk")?;
        match qemu {
            Qemu::Newest => qemu_arguments.extend(arguments_of(&printed, "disk")?),
            Qemu::Bookworm => {
                let note = "reconnect-ms takes QEMU 9.2 or later: before that, write reconnect=1";
                ensure!(printed.contains(note), "{printed}");
                qemu_arguments.iter_mut().for_each(|it| *it = it.replace("reconnect-ms=100", "reconnect=1"));
            }
        }
        let extras = Extras { qemu_arguments, ..Extras::default() };
        let mut guest = Guest::spawn_with(lab.machine(), lab.accel(), &name, qemu, &[], extras)?;
        let verified = guest.wait_ready().and_then(|()| verify(&mut guest, "/dev/vda"));
        verified.with_context(|| format!("{printed}\n{}", guest.logs()))?;
        // README.md says that it can't.
        let why = guest.monitor()?.refusal_to_migrate()?;
        ensure!(why.contains("Migration disabled: vhost"), "{why}");
        if qemu == Qemu::Newest {
            verify(&mut guest, "/dev/nvme0n1")?;
        }
        daemon.stop()?;
        let (daemon, _) = serve(lab, &name, TENANTS, &["vdisk/vhost.sock"])?;
        verify(&mut guest, "/dev/vda").with_context(|| format!("{}\n{}", daemon.log_text(), guest.logs()))?;
        drop(guest);
        daemon.stop()?;
    }
    Ok(())
}

/// QEMU's arguments for a tenant, as `evenkeel serve` prints them for a shell.
fn arguments_of(printed: &str, tenant: &str) -> Result<Vec<String>> {
    let start = format!("  {tenant}: ");
    let line = printed.lines().find_map(|line| line.strip_prefix(&start)).with_context(|| printed.to_owned())?;
    Ok(line.split('\'').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect())
}

/// Only here: a user with the limits that systems give a user, whose daemon serves VMs as root's does.
pub fn ordinary_user(lab: &mut Lab) -> Result<()> {
    const USER: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        ensure!(!required(), "root alone starts programs as other users");
        println!("guest test foreign-ordinary-user: skipped, it takes root");
        return Ok(());
    }
    let binary = lab.binary().context("QEMU's own drives are not in question here")?;
    // The run's folder is root's alone.
    let home = tempfile::tempdir()?;
    let program = wrap(home.path(), &binary, USER)?;
    let run = home.path().join("run");
    let configuration = format!(
        "runtime_dir = {run:?}\nstate_dir = {state:?}\n[device]\nbackend = \"file\"\npath = {image:?}\n\
         size = \"256MiB\"\ncreate = true\n[policy]\nname = \"evenkeel\"\n{TENANTS}",
        state = home.path().join("state"),
        image = home.path().join("drive.img"),
    );
    let sockets = [run.join("disk/cntrl"), run.join("vdisk/vhost.sock")];
    let daemon = Daemon::start_with(&program, home.path(), &configuration, &sockets)?;
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid()))?;
    let locked = limits.lines().find(|line| line.starts_with("Max locked memory")).context("a limit")?;
    ensure!(locked.split_whitespace().filter(|word| *word == "8388608").count() == 2, "{locked}");
    let [nvme, virtio] = sockets;
    let disks = [Disk::VfioUser(nvme), Disk::VhostUser(virtio)];
    let (name, extras) = ("foreign-user", Extras::default());
    let mut guest = Guest::spawn_with(lab.machine(), lab.accel(), name, Qemu::Newest, &disks, extras)?;
    let verified = guest.wait_ready().and_then(|()| {
        verify(&mut guest, "/dev/nvme0n1")?;
        verify(&mut guest, "/dev/vda")
    });
    verified.with_context(|| format!("{}\n{}", daemon.log_text(), guest.logs()))?;
    drop(guest);
    daemon.stop().map(drop)
}

/// A program that runs `binary` as `user`, who owns `home`, with 8 MiB of locked memory.
fn wrap(home: &Path, binary: &Path, user: u32) -> Result<PathBuf> {
    let program = home.join("evenkeel-of-a-user");
    let script = format!(
        "#!/bin/sh\nulimit -l 8192\nexec setpriv --reuid={user} --regid={user} --clear-groups {} \"$@\"\n",
        binary.display()
    );
    fs::write(&program, script)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    std::os::unix::fs::chown(home, Some(user), Some(user))?;
    Ok(program)
}
