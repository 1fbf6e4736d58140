//! A guest that runs Evenkeel on an NVMe drive of its own, which erases itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::daemon::make_image;
use crate::guest::initramfs::{LIBRARIES, libraries_of};
use crate::guest::lab::Lab;
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Disk, Guest};

const DRIVE: &str = "/dev/nvme0n1";
const DRIVE_MIB: u64 = 256;
/// Behind all disks.
const SECRET_AT_MIB: u64 = 200;
const SECRET_MIB: u64 = 8;
const LIMIT: Duration = Duration::from_secs(400);
const CONFIG: &str = "/run/spare.toml";
const SOCKET: &str = "/run/ek/api.sock";

/// QEMU's controller knows Format with secure erase, and no Sanitize.
pub fn erases_itself(lab: &mut Lab) -> Result<()> {
    // The drive is QEMU's anyway.
    let Some(binary) = lab.binary() else { return Ok(()) };
    let machine = lab.machine().with_programs("sanitize", &programs(&binary)?)?;
    let image = lab.dir().join("sanitize.img");
    make_image(&image, DRIVE_MIB)?;
    let mut guest = Guest::spawn(&machine, lab.accel(), "sanitize", Qemu::Newest, &[Disk::QemuNvme(image)])?;
    let erased = guest.wait_ready().and_then(|()| erase(&mut guest));
    erased.with_context(|| {
        let log = guest.run("cat /run/daemon.out").unwrap_or_default();
        format!("--- daemon in the guest ---\n{log}\n{}", guest.logs())
    })
}

/// The programs, and the library that they need beside the guest's own.
fn programs(binary: &Path) -> Result<Vec<(String, PathBuf)>> {
    let daemon = binary.with_file_name("evenkeeld");
    let own = |(name, _): &(String, PathBuf)| name.starts_with("libgcc_s.");
    let libraries = libraries_of(Path::new("/"), &binary.display().to_string())?.into_iter().filter(own);
    let libraries = libraries.map(|(name, path)| (format!("{LIBRARIES}/{name}"), path));
    let programs = [("usr/bin/evenkeel", binary.to_owned()), ("usr/bin/evenkeeld", daemon)];
    Ok(programs.map(|(place, path)| (place.to_owned(), path)).into_iter().chain(libraries).collect())
}

fn erase(guest: &mut Guest) -> Result<()> {
    let config = format!(
        "runtime_dir = \"/run/ek\"\nstate_dir = \"/run/state\"\n[[drive]]\nname = \"spare\"\nbackend = \"block\"\n\
         path = \"{DRIVE}\"\nwipe = \"write-zeroes\"\n[policy]\nname = \"passthrough\"\n"
    );
    // A command is one line.
    guest.run(&format!("printf '{}' >{CONFIG}", config.replace('\n', "\\n")))?;
    serve(guest)?;
    evenkeel(guest, "disk create old --size 32MiB")?;
    let told = guest.attempt(&format!("evenkeel drive sanitize spare --yes --socket {SOCKET}"), LIMIT)?;
    ensure!(told.code == 2 && told.text.contains("has disks: old"), "a drive with a disk is sanitized: {told:?}");
    // As if somebody had been there before.
    guest.run(&format!("dd if=/dev/urandom of=/run/secret bs=1M count={SECRET_MIB}"))?;
    guest.run(&format!("dd if=/run/secret of={DRIVE} bs=1M seek={SECRET_AT_MIB} oflag=direct"))?;
    evenkeel(guest, "disk delete old --yes --wait")?;
    let log = guest.run("cat /run/daemon.out")?;
    ensure!(!log.contains("does not make zeros"), "the drive's Write Zeroes is not believed: {log}");

    let told = evenkeel(guest, "drive sanitize spare --yes")?;
    ensure!(told.contains("spare is sanitized (Format with user data erase), and free"), "{told}");
    guest.run(&format!(
        "dd if={DRIVE} bs=1M skip={SECRET_AT_MIB} count={SECRET_MIB} iflag=direct of=/run/read && \
         cmp -n $(({SECRET_MIB} << 20)) /run/read /dev/zero"
    ))?;
    let told = evenkeel(guest, "drive list --json")?;
    ensure!(told.contains(&format!("\"free_bytes\":{}", DRIVE_MIB << 20)) && !told.contains("sanitizing"), "{told}");
    let told = guest
        .attempt(&format!("evenkeel drive sanitize spare --yes --action crypto-erase --socket {SOCKET}"), LIMIT)?;
    ensure!(told.code == 2 && told.text.contains("it has no Sanitize by crypto erase"), "{told:?}");

    // And goes on, over a kill.
    evenkeel(guest, "disk create new --size 32MiB")?;
    guest.run("kill -9 $(pidof evenkeeld)")?;
    guest.finish_job("daemon", LIMIT)?;
    serve(guest)?;
    let told = evenkeel(guest, "disk list")?;
    ensure!(told.contains("new"), "{told}");
    Ok(())
}

fn serve(guest: &mut Guest) -> Result<()> {
    guest.start_job("daemon", &format!("evenkeel serve {CONFIG}"), Duration::from_secs(3600))?;
    guest.wait_for("the daemon", &format!("evenkeel drive list --socket {SOCKET}"))
}

fn evenkeel(guest: &mut Guest, command: &str) -> Result<String> {
    guest.run_within(&format!("evenkeel {command} --socket {SOCKET}"), LIMIT)
}
