//! `evenkeel drive`: the drives of a running daemon.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use api::{Drive, DriveRemoval, Items, NewDrive, NoDaemon, Problem, Rest};
use clap::Subcommand;
use config::{Assignments, drive_id, in_use, mark_image};
use io_model::units::{Size, UnitError};
use nvme_driver::{PciAddress, VfioDescriptors};
use rustix::fs::OFlags;

use crate::disk::{DEFAULT_SOCKET, Daemon};
use crate::output::print;
use crate::{assign, host, table};

/// Add, remove and list drives of a daemon; claim and release NVMe drives.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the daemon's drives and the host's NVMe controllers, also without a daemon.
    List(Daemon),
    /// Show one drive.
    Show {
        /// Name of the drive.
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Add an unused drive: opened with your rights, then handed to the daemon.
    Add(Box<Add>),
    /// Remove an added drive that has no disks.
    Remove {
        /// Name of the drive.
        name: String,
        /// Forget a missing drive and its disks, or remove a drive without disks before its wipe ends.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Take an unused NVMe drive from the kernel for a user-space driver (vfio-pci).
    Claim(host::Args),
    /// Give a claimed NVMe drive back to the kernel.
    Release(host::Args),
    /// Set the number of an NVMe drive's virtual functions (SR-IOV), claimed like drives.
    Vfs(host::FunctionsArgs),
    /// Give an unused NVMe drive to a VM (PCI passthrough); print how to attach it.
    Assign(assign::AssignArgs),
    /// Take an assigned NVMe drive back after the VM ended, and wipe it.
    Return(assign::ReturnArgs),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// Name: 1 to 63 characters of a-z, 0-9, _ and -
    name: String,

    /// Back end: file, block, nvme, memory, null or model
    #[arg(long)]
    backend: String,

    /// Path of the image or block device
    #[arg(long)]
    path: Option<PathBuf>,

    /// With nvme: PCI address of a claimed drive; also brings back a drive that the daemon gave up
    #[arg(long, required_if_eq("backend", "nvme"))]
    address: Option<PciAddress>,

    /// With nvme: identifier of the drive's namespace [default: 1]
    #[arg(long, requires = "address")]
    nsid: Option<u16>,

    /// With nvme: time limit of a command; then the daemon aborts it [default: 30s]
    #[arg(long, value_name = "TIME", requires = "address")]
    command_timeout: Option<String>,

    /// Part of the drive to use, such as 64GiB [default: all]
    #[arg(long)]
    size: Option<String>,

    /// Create a missing image as a sparse file
    #[arg(long, requires = "size", requires = "path")]
    create: bool,

    /// Built-in profile that describes the drive's performance
    #[arg(long)]
    profile: Option<String>,

    /// Total number of hardware queues (HWQs), 1 to 1024
    #[arg(long, value_name = "N")]
    queues: Option<u16>,

    /// Scheduling policy [default: the configuration's]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,

    /// How to zero deleted disks: overwrite, or write-zeroes (the drive's command)
    #[arg(long, value_name = "HOW")]
    wipe: Option<String>,

    /// Overwrite the drive, although it has data that no layout file describes; repeat its name. DESTROYS THAT DATA
    #[arg(long, value_name = "NAME")]
    discard_content: Option<String>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs `evenkeel drive`.
///
/// # Errors
/// There is no daemon, or it refused.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::List(daemon) => list(&daemon),
        Command::Show { name, daemon } => {
            let found = find(&Rest::new(&daemon.socket), &name)?;
            let shown =
                found.health.as_ref().map(|health| format!("\n{}\n", table::health(health))).unwrap_or_default();
            print(daemon.json, &found, || drives(std::slice::from_ref(&found)) + &shown)
        }
        Command::Add(add) => run_add(*add),
        Command::Remove { name, force, daemon } => {
            let daemons = Rest::new(&daemon.socket);
            let before = daemons.drives()?.into_iter().find(|drive| drive.name == name);
            let left = daemons.remove_drive(&name, DriveRemoval { force })?;
            print(daemon.json, &Items { items: &left }, || removed(&name, before.as_ref()))
        }
        Command::Claim(args) => host::claim(&args),
        Command::Release(args) => host::release(&args),
        Command::Vfs(args) => host::functions(&args),
        Command::Assign(args) => assign::assign(&args),
        Command::Return(args) => assign::take_back(&args),
    }
}

/// The daemon's drives and the host's.
#[derive(serde::Serialize)]
struct All {
    /// The daemon's drives. Empty if none runs.
    items: Vec<Drive>,
    /// The host's NVMe controllers.
    host: Vec<host::Listed>,
}

