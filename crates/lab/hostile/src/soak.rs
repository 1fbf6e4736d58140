//! Attackers, kills and verified victims together, for as long as is asked for; what happens follows from a seed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::attacks::{ATTACKS, Field, Outcome, named};
use crate::host::{CALM, Daemon, Host, NEWCOMER, STEADY, VM, WEB};
use crate::siege::{SHUTDOWN_LIMIT, Seen, Victims};
use crate::victim::Life;

/// An attacker that was told to stop has this long, then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What is to be done.
pub struct Plan<'a> {
    /// `evenkeeld`.
    pub program: &'a Path,
    /// For so long.
    pub span: Duration,
    /// What happens follows from it.
    pub seed: u64,
    /// Starts a process that calls [`attacker`] with these arguments: an attack's name, the daemon's directory, a
    /// directory for mounts. A process of its own, so that it can be killed.
    pub attacker: &'a dyn Fn(&str, &Path, &Path) -> Command,
    /// Told what happened, line by line.
    pub tell: &'a dyn Fn(&str),
}

/// All that was seen of one attack.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Row {
    /// The attack.
    pub attack: String,
    /// How often it was made.
    pub times: u32,
    /// How often its process was killed.
    pub killed: u32,
    /// How often the daemon was killed meanwhile.
    pub daemon_killed: u32,
    /// A victim's longest command, ms.
    pub command_ms: f64,
    /// The API's longest answer, ms.
    pub api_ms: f64,
    /// A newcomer's longest attach, work and leave, ms.
    pub newcomer_ms: f64,
    /// What must not be.
    pub findings: Vec<String>,
    /// Why it could not be made.
    pub skipped: Option<String>,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Of what happened.
    pub seed: u64,
    /// By name.
    pub rows: Vec<Row>,
    /// The victims' commands.
    pub commands: u64,
    /// Units of the victims' data that were checked.
    pub checked_units: u64,
    /// How long the daemon took to end in the end, ms.
    pub shutdown_ms: Option<f64>,
    /// What must not be, and belongs to no attack.
    pub findings: Vec<String>,
    /// The first of what the daemons' logs warn of the victims.
    pub warnings: Vec<String>,
}

/// Warnings that are kept.
const KEPT_WARNINGS: usize = 50;

impl Report {
    /// All findings.
    pub fn findings(&self) -> usize {
        self.findings.len() + self.rows.iter().map(|row| row.findings.len()).sum::<usize>()
    }
}

/// Runs it.
///
/// # Errors
/// The daemon can't be started, or the victims can't attach at the beginning.
pub fn run(plan: &Plan<'_>) -> Result<Report> {
    let host = Host::new(plan.program)?;
    let daemon = host.start()?;
    let life = Arc::<Life>::default();
    let victims = Victims::start(&host, plan.seed, &life)?;
    let mut soak = Soak {
        plan,
        daemon: Some(daemon),
        victims,
        life,
        random: fastrand::Rng::with_seed(plan.seed),
        rows: BTreeMap::new(),
        findings: Vec::new(),
        commands: 0,
        host,
    };
    let start = Instant::now();
    while start.elapsed() < plan.span {
        soak.round()?;
    }
    soak.end()
}

struct Soak<'a> {
    plan: &'a Plan<'a>,
    daemon: Option<Daemon>,
    victims: Victims,
    life: Arc<Life>,
    random: fastrand::Rng,
    rows: BTreeMap<&'static str, Row>,
    findings: Vec<String>,
    commands: u64,
    // Last: it takes the directories away.
    host: Host,
}

/// What becomes of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    AttackStops,
    AttackerKilled,
    DaemonKilled,
}

