//! `evenkeel serve`: runs the daemon in the foreground, as service managers want it.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use client_socket::gate::AtTheEnd;
use client_socket::{Gate, Keeper, Level, gate};
use config::{Drives, NewFiles, TenantSummary};
use confine::{Fence, ThreadKind, Walls};
use promises::forecasts::Forecasts;
use promises::ready::{self, DriveReport, Ready};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use tracing_subscriber::filter::LevelFilter;
use ublk::Helper;

use crate::daemon::Daemon;
use crate::log;
use crate::service_manager::Manager;
use crate::startup::Opened;
use runtime::command::Command;
use runtime::{open_files, panics, state_versions, stderr, threads};

/// Run the daemon until SIGTERM or SIGINT.
///
/// At the end it completes all commands in flight and exits with status 0. It refuses promises that the drive can't
/// keep, unless they are overcommitted. SIGHUP applies the changed configuration file.
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

    /// Don't use the keeper, even if evenkeel-keeper listens on `<runtime_dir>/keeper`. An NVMe guest then loses its
    /// disk when the daemon ends.
    #[arg(long)]
    no_keeper: bool,

    /// Overwrite this drive, although it has data that no layout file describes. DESTROYS THAT DATA.
    #[arg(long, value_name = "DRIVE")]
    discard_content: Vec<String>,

    /// Lowest level of log messages: off, error, warn or info. Debug and trace mean info.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,

    /// Format of log lines: text, with fields if standard error is the journal; or json, one object per line.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = log::Format::Text)]
    log_format: log::Format,
}

impl Args {
    /// The error that ended the daemon, as its log shows it.
    pub fn last_words(&self, error: &str) -> String {
        self.log_format.error(error)
    }
}

/// What `--json` prints once all sockets accept clients.
#[derive(Serialize)]
struct Serving<'a> {
    pid: u32,
    drives: &'a [DriveReport],
    qemu: Vec<QemuArguments>,
    /// Once for each VM that has a vfio-user disk.
    qemu_no_migration: &'static [&'static str],
}

#[derive(Serialize)]
struct QemuArguments {
    tenant: String,
    arguments: Vec<String>,
}

