//! The package in a Debian with systemd, from its installation to its purge, with clients at work meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::inside::{Inside, PROGRAM_LIMIT};
use crate::guest::lab::Lab;
use crate::guest::load::ENDLESS;
use crate::guest::qemu::Guest;
use crate::guest::system;
use crate::guest::system_image::System;

const OLD: &str = "0.1.0-1";
const NEW: &str = "0.1.0-2";
const CONFIG: &str = "/etc/evenkeel/config.toml";
/// The drive that the kernel has, and the one that it gives away.
const KERNELS: &str = "0000:00:05.0";
const OURS: &str = "0000:00:06.0";
const DATA: &str = "/dev/evenkeel/data";
const KEEPER: &str = "evenkeel-keeper";
/// A start of the daemon, emulated.
const LIMIT: Duration = Duration::from_secs(120);
/// How exposed the unit may be by the measure of `systemd-analyze security`: below 5 is its `OK`.
const EXPOSURE_MAX: f64 = 4.9;

/// Install, serve, upgrade, reload, watchdog, remove, purge.
pub fn installed_upgraded_and_purged(lab: &mut Lab) -> Result<()> {
    let packages = system::packages(lab, "package-installed-upgraded-and-purged", &[OLD, NEW])?;
    let Some(packages) = packages else { return Ok(()) };
    let guest = Inside::new("package").nvme("fast", 5, 256).nvme("bare", 6, 64);
    let mut guest = system::boot(guest, lab, System::Plain, &packages)?;
    let done = install(&mut guest)
        .and_then(|()| serve(&mut guest))
        .and_then(|()| upgrade(&mut guest))
        .and_then(|()| reload(&mut guest))
        .and_then(|()| starve_the_watchdog(&mut guest))
        .and_then(|()| remove(&mut guest));
    done.with_context(|| guest.journal())
}

/// A property of the daemon's unit.
fn property(guest: &mut Guest, name: &str) -> Result<String> {
    Ok(guest.run(&format!("systemctl show --value -p {name} evenkeeld"))?.trim().to_owned())
}

fn main_pid(guest: &mut Guest, unit: &str) -> Result<String> {
    Ok(guest.run(&format!("systemctl show --value -p MainPID {unit}"))?.trim().to_owned())
}

fn wait_for_status(guest: &mut Guest, text: &str) -> Result<()> {
    guest.wait_for(text, &format!("systemctl show --value -p StatusText evenkeeld | grep -q '{text}'"))
}

fn install(guest: &mut Guest) -> Result<()> {
    guest.install_version(OLD)?;
    // Nothing is served before an operator asks for it.
    guest.run("! systemctl is-active evenkeeld && ! systemctl is-enabled evenkeeld")?;
    let modes = guest.run("stat -c '%a %U %G' /run/evenkeel /var/lib/evenkeel")?;
    ensure!(modes == "711 evenkeel evenkeel\n700 evenkeel evenkeel\n", "{modes}");
    for file in [
        "/usr/share/man/man1/evenkeel-disk-create.1.gz",
        "/usr/share/man/man5/evenkeel.toml.5.gz",
        "/usr/share/man/man8/evenkeeld.8.gz",
        "/usr/share/man/man8/evenkeel-keeper.8.gz",
        "/usr/share/bash-completion/completions/evenkeel",
        "/usr/share/zsh/vendor-completions/_evenkeel",
        "/usr/share/fish/vendor_completions.d/evenkeel.fish",
    ] {
        guest.run(&format!("test -s {file}"))?;
    }
    guest
        .run("systemd-analyze verify --man=no evenkeeld.service evenkeel-keeper.service 2>&1 | { ! grep evenkeel; }")?;
    guest.run_within("systemctl enable --now evenkeeld", LIMIT)?;
    wait_for_status(guest, "Serving 0 disks on 1 drive")?;
    let ids = guest
        .run("id -u evenkeel; awk '/^Uid/ {print $2}' /proc/$(systemctl show --value -p MainPID evenkeeld)/status")?;
    let ids: Vec<&str> = ids.lines().collect();
    ensure!(ids.len() == 2 && ids[0] == ids[1], "it runs as another user: {ids:?}");
    guest.run("getent group evenkeel-admin evenkeel-viewer")?;

    guest.run(&format!("systemctl is-active {KEEPER}"))?;
    for unit in ["evenkeeld", KEEPER] {
        let exposure = exposure(guest, unit)?;
        println!("systemd-analyze security {unit}: {exposure}");
        ensure!(exposure <= EXPOSURE_MAX, "{unit} is too exposed: {exposure}");
    }
    Ok(())
}

