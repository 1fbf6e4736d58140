//! `cargo xtask kill-test`: the daemon is killed with SIGKILL, again and again, under guests that verify
//! what they write, and started again with the same configuration.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `rig` | guests, load, kills |
//! | `boot` | kills while guests boot |
//! | `disturb` | kills while they reset and format, and make their queues anew |
//! | `sanitize` | a kill while one sanitizes its drive |
//! | `ext4` | kills under file systems, whose guests crash in the end |
//! | `ledger` | what the daemon's lives completed, by their logs |
//! | `report` | the figures, judged |
//!
//! Passed means: no error and no mismatch in any guest, none of its requests lost or completed twice, by
//! the counts of both ends, and a reconnect for each kill. Not here: the loss of the host itself, after
//! which the ring's log is gone with the guest.

mod boot;
mod disturb;
mod ext4;
mod ledger;
mod report;
mod rig;
pub mod sanitize;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};

use super::lab::{Lab, NVME, Tenant, VIRTIO};
use super::prepare::{self, QEMUS, Qemu};
use super::qemu::{Accel, Machine};
use super::{CacheDir, daemon};
use report::Report;
use rig::{Plan, Rig};

/// Kills of each kind within the guest tests; `cargo xtask kill-test` does as many as one likes.
const FEW_KILLS: u32 = 8;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// How often
    #[arg(long, value_name = "N", default_value_t = 200)]
    kills: u32,
    /// While the guests boot, instead of under their load
    #[arg(long, requires = "nvme")]
    booting: bool,
    /// Instead of being killed, the daemon is upgraded to this other build of `evenkeel`, with evenkeeld beside it, and
    /// back, in turn
    #[arg(long, value_name = "PATH", requires = "nvme", conflicts_with_all = ["booting", "self_check"])]
    upgrade_to: Option<PathBuf>,
    /// While the guests reset, format and rebind their drives and get more memory, instead of under their load
    #[arg(long, requires = "nvme", conflicts_with_all = ["booting", "upgrade_to"])]
    resetting: bool,
    /// While the guests write files on an ext4, instead of under their load; in the end they crash
    #[arg(long, requires = "nvme", conflicts_with_all = ["booting", "resetting", "upgrade_to"])]
    ext4: bool,
    /// Replays the moments of the kills [default: of the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A guest with a virtio disk in this version of QEMU alone, 11.1 or 7.2 [default: one in each]
    #[arg(long, value_name = "VERSION", value_parser = tenant_in)]
    qemu: Option<Tenant>,
    /// A guest with an NVMe disk beside one with a virtio disk, whose sockets a keeper has
    #[arg(long, conflicts_with = "qemu")]
    nvme: bool,
    #[command(flatten)]
    cache: CacheDir,
    /// Write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the run's files
    #[arg(long)]
    keep: bool,
    /// Spoil the image: the guests must notice
    #[arg(long)]
    self_check: bool,
}

/// The tenant whose guest runs in the QEMU of a version.
fn tenant_in(version: &str) -> Result<Tenant> {
    let known = || QEMUS.map(Qemu::version).join(" and ");
    let of_version = VIRTIO.into_iter().find(|tenant| tenant.qemu().version() == version);
    of_version.with_context(|| format!("no QEMU {version}; there are {}", known()))
}

fn seed_of_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// `cargo xtask kill-test`.
///
/// # Errors
/// When the guests can't be prepared, the daemon does not survive its kills, or, with `--self-check`, when
/// a spoiled image goes unnoticed.
pub fn run(options: &Options) -> Result<()> {
    let images = prepare::images(&options.cache.path()?)?;
    let binary = daemon::binary(daemon::Profile::Release)?;
    let dir = tempfile::Builder::new().prefix("evenkeel-kills-").tempdir()?;
    let machine = Machine::new(images, dir.path())?;
    let accel = Accel::probe(&machine);
    let plan = Plan { kills: options.kills, seed: options.seed.unwrap_or_else(seed_of_now), spoil: options.self_check };
    println!("{} kills, seed {}", plan.kills, plan.seed);

    let tenants = match (options.nvme, options.qemu) {
        (true, _) => vec![NVME[0], VIRTIO[0]],
        (false, Some(tenant)) => vec![tenant],
        (false, None) => VIRTIO.to_vec(),
    };
    let occasion = match options {
        Options { booting: true, .. } => Some(Occasion::Boot),
        Options { resetting: true, .. } => Some(Occasion::Reset),
        Options { ext4: true, .. } => Some(Occasion::Files),
        _ => None,
    };
    if let Some(occasion) = occasion {
        let kills = (plan.kills, plan.seed);
        let result = occasion.under_kills(&machine, accel, &binary, dir.path(), kills);
        if options.keep {
            println!("The run's files are in {}.", dir.keep().display());
        }
        return result;
    }
    let other = options.upgrade_to.as_deref();
    let result = boot_and_run(&machine, accel, (&binary, other), dir.path(), &tenants, &[plan]);
    if options.keep {
        println!("The run's files are in {}.", dir.keep().display());
    }
    for report in result? {
        report.print();
        if let Some(path) = &options.json {
            std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
        }
        judge(&report, plan)?;
    }
    Ok(())
}

/// The guest tests' share: some kills that must pass, and a spoiled image that must not.
///
/// # Errors
/// As [`run`].
pub fn few_kills(lab: &mut Lab) -> Result<()> {
    kills_in(lab, &VIRTIO, FEW_KILLS)
}

