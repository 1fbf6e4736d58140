//! A VM, a container and a process on one drive.

use anyhow::{Context, Result, ensure};

use crate::guest::hybrid::{self, KINDS, Kind};
use crate::guest::inside::PROGRAM_LIMIT;
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;

const DRIVE: &str = "/dev/nvme0n1";

/// All three write at once and read back what they wrote; none finds another's data.
pub fn three_at_once(lab: &mut Lab) -> Result<()> {
    let Some(mut guest) = hybrid::host().nvme("ek0", 4, 256).boot(lab)? else { return Ok(()) };
    guest.wait_for("the drive", &format!("test -b {DRIVE}"))?;
    write_and_verify(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn write_and_verify(guest: &mut Guest) -> Result<()> {
    let terms = |kind| match kind {
        Kind::Container => "class = \"guaranteed\"\nlatency_target = \"100ms\"\n".to_owned(),
        Kind::Vm | Kind::Process => String::new(),
    };
    let tenants = hybrid::tenants(terms);
    guest.serve(&format!("[device]\nbackend = \"block\"\npath = \"{DRIVE}\"\n[policy]\nname = \"lpns\"\n{tenants}"))?;
    hybrid::set_up(guest)?;
    let seen = guest.run("container /mnt sh -c 'ls /data; ls -d /run; echo $$'")?;
    ensure!(seen.contains("file\n") && seen.contains("\n1\n") && seen.contains("ls: /run"), "no container: {seen}");
    let verify = "--verify=crc32c --verify_fatal=1 --verify_state_save=0";
    for kind in KINDS {
        let load = kind.load("--rw=randwrite --bs=4k --iodepth=8", verify, "--verify");
        guest.start_job(kind.name(), &load, PROGRAM_LIMIT)?;
    }
    for kind in KINDS {
        let told = guest.finish_job(kind.name(), PROGRAM_LIMIT)?;
        ensure!(told.code == 0 && told.text.contains("\"total_ios\""), "{kind:?}: {told:?}");
    }
    hybrid::tear_down(guest)?;
    let told = guest.end_daemon("TERM")?;
    ensure!(told.code == 0 && !told.text.contains("panicked"), "{told:?}");
    Ok(())
}
