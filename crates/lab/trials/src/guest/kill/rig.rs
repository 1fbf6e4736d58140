//! Guests on virtio disks under a load, and a daemon that is killed under them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::ledger::Ledger;
use super::report::{GuestReport, Report, SIGKILLS, UPGRADES};
use crate::guest::daemon::{self, Daemon, ENCRYPTED};
use crate::guest::lab::{Tenant, complaints};
use crate::guest::qemu::{Accel, Disk, Guest, Machine, VCPUS};
use crate::wait;

/// Size of each guest's disk.
const DISK_SIZE_MIB: u64 = 128;
/// How long a kill waits after requests have completed again.
const PAUSE_MS: std::ops::Range<u64> = 20..600;
/// Between two kills that wait for nothing.
const BLIND_PAUSE_MS: std::ops::Range<u64> = 20..900;
/// How many times as many kills as planned there are until each guest has been hit.
const KILLS_MORE: u32 = 10;
/// How long requests may take to complete again, on a machine that does much else.
const OUTAGE_LIMIT: Duration = Duration::from_secs(120);
const ROUND_LIMIT: Duration = Duration::from_secs(300);
/// The blocks that `kill.fio` writes at the disk's start, all of which are read back.
const SPOILED_BYTES: u64 = 4 << 20;

/// What a run does.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// SIGKILLs under load, and more where none of them hit a request in flight; one more follows at rest.
    pub kills: u32,
    /// Draws the moments.
    pub seed: u64,
    /// Spoils the image between two lives, which must be noticed.
    pub spoil: bool,
}

/// The guests; the daemon runs only during a run.
pub struct Rig<'a> {
    binary: &'a Path,
    /// Another build, which takes turns with it where the daemon is upgraded instead of killed.
    other: Option<&'a Path>,
    dir: PathBuf,
    sockets: Vec<PathBuf>,
    configuration: String,
    members: Vec<Member>,
    /// Has the guests' sockets, where there are NVMe guests.
    keeper: Option<Keeper>,
}

/// The process that keeps clients. Dropping it ends it.
struct Keeper(Child);

/// What it logs, in the folder.
const KEEPER_LOG: &str = "keeper.log";

impl Keeper {
    fn start(binary: &Path, dir: &Path) -> Result<Self> {
        let socket = &dir.join("run/keeper");
        fs::create_dir_all(socket.parent().context("a socket in a folder")?)?;
        let program = binary.with_file_name("evenkeel-keeper");
        let log = fs::File::create(dir.join(KEEPER_LOG))?;
        let child = Command::new(&program).arg(socket).stdin(Stdio::null()).stderr(log).spawn();
        let mut keeper = Self(child.with_context(|| format!("starting {}", program.display()))?);
        // A daemon that finds nobody there goes without.
        daemon::wait_for_sockets(std::slice::from_ref(socket), || {
            ensure!(keeper.0.try_wait()?.is_none(), "the keeper ended");
            Ok(())
        })?;
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Nothing is left to do where it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guest and what is counted for it.
pub struct Member {
    /// The tenant of this guest.
    pub tenant: Tenant,
    /// Its disk, as its kernel names it.
    pub drive: &'static str,
    /// The guest.
    pub guest: Guest,
    ledger: Ledger,
    /// Requests completed before the run, and at the last look.
    first: u64,
    last: u64,
    most_in_a_life: u64,
    longest_outage: Duration,
}

impl<'a> Rig<'a> {
    /// Boots a guest for each of `tenants`; the daemon that serves them meanwhile runs on.
    ///
    /// # Errors
    /// When daemon or guests do not start.
    pub fn boot(
        machine: &Machine,
        accel: Accel,
        binary: &'a Path,
        dir: &Path,
        tenants: &[Tenant],
    ) -> Result<(Self, Daemon)> {
        let (mut rig, daemon) = Self::spawn(machine, accel, binary, dir, tenants)?;
        rig.wait_ready()?;
        Ok((rig, daemon))
    }

    /// Starts daemon and guests, and returns while the guests still boot.
    ///
    /// # Errors
    /// When daemon or guests do not start.
    pub fn spawn(
        machine: &Machine,
        accel: Accel,
        binary: &'a Path,
        dir: &Path,
        tenants: &[Tenant],
    ) -> Result<(Self, Daemon)> {
        let dir = dir.join("kill");
        fs::create_dir_all(&dir)?;
        daemon::make_image(&daemon::image_of(&dir), DISK_SIZE_MIB * (tenants.len() as u64 + 1))?;
        let sockets: Vec<PathBuf> = tenants.iter().map(|&tenant| daemon::socket_of(&dir, tenant)).collect();
        let configuration = configuration(&dir, tenants) + &daemon::keys_section(&dir)?;
        let has_nvme = tenants.iter().any(|tenant| !tenant.is_virtio());
        let keeper = has_nvme.then(|| Keeper::start(binary, &dir)).transpose()?;
        let daemon = Daemon::start_with(binary, &dir, &configuration, &sockets)?;
        let mut members = Vec::new();
        for (&tenant, socket) in tenants.iter().zip(&sockets) {
            let (disk, drive, ledger) = match tenant.is_virtio() {
                true => (Disk::VhostUser(socket.clone()), "vda", Ledger::new(tenant.name())),
                false => (Disk::VfioUser(socket.clone()), "nvme0n1", Ledger::of_controller(tenant.name())),
            };
            let name = format!("kill-{}", tenant.name());
            members.push(Member {
                tenant,
                drive,
                guest: Guest::spawn(machine, accel, &name, tenant.qemu(), &[disk])?,
                ledger,
                first: 0,
                last: 0,
                most_in_a_life: 0,
                longest_outage: Duration::ZERO,
            });
        }
        Ok((Self { binary, other: None, dir, sockets, configuration, members, keeper }, daemon))
    }

    /// From now on the daemon is upgraded to that build and back, in turn, instead of killed.
    pub fn upgrade_to(&mut self, other: Option<&'a Path>) {
        self.other = other;
    }

    /// Waits until all guests have booted.
    ///
    /// # Errors
    /// When one does not.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(|member| member.guest.wait_ready())
    }

    /// The guests.
    pub fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.iter_mut()
    }

