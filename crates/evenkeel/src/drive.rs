//! `evenkeel drive`: the drives of a running daemon.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use api::{Drive, DriveRemoval, NewDrive, NoDaemon, Problem, Rest};
use clap::Subcommand;
use config::{Assignments, drive_id, in_use, mark_image};
use io_model::units::{Size, UnitError};
use nvme_driver::{PciAddress, VfioDescriptors};
use rustix::fs::OFlags;

use crate::disk::{DEFAULT_SOCKET, Daemon, print};
use crate::{assign, host, table};

/// List, add and take away the drives of a running daemon; give the host's NVMe drives to user space and back.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List all drives of the daemon, if there is one, and the host's NVMe controllers.
    List(Daemon),
    /// Show one drive.
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Add a drive. It is opened with your rights, and handed over; nobody else may use it.
    Add(Box<Add>),
    /// Take a drive away that was added, once nobody has anything on it.
    Remove {
        /// Its name.
        name: String,
        /// Forget one that is missing, with its disks; or take one without disks away whose wipes have not ended.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Take an NVMe drive that nobody uses from the kernel, so that user space can drive it (vfio-pci).
    Claim(host::Args),
    /// Give a claimed NVMe drive back to the kernel, which has its disks again then.
    Release(host::Args),
    /// Give an NVMe drive virtual functions (SR-IOV), or take them away; each can be claimed like a drive.
    Vfs(host::FunctionsArgs),
    /// Give an NVMe drive that nobody uses to a VM, as a whole (PCI passthrough), and say how the VM gets it.
    Assign(assign::AssignArgs),
    /// Take an assigned NVMe drive back from a VM that has ended, and wipe all of it.
    Return(assign::ReturnArgs),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// 1 to 63 of a-z, 0-9, _ and -
    name: String,

    /// file, block, nvme, memory, null or model
    #[arg(long)]
    backend: String,

    /// The image or block device
    #[arg(long)]
    path: Option<PathBuf>,

    /// With nvme, the PCI address of a drive that was claimed. One that was given up is served again so
    #[arg(long, required_if_eq("backend", "nvme"))]
    address: Option<PciAddress>,

    /// Which of its namespaces [default: 1]
    #[arg(long, requires = "address")]
    nsid: Option<u16>,

    /// What a command of such a drive may take before something is done about it [default: 30s]
    #[arg(long, value_name = "TIME", requires = "address")]
    command_timeout: Option<String>,

    /// How much of it is used, such as 64GiB [default: all of it]
    #[arg(long)]
    size: Option<String>,

    /// Create the image, sparse, where it is missing
    #[arg(long, requires = "size", requires = "path")]
    create: bool,

    /// Which drive it is, by the name of a built-in profile
    #[arg(long)]
    profile: Option<String>,

    /// HWQs in all, 1 to 1024
    #[arg(long, value_name = "N")]
    queues: Option<u16>,

    /// The scheduling policy [default: that of the configuration]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,

    /// How what deleted disks leave becomes zeros: overwrite, or write-zeroes where the drive may do it itself
    #[arg(long, value_name = "HOW")]
    wipe: Option<String>,

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
            print(&daemon, &found, || drives(std::slice::from_ref(&found)) + &shown)
        }
        Command::Add(add) => run_add(*add),
        Command::Remove { name, force, daemon } => {
            let daemons = Rest::new(&daemon.socket);
            let before = daemons.drives()?.into_iter().find(|drive| drive.name == name);
            let left = daemons.remove_drive(&name, DriveRemoval { force })?;
            print(&daemon, &left, || removed(&name, before.as_ref()))
        }
        Command::Claim(args) => host::claim(&args),
        Command::Release(args) => host::release(&args),
        Command::Vfs(args) => host::functions(&args),
        Command::Assign(args) => assign::assign(&args),
        Command::Return(args) => assign::take_back(&args),
    }
}

/// All drives there are.
#[derive(serde::Serialize)]
struct All {
    /// The daemon's; nothing where none runs.
    drives: Vec<Drive>,
    /// The host's NVMe controllers.
    host: Vec<host::Listed>,
}

fn list(daemon: &Daemon) -> Result<()> {
    let drives = match Rest::new(&daemon.socket).drives() {
        Ok(drives) => Some(drives),
        // The host's can be asked for where no daemon runs; a certain one that does not is missed.
        Err(error) if error.is::<NoDaemon>() && daemon.socket == Path::new(DEFAULT_SOCKET) => None,
        Err(error) => return Err(error),
    };
    let host = host::listed(drives.as_deref().unwrap_or_default());
    let no_daemon = drives.is_none();
    let all = All { drives: drives.unwrap_or_default(), host };
    print(daemon, &all, || {
        let served = if no_daemon { "no daemon runs\n".to_owned() } else { self::drives(&all.drives) };
        format!("{served}\n{}", host::table(&all.host))
    })
}

