//! `evenkeel drive sanitize`: has an empty drive erase itself.
//!
//! The daemon may not, so this does, with the rights of whoever calls it. The daemon holds the drive meanwhile. Where
//! this is ended in the middle, the same command goes on: what the drive does it tells in its Sanitize Status log.

pub(crate) mod capabilities;

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use api::{Drive, Problem, Rest, SanitizeStep};
use bytemuck::{Zeroable, bytes_of_mut};
use nvme_driver::passthrough::{self, AdminCommand, PassthroughError};
use nvme_spec::NSID_ALL;
use nvme_spec::identify::{IDENTIFY_BYTES, IdentifyController, cns, oacs};
use nvme_spec::log::{SanitizeLog, lid};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode::admin;

use self::capabilities::{Action, Capabilities, Status, listed};
use crate::disk::{Daemon, Progress, is_typed, print};
use crate::drive::{drives, find};

/// Of commands that change nothing.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// How often a drive is asked how far it is.
const PERIOD: Duration = Duration::from_millis(500);

/// Have a drive that has no disks erase all of itself by its own means: NVMe Sanitize, or Format with secure erase.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Its name.
    name: String,

    /// Don't ask
    #[arg(long)]
    yes: bool,

    /// How [default: the first of these that the drive has]
    #[arg(long, value_enum)]
    action: Option<Action>,

    /// Serve the drive again although it was not sanitized; what disks left there is overwritten
    #[arg(long, conflicts_with_all = ["action", "yes"])]
    give_up: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs it.
///
/// # Errors
/// There is no daemon, it refused, or the drive can't do it or failed.
pub fn run(args: &Args) -> Result<()> {
    let Args { name, yes, action, give_up, daemon } = args;
    let rest = Rest::new(&daemon.socket);
    let drive = find(&rest, name)?;
    if *give_up {
        return self::give_up(&rest, &drive, daemon);
    }
    let device = open(&drive)?;
    let capabilities = look(&device, &drive)?;
    let refused = |why| {
        let title = format!("drive {name:?} can't be sanitized by itself: {why}");
        Problem::new(409, "cannot-sanitize", title, OVERWRITTEN_ANYWAY)
    };
    let action = match action {
        Some(action) => capabilities.check(*action).map(|()| *action),
        None => capabilities.choose(),
    };
    let action = action.map_err(refused)?;
    let question = format!("Erase all of {} ({action}), all of it, for ever? Type its name: ", path_of(&drive));
    if !yes && !is_typed(name, &question)? {
        let remedy = "--yes sanitizes it without a question";
        return Err(Problem::new(400, "not-confirmed", "nothing is erased", remedy).into());
    }
    hold(&rest, name)?;
    let progress = &mut Progress::new();
    let erased = erase(&device, &capabilities, action, progress);
    progress.end();
    if let Err(error) = erased {
        return Err(failed(&rest, &drive, error));
    }
    let drive = rest.sanitize(name, SanitizeStep::Ended)?;
    print(daemon, &drive, || format!("{name} is sanitized ({action}), and free\n"))
}

const OVERWRITTEN_ANYWAY: &str = "what deleted disks leave is overwritten anyway; `evenkeel operations` shows how far \
                                  that is";

/// Why a drive is not erased.
enum Failure {
    /// It did not take the command: nothing has changed.
    Refused(Action, PassthroughError),
    /// It may have begun, and nobody knows.
    Lost(String),
    /// It failed.
    Failed,
}

