//! `evenkeel check`: what `serve` would do, without doing it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use config::{Config, Prepared, Summary};
use promises::admission::{Admission, PromiseRow};
use promises::drive_profile;
use serde::Serialize;

/// Check a configuration: report every problem, or show what `serve` would do. Changes nothing. Promises that can't be
/// kept are shown with everything else, and the exit status is 2 unless they are overcommitted.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    config: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Checked<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    promises: &'a [PromiseRow],
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config)?;
    let profile = drive_profile::load(&config.device.profile, |why| config.no_profile(why))?;
    let mut prepared = Prepared::new(config)?;
    let admission = Admission::new(&prepared.config, &profile);
    prepared.warnings.extend(admission.warnings.iter().cloned());
    let summary = Summary::new(&prepared);
    let mut out = std::io::stdout().lock();
    if args.json {
        let checked = Checked { summary: &summary, promises: &admission.promises };
        writeln!(out, "{}", serde_json::to_string_pretty(&checked)?)?;
    } else {
        write!(out, "{summary}{admission}")?;
    }
    out.flush()?;
    Ok(admission.refuse(&prepared.config)?)
}
