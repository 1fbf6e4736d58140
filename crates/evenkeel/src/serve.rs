//! `evenkeel serve`: the daemon in the foreground, as service managers want it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use config::{Config, Prepared, Summary};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::daemon::Daemon;

/// Serve the tenants of a configuration until SIGTERM or SIGINT; then complete what is in flight and exit 0.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    config: PathBuf,

    /// Print what is served as one line of JSON, instead of text.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints once every socket accepts clients.
#[derive(Serialize)]
struct Serving<'a> {
    pid: u32,
    #[serde(flatten)]
    summary: &'a Summary,
    qemu: Vec<QemuArguments>,
}

#[derive(Serialize)]
struct QemuArguments {
    tenant: String,
    arguments: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    // Before any thread starts: each inherits the handlers' mask, and an early SIGTERM must not be lost.
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("can't watch for signals")?;
    let prepared = Prepared::new(Config::load(&args.config)?)?;
    let summary = Summary::new(&prepared);
    let daemon = Daemon::start(prepared, Arc::new(|_, line| eprintln!("evenkeel: {line}")))?;
    // Not before: what keeps the daemon from starting is told once, as an error.
    for warning in &summary.warnings {
        eprintln!("evenkeel: warning: {warning}");
    }
    announce(&summary, args.json)?;
    let signal = signals.forever().next();
    let name = signal.and_then(signal_hook::low_level::signal_name).unwrap_or("a signal");
    eprintln!("evenkeel: {name}: completing what is in flight");
    match daemon.stop() {
        0 => Ok(()),
        lost => bail!("the drive never answered {lost} commands; what they wrote may or may not be there"),
    }
}

fn announce(summary: &Summary, json: bool) -> Result<()> {
    let qemu = summary.tenants.iter().map(|tenant| QemuArguments {
        tenant: tenant.name.clone(),
        arguments: vec![
            "-device".into(),
            serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": tenant.socket },
            })
            .to_string(),
        ],
    });
    let serving = Serving { pid: std::process::id(), summary, qemu: qemu.collect() };
    if json {
        println!("{}", serde_json::to_string(&serving)?);
        return Ok(());
    }
    print!("{summary}");
    println!("\nto attach a tenant, add to QEMU's arguments (10.1 or later; guest memory must be shared:");
    println!("  -object memory-backend-memfd,id=mem,size=4G,share=on -machine memory-backend=mem):");
    for tenant in &serving.qemu {
        println!("  {}: {} '{}'", tenant.tenant, tenant.arguments[0], tenant.arguments[1]);
    }
    println!("\nserving; stop with SIGTERM");
    Ok(())
}