/// `before`: the drive as it was.
fn failed(rest: &Rest, before: &Drive, failure: Failure) -> anyhow::Error {
    let name = &before.name;
    let again = format!(
        "it stays held, with no disks; look at `dmesg`, and run this again, with another --action perhaps; `evenkeel \
         drive sanitize {name} --give-up` has it served all the same"
    );
    match failure {
        Failure::Refused(action, error) => {
            let title = format!("drive {name:?} does not take {action}: {error}");
            // One that was held already failed before.
            let is_free = !before.sanitizing && rest.sanitize(name, SanitizeStep::GivenUp).is_ok();
            let as_before = format!("nothing is erased, and it is served as before; {OVERWRITTEN_ANYWAY}");
            let remedy = if is_free { as_before } else { again };
            Problem::new(409, "cannot-sanitize", title, remedy).into()
        }
        Failure::Lost(why) => {
            let title = format!("nobody knows how far drive {name:?} is erased: {why}");
            Problem::new(500, "sanitize-lost", title, again).into()
        }
        Failure::Failed => {
            Problem::new(500, "sanitize-failed", format!("drive {name:?} failed to sanitize itself"), again).into()
        }
    }
}

fn path_of(drive: &Drive) -> &str {
    drive.path.as_deref().unwrap_or("it")
}

/// The block device of a drive, which is open with the daemon too.
fn open(drive: &Drive) -> Result<File> {
    let name = &drive.name;
    let Some(path) = drive.path.as_deref().filter(|_| drive.backend == "block").map(Path::new) else {
        let title = format!("drive {name:?} can't erase itself: its back end is {:?}, no NVMe drive", drive.backend);
        return Err(Problem::new(409, "cannot-sanitize", title, OVERWRITTEN_ANYWAY).into());
    };
    let unusable = |why: String, remedy| {
        Problem::new(409, "cannot-sanitize", format!("drive {name:?}: {} {why}", path.display()), remedy)
    };
    let device = OpenOptions::new().read(true).open(path);
    let device = device.map_err(|error| unusable(format!("can't be opened: {error}"), "run this as root"))?;
    let metadata = device.metadata()?;
    if config::is_partition(&metadata) {
        let why = "is a partition, and what else is on its drive would be erased with it";
        return Err(unusable(why.to_owned(), OVERWRITTEN_ANYWAY).into());
    }
    if passthrough::namespace_id(&device).is_err() {
        return Err(unusable("is no NVMe drive".to_owned(), OVERWRITTEN_ANYWAY).into());
    }
    // A path may lead to another drive than when the daemon opened it.
    if drive.id.is_none() || config::drive_id(&metadata) != drive.id {
        let why = "is not known to be the drive that the daemon serves";
        return Err(unusable(why.to_owned(), "start the daemon with the drive's present path").into());
    }
    Ok(device)
}

fn look(device: &File, drive: &Drive) -> Result<Capabilities> {
    let asked = || -> Result<Capabilities, PassthroughError> {
        let nsid = passthrough::namespace_id(device)?;
        let (mut controller, mut namespace) = (IdentifyController::zeroed(), IdentifyNamespace::zeroed());
        identify(device, cns::CONTROLLER, 0, bytes_of_mut(&mut controller))?;
        identify(device, cns::NAMESPACE, nsid, bytes_of_mut(&mut namespace))?;
        let is_managed = controller.oacs & oacs::NAMESPACE_MANAGEMENT != 0;
        // Those that another controller has are erased too.
        let list = if is_managed { cns::ALLOCATED_NAMESPACES } else { cns::ACTIVE_NAMESPACES };
        let mut namespaces = [0; IDENTIFY_BYTES];
        identify(device, list, 0, &mut namespaces)?;
        Ok(Capabilities { controller, nsid, namespace, namespaces: listed(&namespaces) })
    };
    asked().map_err(|error| {
        let title = format!("drive {:?} does not say what it can do: {error}", drive.name);
        Problem::new(409, "cannot-sanitize", title, "run this as root (CAP_SYS_ADMIN)").into()
    })
}

fn identify(device: &File, cns: u8, nsid: u32, data: &mut [u8]) -> Result<(), PassthroughError> {
    let identify = AdminCommand { opcode: admin::IDENTIFY, nsid, cdw10: u32::from(cns), cdw11: 0, timeout: LOOK_LIMIT };
    passthrough::send(device, &identify, data)
}

