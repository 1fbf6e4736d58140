//! `evenkeel check`: what `serve` would do, without doing it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use config::{Config, Prepared, Summary};

use crate::drive_profile;

/// Check a configuration: report every problem, or show what `serve` would do. Changes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    config: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config)?;
    drive_profile::load(&config.device.profile, |why| config.no_profile(why))?;
    let prepared = Prepared::new(config)?;
    let summary = Summary::new(&prepared);
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&summary)?)?;
    } else {
        write!(out, "{summary}")?;
    }
    Ok(out.flush()?)
}