fn exposure(guest: &mut Guest, unit: &str) -> Result<f64> {
    let told = guest.run(&format!("systemd-analyze security --no-pager {unit} | tail -n 1"))?;
    let exposure = told.split(".service: ").nth(1).and_then(|rest| rest.split(' ').next());
    exposure.context(told.clone())?.parse().context(told.clone())
}

/// A promised disk as a block device on the kernel's drive, an NVMe one, and one on a drive without the kernel; and a
/// start of the daemon with all of them, behind the unit's walls.
fn serve(guest: &mut Guest) -> Result<()> {
    let drive = super::drives::disk_of(guest, KERNELS)?;
    guest.evenkeel(&format!("drive add fast --backend block --path {drive}"))?;
    guest.evenkeel(&format!("drive claim {OURS}"))?;
    guest.evenkeel(&format!("drive add bare --backend nvme --address {OURS}"))?;
    let promised = "--class guaranteed --latency-target 500ms --frontend ublk";
    guest.evenkeel(&format!("disk create data --drive fast --size 64MiB --wait {promised}"))?;
    guest.evenkeel("disk create db --drive fast --size 32MiB --wait")?;
    guest.evenkeel("disk create raw --drive bare --size 16MiB --wait")?;
    guest.run(&format!("test -b {DATA}"))?;
    // Open all the time, as a file system that is mounted has it: a device that nobody has open goes with its daemon.
    guest.start_rounds("writer", &format!("exec 3<{DATA}; write-and-compare {DATA}"))?;

    guest.run_within("systemctl restart evenkeeld", LIMIT)?;
    wait_for_status(guest, "Serving 3 disks on 3 drives$")?;
    verify(guest, "raw")?;
    // What its log says of a disk can be asked for.
    let asked = "journalctl -q -o cat EVENKEEL_TENANT=raw EVENKEEL_DRIVE=bare SYSLOG_IDENTIFIER=evenkeeld PRIORITY=6";
    guest.wait_for("a line about the disk", &format!("{asked} | grep -q 'a client attached'"))
}

fn verify(guest: &mut Guest, disk: &str) -> Result<()> {
    let load = format!("load /run/evenkeel/{disk} --rw randwrite --bs 4k --iodepth 8 --size 4m --verify --json");
    let told = guest.evenkeel(&load)?;
    ensure!(told.contains("\"bad_blocks\":0"), "{disk}: {told}");
    Ok(())
}

/// NVMe disks with a client: of a drive that the kernel has, and of one that it does not have.
const WITH_CLIENTS: [&str; 2] = ["db", "raw"];