fn status(device: &File) -> Result<Status, PassthroughError> {
    let mut log = SanitizeLog::zeroed();
    let dwords = size_of::<SanitizeLog>() as u32 / 4;
    let cdw10 = u32::from(lid::SANITIZE_STATUS) | (dwords - 1) << 16;
    let get = AdminCommand { opcode: admin::GET_LOG_PAGE, nsid: NSID_ALL, cdw10, cdw11: 0, timeout: LOOK_LIMIT };
    passthrough::send(device, &get, bytes_of_mut(&mut log))?;
    Ok(Status::of(&log))
}

/// The daemon holds the drive, and has nothing in flight to it.
fn hold(rest: &Rest, name: &str) -> Result<()> {
    let mut progress = Progress::new();
    loop {
        let held = rest.sanitize(name, SanitizeStep::Begins);
        let problem = held.as_ref().err().and_then(|error| error.downcast_ref::<Problem>());
        let Some(waits) = problem.filter(|problem| problem.code == "not-quiet") else {
            progress.end();
            return held.map(drop);
        };
        progress.show(&waits.title);
        std::thread::sleep(PERIOD);
    }
}

/// Nobody but the drive itself writes to it until this returns.
fn erase(device: &File, capabilities: &Capabilities, action: Action, progress: &mut Progress) -> Result<(), Failure> {
    let lost = |error: PassthroughError| Failure::Lost(error.to_string());
    // Begun by whomever, it ends after the drive was held.
    let goes_on = capabilities.sanitizes() && matches!(status(device).map_err(lost)?, Status::Going(_));
    if !goes_on {
        progress.show(&format!("{action}: the drive is at it"));
        match passthrough::send(device, &capabilities.command(action), &mut []) {
            Ok(()) => {}
            Err(error) if is_refusal(&error) => return Err(Failure::Refused(action, error)),
            Err(error) => return Err(lost(error)),
        }
    }
    if !goes_on && !action.is_sanitize() {
        return Ok(());
    }
    match wait(|| status(device), "sanitizing", progress).map_err(lost)? {
        Ended::Completed => Ok(()),
        Ended::Failed => Err(Failure::Failed),
        Ended::Unknown => Err(Failure::Lost("its log knows of no sanitize".to_owned())),
    }
}

/// What became of a Sanitize.
pub(crate) enum Ended {
    Completed,
    Failed,
    /// The drive's log knows of none.
    Unknown,
}

/// Asks a drive that sanitizes itself until it is done; `what` it does is shown.
pub(crate) fn wait<E>(
    mut status: impl FnMut() -> Result<Status, E>,
    what: &str,
    progress: &mut Progress,
) -> Result<Ended, E> {
    loop {
        match status()? {
            Status::Going(done) => progress.show(&format!("{what}: {} %", u32::from(done) * 100 / 65536)),
            Status::Completed => return Ok(Ended::Completed),
            Status::Failed => return Ok(Ended::Failed),
            Status::Idle => return Ok(Ended::Unknown),
        }
        std::thread::sleep(PERIOD);
    }
}

/// Whether the controller has not begun: it does not know the command, or what it asks for.
fn is_refusal(error: &PassthroughError) -> bool {
    let refusals = [nvme_spec::Status::INVALID_OPCODE, nvme_spec::Status::INVALID_FIELD];
    let is =
        |status: &nvme_spec::Status, code: &nvme_spec::Status| (status.sct(), status.sc()) == (code.sct(), code.sc());
    matches!(error, PassthroughError::Status(status) if refusals.iter().any(|code| is(status, code)))
}

fn give_up(rest: &Rest, drive: &Drive, daemon: &Daemon) -> Result<()> {
    let is_going = open(drive).ok().is_some_and(|device| matches!(status(&device), Ok(Status::Going(_))));
    if is_going {
        let title = format!("drive {:?} is at it, and can't be stopped", drive.name);
        let remedy = "run this again without --give-up to wait for it";
        return Err(Problem::new(409, "sanitizing", title, remedy).into());
    }
    let drive = rest.sanitize(&drive.name, SanitizeStep::GivenUp)?;
    print(daemon, &drive, || drives(std::slice::from_ref(&drive)))
}