    /// Starts a daemon for guests that are there and have none.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_daemon(&self) -> Result<Daemon> {
        Daemon::start_with(self.binary, &self.dir, &self.configuration, &self.sockets)
    }

    /// Kills the daemon so often, at moments that `seed` draws, and starts it again; `before` is done before each.
    /// Returns the one that lives in the end, and how often a client went on.
    ///
    /// # Errors
    /// When it does not start, or `before` fails.
    pub fn kill_at_random(
        &mut self,
        mut daemon: Daemon,
        (kills, seed): (u32, u64),
        mut before: impl FnMut(&mut Self, u32) -> Result<()>,
    ) -> Result<(Daemon, usize)> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut went_on = 0;
        for kill in 0..kills {
            // Not to wait for anything: for the guests to be at ever other places.
            std::thread::sleep(Duration::from_millis(random.u64(BLIND_PAUSE_MS)));
            before(self, kill)?;
            went_on += daemon.kill()?.matches("a client goes on").count();
            daemon = self.start_daemon()?;
        }
        ensure!(went_on > 0, "no kill hit a client, so nothing was tested");
        Ok((daemon, went_on))
    }

    /// The daemon's next life: after a kill, or after an upgrade that it agreed to.
    fn next_life(&mut self, mut daemon: Daemon, newest: &Path) -> Result<Daemon> {
        let Some(next) = self.other else {
            self.end_life(&daemon.kill()?)?;
            return self.start_daemon();
        };
        daemon.check()?;
        let mut upgrade = Command::new(newest);
        upgrade.args(["upgrade", "--dry-run", "--program"]).arg(next.with_file_name("evenkeeld"));
        upgrade.arg("--config").arg(self.dir.join(daemon::CONFIG_FILE));
        upgrade.arg("--socket").arg(self.dir.join("run/api.sock"));
        let told = upgrade.output()?;
        ensure!(told.status.success(), "{}{}", String::from_utf8_lossy(&told.stderr), daemon.log_text());
        self.end_life(&daemon.stop()?)?;
        self.other = Some(std::mem::replace(&mut self.binary, next));
        self.start_daemon()
    }

    /// Kills the daemon under load as planned, and once more at rest; has all read back; stops the
    /// daemon. The guests stay up.
    ///
    /// # Errors
    /// When the daemon does not start or stop, requests stop completing, or a guest dies. What else goes
    /// wrong is in the report.
    pub fn run(&mut self, plan: Plan, mut daemon: Daemon) -> Result<Report> {
        for member in &mut self.members {
            // What an earlier run left.
            member.guest.run("rm -f /run/resting /run/read-back")?;
            let load = format!("sh /usr/sbin/kill-load /dev/{}", member.drive);
            let limit = ROUND_LIMIT + OUTAGE_LIMIT * plan.kills * KILLS_MORE;
            member.guest.start_job("load", &load, limit)?;
        }
        self.wait_for_requests(&mut daemon, Instant::now())?;
        let mut random = fastrand::Rng::with_seed(plan.seed);
        let newest = self.binary;
        let mut ends = 0;
        while ends < plan.kills || (ends < plan.kills * KILLS_MORE && self.must_kill_more(plan)) {
            ends += 1;
            let pause_ms = random.u64(PAUSE_MS);
            std::thread::sleep(Duration::from_millis(pause_ms));
            let killed = Instant::now();
            daemon = self.next_life(daemon, newest)?;
            self.wait_for_requests(&mut daemon, killed)?;
        }

        for member in &mut self.members {
            member.guest.run("touch /run/load.stop")?;
        }
        for member in &mut self.members {
            // Where the load has failed, the report says why.
            member.guest.wait_for("the end of the load's last round", "test -e /run/resting -o -e /run/load.code")?;
        }
        // With --upgrade-to it may be either build, and leaves what it knows itself: the same one goes on.
        self.end_life(&daemon.kill()?)?;
        if plan.spoil {
            self.spoil()?;
        }
        let mut daemon = self.start_daemon()?;
        self.wait_for_queues(&mut daemon)?;
        let guests = self.read_back()?;
        let log = daemon.stop()?;
        self.end_life(&log)?;
        let guests = self.members.iter_mut().zip(guests).map(|(member, ending)| member.report(ending)).collect();
        let by = if self.other.is_some() { UPGRADES } else { SIGKILLS };
        Ok(Report { seed: plan.seed, by, ends_under_load: ends.into(), kills_at_rest: 1, guests })
    }

    /// Whether some guest has not had a request in flight at any kill yet, which would test nothing of it.
    fn must_kill_more(&self, plan: Plan) -> bool {
        let is_missed = |member: &Member| member.ledger.taken_over == 0;
        self.other.is_none() && !plan.spoil && self.members.iter().any(is_missed)
    }

    /// Enters a life that has ended.
    fn end_life(&mut self, log: &str) -> Result<()> {
        for member in &mut self.members {
            member.ledger.enter(log, VCPUS)?;
        }
        Ok(())
    }

    /// Waits until every guest's queues are taken up.
    fn wait_for_queues(&self, daemon: &mut Daemon) -> Result<()> {
        self.members.iter().try_for_each(|member| {
            let name = member.tenant.name();
            wait::for_this(&format!("all queues of {name}"), OUTAGE_LIMIT, || {
                daemon.check()?;
                Ok(member.ledger.is_taken_up(&daemon.log_text(), VCPUS)?.then_some(()))
            })
            .with_context(|| daemon.log_text())
        })
    }

    /// Waits until every guest's queues are taken up and its requests complete.
    fn wait_for_requests(&mut self, daemon: &mut Daemon, since: Instant) -> Result<()> {
        self.wait_for_queues(daemon)?;
        let deadline = Instant::now() + OUTAGE_LIMIT;
        for member in &mut self.members {
            let name = member.tenant.name();
            let before = member.guest.requests(member.drive)?.0;
            let mut now = before;
            while now == before {
                daemon.check()?;
                ensure!(Instant::now() < deadline, "{name}: no request completes:\n{}", daemon.log_text());
                // Where the load has ended, the report says why.
                if !member.guest.job_runs("load")? {
                    break;
                }
                now = member.guest.requests(member.drive)?.0;
            }
            member.longest_outage = member.longest_outage.max(since.elapsed());
            member.most_in_a_life = member.most_in_a_life.max(now - member.last);
            member.last = now;
        }
        Ok(())
    }

    /// Lets the loads read everything back, and waits for their ends.
    fn read_back(&mut self) -> Result<Vec<Ending>> {
        for member in &mut self.members {
            member.guest.run("touch /run/read-back")?;
        }
        self.members.iter_mut().map(Member::finish).collect()
    }

    /// Changes a byte of every block that will be read back.
    fn spoil(&self) -> Result<()> {
        let image = fs::File::options().read(true).write(true).open(daemon::image_of(&self.dir))?;
        for member in &self.members {
            let start = daemon::offset_of(self.binary, &self.dir, member.tenant.name())?;
            for offset in (start..start + SPOILED_BYTES).step_by(4096) {
                let mut byte = [0];
                image.read_exact_at(&mut byte, offset + 2000)?;
                image.write_all_at(&[!byte[0]], offset + 2000)?;
            }
        }
        Ok(())
    }

    /// The ends of the guests' consoles and QEMUs' output.
    pub fn logs(&self) -> String {
        self.members.iter().map(|member| member.guest.logs()).collect::<Vec<_>>().join("\n")
    }

    /// What the daemon warned of, and what became of the keeper, in a few lines.
    pub fn warnings(&mut self) -> String {
        let last = |file: &str, is_told: fn(&str) -> bool| {
            let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().filter(|line| is_told(line)).collect();
            lines[lines.len().saturating_sub(WARNINGS_SHOWN)..].join("\n")
        };
        let of_daemon = last(daemon::LOG_FILE, |line| {
            let is_bad = ["warning: ", "error: ", "panicked", "filter forbids"].iter().any(|it| line.contains(it));
            is_bad && !line.contains("runs as root")
        });
        let of_keeper = last(KEEPER_LOG, |line| !line.contains("daemon"));
        let keeper = self.keeper.as_mut().map(|keeper| keeper.0.try_wait());
        format!("the daemon warned last: {of_daemon}\nthe keeper ({keeper:?}) said last: {of_keeper}")
    }
}

