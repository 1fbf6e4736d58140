//! `evenkeel disk snapshot`, `clone` and `rollback`.

use anyhow::Result;
use api::{DiskSpec, Items, NewSnapshots, Problem, Rest};

use super::listing::{disks, one};
use super::options::in_options;
use super::{Daemon, Labels, is_confirmed, warn};
use crate::output::print;

#[derive(Debug, clap::Args)]
pub(super) struct Make {
    /// Each DISK@SNAPSHOT; all of them are of one instant
    #[arg(required = true, value_name = "DISK@SNAPSHOT")]
    snapshots: Vec<String>,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
pub(super) struct Clone {
    /// The snapshot, as DISK@SNAPSHOT.
    #[arg(value_name = "DISK@SNAPSHOT")]
    snapshot: String,

    /// Name of the new disk
    #[arg(long, value_name = "NAME")]
    to: String,

    #[command(flatten)]
    labels: Labels,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
pub(super) struct Rollback {
    /// The snapshot, as DISK@SNAPSHOT.
    #[arg(value_name = "DISK@SNAPSHOT")]
    snapshot: String,

    /// Don't ask
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    daemon: Daemon,
}

pub(super) fn make(Make { snapshots, daemon }: Make) -> Result<()> {
    let made = Rest::new(&daemon.socket).snapshot(&NewSnapshots { snapshots })?;
    print(daemon.json, &Items { items: &made }, || disks(&made))
}

pub(super) fn clone(Clone { snapshot, to, labels, daemon }: Clone) -> Result<()> {
    let spec = DiskSpec { name: to, clone_of: Some(snapshot), ..DiskSpec::default() };
    let disk = in_options(Rest::new(&daemon.socket).create(&labels.of(spec)))?;
    warn(&disk);
    print(daemon.json, &disk, || disks(std::slice::from_ref(&disk)))
}

pub(super) fn roll_back(Rollback { snapshot, yes, daemon }: &Rollback) -> Result<()> {
    let daemon_at = Rest::new(&daemon.socket);
    let (disk, name) = named(snapshot)?;
    if !yes && !is_confirmed(&daemon_at, disk, "Roll back")? {
        let remedy = "--yes rolls it back without a question";
        return Err(Problem::new(400, "not-confirmed", "nothing is rolled back", remedy).into());
    }
    let disk = daemon_at.roll_back(disk, name)?;
    print(daemon.json, &disk, || one(&disk))
}

/// Deletes a snapshot.
pub(super) fn delete(daemon: &Daemon, snapshot: &str) -> Result<()> {
    let (disk, name) = named(snapshot)?;
    let disk = Rest::new(&daemon.socket).delete_snapshot(disk, name)?;
    print(daemon.json, &disk, || format!("{snapshot} is deleted\n"))
}

fn named(snapshot: &str) -> Result<(&str, &str)> {
    let missing =
        || Problem::new(400, "not-understood", format!("{snapshot:?} names no snapshot"), "write DISK@SNAPSHOT");
    Ok(snapshot.split_once('@').ok_or_else(missing)?)
}