impl Soak<'_> {
    /// One attack or two at once, and how they end.
    fn round(&mut self) -> Result<()> {
        let count = if self.random.u8(..3) == 0 { 2 } else { 1 };
        let names: Vec<_> =
            self.random.choose_multiple(ATTACKS.iter(), count).iter().map(|attack| attack.name).collect();
        let fate = match self.random.u8(..10) {
            ..5 => Fate::AttackStops,
            5..8 => Fate::AttackerKilled,
            _ => Fate::DaemonKilled,
        };
        let span = Duration::from_millis(self.random.u64(500..4_000));
        let scratch = tempfile::tempdir()?;
        self.victims.take_seen();
        let attackers = names
            .iter()
            .map(|name| Attacker::start(self.plan, name, &self.host.runtime_dir(), scratch.path()))
            .collect::<Result<Vec<_>>>()?;
        std::thread::sleep(span);
        let seen = self.victims.take_seen();
        let died = self.daemon.as_mut().is_some_and(|daemon| !daemon.is_alive());
        if fate == Fate::DaemonKilled || died {
            self.life.ends();
            self.daemon.as_mut().into_iter().for_each(Daemon::kill);
        }
        let ended = attackers.into_iter().map(|attacker| attacker.end(fate == Fate::AttackerKilled));
        let ended: Vec<_> = ended.collect::<Result<_>>()?;
        if fate == Fate::DaemonKilled || died {
            // Only now: a daemon that waits for an attacker's file system is taken apart when that is gone.
            self.daemon.take().into_iter().for_each(Daemon::wait);
            self.daemon = Some(self.host.start()?);
            self.life.begins_anew();
        }
        self.note(&names, fate, &seen, ended, died);
        Ok(())
    }

    fn note(&mut self, names: &[&'static str], fate: Fate, seen: &Seen, ended: Vec<Outcome>, died: bool) {
        let mut common = seen.problems(1);
        common.extend(died.then(|| "the daemon ended by itself".to_owned()));
        self.commands += seen.victims.iter().map(|(_, figures)| figures.commands).sum::<u64>();
        let longest = seen.victims.iter().map(|(_, figures)| ms(figures.longest)).fold(0.0, f64::max);
        for (name, outcome) in names.iter().zip(ended) {
            let row = self.rows.entry(name).or_insert_with(|| Row { attack: (*name).to_owned(), ..Row::default() });
            row.times += 1;
            row.killed += u32::from(fate == Fate::AttackerKilled);
            row.daemon_killed += u32::from(fate == Fate::DaemonKilled);
            row.command_ms = row.command_ms.max(longest);
            row.api_ms = row.api_ms.max(ms(seen.api));
            row.newcomer_ms = row.newcomer_ms.max(ms(seen.newcomer));
            row.findings.extend(common.iter().cloned());
            match outcome {
                Outcome::Done(findings) => row.findings.extend(findings),
                Outcome::Skipped(why) => row.skipped = Some(why),
            }
        }
        let findings = if common.is_empty() { String::new() } else { format!(": {}", common.join("; ")) };
        (self.plan.tell)(&format!(
            "{} ({fate:?}): longest command {longest:.0} ms, API {:.0} ms{findings}",
            names.join(" and "),
            ms(seen.api)
        ));
    }

    /// The victims read everything back, and the daemon ends.
    fn end(mut self) -> Result<Report> {
        let (checked_units, problems) = self.victims.stop();
        self.findings.extend(problems);
        let took = self.daemon.as_mut().map_or(Ok(None), |daemon| daemon.terminate(SHUTDOWN_LIMIT * 5));
        let took = took.unwrap_or_else(|error| {
            self.findings.push(format!("{error:#}"));
            None
        });
        if took.is_none_or(|took| took > SHUTDOWN_LIMIT) {
            self.findings.push(format!("the daemon did not end within {SHUTDOWN_LIMIT:?} of SIGTERM"));
        }
        let log = self.daemon.as_ref().map_or_else(String::new, Daemon::log);
        let of_victim =
            |line: &&str| [STEADY, CALM, WEB, VM, NEWCOMER].iter().any(|name| line.contains(&format!("{name}:")));
        let warnings =
            log.lines().filter(|line| line.contains("warning:") || line.contains("error:")).filter(of_victim);
        Ok(Report {
            warnings: warnings.take(KEPT_WARNINGS).map(str::to_owned).collect(),
            seed: self.plan.seed,
            rows: self.rows.into_values().collect(),
            commands: self.commands,
            checked_units,
            shutdown_ms: took.map(ms),
            findings: self.findings,
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// An attack in a process of its own.
struct Attacker {
    child: Child,
}

impl Attacker {
    fn start(plan: &Plan<'_>, name: &str, runtime_dir: &Path, scratch: &Path) -> Result<Self> {
        let mut command = (plan.attacker)(name, runtime_dir, scratch);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self { child: command.spawn().context("can't start an attacker")? })
    }

    /// Tells it to stop, or kills it; says what it found.
    fn end(mut self, kill: bool) -> Result<Outcome> {
        // Its end tells the attacker to stop.
        drop(self.child.stdin.take());
        if kill || !self.ends_within(STOP_LIMIT)? {
            // Fails after its end.
            let _ = self.child.kill();
            if !self.ends_within(STOP_LIMIT)? {
                return Ok(Outcome::Done(vec!["the attacker was killed and did not end".to_owned()]));
            }
        }
        let mut said = String::new();
        if let Some(mut stdout) = self.child.stdout.take() {
            stdout.read_to_string(&mut said)?;
        }
        let skipped = said.lines().find_map(|line| line.strip_prefix(SKIPPED));
        let findings = said.lines().filter_map(|line| line.strip_prefix(FINDING)).map(str::to_owned).collect();
        Ok(skipped.map_or(Outcome::Done(findings), |why| Outcome::Skipped(why.to_owned())))
    }

    fn ends_within(&mut self, limit: Duration) -> Result<bool> {
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > limit {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }
}

/// What an attacker's lines begin with.
const FINDING: &str = "finding: ";
const SKIPPED: &str = "skipped: ";

/// An attacker's process: attacks until its standard input ends, and says what it found.
///
/// # Errors
/// There is no such attack.
pub fn attacker(name: &str, runtime_dir: PathBuf, scratch: PathBuf) -> Result<()> {
    let attack = named(name).with_context(|| format!("there is no attack {name:?}"))?;
    let field = Field { runtime_dir, scratch, stop: Arc::default(), closed: Arc::default() };
    let stop = Arc::clone(&field.stop);
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        // Its end, or an error, is the end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Relaxed);
    })?;
    let lines = match attack.run(&field) {
        Ok(Outcome::Done(findings)) => findings.iter().map(|finding| format!("{FINDING}{finding}\n")).collect(),
        Ok(Outcome::Skipped(why)) => format!("{SKIPPED}{why}\n"),
        // A daemon that was killed, or another attacker in the place: no finding.
        Err(_) => String::new(),
    };
    Ok(std::io::stdout().write_all(lines.as_bytes())?)
}
