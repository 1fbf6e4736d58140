//! `cargo xtask guest-bench`: what is measured in guests, since hosts lack such neighbours, drives and drivers.
//!
//! | module | what it measures |
//! | --- | --- |
//! | `promise` | two guests on the host's daemon, one of them noisy |
//! | `initiator` | a drive through the kernel and without it, in a guest that is their host |
//! | `ublk` | block devices beside another server's, in a guest that is their host |
//! | `hybrid` | a VM, a container and a process, in a guest that is their host |
//! | `spdk` | two guests on SPDK's targets beside two on our daemon |

mod hybrid;
mod initiator;
mod promise;
mod spdk;
mod ublk;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

use super::lab::{Lab, Server};
use super::prepare;
use super::qemu::{Accel, Machine};
use super::{CacheDir, daemon};
use crate::spdk::Tree;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only the parts whose title contains this
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// ublksrv's program `ublk.null`, to measure it beside our block devices
    #[arg(long, value_name = "PATH")]
    ublksrv: Option<PathBuf>,
    #[command(flatten)]
    spdk: Tree,
    /// Write the figures there, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheDir,
}

/// What parts measure with.
struct Bench {
    machine: Machine,
    binary: PathBuf,
    dir: PathBuf,
    ublksrv: Option<PathBuf>,
    /// SPDK's build tree.
    spdk: Option<PathBuf>,
}

impl Bench {
    /// A lab of a part's own.
    fn lab(&self, accel: Accel) -> Lab {
        Lab::new(self.machine.clone(), accel, Server::Evenkeel(self.binary.clone()), self.dir.clone())
    }
}

/// Measures something and prints it; returns its figures.
type Part = fn(&Bench) -> Result<Value>;

const PARTS: [(&str, Part); 5] = [
    ("a promise beside a noisy guest", promise::measure),
    ("a drive with and without the kernel", initiator::measure),
    ("ublk devices", ublk::measure),
    ("a VM, a container and a process", hybrid::measure),
    ("commands per CPU second, beside SPDK", spdk::measure),
];

/// Measures each part.
///
/// # Errors
/// When the guests can't be prepared, or daemon or guests fail.
pub fn run(options: &Options) -> Result<()> {
    let chosen: Vec<_> =
        PARTS.iter().filter(|(title, _)| options.only.as_ref().is_none_or(|only| title.contains(only))).collect();
    ensure!(!chosen.is_empty(), "no part's title contains that");
    let images = prepare::images(&options.cache.path()?)?;
    let dir = tempfile::Builder::new().prefix("evenkeel-guests-").tempdir()?;
    let machine = Machine::new(images, dir.path())?;
    let (binary, ublksrv) = (daemon::binary(daemon::Profile::Release)?, options.ublksrv.clone());
    let bench = Bench { machine, binary, dir: dir.path().to_owned(), ublksrv, spdk: options.spdk.dir() };
    let mut figures = Map::new();
    for (title, part) in chosen {
        println!("{title}:");
        figures.insert((*title).to_owned(), part(&bench).with_context(|| (*title).to_owned())?);
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&figures)?;
        std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
        println!("\nJSON: {}", path.display());
    }
    Ok(())
}

/// The middle one.
fn median(values: &[f64]) -> Result<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("nothing was measured")
}