fn list(daemon: &Daemon) -> Result<()> {
    let drives = match Rest::new(&daemon.socket).drives() {
        Ok(drives) => Some(drives),
        // The host's drives can be listed without a daemon. If --socket names a daemon, it must be there.
        Err(error) if error.is::<NoDaemon>() && daemon.socket == Path::new(DEFAULT_SOCKET) => None,
        Err(error) => return Err(error),
    };
    let host = host::listed(drives.as_deref().unwrap_or_default());
    let no_daemon = drives.is_none();
    let all = All { items: drives.unwrap_or_default(), host };
    print(daemon.json, &all, || {
        let served = if no_daemon { "no daemon runs\n".to_owned() } else { self::drives(&all.items) };
        format!("{served}\n{}", host::table(&all.host))
    })
}

/// The message about a removed drive. `before`: what it was.
fn removed(name: &str, before: Option<&Drive>) -> String {
    let forgotten = before.map(|drive| drive.disks_not_served.join(", ")).filter(|disks| !disks.is_empty());
    let forgotten = forgotten.map(|disks| format!("; its disks are forgotten: {disks}"));
    let unwiped = before.map(|drive| Size(drive.wiping_bytes)).filter(|bytes| bytes.0 > 0);
    let unwiped = unwiped.map(|bytes| format!("; {bytes} of deleted disks' data are on it and were not wiped"));
    format!("{name} is no longer served{}{}\n", forgotten.unwrap_or_default(), unwiped.unwrap_or_default())
}

fn run_add(add: Add) -> Result<()> {
    let Add {
        name,
        backend,
        path,
        address,
        nsid,
        command_timeout,
        size,
        create,
        profile,
        queues,
        policy,
        wipe,
        discard_content,
        daemon,
    } = add;
    if let Some(other) = discard_content.as_ref().filter(|named| **named != name) {
        let title = format!("--discard-content {other} names another drive than {name}");
        return Err(Problem::new(422, "invalid", title, format!("write --discard-content {name}")).into());
    }
    let discard_content = discard_content.is_some();
    let daemon_at = Rest::new(&daemon.socket);
    let others = daemon_at.drives()?;
    // A drive that is there already is requested again. The daemon has it open, so it can't be opened here.
    let is_there = others.iter().any(|drive| drive.name == name && drive.failed.is_none());
    if let Some(path) = path.as_deref().filter(|_| !is_there) {
        refuse_served(path, &others)?;
    }
    let create = size.as_deref().filter(|_| create);
    let opened = path.as_deref().filter(|_| !is_there).map(|path| open(path, &backend, create)).transpose()?;
    opened.iter().filter(|_| backend == "file").for_each(|opened| {
        mark_image(&opened.file);
    });
    // The daemon opens the path again when it starts next, in another directory.
    let path = path.map(|path| path.canonicalize().unwrap_or(path));
    let at = path.as_ref().map(|path| path.display().to_string());
    let function = address.filter(|_| !is_there).map(function).transpose()?;
    let address = address.map(|address| address.to_string());
    let drive = NewDrive {
        name,
        backend,
        path: at,
        address,
        nsid,
        command_timeout,
        size,
        profile,
        queues,
        policy,
        wipe,
        discard_content,
    };
    let function = function.iter().flat_map(|its| [&its.container, &its.group, &its.device]).map(AsFd::as_fd);
    let handed_over: Vec<_> = opened.iter().map(|opened| opened.file.as_fd()).chain(function).collect();
    let added = daemon_at.add_drive(&drive, &handed_over);
    if let (Err(error), Some(path), Some(Opened { is_new: true, .. })) = (&added, &path, &opened)
        && error.is::<Problem>()
    {
        // The image was refused, so nothing has it open. If it can't be removed, the next attempt says so.
        let _ = std::fs::remove_file(path);
    }
    // The daemon closes the connection of a user without the right before it can answer.
    let cut_off = "only operators (see [api] in the configuration) may hand a drive over";
    let drive = added.map_err(|error| if error.is::<Problem>() { error } else { error.context(cut_off) })?;
    print(daemon.json, &drive, || drives(std::slice::from_ref(&drive)))
}

/// Opens a claimed drive.
fn function(address: PciAddress) -> Result<VfioDescriptors> {
    let opened = VfioDescriptors::open(address).map_err(|error| {
        Problem::new(409, "not-usable", error.to_string(), "see what it says (`evenkeel drive list`)")
    })?;
    // Checked while no other process can have the drive.
    if let Some((what, remedy)) = Assignments::of_this_host().refusal(address) {
        return Err(Problem::new(409, "assigned", what, remedy).into());
    }
    Ok(opened)
}

