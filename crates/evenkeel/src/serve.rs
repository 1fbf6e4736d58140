//! `evenkeel serve`: becomes the daemon.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, anyhow};

/// The daemon's program.
const DAEMON: &str = "evenkeeld";

/// Run the daemon until SIGTERM or SIGINT.
///
/// At the end it completes all commands in flight and exits with status 0. It refuses promises that the drive can't
/// keep, unless they are overcommitted. This process becomes the daemon, `evenkeeld`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    config: PathBuf,

    /// Print the served drives and disks as one line of JSON instead of text.
    #[arg(long)]
    json: bool,

    /// For debugging: no system call filters, no Landlock; allow debuggers and core dumps.
    #[arg(long)]
    unconfined: bool,

    /// Don't use the keeper, even if evenkeel-keeper listens on `<runtime_dir>/keeper`.
    #[arg(long)]
    no_keeper: bool,

    /// Overwrite this drive, although it has data that no layout file describes. DESTROYS THAT DATA.
    #[arg(long, value_name = "DRIVE")]
    discard_content: Vec<String>,

    /// Lowest level of log messages: off, error, warn or info [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// Format of log lines: text, with fields if standard error is the journal, or json, one object per line [default:
    /// text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

/// Runs the command. Returns only if the daemon can't be started.
///
/// # Errors
/// There is no daemon to be found.
pub fn run(args: &Args) -> Result<Infallible> {
    let mut daemon = command();
    daemon.args(args.json.then_some("--json"));
    daemon.args(args.unconfined.then_some("--unconfined"));
    daemon.args(args.no_keeper.then_some("--no-keeper"));
    args.discard_content.iter().for_each(|drive| _ = daemon.args(["--discard-content", drive]));
    args.log_level.iter().for_each(|level| _ = daemon.args(["--log-level", level]));
    args.log_format.iter().for_each(|format| _ = daemon.args(["--log-format", format]));
    daemon.arg(&args.config);
    let error = daemon.exec();
    let program = daemon.get_program().to_string_lossy().into_owned();
    Err(anyhow!("can't start the daemon {program}: {error}; install evenkeeld beside evenkeel, or in the PATH"))
}

/// The daemon that belongs to this program: the one beside it, or else the one in the `PATH`.
pub fn command() -> Command {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(DAEMON)).filter(|path| path.exists());
    Command::new(beside.map_or_else(|| OsString::from(DAEMON), PathBuf::into_os_string))
}
