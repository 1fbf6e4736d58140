//! `evenkeel disk` and `evenkeel drive`: disks that come and change while the daemon runs.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use api::{Disk, DiskChange, Drive, NewDisk, Rest};
use clap::Subcommand;
use io_model::units::Size;
use serde::Serialize;

use crate::table;

/// Where the daemon answers.
#[derive(Debug, clap::Args)]
struct Daemon {
    /// The daemon's API socket (`api.sock` in the `runtime_dir` of its configuration).
    #[arg(long, value_name = "PATH", env = "EVENKEEL_SOCKET", default_value = "/run/evenkeel/api.sock")]
    socket: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Make, list and change disks of a running daemon.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a disk; once this returns a VMM can attach it, or it is being zeroed.
    Create(Box<Create>),
    /// List all disks.
    List(Daemon),
    /// Show one disk.
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Change what a disk is promised and held to, while it is in use.
    Set(Box<Set>),
}

#[derive(Debug, clap::Args)]
struct Create {
    /// 1 to 63 of a-z, 0-9, _ and -
    name: String,

    /// A multiple of 4096 bytes, such as 16GiB
    #[arg(long)]
    size: String,

    /// vfio-user or vhost-user-blk [default: vfio-user]
    #[arg(long)]
    frontend: Option<String>,

    #[command(flatten)]
    terms: Terms,

    /// shared or own-poller
    #[arg(long)]
    isolation: Option<String>,

    /// I/O queues offered to the guest, 1 to 64 [default: 64]
    #[arg(long, value_name = "N")]
    queues: Option<u16>,

    /// Bytes of a block: 512 or 4096 [default: 512]
    #[arg(long, value_name = "BYTES")]
    lba_size: Option<u32>,

    /// A virtio disk that can't be written to
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Its name.
    name: String,

    #[command(flatten)]
    terms: Terms,

    #[command(flatten)]
    daemon: Daemon,
}

/// What a disk is promised and held to.
#[derive(Debug, clap::Args)]
struct Terms {
    /// guaranteed or best-effort
    #[arg(long)]
    class: Option<String>,

    /// The promise to a guaranteed disk for 99 of 100 commands, such as 50us
    #[arg(long, value_name = "TIME")]
    latency_target: Option<String>,

    /// The share of a best-effort disk, 1 to 10000
    #[arg(long, value_name = "N")]
    weight: Option<u32>,

    /// urgent, high, medium, low or client, under wrr and drr
    #[arg(long)]
    priority: Option<String>,

    /// Commands per second at most, such as 20k; 0: no limit
    #[arg(long, value_name = "RATE")]
    rw_iops: Option<String>,

    /// Bytes per second at most, such as 200MiB/s; 0: no limit
    #[arg(long, value_name = "RATE")]
    rw_bandwidth: Option<String>,

    /// Bytes per second read at most
    #[arg(long, value_name = "RATE")]
    r_bandwidth: Option<String>,

    /// Bytes per second written at most
    #[arg(long, value_name = "RATE")]
    w_bandwidth: Option<String>,

    /// Serve it even if its promise can't be kept
    #[arg(long)]
    overcommit: bool,
}

impl Terms {
    fn change(self) -> DiskChange {
        let Self { class, latency_target, weight, priority, rw_iops, rw_bandwidth, r_bandwidth, w_bandwidth, .. } =
            self;
        let overcommit = self.overcommit.then_some(true);
        DiskChange {
            class,
            latency_target,
            weight,
            priority,
            rw_iops,
            rw_bandwidth,
            r_bandwidth,
            w_bandwidth,
            overcommit,
        }
    }
}

/// Runs `evenkeel disk`.
///
/// # Errors
/// There is no daemon, or it refused.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Create(create) => {
            let Create { name, size, frontend, terms, isolation, queues, lba_size, read_only, daemon } = *create;
            let disk = NewDisk {
                name,
                size,
                frontend,
                isolation,
                queues,
                lba_size,
                read_only: read_only.then_some(true),
                ..NewDisk::default()
            };
            let disk = Rest::new(&daemon.socket).create(&terms.change().apply(&disk))?;
            print(&daemon, &disk, || disks(std::slice::from_ref(&disk)))
        }
        Command::List(daemon) => {
            let all = Rest::new(&daemon.socket).disks()?;
            print(&daemon, &all, || disks(&all))
        }
        Command::Show { name, daemon } => {
            let disk = Rest::new(&daemon.socket).disk(&name)?;
            print(&daemon, &disk, || disks(std::slice::from_ref(&disk)))
        }
        Command::Set(set) => {
            let disk = Rest::new(&set.daemon.socket).change(&set.name, &set.terms.change())?;
            print(&set.daemon, &disk, || disks(std::slice::from_ref(&disk)))
        }
    }
}

/// Show the drives of a running daemon.
#[derive(Debug, clap::Args)]
pub struct DriveArgs {
    #[command(subcommand)]
    command: DriveCommand,
}

#[derive(Debug, Subcommand)]
enum DriveCommand {
    /// List all drives.
    List(Daemon),
}

/// Runs `evenkeel drive`.
///
/// # Errors
/// There is no daemon, or it refused.
pub fn run_drive(args: &DriveArgs) -> Result<()> {
    let DriveCommand::List(daemon) = &args.command;
    let all = Rest::new(&daemon.socket).drives()?;
    print(daemon, &all, || drives(&all))
}

fn print(daemon: &Daemon, value: &impl Serialize, table: impl FnOnce() -> String) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if daemon.json {
        writeln!(out, "{}", serde_json::to_string(value)?)?;
    } else {
        write!(out, "{}", table())?;
    }
    Ok(out.flush()?)
}

fn disks(disks: &[Disk]) -> String {
    let row = |disk: &Disk| {
        let promise = match (disk.latency_target_us, disk.weight) {
            (Some(target), _) => format!("p99 ≤ {}", table::span(target)),
            (None, Some(weight)) => format!("weight {weight}"),
            (None, None) => disk.class.clone(),
        };
        let promise = disk.limits.iter().fold(promise, |promise, limits| format!("{promise}, ≤ {limits}"));
        let state = if disk.attached { "attached" } else { disk.state.name() };
        let made_by = if disk.declared { "file" } else { "api" };
        let words =
            [&disk.name, &Size(disk.size_bytes).to_string(), &promise, state, made_by, &disk.frontend, &disk.socket];
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let heading = ["disk", "size", "promise", "state", "made by", "front end", "socket"];
    table::layout_with_words(&heading, &disks.iter().map(row).collect::<Vec<_>>(), &[0, 2, 3, 4, 5, 6])
}

fn drives(drives: &[Drive]) -> String {
    let row = |drive: &Drive| {
        let path = drive.path.clone().unwrap_or_else(|| "-".to_owned());
        let sizes = [drive.size_bytes, drive.free_bytes].map(|bytes| Size(bytes).to_string());
        let [size, free] = sizes;
        vec![drive.backend.clone(), path, size, free, drive.policy.clone()]
    };
    let heading = ["drive", "path", "size", "free", "policy"];
    table::layout_with_words(&heading, &drives.iter().map(row).collect::<Vec<_>>(), &[0, 1, 4])
}