/// Refuses a path to a drive that the daemon has open, even under another path.
fn refuse_served(path: &Path, drives: &[Drive]) -> Result<(), Problem> {
    let is_served = |drive: &&Drive| {
        let its = drive.path.as_deref().filter(|_| drive.failed.is_none());
        its.is_some_and(|its| is_same(path, Path::new(its)))
    };
    let Some(drive) = drives.iter().find(is_served) else { return Ok(()) };
    let title = format!("{} is drive {:?} of this daemon already", path.display(), drive.name);
    Err(Problem::new(409, "in-use", title, "give the path of another drive"))
}

/// Whether two paths lead to one file or block device, even by two paths to a drive (multipath). The daemon can't check
/// this: it has no access to the kernel's data on block devices.
fn is_same(one: &Path, other: &Path) -> bool {
    let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) else { return false };
    let are_devices = one.file_type().is_block_device() && other.file_type().is_block_device();
    let is_one_drive = || one.rdev() == other.rdev() || drive_id(&one).is_some_and(|id| drive_id(&other) == Some(id));
    (one.dev(), one.ino()) == (other.dev(), other.ino()) || are_devices && is_one_drive()
}

/// An opened drive, to be handed to the daemon.
struct Opened {
    file: File,
    /// The image was created for this.
    is_new: bool,
}

/// Opens a drive that is not in use. `create`: the size of an image that may be created.
fn open(path: &Path, backend: &str, create: Option<&str>) -> Result<Opened> {
    if let Some(used) = in_use::uses(path).first() {
        return Err(Problem::new(409, "in-use", used.what(path), used.remedy()).into());
    }
    let layout = format!("{}.layout.toml", path.display());
    if Path::new(&layout).exists() {
        let title = format!("{} has tenants, listed in {layout}", path.display());
        let remedy = "declare it in the configuration with them, or remove that file if its data is not needed";
        return Err(Problem::new(409, "has-tenants", title, remedy).into());
    }
    let cant = |error: std::io::Error| {
        let title = format!("can't open {}: {error}", path.display());
        Problem::new(422, "not-usable", title, "give the path of a drive that you may read and write")
    };
    let mut options = OpenOptions::new();
    // Without this flag, opening a pipe would wait for its other end.
    options.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    if backend == "block" {
        // The kernel refuses if it uses the device itself (open(2)).
        options.custom_flags((OFlags::NONBLOCK | OFlags::EXCL).bits() as i32);
    }
    let Some(size) = create.filter(|_| !path.exists()) else {
        return Ok(Opened { file: options.open(path).map_err(cant)?, is_new: false });
    };
    let size: Size = size.parse().map_err(|error: UnitError| {
        Problem::new(422, "invalid", format!("size is {size:?}: {error}"), "write a size such as 64GiB")
    })?;
    let file = options.create_new(true).mode(0o600).open(path).map_err(cant)?;
    if let Err(error) = file.set_len(size.0).and_then(|()| file.sync_all()) {
        // Don't leave a part of an image behind.
        let _ = std::fs::remove_file(path);
        return Err(cant(error).into());
    }
    Ok(Opened { file, is_new: true })
}

/// Finds a drive by name.
///
/// # Errors
/// There is no daemon, or no such drive.
pub(crate) fn find(rest: &Rest, name: &str) -> Result<Drive> {
    Ok(rest.drives()?.into_iter().find(|drive| drive.name == name).ok_or_else(|| no_such_drive(name))?)
}

fn no_such_drive(name: &str) -> Problem {
    Problem::new(404, "no-such-drive", format!("there is no drive {name:?}"), "`evenkeel drive list` has their names")
}

pub(crate) fn drives(drives: &[Drive]) -> String {
    let row = |drive: &Drive| {
        let path = drive.path.clone().unwrap_or_else(|| "-".to_owned());
        let sizes = [drive.size_bytes, drive.free_bytes, drive.wiping_bytes].map(|bytes| Size(bytes).to_string());
        let [size, free, wiping] = sizes;
        let state = match &drive.failed {
            Some(why) => format!("failed: {why}"),
            None => "served".to_owned(),
        };
        vec![drive.name.clone(), drive.backend.clone(), path, size, free, wiping, drive.policy.clone(), state]
    };
    let heading = ["drive", "back end", "path", "size", "free", "wiping", "policy", "state"];
    table::layout_with_words(&heading, &drives.iter().map(row).collect::<Vec<_>>(), &[0, 1, 2, 6, 7])
}