/// Over an upgrade NVMe clients go on, with a keeper; and over whatever kills either program.
fn upgrade(guest: &mut Guest) -> Result<()> {
    let (before, keeper) = (property(guest, "MainPID")?, main_pid(guest, KEEPER)?);
    for disk in WITH_CLIENTS {
        let load = format!("exec evenkeel load /run/evenkeel/{disk} --rw randwrite --bs 4k --iodepth 2 --size 4m");
        guest.start_job(disk, &format!("{load} --verify --runtime 600s --json"), ENDLESS)?;
        let attached = "evenkeel disk list --attached --frontend vfio-user --names";
        guest.wait_for("the NVMe client", &format!("{attached} | grep -qx {disk}"))?;
    }
    let told = guest.install_version(NEW)?;
    ensure!(!told.contains("would lose them"), "{told}");
    wait_for_status(guest, "Serving 3 disks on 3 drives$")?;
    ensure!(property(guest, "MainPID")? != before, "the daemon was not restarted: {told}");
    goes_on(guest, 1)?;
    ensure!(main_pid(guest, KEEPER)? == keeper, "the keeper is another process");
    guest.run(&format!("test \"$(readlink /proc/{keeper}/exe)\" = /usr/bin/evenkeel-keeper"))?;
    at_work(guest)?;

    // The service manager has what a killed keeper had, and the daemon's connection too.
    guest.run(&format!("kill -KILL {keeper}"))?;
    guest.wait_for("the next keeper", &format!("test $(systemctl show --value -p NRestarts {KEEPER}) = 1"))?;
    guest.wait_for("its start", &format!("systemctl is-active --quiet {KEEPER}"))?;
    let daemon = property(guest, "MainPID")?;
    guest.run(&format!("kill -KILL {daemon}"))?;
    guest.wait_for("the next daemon", "test $(systemctl show --value -p NRestarts evenkeeld) = 1")?;
    wait_for_status(guest, "Serving 3 disks on 3 drives$")?;
    goes_on(guest, 2)?;
    guest.run("kill -TERM $(pidof evenkeel)")?;
    for disk in WITH_CLIENTS {
        let told = finish_load(guest, disk)?;
        ensure!(told.contains("\"bad_blocks\":0"), "{disk}: {told}");
    }

    without_keeper(guest)
}

/// The NVMe clients were taken over so often, and work.
fn goes_on(guest: &mut Guest, times: u32) -> Result<()> {
    for disk in WITH_CLIENTS {
        let count = format!("journalctl -q -o cat -u evenkeeld | grep -c '{disk}: a client goes on'");
        guest.wait_for("the NVMe client to go on", &format!("test $({count}) = {times}"))?;
        ensure!(guest.job_runs(disk)?, "the NVMe client of {disk} ended");
    }
    Ok(())
}

/// The report of a load that was told to end, and must have had no error.
fn finish_load(guest: &mut Guest, job: &str) -> Result<String> {
    let ended = guest.finish_job(job, PROGRAM_LIMIT)?;
    ensure!(ended.code == 0, "the NVMe client failed: {}", ended.text);
    Ok(ended.text)
}

/// Without a keeper an upgrade leaves the daemon that NVMe clients have, and restarts it once they are gone.
fn without_keeper(guest: &mut Guest) -> Result<()> {
    guest.run(&format!("systemctl stop {KEEPER}"))?;
    let before = property(guest, "MainPID")?;
    let load = "exec evenkeel load /run/evenkeel/db --rw randread --bs 4k --iodepth 2 --runtime 600s --json";
    guest.start_job("nvme", load, ENDLESS)?;
    guest.wait_for("the NVMe client", "evenkeel disk list --lost-on-restart --names | grep -qx db")?;
    let told = guest.install_version(OLD)?;
    ensure!(told.contains("clients have these disks attached, and would lose them: db"), "{told}");
    ensure!(property(guest, "MainPID")? == before && guest.job_runs("nvme")?, "the daemon was restarted: {told}");
    guest.run("kill -TERM $(pidof evenkeel)")?;
    finish_load(guest, "nvme")?;
    guest.wait_for("its end", "test -z \"$(evenkeel disk list --lost-on-restart --names)\"")?;

    let told = guest.install_version(NEW)?;
    ensure!(!told.contains("would lose them"), "{told}");
    wait_for_status(guest, "Serving 3 disks on 3 drives$")?;
    let after = property(guest, "MainPID")?;
    ensure!(after != before, "the daemon was not restarted: {told}");
    guest.run(&format!("test \"$(readlink /proc/{after}/exe)\" = /usr/bin/evenkeeld"))?;
    at_work(guest)
}

/// The writer has had no error, and writes.
fn at_work(guest: &mut Guest) -> Result<()> {
    let device = guest.run(&format!("basename $(readlink -f {DATA})"))?;
    let served = guest.wait_for_requests(device.trim(), 16);
    if !guest.job_runs("writer")? {
        let ended = guest.finish_job("writer", LIMIT)?;
        anyhow::bail!("the writer ended with {}: {}", ended.code, ended.text);
    }
    served
}