/// Serves until a signal asks it to end.
///
/// # Errors
/// What is wrong with the configuration, the machine or the drive; or commands that the drive never answered.
pub fn run(args: &Args) -> Result<()> {
    panics::end_the_process();
    open_files::make_room();
    // Before any thread starts: each inherits the handlers' mask, and an early SIGTERM must not be lost.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("can't watch for signals")?;
    // A write beyond RLIMIT_FSIZE fails like any other write, and does not end everybody's daemon.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("can't watch for SIGXFSZ")?;
    let drives = Drives::load(&args.config)?.discard_content(&args.discard_content)?;
    let (ready, absent) = ready::prepare(drives, &Forecasts::default())?;
    let mut drives: Vec<DriveReport> = ready.iter().map(Ready::report).collect();
    ready::refuse(&ready)?;
    let (log, log_writer) = log::start(args.log_level, args.log_format);
    let keeper_path = ready.first().map(|ready| ready.prepared.config.keeper_path());
    let new_files: Vec<NewFiles> = ready.iter().map(|ready| ready.prepared.new_files()).collect();
    let to_open = ready.into_iter().map(|it| (it.prepared, it.profile)).collect();
    let keeper = find_keeper(args, keeper_path)?;
    let opened = Daemon::open(to_open, keeper, &log::sink())?.without(absent);
    drives.retain(|drive| opened.has_drive(&drive.summary.device.name));
    let opened = opened.with_helper(start_ublk_helper(args)?);
    let manager =
        Manager::find().context("can't reach the service manager at NOTIFY_SOCKET; unset it to start without")?;
    let opened = opened.with_manager(manager);
    opened.drop_privileges()?;
    // As who the daemon is now, and while it may still start programs.
    let gate = Gate::start("evenkeeld-gate", if args.unconfined { &["--unconfined"] } else { &[] });
    let gate = gate.context("can't start the process that takes clients' descriptors")?;
    confine(args, &opened)?;
    let survivor = confine::leave_memory_to_a_survivor();
    if let Err(error) = &survivor {
        tracing::warn!("no process can take over the daemon's memory at its end, which then takes longer: {error}");
    }
    // Not before: a thread keeps the rights that it was started with.
    log_writer.start().context("can't start the log")?;
    let daemon = Daemon::serve(opened, log::sink(), Some(gate))?;
    new_files.into_iter().for_each(NewFiles::keep);
    // Not before: what keeps the daemon from starting is told once, as an error.
    // What is said of the whole file is said of each drive.
    let warnings: BTreeSet<&String> = drives.iter().flat_map(|drive| &drive.summary.warnings).collect();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    // Readers of the announcement find them in the log.
    log.flush();
    let as_json = args.json;
    // On a thread of its own: nobody has to read it, and SIGTERM is heard all the same.
    let served = daemon.handle();
    let announce = move || {
        threads::enter(ThreadKind::Announce);
        // Otherwise it has ended meanwhile.
        if served.wait_until_served().is_err() {
            return;
        }
        if let Err(error) = announce(&drives, as_json) {
            tracing::warn!("can't print the served disks: {error:#}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("announce".into()).spawn(announce) {
        tracing::warn!("can't print the served disks: {error}");
    }
    threads::enter(ThreadKind::Main);
    let signal = signals.forever().find(|signal| {
        if *signal == SIGHUP {
            daemon.handle().tell(Command::Reread);
        }
        *signal != SIGHUP
    });
    let name = signal.and_then(signal_hook::low_level::signal_name).unwrap_or("a signal");
    tracing::info!("{name}: completing commands in flight");
    let lost = daemon.stop();
    log.flush();
    match lost {
        0 => Ok(()),
        lost => bail!("the drive never answered {lost} commands; their data may or may not be written"),
    }
}

/// Why it can't serve, and what to do.
pub fn in_words(error: &anyhow::Error) -> String {
    let remedy = open_files::remedy(error).map(|remedy| format!("; {remedy}"));
    format!("{error:#}{}", remedy.unwrap_or_default())
}

/// By which the program is asked whether it could go on with the clients of a daemon that runs, and that has this
/// [`handover`](api::Live::handover).
pub const CAN_TAKE_OVER: &str = "--can-take-over=";

/// Answers that: says why, if it can't.
pub fn can_take_over(asked: &str) -> ExitCode {
    match state_versions::goes_on_with(asked.strip_prefix(CAN_TAKE_OVER).unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            stderr::say(&why);
            ExitCode::FAILURE
        }
    }
}

/// Serves as the descriptor gate of the daemon that started this process, until that ends: in a process of its own, and
/// in another one if that is killed.
pub fn as_gate(confined: bool) -> ExitCode {
    let serve = |follows| {
        threads::drill();
        let served = gate::serve(std::io::stdin(), AtTheEnd::Leave, follows);
        if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    };
    let walls = if confined { Walls::All } else { Walls::None };
    confine::keep_running_within(walls, ThreadKind::Gate, serve, || gate::is_wanted(std::io::stdin()))
}

/// The keeper that keeps clients for the next daemon, if it was started.
fn find_keeper(args: &Args, path: Option<PathBuf>) -> Result<Option<Arc<Keeper>>> {
    let Some(path) = path.filter(|_| !args.no_keeper) else { return Ok(None) };
    let waits = || {
        let at = path.display();
        let line = format!("the keeper at {at} serves another daemon or does not answer: waiting for it, 10 s at most");
        (log::sink())(Level::Info.of_daemon(), &line);
    };
    let keeper = Keeper::connect(&path, waits)?;
    if keeper.is_none() && path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
        let line = format!(
            "no keeper listens at {}, where one was: clients lose their disk when the daemon ends; start \
             evenkeel-keeper first, and then the daemon",
            path.display()
        );
        (log::sink())(Level::Warn.of_daemon(), &line);
    }
    Ok(keeper)
}

/// Before rights are dropped, which it keeps: what makes block devices, where this host has the driver for them.
fn start_ublk_helper(args: &Args) -> Result<Option<Arc<Helper>>> {
    if !(ublk::is_there() && rustix::process::geteuid().is_root()) {
        return Ok(None);
    }
    let helper = Helper::start(if args.unconfined { &["--unconfined"] } else { &[] });
    helper.map(Some).context("can't start the process that makes block devices")
}

/// Makes block devices for the daemon that started this process, until that ends.
pub fn as_ublk_helper(confined: bool) -> ExitCode {
    let walls = || -> Result<()> {
        confine::keep_what_block_devices_take()?;
        confine::hide_memory()?;
        Ok(confine::arm_alone()?)
    };
    // Nobody hears why: the daemon finds that its helper does not answer.
    if confined && walls().is_err() {
        return ExitCode::FAILURE;
    }
    threads::enter(ThreadKind::Ublk);
    ublk::serve(std::io::stdin());
    ExitCode::SUCCESS
}