/// What is to be said of a drive that was removed, by what was `before`.
fn removed(name: &str, before: Option<&Drive>) -> String {
    let forgotten = before.map(|drive| drive.disks_not_served.join(", ")).filter(|disks| !disks.is_empty());
    let forgotten = forgotten.map(|disks| format!("; its disks are forgotten: {disks}"));
    let unwiped = before.map(|drive| Size(drive.wiping_bytes)).filter(|bytes| bytes.0 > 0);
    let unwiped = unwiped.map(|bytes| format!("; {bytes} of deleted disks' data are on it and were not wiped"));
    format!("{name} is served no more{}{}\n", forgotten.unwrap_or_default(), unwiped.unwrap_or_default())
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
        daemon,
    } = add;
    let daemon_at = Rest::new(&daemon.socket);
    let others = daemon_at.drives()?;
    // One that is there already is asked for once more, and whoever serves it has it open.
    let is_there = others.iter().any(|drive| drive.name == name && drive.failed.is_none());
    if let Some(path) = path.as_deref().filter(|_| !is_there) {
        refuse_served(path, &others)?;
    }
    let create = size.as_deref().filter(|_| create);
    let opened = path.as_deref().filter(|_| !is_there).map(|path| open(path, &backend, create)).transpose()?;
    opened.iter().filter(|_| backend == "file").for_each(|opened| {
        mark_image(&opened.file);
    });
    // The daemon opens it again at its next start, from wherever that is.
    let path = path.map(|path| path.canonicalize().unwrap_or(path));
    let at = path.as_ref().map(|path| path.display().to_string());
    let function = address.filter(|_| !is_there).map(function).transpose()?;
    let address = address.map(|address| address.to_string());
    let drive =
        NewDrive { name, backend, path: at, address, nsid, command_timeout, size, profile, queues, policy, wipe };
    let function = function.iter().flat_map(|its| [&its.container, &its.group, &its.device]).map(AsFd::as_fd);
    let handed_over: Vec<_> = opened.iter().map(|opened| opened.file.as_fd()).chain(function).collect();
    let added = daemon_at.add_drive(&drive, &handed_over);
    if let (Err(error), Some(path), Some(Opened { is_new: true, .. })) = (&added, &path, &opened)
        && error.is::<Problem>()
    {
        // It was refused, so nobody has it. If it can't be removed, the next try says so.
        let _ = std::fs::remove_file(path);
    }
    // Who may not is cut off before he can be told.
    let cut_off = "only operators (see [api] in the configuration) may hand a drive over";
    let drive = added.map_err(|error| if error.is::<Problem>() { error } else { error.context(cut_off) })?;
    print(&daemon, &drive, || drives(std::slice::from_ref(&drive)))
}

/// Opens a drive that was claimed.
fn function(address: PciAddress) -> Result<VfioDescriptors> {
    let opened = VfioDescriptors::open(address).map_err(|error| {
        Problem::new(409, "not-usable", error.to_string(), "see what it says (`evenkeel drive list`)")
    })?;
    // Looked at while nobody else can have it.
    if let Some((what, remedy)) = Assignments::of_this_host().refusal(address) {
        return Err(Problem::new(409, "assigned", what, remedy).into());
    }
    Ok(opened)
}

/// The daemon itself has it open, under whatever path.
fn refuse_served(path: &Path, drives: &[Drive]) -> Result<(), Problem> {
    let is_served = |drive: &&Drive| {
        let its = drive.path.as_deref().filter(|_| drive.failed.is_none());
        its.is_some_and(|its| is_same(path, Path::new(its)))
    };
    let Some(drive) = drives.iter().find(is_served) else { return Ok(()) };
    let title = format!("{} is drive {:?} of this daemon already", path.display(), drive.name);
    Err(Problem::new(409, "in-use", title, "give the path of another drive"))
}

/// Whether two paths lead to one file or block device, be it by two ways to the drive (multipath). The daemon is not
/// let near what the kernel knows of block devices.
fn is_same(one: &Path, other: &Path) -> bool {
    let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) else { return false };
    let are_devices = one.file_type().is_block_device() && other.file_type().is_block_device();
    let is_one_drive = || one.rdev() == other.rdev() || drive_id(&one).is_some_and(|id| drive_id(&other) == Some(id));
    (one.dev(), one.ino()) == (other.dev(), other.ino()) || are_devices && is_one_drive()
}

/// A drive to be handed over.
struct Opened {
    file: File,
    /// It was made for that.
    is_new: bool,
}

/// Opens a drive that nobody uses. `create`: the size of an image that may be made.
fn open(path: &Path, backend: &str, create: Option<&str>) -> Result<Opened> {
    if let Some(used) = in_use::uses(path).first() {
        return Err(Problem::new(409, "in-use", used.what(path), used.remedy()).into());
    }
    let layout = format!("{}.layout.toml", path.display());
    if Path::new(&layout).exists() {
        let title = format!("{} has tenants: {layout} says whose it is", path.display());
        let remedy = "declare it in the configuration with them, or remove that file if nobody needs what is there";
        return Err(Problem::new(409, "has-tenants", title, remedy).into());
    }
    let cant = |error: std::io::Error| {
        let title = format!("can't open {}: {error}", path.display());
        Problem::new(422, "not-usable", title, "give the path of a drive that you may read and write")
    };
    let mut options = OpenOptions::new();
    // A pipe in its place would have us wait for whoever opens it too.
    options.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    if backend == "block" {
        // The kernel refuses where it uses the device itself (open(2)).
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
        // Nothing may stay behind of an image that could not be made.
        let _ = std::fs::remove_file(path);
        return Err(cant(error).into());
    }
    Ok(Opened { file, is_new: true })
}

/// The drive of that name.
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
