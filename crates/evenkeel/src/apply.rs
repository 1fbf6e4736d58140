//! `evenkeel apply` and `evenkeel export`: the configuration file of a running daemon.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use api::{Action, Applied, Apply, Problem, Rest, Step};
use config::read_text;
use io_model::units::Size;

use crate::disk::Daemon;
use crate::output::print;

/// Apply a configuration file to the running daemon, without a restart.
///
/// Shows the changes and asks first. Disks made by `evenkeel disk create` stay as they are.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    config: PathBuf,

    /// Don't ask, not even before deleting the disks and data of tenants removed from the file
    #[arg(long)]
    yes: bool,

    /// Only show what would change
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs `evenkeel apply`.
///
/// # Errors
/// The file is wrong, there is no daemon, or it refused.
pub fn run(args: &Args) -> Result<()> {
    let text = read_text(&args.config, "a configuration file")?;
    let asked = Apply { file: args.config.display().to_string(), text, dry_run: !args.yes, agreed: None };
    let rest = Rest::new(&args.daemon.socket);
    let applied = rest.apply(&asked)?;
    if args.yes || args.dry_run || !has_work(&applied) {
        return show(args, &applied);
    }
    if args.daemon.json {
        show(args, &applied)?;
        return Err(not_confirmed());
    }
    let shown = plan(&applied);
    write!(std::io::stderr(), "{shown}")?;
    if !is_confirmed(&applied)? {
        return Err(not_confirmed());
    }
    let agreed = Some(applied.steps);
    show(args, &rest.apply(&Apply { dry_run: false, agreed, ..asked })?)
}

fn not_confirmed() -> anyhow::Error {
    Problem::new(400, "not-confirmed", "nothing is done", "--yes does it without a question").into()
}

fn has_work(applied: &Applied) -> bool {
    applied.steps.iter().any(|step| step.action != Action::Later)
}

/// Asks the user on the terminal.
fn is_confirmed(applied: &Applied) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    let deletes = applied.steps.iter().filter(|step| step.action == Action::Delete).count();
    let deletes = if deletes == 0 { String::new() } else { format!(" and delete {deletes} with all their data") };
    write!(std::io::stderr(), "Do this{deletes}? [y/N] ")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "yes"))
}

fn show(args: &Args, applied: &Applied) -> Result<()> {
    print(args.daemon.json, applied, || {
        let mut text = plan(applied);
        if !has_work(applied) {
            text += "nothing to do\n";
        } else if applied.done {
            text += "done\n";
        }
        text
    })?;
    let is_same = |one: &Path, other: &Path| one.canonicalize().ok() == other.canonicalize().ok();
    if applied.done && has_work(applied) && !is_same(&args.config, Path::new(&applied.starts_with)) {
        let (given, own) = (args.config.display(), &applied.starts_with);
        writeln!(std::io::stderr(), "note: the daemon starts with {own}, not {given}: change that file too")?;
    }
    Ok(())
}

/// The plan: one line per key that differs.
fn plan(applied: &Applied) -> String {
    let line = |step: &Step| {
        let of = step.tenant.as_deref().unwrap_or("the daemon");
        let head = format!("{:<7} {of}", step.action.name());
        match step.action {
            Action::Declare | Action::Create | Action::Change => format!("{step}\n"),
            Action::Delete => format!("{head}: {} and all data on it\n", Size(step.size_bytes.unwrap_or_default())),
            Action::Later => step.keys.iter().map(|key| format!("{head}: {key}\n")).collect(),
        }
    };
    applied.steps.iter().map(line).collect()
}

/// Print the running daemon's configuration, with the disks created since its start.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    #[command(flatten)]
    daemon: Daemon,
}

/// Runs `evenkeel export`.
///
/// # Errors
/// There is no daemon, or it refused.
pub fn run_export(args: &ExportArgs) -> Result<()> {
    let exported = Rest::new(&args.daemon.socket).export()?;
    print(args.daemon.json, &exported, || exported.text.clone())
}