/// Lines of each of those logs.
const WARNINGS_SHOWN: usize = 5;
/// fio prints a few lines for each block that is wrong.
const COMPLAINTS_SHOWN: usize = 20;

/// What a guest says in the end.
struct Ending {
    rounds: u64,
    requests: u64,
    in_flight: u64,
    kernel_complaints: Vec<String>,
    qemu_said: Vec<String>,
    fio_complaints: Vec<String>,
}

impl Member {
    /// Requires that neither its kernel nor its QEMU noticed anything.
    ///
    /// # Errors
    /// With what they said.
    pub fn noticed_nothing(&mut self) -> Result<()> {
        let (name, log) = (self.tenant.name(), self.guest.run("dmesg -r")?);
        let complaints = complaints(&log, true);
        ensure!(complaints.is_empty(), "{name}: its kernel complains: {complaints:?}");
        ensure!(self.guest.output().is_empty(), "{name}: QEMU says {}", self.guest.output());
        Ok(())
    }

    fn finish(&mut self) -> Result<Ending> {
        let guest = &mut self.guest;
        let output = guest.finish_job("load", ROUND_LIMIT)?;
        let mut fio_complaints: Vec<String> = output
            .text
            .lines()
            .filter(|line| line.starts_with("fio: ") || line.contains("verify"))
            .take(COMPLAINTS_SHOWN)
            .map(str::to_owned)
            .collect();
        if output.code != 0 && fio_complaints.is_empty() {
            fio_complaints.push(format!("the load ended with {}: {}", output.code, output.text));
        }
        let rounds = guest.attempt("cat /run/resting", OUTAGE_LIMIT)?.text;
        let (requests, in_flight) = guest.requests(self.drive)?;
        let log = guest.run("dmesg -r -c")?;
        Ok(Ending {
            rounds: rounds.trim().parse().unwrap_or(0),
            requests,
            in_flight,
            kernel_complaints: complaints(&log, true).into_iter().map(str::to_owned).collect(),
            qemu_said: guest.output().lines().map(str::to_owned).collect(),
            fio_complaints,
        })
    }

