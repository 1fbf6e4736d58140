//! `evenkeel check`: what `serve` would do, without doing it.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use api::Items;
use config::{Backend, Config, Drives, HWQ_DEPTH, KeySource};
use promises::forecasts::Forecasts;
use promises::ready::{self, DriveReport, Ready};

use crate::output::print;

/// Check a configuration file without changing anything.
///
/// Reports every problem, or shows what `serve` would do. Exit status 2 if promises can't be kept without overcommit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    config: PathBuf,

    /// Ignore the data on this drive, as `serve --discard-content` would.
    #[arg(long, value_name = "DRIVE")]
    discard_content: Vec<String>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let loaded = Drives::load(&args.config)?.discard_content(&args.discard_content)?;
    let (ready, _) = ready::prepare(loaded, &Forecasts::default())?;
    let drives: Vec<DriveReport> = ready.iter().map(Ready::report_before_start).collect();
    print(args.json, &Items { items: &drives }, || {
        drives.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    })?;
    ready::refuse(&ready)?;
    try_images(&ready)?;
    try_rings(&ready)?;
    try_host_key(&ready)
}

/// Reads the tables of images that are disks. Those that a daemon serves now were read when it started.
fn try_images(ready: &[Ready]) -> Result<()> {
    for tenant in ready.iter().flat_map(|ready| &ready.prepared.config.tenants) {
        let Some(image) = tenant.image.as_ref().filter(|image| !images::is_in_use(&image.path)) else { continue };
        let size_bytes = images::DiskImage::check(&image.path, &image.backing);
        let size_bytes = size_bytes.with_context(|| format!("tenant {:?}", tenant.name))?;
        if let Some(wrong) = config::wrong_image_size(tenant, size_bytes) {
            bail!(wrong);
        }
    }
    Ok(())
}

/// Reads the host key, if the file names one.
fn try_host_key(ready: &[Ready]) -> Result<()> {
    let Some(first) = ready.first().map(|ready| &ready.prepared.config) else { return Ok(()) };
    match &first.keys.host_key {
        Some(KeySource::File(path)) => return keys::HostKeys::read(path).map(drop).context("can't use the host key"),
        Some(KeySource::Command(_)) => {
            eprintln!("the key_command is not run by this check");
            return Ok(());
        }
        None => {}
    }
    let configs = ready.iter().map(|ready| &ready.prepared.config);
    let wrapped = configs.flat_map(Config::encrypted_by_host).next();
    if let Some(name) = wrapped {
        eprintln!(
            "warning: disk {name:?} is to be encrypted, and no host_key is written under [keys]: the service manager \
             must pass the credential evenkeel-host-key"
        );
    }
    Ok(())
}

/// Asks the kernel for what the pollers of all drives need: the user's limits may not allow it.
fn try_rings(ready: &[Ready]) -> Result<()> {
    let configs = || ready.iter().map(|ready| &ready.prepared.config);
    let rings_with = |commands: bool| {
        let is_such = |config: &&Config| match config.device.backend {
            Backend::File { .. } | Backend::Directory { .. } => !commands,
            Backend::Block { nvme_commands, .. } => nvme_commands == commands,
            _ => false,
        };
        configs().filter(is_such).map(Config::planned_hwqs).sum::<usize>()
    };
    let needed = [false, true].map(|commands| (rings_with(commands), commands));
    Ok(backend_uring::try_rings(&needed, HWQ_DEPTH.into())?)
}
