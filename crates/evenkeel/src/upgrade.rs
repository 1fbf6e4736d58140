//! `evenkeel upgrade`: replaces the running daemon by another version, or does nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::{Disk, Live, Rest};
use serde::Serialize;

use crate::disk::Daemon;
use crate::output::print;
use crate::serve;

/// The configuration file of the package's unit.
pub const PACKAGED_CONFIG: &str = "/etc/evenkeel/config.toml";
/// How long the next daemon may take to start: drives without the kernel may take minutes.
const LIMIT: Duration = Duration::from_secs(300);
/// Time between two checks.
const LOOK: Duration = Duration::from_millis(5);

/// Replace the running daemon with another version without disconnecting clients.
///
/// First checks that the new program, newer or older, can take over the clients, that it accepts the configuration,
/// and that no client would lose its disk. If a check fails, nothing happens. Then restarts the daemon's unit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The new program that the unit starts [default: evenkeeld beside this program]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,

    /// The configuration file of the unit
    #[arg(long, value_name = "PATH", default_value = PACKAGED_CONFIG)]
    config: PathBuf,

    /// Shell command that restarts the daemon
    #[arg(long, value_name = "COMMAND", default_value = "systemctl restart evenkeeld")]
    restart: String,

    /// Upgrade even if clients lose their disks
    #[arg(long)]
    force: bool,

    /// Only check
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Upgraded {
    from: String,
    /// `None`: it was a dry run.
    to: Option<String>,
    /// Disks whose clients go on.
    clients: Vec<String>,
    /// Disks whose clients are lost.
    lost: Vec<String>,
    /// Milliseconds from the restart until the next daemon has all clients.
    pause_ms: Option<u64>,
}

/// Runs `evenkeel upgrade`.
///
/// # Errors
/// A check failed and nothing happened, or the next daemon does not start.
pub fn run(args: &Args) -> Result<()> {
    let rest = Rest::new(&args.daemon.socket);
    let before = rest.live()?;
    let (clients, lost): (Vec<Disk>, Vec<Disk>) =
        rest.disks()?.into_iter().filter(|disk| disk.attached).partition(|disk| disk.survives_restart);
    let why = |disk: &Disk| disk.lost_on_restart.as_ref().map_or(String::new(), |why| format!(" ({why})"));
    let whys: Vec<_> = lost.iter().map(|disk| format!("{}{}", disk.name, why(disk))).collect();
    ensure!(
        lost.is_empty() || args.force,
        "clients have these disks attached, and would lose them: {}; detach them or end their VMs, or say --force",
        whys.join(", ")
    );
    let [clients, lost] = [clients, lost].map(|disks| disks.into_iter().map(|disk| disk.name).collect::<Vec<_>>());
    can_take_over(args.program.as_deref(), &before)?;
    takes_configuration(&args.config)?;
    let (to, pause_ms) = if args.dry_run {
        (None, None)
    } else {
        let begun = Instant::now();
        restart(&args.restart)?;
        let next = wait_for_next(&rest, &before, &clients)?;
        (Some(next.version), Some(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)))
    };
    let upgraded = Upgraded { from: before.version, to, clients, lost, pause_ms };
    print(args.daemon.json, &upgraded, || in_words(&upgraded))
}

fn in_words(Upgraded { from, to, clients, lost, pause_ms }: &Upgraded) -> String {
    let count = |count: usize| format!("{count} {}", if count == 1 { "client" } else { "clients" });
    let lost = if lost.is_empty() { String::new() } else { format!("; lost: {}", lost.join(" ")) };
    match (to, pause_ms) {
        (Some(to), Some(pause_ms)) => {
            format!("{from} -> {to}: {} went on after {pause_ms} ms{lost}\n", count(clients.len()))
        }
        _ => format!("all checks passed: {} would stay connected{lost}\n", count(clients.len())),
    }
}

/// Asks the program itself.
fn can_take_over(program: Option<&Path>, running: &Live) -> Result<()> {
    let mut command = program.map_or_else(serve::command, Command::new);
    let shown = command.get_program().to_string_lossy().into_owned();
    let asked = command.arg(format!("--can-take-over={}", running.handover)).output();
    let asked = asked.with_context(|| format!("nothing was changed: {shown} can't be started"))?;
    if !asked.status.success() {
        let why = String::from_utf8_lossy(&asked.stderr);
        bail!("nothing was changed: {shown} can't take over from the running daemon: {}", why.trim());
    }
    Ok(())
}

/// Asks this program, whose version equals that of the other.
fn takes_configuration(path: &Path) -> Result<()> {
    let own = std::env::current_exe().context("which program this is")?;
    let checked = Command::new(own).arg("check").arg(path).output().context("can't check the configuration")?;
    ensure!(checked.status.success(), "{}", refused(&String::from_utf8_lossy(&checked.stderr)));
    Ok(())
}

/// `told`: the message of this program, which begins with its name.
fn refused(told: &str) -> String {
    let told = told.trim();
    let why = told.strip_prefix("evenkeel: ").unwrap_or(told);
    format!(
        "nothing was changed: the configuration is refused: {why}\n\
         if the unit starts the daemon with another file, name that file with --config"
    )
}

fn restart(command: &str) -> Result<()> {
    let status = Command::new("sh").args(["-c", command]).status().with_context(|| command.to_owned())?;
    ensure!(status.success(), "{command:?} failed; see `journalctl -u evenkeeld`");
    Ok(())
}

/// Waits until the next daemon has all clients.
fn wait_for_next(rest: &Rest, before: &Live, clients: &[String]) -> Result<Live> {
    let deadline = Instant::now() + LIMIT;
    let looked = || -> Result<Live> {
        let next = rest.live()?;
        ensure!(next.started_at_unix_ms != before.started_at_unix_ms, "the daemon is the same one");
        let disks = rest.disks()?;
        let is_there = |name: &&String| disks.iter().any(|disk| disk.name == **name && disk.attached);
        let missing: Vec<&str> = clients.iter().filter(|name| !is_there(name)).map(String::as_str).collect();
        ensure!(missing.is_empty(), "these clients were lost: {}", missing.join(" "));
        Ok(next)
    };
    loop {
        match looked() {
            Err(_) if Instant::now() < deadline => sleep(LOOK),
            looked => return looked.context("the daemon was restarted; see `journalctl -u evenkeeld`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_configuration_is_told_once_and_how_to_name_another() {
        let told = refused("evenkeel: /etc/evenkeel/config.toml: can't be read\n");
        assert_eq!(told.matches("evenkeel: ").count(), 0, "{told}");
        assert!(told.contains("refused: /etc/evenkeel/config.toml") && told.contains("--config"), "{told}");
    }
}