/// Shuts the doors that the daemon needs no more, before any thread starts.
fn confine(args: &Args, opened: &Opened) -> Result<()> {
    if opened.stays_root() {
        tracing::warn!(
            "the daemon runs as root: write user = \"evenkeel\" under [daemon], and it drops to that user once it has \
             opened the drive and the sockets"
        );
    }
    if args.unconfined {
        tracing::warn!(
            "--unconfined: no system call filters, no Landlock; debuggers and core dumps see the daemon's memory"
        );
        return Ok(());
    }
    confine::hide_memory().context("can't hide the daemon's memory")?;
    match confine::fence(&opened.directories(), opened.readable()).context("can't fence the daemon in with Landlock")? {
        Fence::Whole => {}
        Fence::Partial => tracing::info!("this kernel is older, and its Landlock restricts the daemon less"),
        Fence::None => tracing::warn!(
            "this kernel has no Landlock (CONFIG_SECURITY_LANDLOCK, lsm=landlock): the daemon could open any file that \
             its user may"
        ),
    }
    confine::arm().context("can't filter system calls; --unconfined goes without")
}

fn announce(drives: &[DriveReport], json: bool) -> Result<()> {
    let tenants: Vec<&TenantSummary> = drives.iter().flat_map(|drive| &drive.summary.tenants).collect();
    let of_guests = || tenants.iter().copied().filter(|tenant| tenant.frontend != UBLK);
    let qemu = of_guests().map(|tenant| QemuArguments {
        tenant: tenant.name.clone(),
        arguments: if is_vhost(tenant) { vhost_arguments(tenant) } else { vfio_user_arguments(tenant) },
    });
    let serving = Serving { pid: std::process::id(), drives, qemu: qemu.collect(), qemu_no_migration: &NO_MIGRATION };
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", api::document(&serving)?)?;
        return Ok(out.flush()?);
    }
    for (at, drive) in drives.iter().enumerate() {
        write!(out, "{}{drive}", if at > 0 { "\n" } else { "" })?;
    }
    for tenant in tenants.iter().filter(|tenant| tenant.frontend == UBLK) {
        writeln!(out, "\n{} is the block device {}", tenant.name, tenant.socket.display())?;
    }
    if of_guests().next().is_none() {
        writeln!(out, "\nserving; stop with SIGTERM")?;
        return Ok(out.flush()?);
    }
    writeln!(out, "\nto attach a tenant, add to QEMU's arguments (guest memory must be shared:")?;
    writeln!(out, "  -object memory-backend-memfd,id=mem,size=4G,share=on -machine memory-backend=mem):")?;
    for tenant in &serving.qemu {
        let pairs = tenant.arguments.chunks_exact(2).map(|pair| format!("{} '{}'", pair[0], pair[1]));
        writeln!(out, "  {}: {}", tenant.tenant, pairs.collect::<Vec<_>>().join(" "))?;
    }
    if !of_guests().all(is_vhost) {
        writeln!(out, "vfio-user-pci takes QEMU 10.1 or later")?;
        writeln!(
            out,
            "don't migrate such a VM: QEMU does not tell the daemon, and disk state is lost; this blocks it:\n  {}",
            NO_MIGRATION.join(" ")
        )?;
    }
    if of_guests().any(is_vhost) {
        writeln!(out, "reconnect-ms takes QEMU 9.2 or later: before that, write reconnect=1")?;
    }
    writeln!(out, "\nserving; stop with SIGTERM")?;
    Ok(out.flush()?)
}

/// QEMU migrates a VM with vfio-user-pci, which has no migration, as if it had no state. A device that says that it
/// can't be migrated blocks that.
const NO_MIGRATION: [&str; 4] =
    ["-object", "memory-backend-memfd,id=stay,size=4k,share=on", "-device", "ivshmem-plain,memdev=stay"];

/// The front end that no VMM is told of.
const UBLK: &str = "ublk";

fn is_vhost(tenant: &TenantSummary) -> bool {
    tenant.frontend == "vhost-user-blk"
}

fn vfio_user_arguments(tenant: &TenantSummary) -> Vec<String> {
    let socket = serde_json::json!({ "type": "unix", "path": tenant.socket });
    vec!["-device".into(), serde_json::json!({ "driver": "vfio-user-pci", "socket": socket }).to_string()]
}

fn vhost_arguments(tenant: &TenantSummary) -> Vec<String> {
    // An id begins with a letter, which a tenant's name need not; and a comma ends a path unless it is doubled.
    let id = format!("evenkeel-{}", tenant.name);
    let path = tenant.socket.to_string_lossy().replace(',', ",,");
    let device = serde_json::json!({ "driver": "vhost-user-blk-pci", "chardev": id, "num-queues": tenant.queues });
    let chardev = format!("socket,id={id},path={path},reconnect-ms=100");
    vec!["-chardev".into(), chardev, "-device".into(), device.to_string()]
}

/// Whether an error is a problem with what the operator gave us.
pub fn is_bad_input(error: &anyhow::Error) -> bool {
    error.is::<config::ConfigErrors>() || error.is::<vfio_user::BindError>() || error.is::<ublk::HelperError>()
}
