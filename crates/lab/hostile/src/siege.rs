//! One attack beside the victims.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::attacks::{self, Attack, Field, Outcome};
use crate::host::{ATTACKERS, BAD, CALM, Daemon, EVIL, Host, NEWCOMER, STEADY, VM, WEB};
use crate::victim::{Figures, Life, Plan, Victim};
use crate::watch::Watch;

/// The longest that the API may take for an answer.
const API_LIMIT: Duration = Duration::from_millis(100);
/// The longest that a victim's command may take. Generous: a machine of two cores whose neighbours are busy too keeps
/// threads waiting for tens of milliseconds.
const COMMAND_LIMIT: Duration = Duration::from_millis(500);
/// The longest that attaching, a few commands and leaving may take: dozens of messages and as many sleeps, on a machine
/// that is as busy as above.
const NEWCOMER_LIMIT: Duration = Duration::from_secs(10);
/// The longest that the daemon's end may take.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// How many times the limits a test allows, because a compiler beside it must not decide. `cargo xtask soak` holds the
/// daemon to the limits themselves.
const LEEWAY: u32 = 5;
/// When the daemon's end is given up on.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(20);
/// Up to here the log leaves no line out.
const LOG_LINES: u32 = 20;

/// What the daemon's other clients saw in a span of time.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Each victim.
    pub victims: Vec<(&'static str, Figures)>,
    /// The API's longest answer.
    pub api: Duration,
    /// The longest that a newcomer took to attach, work and go.
    pub newcomer: Duration,
}

impl Seen {
    /// Victims, newcomers and the API beyond `leeway` times their limits; victims that got nothing done.
    pub fn problems(&self, leeway: u32) -> Vec<String> {
        let victims = self.victims.iter().map(|(name, figures)| (*name, figures.longest, COMMAND_LIMIT));
        let watched = [("API", self.api, API_LIMIT), ("newcomer", self.newcomer, NEWCOMER_LIMIT)];
        let late = victims.chain(watched).filter(|(_, took, limit)| *took > *limit * leeway);
        let idle = self.victims.iter().filter(|(_, figures)| figures.commands == 0);
        late.map(|(name, took, limit)| format!("{name} waited {took:.0?}, {:?} is the limit", limit * leeway))
            .chain(idle.map(|(name, _)| format!("{name} completed nothing")))
            .collect()
    }
}

/// The victims, and who watches the daemon.
pub struct Victims {
    victims: Vec<Victim>,
    api: Watch,
    newcomer: Watch,
}

impl Victims {
    /// Attaches them. `life` as for [`Victim::start`].
    ///
    /// # Errors
    /// One can't attach.
    pub fn start(host: &Host, seed: u64, life: &Arc<Life>) -> Result<Self> {
        let directory = |name: &str| host.runtime_dir().join(name);
        let plans = [(STEADY, 4, Duration::ZERO), (CALM, 1, Duration::from_millis(60)), (WEB, 4, Duration::ZERO)];
        let start = |(index, (name, depth, pause))| {
            let plan = Plan { name, directory: directory(name), depth, pause, seed: seed.wrapping_add(index as u64) };
            Victim::start(plan, Arc::clone(life))
        };
        let mut victims = plans.into_iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
        let vm = Plan { name: VM, directory: directory(VM), depth: 4, pause: Duration::ZERO, seed };
        victims.push(Victim::start_vm(vm, Arc::clone(life))?);
        let api = Watch::api(&host.runtime_dir(), Arc::clone(life))?;
        let newcomer = Watch::newcomer(NEWCOMER, directory(NEWCOMER), Arc::clone(life))?;
        Ok(Self { victims, api, newcomer })
    }

    /// What they saw since the last time that this was asked.
    pub fn take_seen(&self) -> Seen {
        let victims = self.victims.iter().map(|victim| (victim.name, victim.take_figures())).collect();
        Seen { victims, api: self.api.take_longest(), newcomer: self.newcomer.take_longest() }
    }

    /// Stops them all; returns how many units were checked, and what was wrong.
    pub fn stop(self) -> (u64, Vec<String>) {
        let mut problems = Vec::new();
        let mut note = |who: &str, found: Vec<String>| {
            problems.extend(found.first().map(|first| format!("{who}: {first} ({} in all)", found.len())));
        };
        note("api", self.api.stop());
        note("newcomer", self.newcomer.stop());
        let mut checked = 0;
        for victim in self.victims {
            let (name, (units, found)) = (victim.name, victim.stop());
            checked += units;
            note(name, found);
        }
        (checked, problems)
    }
}

/// What one attack did.
#[derive(Debug, Clone)]
pub struct Report {
    /// Its name.
    pub attack: &'static str,
    /// Beside tenants that are merely busy.
    pub busy: Seen,
    /// Beside the attack.
    pub attacked: Seen,
    /// Connections of the attacker's that the daemon closed.
    pub closed: u32,
    /// What the log said of them.
    pub log: Vec<String>,
    /// The daemon's end, with the attack still on. None: it did not end.
    pub shutdown: Option<Duration>,
    /// The daemon's address space and its part of shared memory, in kB.
    pub daemon_kib: (u64, u64),
    /// Units of the victims' data that were checked.
    pub checked: u64,
    /// What must not be.
    pub findings: Vec<String>,
    /// Why it could not be tried.
    pub skipped: Option<String>,
}