fn reload(guest: &mut Guest) -> Result<()> {
    let before = property(guest, "MainPID")?;
    guest
        .run(&format!("printf '[[tenant]]\\nname = \"web\"\\nsize = \"16MiB\"\\ndrive = \"device\"\\n' >>{CONFIG}"))?;
    guest.run_within("systemctl reload evenkeeld", LIMIT)?;
    wait_for_status(guest, "Serving 4 disks on 3 drives$")?;
    guest.run(&format!("cp {CONFIG} /root/good && echo 'nonsense = 1' >>{CONFIG}"))?;
    let told = guest.attempt("systemctl reload evenkeeld", LIMIT)?;
    ensure!(told.code != 0, "a file that makes no sense is reloaded");
    guest.run("journalctl -q -o cat -u evenkeeld | grep -q nonsense")?;
    guest.run(&format!("cp /root/good {CONFIG} && systemctl is-active evenkeeld"))?;
    ensure!(property(guest, "MainPID")? == before, "it is another daemon");
    at_work(guest)
}

fn starve_the_watchdog(guest: &mut Guest) -> Result<()> {
    let folder = "/run/systemd/system/evenkeeld.service.d";
    guest.run(&format!("mkdir -p {folder} && printf '[Service]\\nWatchdogSec=10\\n' >{folder}/soon.conf"))?;
    guest.run_within("systemctl daemon-reload && systemctl restart evenkeeld", LIMIT)?;
    let before = property(guest, "MainPID")?;
    guest.run(&format!("kill -STOP {before}"))?;
    guest.wait_for("the next daemon", "test $(systemctl show --value -p NRestarts evenkeeld) = 1")?;
    wait_for_status(guest, "Serving 4 disks on 3 drives$")?;
    guest.run("journalctl -q -o cat -u evenkeeld | grep -q 'Watchdog timeout'")?;
    guest.run(&format!("rm -r {folder} && systemctl daemon-reload"))?;
    at_work(guest)
}

fn remove(guest: &mut Guest) -> Result<()> {
    guest.run("evenkeel disk list --attached --names | grep -qx data")?;
    let told = guest.dpkg("-r evenkeel")?;
    ensure!(told.code != 0 && told.text.contains("clients are attached to these disks: data"), "{}", told.text);
    at_work(guest)?;
    let ended = guest.finish_rounds("writer", LIMIT)?;
    ensure!(ended.code == 0, "what was written is not what was read: {}", ended.text);
    guest.wait_for("nobody", "test -z \"$(evenkeel disk list --attached --names)\"")?;
    let told = guest.dpkg("-r evenkeel")?;
    ensure!(told.code == 0, "{}", told.text);
    guest.run(&format!("! test -e {DATA} && ! pidof evenkeeld && test -e {CONFIG}"))?;
    let told = guest.dpkg("--purge evenkeel")?;
    ensure!(told.code == 0, "{}", told.text);

    // But for the packages that it came in, and what systemd notes of itself.
    let left = guest.run(
        "find / -xdev -iname '*evenkeel*' -not -path '/root/*' -not -path '/proc/*' -not -path '/var/log/*'; \
         find /run /dev -iname '*evenkeel*'; find /var/lib/evenkeel -mindepth 1",
    )?;
    let mut left: Vec<&str> = left.lines().collect();
    left.sort_unstable();
    let data = ["/var/lib/evenkeel", "/var/lib/evenkeel/drive.img", "/var/lib/evenkeel/drive.img.layout.toml"];
    let others = |path: &&&str| !path.starts_with("/var/lib/evenkeel/");
    ensure!(data.iter().all(|path| left.contains(path)), "data are gone: {left:?}");
    ensure!(left.iter().filter(others).eq(["/var/lib/evenkeel"].iter()), "it leaves more than data: {left:?}");
    guest.run("id evenkeel").context("the account that the data belong to")?;
    Ok(())
}