    /// The run's report; what comes after is counted from here.
    fn report(&mut self, ending: Ending) -> GuestReport {
        let ledger = self.ledger.begin_anew();
        let report = GuestReport {
            tenant: self.tenant.name().to_owned(),
            qemu: self.tenant.qemu().version().to_owned(),
            reconnects: ledger.lives.saturating_sub(1),
            rounds: ending.rounds,
            requests_of_guest: ending.requests - self.first,
            requests_of_daemon: ledger.completed(),
            taken_over: ledger.taken_over,
            most_requests_in_a_life: self.most_in_a_life.max(ending.requests - self.last),
            queues_not_stopped: ledger.still_running(),
            in_flight: ending.in_flight,
            longest_outage_ms: self.longest_outage.as_millis() as u64,
            kernel_complaints: ending.kernel_complaints,
            // QEMU says that it connects again, where it does; a kept client has nothing to say.
            qemu_said: if self.tenant.is_virtio() { Vec::new() } else { ending.qemu_said },
            fio_complaints: ending.fio_complaints,
        };
        (self.first, self.last, self.most_in_a_life) = (ending.requests, ending.requests, 0);
        self.longest_outage = Duration::ZERO;
        report
    }
}

/// Of each front end one tenant's queues are served by the shared poller, the other's by a thread each; and one has an
/// encrypted disk.
fn configuration(dir: &Path, tenants: &[Tenant]) -> String {
    let mut text = format!(
        r#"runtime_dir = "{dir}/run"

[device]
backend = "file"
path = "{image}"

[policy]
name = "passthrough"
"#,
        dir = dir.display(),
        image = daemon::image_of(dir).display(),
    );
    for &tenant in tenants {
        let (frontend, threads, encrypted) = match tenant {
            Tenant::Virtio => ("vhost-user-blk", "shared", ENCRYPTED),
            Tenant::OldVirtio => ("vhost-user-blk", "per-queue", ""),
            Tenant::Guaranteed => ("vfio-user", "shared", ""),
            Tenant::BestEffort => ("vfio-user", "per-queue", ENCRYPTED),
        };
        text += &format!(
            r#"
[[tenant]]
name = "{name}"
size = "{DISK_SIZE_MIB}MiB"
frontend = "{frontend}"
queues = {VCPUS}
threads = "{threads}"
{encrypted}
"#,
            name = tenant.name()
        );
    }
    text
}