/// Runs `attack` for `span` against a daemon of `program` of its own.
///
/// # Errors
/// The test can't be made.
pub fn run(program: &Path, attack: &'static Attack, span: Duration) -> Result<Report> {
    attacks::make_room_for_files()?;
    let host = Host::new(program)?;
    let mut daemon = host.start()?;
    let victims = Victims::start(&host, 1, &Arc::default())?;
    let busy = busy(&host, &victims, span)?;
    let scratch = tempfile::tempdir()?;
    let field = Field {
        runtime_dir: host.runtime_dir(),
        scratch: scratch.path().to_owned(),
        stop: Arc::default(),
        closed: Arc::default(),
    };
    let said_before = disconnections(&daemon).len();
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| attack.run(&field));
        let _guard = StopOnDrop(&field);
        std::thread::sleep(span);
        let attacked = victims.take_seen();
        let daemon_kib = (daemon.status_kib("VmSize").unwrap_or(0), daemon.status_kib("RssShmem").unwrap_or(0));
        let (checked, mut findings) = victims.stop();
        let (closed, log) = closed_and_said(&field, &daemon, said_before);
        if !daemon.is_alive() {
            findings.push("the daemon ended by itself".into());
        }
        let shutdown = daemon.terminate(SHUTDOWN_PATIENCE).unwrap_or_else(|error| {
            findings.push(format!("{error:#}"));
            None
        });
        field.stop.store(true, Relaxed);
        let outcome = attacker.join().map_err(|_| anyhow!("the attacker panicked"))??;
        let skipped = match outcome {
            Outcome::Skipped(why) => Some(why),
            Outcome::Done(found) => {
                findings.extend(found);
                None
            }
        };
        Ok(Report {
            attack: attack.name,
            busy,
            attacked,
            closed,
            log,
            shutdown,
            daemon_kib,
            checked,
            findings,
            skipped,
        })
    })
}

/// Whatever happens, the attacker is told to stop, or its scope would wait for ever.
struct StopOnDrop<'a>(&'a Field);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

/// The attackers' tenants used as they are meant to be.
fn busy(host: &Host, victims: &Victims, span: Duration) -> Result<Seen> {
    let start = |name| {
        let directory = host.runtime_dir().join(name);
        Victim::start(Plan { name, directory, depth: 16, pause: Duration::ZERO, seed: 9 }, Arc::default())
    };
    let neighbours = [start(BAD)?, start(EVIL)?];
    victims.take_seen();
    std::thread::sleep(span);
    let seen = victims.take_seen();
    neighbours.into_iter().for_each(|neighbour| drop(neighbour.stop()));
    victims.take_seen();
    Ok(seen)
}

/// Lines that say why an attacker was disconnected.
fn disconnections(daemon: &Daemon) -> Vec<String> {
    let is_ours = |line: &&str| ATTACKERS.iter().any(|name| line.contains(&format!("{name}: client disconnected:")));
    daemon.log().lines().filter(is_ours).map(str::to_owned).collect()
}

/// Waits a moment for both sides to agree.
fn closed_and_said(field: &Field, daemon: &Daemon, said_before: usize) -> (u32, Vec<String>) {
    let start = Instant::now();
    loop {
        let (closed, said) = (field.closed.load(Relaxed), disconnections(daemon).split_off(said_before));
        if closed as usize == said.len() || start.elapsed() > Duration::from_secs(1) {
            return (closed, said);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Report {
    /// What is not as it has to be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.findings.clone();
        problems.extend(self.attacked.problems(LEEWAY));
        match self.shutdown {
            Some(took) if took <= SHUTDOWN_LIMIT * LEEWAY => {}
            Some(took) => problems.push(format!("after SIGTERM the daemon took {took:.1?} to end")),
            None => problems.push(format!("after SIGTERM the daemon did not end within {SHUTDOWN_PATIENCE:?}")),
        }
        if self.closed < LOG_LINES && self.closed as usize != self.log.len() {
            problems.push(format!("{} connections closed, the log says why of {}", self.closed, self.log.len()));
        }
        problems
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        writeln!(f, "{}: {}", self.attack, self.skipped.as_deref().unwrap_or("carried out"))?;
        for ((name, busy), (_, attacked)) in self.busy.victims.iter().zip(&self.attacked.victims) {
            let (before, after) = (ms(busy.longest), ms(attacked.longest));
            writeln!(
                f,
                "  {name}: longest command {after:.1} ms of {} (busy: {before:.1} ms of {})",
                attacked.commands, busy.commands
            )?;
        }
        let (busy, attacked) = (&self.busy, &self.attacked);
        writeln!(f, "  API: longest answer {:.1} ms (busy: {:.1} ms)", ms(attacked.api), ms(busy.api))?;
        writeln!(f, "  newcomer: longest {:.1} ms (busy: {:.1} ms)", ms(attacked.newcomer), ms(busy.newcomer))?;
        match self.shutdown {
            Some(took) => writeln!(f, "  SIGTERM: {:.1} ms", ms(took))?,
            None => writeln!(f, "  SIGTERM: no end")?,
        }
        writeln!(f, "  daemon: VmSize {} kB, RssShmem {} kB", self.daemon_kib.0, self.daemon_kib.1)?;
        writeln!(f, "  connections closed: {}, units checked: {}", self.closed, self.checked)?;
        self.log.iter().take(3).try_for_each(|line| writeln!(f, "  log: {line}"))?;
        self.problems().iter().try_for_each(|problem| writeln!(f, "  NOT RIGHT: {problem}"))
    }
}
