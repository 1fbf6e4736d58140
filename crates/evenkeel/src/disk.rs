//! `evenkeel disk`: disks that are created and changed while the daemon runs.

mod keys;
mod listing;
pub(crate) mod options;
mod snapshots;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use api::{
    Attach, Deletion, Disk, DiskPatch, DiskSpec, DiskState, Erasure, HostKeys, Items, Operation, OperationState,
    Problem, Rest, TenantKey, Wipe,
};
use clap::Subcommand;
use images::ImageFormat;
use io_model::units::Size;

use self::listing::{disks, one};
use self::options::in_options;
use crate::image::{self, ImageArgs};
use crate::output::print;
use crate::progress::{PROGRESS_PERIOD, Progress, far, mb_s, show_zeroing};
use crate::table;

/// How often, and after which pause, a deletion looks at how much is written: half a second in all.
const LOOKS: u32 = 25;
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// The daemon's default API socket.
pub(crate) const DEFAULT_SOCKET: &str = "/run/evenkeel/api.sock";

/// How to reach the daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Daemon {
    /// The daemon's API socket: `api.sock` in the `runtime_dir` of its configuration.
    #[arg(long, value_name = "PATH", env = "EVENKEEL_SOCKET", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the daemon answers, for commands that are also told its directory.
#[derive(Debug, clap::Args)]
pub(crate) struct Figures {
    /// The daemon's API socket: `api.sock` in the `runtime_dir` of its configuration.
    #[arg(long, value_name = "PATH", env = "EVENKEEL_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,

    /// The `runtime_dir` of the daemon's configuration, instead of --socket.
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

impl Figures {
    /// The daemon there.
    pub(crate) fn daemon(&self) -> Rest {
        Rest::new(self.runtime_dir.as_deref().map_or_else(|| self.socket.clone(), api::api_path))
    }
}

/// Create, list, change and delete disks of a running daemon.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a disk; a VMM can attach it at once, or as soon as it is zeroed.
    Create(Box<Create>),
    /// List disks.
    List(listing::Args),
    /// Show one disk.
    Show {
        /// Name of the disk.
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Change a disk's promise, weight and limits, also while it is in use.
    ///
    /// Its front end can change while no client is attached. Options that are not given keep their values.
    Set(Box<Set>),
    /// Make a disk larger, also while it is in use; the guest sees it after zeroing.
    Grow {
        /// Name of the disk.
        name: String,

        /// The new size, such as 32GiB
        #[arg(long)]
        size: String,

        #[command(flatten)]
        daemon: Daemon,
    },
    /// Attach a namespace to an NVMe tenant; the guest sees it at once.
    Attach {
        /// Name of the namespace: a disk created with --attach, or configured as a namespace.
        name: String,

        /// The NVMe tenant to attach it to
        #[arg(long, value_name = "TENANT")]
        to: String,

        /// Don't let the tenant's guest write to it
        #[arg(long)]
        read_only: bool,

        /// Let several tenants write to it; they must coordinate their writes
        #[arg(long)]
        shared: bool,

        #[command(flatten)]
        daemon: Daemon,
    },
    /// Detach a namespace from a tenant after its commands in flight; the data stays.
    Detach {
        /// Name of the namespace.
        name: String,

        /// The tenant to detach it from
        #[arg(long, value_name = "TENANT")]
        from: String,

        #[command(flatten)]
        daemon: Daemon,
    },
    /// Delete a disk and all its data, or a snapshot; its space is free once overwritten.
    Delete(Delete),
    /// Give an encrypted disk another key: nobody can read its data any more.
    Erase(Erase),
    /// Give an encrypted disk another key and keep its data, also while it is in use.
    ///
    /// `evenkeel operations` shows the progress. A re-encryption that was cut short goes on at the next start.
    Reencrypt {
        /// Name of the disk.
        name: String,

        /// Wait until all of it has the new key
        #[arg(long)]
        wait: bool,

        #[command(flatten)]
        daemon: Daemon,
    },
    /// Keep what thin disks hold now, also while they are in use.
    Snapshot(snapshots::Make),
    /// Create a disk that begins as a snapshot of a thin disk, and shares its room.
    Clone(snapshots::Clone),
    /// Have a thin disk become as its snapshot is. What was written since is lost.
    Rollback(snapshots::Rollback),
    /// Copy a disk that is not in use to a new image file.
    Export {
        /// Name of the disk.
        name: String,

        /// The image's format
        #[arg(long, value_enum, default_value = "qcow2")]
        format: ImageFormat,

        /// The file to make
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,

        #[command(flatten)]
        daemon: Daemon,
    },
    /// Hand over a tenant's own key of a disk, which is served from then on.
    Unlock(Unlock),
    /// Have the keys of all disks wrapped by another host key.
    Rewrap(Rewrap),
}

/// An option of a disk that may be given several times.
#[derive(Debug, clap::Args)]
struct Labels {
    /// A label for other tools, such as pvc=data-0; KEY=none removes one
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected a key and a value, such as pvc=data-0")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Labels {
    fn of(self, disk: DiskSpec) -> DiskSpec {
        DiskSpec { labels: self.labels.into_iter().collect(), ..disk }
    }
}

#[derive(Debug, clap::Args)]
struct Create {
    #[command(flatten)]
    disk: DiskSpec,