/// A few kills of a daemon with an NVMe guest, whose socket is with a keeper, and a virtio guest.
///
/// # Errors
/// As [`run`].
pub fn few_kills_beside_a_keeper(lab: &mut Lab) -> Result<()> {
    kills_in(lab, &[NVME[0], VIRTIO[0]], FEW_KILLS)
}

/// What guests do instead of I/O alone.
#[derive(Debug, Clone, Copy)]
enum Occasion {
    Boot,
    Reset,
    Files,
}

impl Occasion {
    /// Kills under an NVMe and a virtio guest.
    fn under_kills(self, machine: &Machine, accel: Accel, binary: &Path, dir: &Path, kills: (u32, u64)) -> Result<()> {
        let (mut rig, daemon) = Rig::spawn(machine, accel, binary, dir, &[NVME[0], VIRTIO[0]])?;
        let done = match self {
            Self::Boot => boot::under_kills(&mut rig, daemon, kills),
            Self::Reset => rig.wait_ready().and_then(|()| disturb::under_kills(&mut rig, daemon, kills)),
            Self::Files => rig.wait_ready().and_then(|()| ext4::under_kills(&mut rig, daemon, kills)),
        };
        // Their summary shows the cause alone.
        done.map_err(|error| anyhow!("{error:#}\n{}", rig.warnings()).context(rig.logs()))
    }

    /// The guest tests' share, which a run with that option is too.
    fn few(self, lab: &mut Lab, option: &str) -> Result<()> {
        let Some(binary) = lab.binary() else { return Ok(()) };
        let (seed, kills) = (seed_of_now(), FEW_KILLS);
        println!(
            "cargo xtask kill-test --nvme --{option} --kills {kills} --seed {seed} replays the moments of the kills"
        );
        lab.discard();
        self.under_kills(lab.machine(), lab.accel(), &binary, lab.dir(), (kills, seed))
    }
}

/// Kills while guests boot.
///
/// # Errors
/// As [`run`].
pub fn few_kills_while_guests_boot(lab: &mut Lab) -> Result<()> {
    Occasion::Boot.few(lab, "booting")
}

/// Kills while guests reset, format and rebind their drives, and get more memory.
///
/// # Errors
/// As [`run`].
pub fn few_kills_while_guests_reset(lab: &mut Lab) -> Result<()> {
    Occasion::Reset.few(lab, "resetting")
}

/// A kill while a guest sanitizes its drive.
///
/// # Errors
/// As [`run`].
pub fn while_a_guest_sanitizes(lab: &mut Lab) -> Result<()> {
    let Some(binary) = lab.binary() else { return Ok(()) };
    lab.discard();
    let (mut rig, daemon) = Rig::boot(lab.machine(), lab.accel(), &binary, lab.dir(), &NVME[..1])?;
    sanitize::once(&mut rig, daemon).map_err(|error| error.context(rig.logs()))
}

fn kills_in(lab: &mut Lab, tenants: &[Tenant], kills: u32) -> Result<()> {
    // The storage daemon that stands in for Evenkeel keeps no log of what is in flight.
    let Some(binary) = lab.binary() else { return Ok(()) };
    let seed = seed_of_now();
    let nvme = if tenants.iter().all(|tenant| tenant.is_virtio()) { "" } else { " --nvme" };
    println!("{kills} kills; cargo xtask kill-test{nvme} --kills {kills} --seed {seed} replays their moments");
    let plans = [Plan { kills, seed, spoil: false }, Plan { kills: 1, seed, spoil: true }];
    // Other guests would only take time from these.
    lab.discard();
    let reports = boot_and_run(lab.machine(), lab.accel(), (&binary, None), lab.dir(), tenants, &plans)?;
    reports[0].print();
    reports.iter().zip(plans).try_for_each(|(report, plan)| judge(report, plan))
}

/// Boots the guests and runs the plans one after the other.
fn boot_and_run<'a>(
    machine: &Machine,
    accel: Accel,
    (binary, other): (&'a Path, Option<&'a Path>),
    dir: &Path,
    tenants: &[Tenant],
    plans: &[Plan],
) -> Result<Vec<Report>> {
    let (mut rig, mut first) =
        Rig::boot(machine, accel, binary, dir, tenants).map(|(rig, daemon)| (rig, Some(daemon)))?;
    rig.upgrade_to(other);
    let mut reports = Vec::new();
    for plan in plans {
        let daemon = first.take().map_or_else(|| rig.start_daemon(), Ok)?;
        let report = rig.run(*plan, daemon);
        reports.push(report.map_err(|error| error.context(rig.logs()))?);
    }
    Ok(reports)
}

/// Requires of an honest run that it has no problems and that kills hit requests in flight; of a spoiled
/// one that fio noticed it in every guest.
fn judge(report: &Report, plan: Plan) -> Result<()> {
    let problems = report.problems();
    if plan.spoil {
        let noticed = report.guests.iter().all(|guest| guest.fio_complaints.iter().any(|line| line.contains("verify")));
        ensure!(noticed, "the image was spoiled and not every guest noticed: {problems:?}");
        println!("kill test: a spoiled image was noticed in every guest");
        return Ok(());
    }
    ensure!(problems.is_empty(), "the kill test failed (seed {}):\n{}", plan.seed, problems.join("\n"));
    for guest in report.guests.iter().filter(|_| !report.was_upgraded()) {
        ensure!(guest.taken_over > 0, "{}: no kill hit a request in flight, so nothing was tested", guest.tenant);
    }
    Ok(())
}
