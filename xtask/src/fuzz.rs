//! `cargo xtask fuzz`: runs each fuzz target for a while, from the corpus that the repository keeps.

use std::process::Command;

use anyhow::{Context, Result, bail};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Seconds of each target
    #[arg(long, value_name = "N", default_value_t = 300)]
    seconds: u64,
    /// This target only
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
}

/// Runs all targets, or the one asked for.
pub fn run(options: &Options) -> Result<()> {
    let seconds = options.seconds;
    let targets = match &options.target {
        Some(target) => vec![target.clone()],
        None => targets()?,
    };
    for target in &targets {
        eprintln!("fuzzing {target} for {seconds} s …");
        let limit = format!("-max_total_time={seconds}");
        // What is new goes beside the build outputs, so that a run leaves the kept corpus as it is.
        let (found, kept) = (format!("fuzz/target/corpus/{target}"), format!("fuzz/corpus/{target}"));
        for folder in [&found, &kept] {
            std::fs::create_dir_all(folder).with_context(|| format!("can't create {folder}"))?;
        }
        let status = Command::new("cargo")
            .args([
                "+nightly",
                "fuzz",
                "run",
                target,
                &found,
                &kept,
                "--",
                &limit,
                "-timeout=10",
                "-print_final_stats=1",
            ])
            // Programs need length to get anywhere; do not grow up to it slowly.
            .args(["-max_len=4096", "-len_control=0"])
            .status()
            .context("can't run cargo-fuzz; it needs `cargo install cargo-fuzz` and a nightly toolchain")?;
        if !status.success() {
            bail!("{target} found something; the input is in fuzz/artifacts/{target}/");
        }
    }
    println!("{} fuzz targets, {seconds} s each, no finding", targets.len());
    Ok(())
}

fn targets() -> Result<Vec<String>> {
    let output = Command::new("cargo").args(["+nightly", "fuzz", "list"]).output().context("can't run cargo-fuzz")?;
    let targets: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if targets.is_empty() {
        bail!("no fuzz targets: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(targets)
}