    #[command(flatten)]
    labels: Labels,

    #[command(flatten)]
    image: ImageArgs,

    /// Wait until a client can attach the disk
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Set {
    #[command(flatten)]
    disk: DiskSpec,

    #[command(flatten)]
    labels: Labels,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Delete {
    /// Name of the disk, or of a tenant removed from the configuration; or a snapshot, as DISK@SNAPSHOT.
    name: String,

    /// Don't ask
    #[arg(long)]
    yes: bool,

    /// Delete an attached disk too: disconnect its client, or detach the namespace from its tenants
    #[arg(long)]
    force: bool,

    /// How to overwrite the data: once with zeros (default), or three verified passes of ones, random data and zeros.
    /// An encrypted disk is overwritten only if this is given
    #[arg(long, alias = "and-wipe", value_enum, num_args = 0..=1, default_missing_value = "zeros")]
    wipe: Option<WipeMethod>,

    /// Wait until its space is free
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Erase {
    /// Name of the disk.
    name: String,

    /// Don't ask
    #[arg(long)]
    yes: bool,

    /// Erase an attached disk too: its client finds noise
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Unlock {
    /// Name of the disk.
    name: String,

    /// File with the key: 64 bytes, or these in hexadecimal. `-`: standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    key_file: PathBuf,

    /// The disk takes this key in place of its former one: nobody can read its data any more
    #[arg(long)]
    erase: bool,

    /// Erase an attached disk too: its client finds noise
    #[arg(long, requires = "erase")]
    force: bool,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Rewrap {
    /// The file of `host_key`: the new key in its first line, the former one in the next. `-`: standard input
    #[arg(long, value_name = "FILE")]
    host_key: PathBuf,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum WipeMethod {
    Zeros,
    ThreePasses,
}

/// Runs `evenkeel disk`.
///
/// # Errors
/// There is no daemon, or it refused.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Create(create) => run_create(*create),
        Command::List(args) => listing::run(&args),
        Command::Show { name, daemon } => {
            let disk = Rest::new(&daemon.socket).disk(&name)?;
            print(daemon.json, &disk, || one(&disk))
        }
        Command::Set(set) => {
            let Set { disk, labels, daemon } = *set;
            let disk = labels.of(disk);
            let change = DiskPatch::of(&disk).with_none_as_null();
            let disk = in_options(Rest::new(&daemon.socket).change(&disk.name, &change))?;
            warn(&disk);
            print(daemon.json, &disk, || one(&disk))
        }
        Command::Grow { name, size, daemon } => {
            let change = DiskPatch::of(&DiskSpec { size, ..DiskSpec::default() });
            let disk = in_options(Rest::new(&daemon.socket).change(&name, &change))?;
            print(daemon.json, &disk, || disks(std::slice::from_ref(&disk)))
        }
        Command::Attach { name, to, read_only, shared, daemon } => {
            let disk = Rest::new(&daemon.socket).attach(&name, &Attach { tenant: to, read_only, shared })?;
            print(daemon.json, &disk, || disks(std::slice::from_ref(&disk)))
        }
        Command::Detach { name, from, daemon } => {
            let disk = Rest::new(&daemon.socket).detach(&name, &from)?;
            print(daemon.json, &disk, || disks(std::slice::from_ref(&disk)))
        }
        Command::Delete(delete) => run_delete(&delete),
        Command::Erase(erase) => run_erase(&erase),
        Command::Reencrypt { name, wait, daemon } => {
            let daemon_at = Rest::new(&daemon.socket);
            let disk = daemon_at.reencrypt(&name)?;
            if wait {
                wait_for_operations(&daemon_at, &name)?;
            }
            let told = if wait { "has its new key" } else { "is being re-encrypted; see `evenkeel operations`" };
            print(daemon.json, &disk, || format!("{name} {told}\n"))
        }
        Command::Snapshot(make) => snapshots::make(make),
        Command::Clone(clone) => snapshots::clone(clone),
        Command::Rollback(rollback) => snapshots::roll_back(&rollback),
        Command::Export { name, format, output, daemon } => {
            let disk = Rest::new(&daemon.socket).disk(&name)?;
            image::export(&disk, format, &output)?;
            print(daemon.json, &disk, || format!("{name} is in {}\n", output.display()))
        }
        Command::Unlock(unlock) => run_unlock(&unlock),
        Command::Rewrap(rewrap) => run_rewrap(&rewrap),
    }
}

fn run_create(Create { disk, labels, image, wait, daemon }: Create) -> Result<()> {
    let disk = labels.of(disk);
    let daemon_at = Rest::new(&daemon.socket);
    let disk = match image.open()? {
        Some(image) => image.create(&daemon_at, disk)?,
        None if disk.size.is_empty() && disk.clone_of.is_none() => bail!("a disk has a size: --size 16GiB"),
        None => {
            let mut disk = in_options(daemon_at.create(&disk))?;
            while wait && disk.state == DiskState::Zeroing {
                disk = show_zeroing(&daemon_at, disk)?;
            }
            disk
        }
    };
    warn(&disk);
    print(daemon.json, &disk, || disks(std::slice::from_ref(&disk)))
}

/// On standard error: standard output may be read by a program.
fn warn(disk: &Disk) {
    disk.warnings.iter().for_each(|warning| eprintln!("warning: {}: {warning}", disk.name));
}

fn run_erase(erase: &Erase) -> Result<()> {
    let Erase { name, yes, force, daemon } = erase;
    let daemon_at = Rest::new(&daemon.socket);
    if !yes && !is_confirmed(&daemon_at, name, "Erase")? {
        let remedy = "--yes erases it without a question";
        return Err(Problem::new(400, "not-confirmed", "nothing is erased", remedy).into());
    }
    let disk = daemon_at.erase(name, Erasure { force: *force })?;
    print(daemon.json, &disk, || format!("{name} is erased: its former key is gone\n"))
}

fn run_unlock(Unlock { name, key_file, erase, force, daemon }: &Unlock) -> Result<()> {
    let key = std::mem::take(&mut *keys::tenant_key(key_file)?);
    let disk = Rest::new(&daemon.socket).unlock(name, &TenantKey { key, erase: *erase, force: *force })?;
    print(daemon.json, &disk, || one(&disk))
}

fn run_rewrap(Rewrap { host_key, daemon }: &Rewrap) -> Result<()> {
    let lines = std::mem::take(&mut *keys::host_keys(host_key, &daemon.socket)?.lines());
    let rewrapped = Rest::new(&daemon.socket).host_keys(&HostKeys { lines })?;
    print(daemon.json, &rewrapped, || {
        format!("host key {} wraps the keys of all disks; {} were wrapped anew\n", rewrapped.host_key, rewrapped.disks)
    })
}

fn run_delete(delete: &Delete) -> Result<()> {
    let Delete { name, yes, force, wipe, wait, daemon } = delete;
    if name.contains('@') {
        return snapshots::delete(daemon, name);
    }
    let daemon_at = Rest::new(&daemon.socket);
    if !yes && !is_confirmed(&daemon_at, name, "Delete")? {
        let remedy = "--yes deletes it without a question";
        return Err(Problem::new(400, "not-confirmed", "nothing is deleted", remedy).into());
    }
    let wipe = wipe.map(|wipe| match wipe {
        WipeMethod::Zeros => Wipe::Zeros,
        WipeMethod::ThreePasses => Wipe::ThreePasses,
    });
    let mut left = daemon_at.delete(name, Deletion { force: *force, wipe })?;
    if *wait {
        wait_for_operations(&daemon_at, name)?;
        left.clear();
    } else {
        left = look_until_known(&daemon_at, name, left)?;
    }
    print(daemon.json, &Items { items: &left }, || {
        let written = written(&left);
        match written.is_empty() {
            true => format!("{name} is deleted, and its room is free\n"),
            false => format!("{name} is deleted; {written}, `evenkeel operations` shows how far that is\n"),
        }
    })
}

/// How much of what a disk left is written, and how long that takes at least. Nothing if nothing is left.
fn written(left: &[Operation]) -> String {
    let all: u64 = left.iter().map(|it| it.total_bytes).sum();
    let write: Option<u64> = left.iter().map(|it| it.write_bytes).sum();
    let seconds: Option<u64> = left.iter().map(|it| it.seconds_left).sum();
    let lasts = seconds.map(|seconds| format!(", which takes {} s or more (an estimate)", seconds.max(1)));
    let lasts = lasts.unwrap_or_default();
    match write {
        _ if all == 0 => String::new(),
        Some(0) => format!("nothing of its {} holds data, and nothing is written", Size(all)),
        Some(bytes) if bytes < all => {
            format!("{} of its {} hold data and are overwritten{lasts}", Size(bytes), Size(all))
        }
        Some(_) => format!("{} are overwritten{lasts}", Size(all)),
        None => format!("of {} all that may hold data is overwritten", Size(all)),
    }
}

/// Looks again for a moment: how much is written is known once the wiper begins, which it does at once unless it has
/// something else to do.
fn look_until_known(daemon: &Rest, name: &str, mut left: Vec<Operation>) -> Result<Vec<Operation>> {
    for _ in 0..LOOKS {
        let is_known = |it: &Operation| it.write_bytes.is_some() || it.state == OperationState::Failed;
        if left.iter().all(is_known) {
            break;
        }
        std::thread::sleep(LOOK_PERIOD);
        left = daemon.operations()?.into_iter().filter(|it| it.disk == name).collect();
    }
    Ok(left)
}

fn is_confirmed(daemon: &Rest, name: &str, what: &str) -> Result<bool> {
    let size = daemon.disk(name).map(|disk| format!(" ({})", Size(disk.size_bytes))).unwrap_or_default();
    is_typed(name, &format!("{what} {name}{size} and all its data? Type its name: "))
}

/// Asks the user on the terminal to type a name.
pub(crate) fn is_typed(name: &str, question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    write!(std::io::stderr(), "{question}")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim() == name)
}

/// Waits until nothing goes on with a disk any more, or with what a deleted one left.
fn wait_for_operations(daemon: &Rest, name: &str) -> Result<()> {
    let mut progress = Progress::new();
    loop {
        let left: Vec<_> = daemon.operations()?.into_iter().filter(|it| it.disk == name).collect();
        let Some(next) = left.iter().find(|it| it.state != OperationState::Failed) else {
            progress.end();
            return match left.first() {
                None => Ok(()),
                Some(failed) => bail!("{name}: its {} failed; the daemon's log says why", failed.kind),
            };
        };
        progress.show(&far(next));
        std::thread::sleep(PROGRESS_PERIOD);
    }
}

/// Show background operations, such as overwriting deleted disks.
#[derive(Debug, clap::Args)]
pub struct OperationsArgs {
    #[command(flatten)]
    daemon: Daemon,
}

/// Runs `evenkeel operations`.
///
/// # Errors
/// There is no daemon, or it refused.
pub fn run_operations(args: &OperationsArgs) -> Result<()> {
    let all = Rest::new(&args.daemon.socket).operations()?;
    print(args.daemon.json, &Items { items: &all }, || operations(&all))
}

fn operations(operations: &[Operation]) -> String {
    let row = |operation: &Operation| {
        let rate = operation.bytes_per_second.map_or("-".to_owned(), mb_s);
        let left = operation.seconds_left.map_or("-".to_owned(), |seconds| format!("{seconds} s"));
        let far = format!("{} %", operation.done_bytes * 100 / operation.total_bytes.max(1));
        let (kind, disk, state) = (operation.kind.clone(), operation.disk.clone(), operation.state.name().to_owned());
        vec![kind, disk, state, Size(operation.total_bytes).to_string(), far, rate, left]
    };
    let heading = ["operation", "disk", "state", "all", "done", "rate", "left"];
    let table = table::layout_with_words(&heading, &operations.iter().map(row).collect::<Vec<_>>(), &[0, 1, 2]);
    let why = |it: &Operation| it.why.as_ref().map(|why| format!("{} {}: {}\n", it.kind, it.disk, table::shown(why)));
    operations.iter().filter_map(why).fold(table, |text, line| text + &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(write_bytes: Option<u64>, seconds_left: Option<u64>) -> Operation {
        Operation {
            kind: "wipe".into(),
            disk: "d".into(),
            state: OperationState::Running,
            done_bytes: 0,
            total_bytes: 4 << 30,
            write_bytes,
            bytes_per_second: None,
            seconds_left,
            why: None,
        }
    }

    /// A table that is as wide as an error is long.
    #[test]
    fn what_failed_stands_below_the_table() {
        let why = Some("a long story".to_owned());
        let text = operations(&[Operation { state: OperationState::Failed, why, ..one(None, None) }]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[2]), (3, "wipe d: a long story"));
    }

    #[test]
    fn a_deletion_says_what_is_written() {
        let all = 4 << 30;
        for (left, text) in [
            (vec![], ""),
            (vec![one(Some(0), Some(0))], "nothing of its 4GiB holds data, and nothing is written"),
            (
                vec![one(Some(0), Some(0)), one(Some(3 << 30), Some(2))],
                "3GiB of its 8GiB hold data and are overwritten, which takes 2 s or more (an estimate)",
            ),
            (vec![one(Some(all), None)], "4GiB are overwritten"),
            (vec![one(Some(all), Some(1)), one(None, None)], "of 8GiB all that may hold data is overwritten"),
        ] {
            assert_eq!(written(&left), text);
        }
    }
}
