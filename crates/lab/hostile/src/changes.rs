//! Random changes of disks, each while others are written and verified, and a daemon that is killed again and again.
//!
//! After each kill the next daemon must have each disk as it was before the change that was being made, or as it is
//! after it; each byte that was acknowledged; none of a disk's ranges twice; and nothing of a deleted disk anywhere but
//! where it is still being wiped.

mod writer;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use api::{Deletion, DiskChange, DiskState, NewDisk, Problem, Rest, Wipe, api_path};
use fastrand::Rng;
use layout::LayoutFile;
use load::Direction;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::host::Host;
use writer::{Attached, BLOCK_BYTES, Content, READ_BYTES, Writer, lock};

const MIB: u64 = 1 << 20;
const DRIVE_MIB: u64 = 96;
/// Disks at a time.
const MOST: usize = 10;
/// Disks that are written to at a time.
const WRITERS: usize = 3;
/// Nothing that works takes this long.
const HANG: Duration = Duration::from_secs(60);

const CONFIG: &str = r#"
runtime_dir = "HOST/run"
[device]
backend = "file"
path = "HOST/drive.img"
size = "96MiB"
create = true
[policy]
name = "mqfq"
[pollers]
idle_after = "5ms"
"#;

/// What is to be done.
pub struct Plan<'a> {
    /// The daemon's program.
    pub program: &'a Path,
    /// Changes in all.
    pub changes: u32,
    /// How many of them it is killed in.
    pub kills: u32,
    /// What happens follows from it.
    pub seed: u64,
    /// Hears how far it is.
    pub tell: &'a dyn Fn(&str),
}

/// What came of it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Changes that were made.
    pub created: u32,
    /// The same.
    pub grown: u32,
    /// The same: weights and limits.
    pub set: u32,
    /// The same.
    pub deleted: u32,
    /// Changes that were refused, with a reason.
    pub refused: u32,
    /// Changes that a kill interrupted: they came to nothing, or to all that they were meant to be.
    pub interrupted: [u32; 2],
    /// How often the daemon was killed.
    pub kills: u32,
    /// Blocks that were written while others changed.
    pub written_blocks: u64,
    /// Blocks that were read and looked at.
    pub checked_blocks: u64,
    /// What must not be.
    pub findings: Vec<String>,
}

/// A disk as it should be.
#[derive(Clone)]
struct Known {
    owner: u64,
    mib: u64,
    weight: u32,
    content: Arc<Mutex<Content>>,
}

/// A change that was sent.
enum Change {
    Create(String, Known),
    Grow(String, u64),
    Weigh(String, u32),
    Delete(String),
}

struct World<'a> {
    plan: &'a Plan<'a>,
    host: Host,
    random: Rng,
    disks: BTreeMap<String, Known>,
    writers: BTreeMap<String, Writer>,
    owners: u64,
    report: Report,
}

/// Runs the plan.
///
/// # Errors
/// A daemon does not start, or a client can't attach.
pub fn run(plan: &Plan<'_>) -> Result<Report> {
    let host = Host::with_config(plan.program, CONFIG)?;
    let (random, disks, writers) = (Rng::with_seed(plan.seed), BTreeMap::new(), BTreeMap::new());
    let mut world = World { plan, host, random, disks, writers, owners: 0, report: Report::default() };
    let mut left = plan.changes;
    while left > 0 {
        // So many changes in this life, the last one amid a kill.
        let lives = (plan.kills - world.report.kills.min(plan.kills)).max(1);
        let span = world.random.u32(1..=(2 * left / (lives + 1)).max(1)).min(left);
        world.life(span)?;
        left -= span;
        let Report { kills, created, deleted, .. } = world.report;
        (plan.tell)(&format!("{} changes left, {kills} kills, {created} created, {deleted} deleted", left));
    }
    world.end()?;
    Ok(world.report)
}

impl World<'_> {
    fn rest(&self) -> Rest {
        Rest::new(api_path(&self.host.runtime_dir()))
    }

    fn finding(&mut self, what: String) {
        if self.report.findings.len() < 100 {
            self.report.findings.push(what);
        }
    }

    /// One daemon, from its start to a kill amid the last of `changes`.
    fn life(&mut self, changes: u32) -> Result<()> {
        let daemon = self.host.start()?;
        let pid = Pid::from_raw(daemon.id() as i32).context("a process without a number")?;
        for left in (0..changes).rev() {
            self.keep_writing()?;
            self.writers.values().try_for_each(Writer::wait_for_command)?;
            let Some(change) = self.draw() else { continue };
            let is_last = left == 0 && self.report.kills < self.plan.kills;
            let delay = Duration::from_micros(self.random.u64(..15_000));
            let killer = is_last.then(|| {
                std::thread::spawn(move || {
                    std::thread::sleep(delay);
                    // Fails after its end.
                    let _ = kill_process(pid, Signal::KILL);
                })
            });
            let result = self.send(&change);
            if let Some(killer) = killer {
                // It can't fail.
                let _ = killer.join();
                self.report.kills += 1;
                drop(daemon);
                self.stop_writers();
                self.check_files()?;
                return self.after_kill(change, result);
            }
            self.settle(change, result)?;
        }
        self.stop_writers();
        drop(daemon);
        self.check_files()
    }

    fn draw(&mut self) -> Option<Change> {
        let names: Vec<String> = self.disks.keys().cloned().collect();
        let some = |random: &mut Rng| random.choice(&names).cloned();
        match self.random.u32(..10) {
            0..4 if names.len() < MOST => {
                self.owners += 1;
                let (mib, owner) = (self.random.u64(1..=6), self.owners);
                let versions = vec![0; (mib * MIB / BLOCK_BYTES) as usize];
                let content = Arc::new(Mutex::new(Content { versions, unsettled: BTreeMap::new() }));
                // A name that was free may be another's now.
                let name = (0..2 * MOST).map(|at| format!("d{at}")).find(|name| !self.disks.contains_key(name))?;
                Some(Change::Create(name, Known { owner, mib, weight: 1, content }))
            }
            0..6 => {
                let name = some(&mut self.random)?;
                let mib = self.disks[&name].mib + self.random.u64(1..=4);
                Some(Change::Grow(name, mib))
            }
            6..8 => Some(Change::Weigh(some(&mut self.random)?, self.random.u32(1..=1000))),
            _ => Some(Change::Delete(some(&mut self.random)?)),
        }
    }

    fn send(&self, change: &Change) -> Result<()> {
        let (rest, size) = (self.rest(), |mib: &u64| format!("{mib}MiB"));
        match change {
            Change::Create(name, known) => {
                let frontend = known.owner.is_multiple_of(2).then(|| "vhost-user-blk".to_owned());
                let disk = NewDisk { name: name.clone(), size: size(&known.mib), frontend, ..NewDisk::default() };
                rest.create(&NewDisk { weight: Some(1), ..disk }).map(drop)
            }
            Change::Grow(name, mib) => {
                rest.change(name, &DiskChange { size: Some(size(mib)), ..DiskChange::default() }).map(drop)
            }
            Change::Weigh(name, weight) => {
                rest.change(name, &DiskChange { weight: Some(*weight), ..DiskChange::default() }).map(drop)
            }
            Change::Delete(name) => rest.delete(name, Deletion { force: true, wipe: Wipe::default() }).map(drop),
        }
    }

    /// A change that the daemon answered.
    fn settle(&mut self, change: Change, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => self.made(change),
            Err(error) if error.downcast_ref::<Problem>().is_some() => self.report.refused += 1,
            Err(error) => bail!("the daemon gave no answer: {error:#}"),
        }
        Ok(())
    }

    fn made(&mut self, change: Change) {
        match change {
            Change::Create(name, known) => {
                self.report.created += 1;
                self.disks.insert(name, known);
            }
            Change::Grow(name, mib) => {
                self.report.grown += 1;
                if let Some(known) = self.disks.get_mut(&name) {
                    known.mib = mib;
                    lock(&known.content).versions.resize((mib * MIB / BLOCK_BYTES) as usize, 0);
                }
            }
            Change::Weigh(name, weight) => {
                self.report.set += 1;
                self.disks.entry(name).and_modify(|known| known.weight = weight);
            }
            Change::Delete(name) => {
                self.report.deleted += 1;
                self.disks.remove(&name);
                // Its client was cut off.
                drop(self.stop_writer(&name));
            }
        }
    }

    /// The change that was being made when the daemon died came to nothing, or to all of it; nothing else changed.
    fn after_kill(&mut self, change: Change, result: Result<()>) -> Result<()> {
        let was_refused = result.as_ref().is_err_and(|error| error.downcast_ref::<Problem>().is_some());
        let daemon = self.host.start()?;
        let start = Instant::now();
        let disks = loop {
            let disks = self.rest().disks()?;
            if disks.iter().all(|disk| disk.state == DiskState::Served && disk.grows_to_bytes.is_none()) {
                break disks;
            }
            if start.elapsed() > HANG {
                bail!("not all disks are served: {disks:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let found: BTreeMap<_, _> = disks
            .iter()
            .map(|disk| (disk.name.clone(), (disk.size_bytes / MIB, disk.weight.unwrap_or_default())))
            .collect();
        let is_made = match &change {
            Change::Create(name, known) => found.get(name) == Some(&(known.mib, known.weight)),
            Change::Grow(name, mib) => found.get(name).is_some_and(|disk| disk.0 == *mib),
            Change::Weigh(name, weight) => found.get(name).is_some_and(|disk| disk.1 == *weight),
            Change::Delete(name) => !found.contains_key(name),
        };
        match (&result, is_made) {
            (Ok(()), false) => self.finding("a change that was acknowledged is lost".into()),
            (Err(_), true) if was_refused => self.finding("a change that was refused is there".into()),
            (Err(_), _) if !was_refused => self.report.interrupted[usize::from(is_made)] += 1,
            _ => {}
        }
        if is_made {
            self.made(change);
        }
        let known: BTreeMap<_, _> =
            self.disks.iter().map(|(name, known)| (name.clone(), (known.mib, known.weight))).collect();
        if known != found {
            self.finding(format!("after a kill there are {found:?} instead of {known:?}"));
        }
        let checked = self.check_contents();
        drop(daemon);
        checked
    }

    /// Some disks are written to all the time.
    fn keep_writing(&mut self) -> Result<()> {
        let done: Vec<String> =
            self.writers.iter().filter(|(_, it)| it.has_ended()).map(|(name, _)| name.clone()).collect();
        for name in done {
            // The daemon lives, and has the disk.
            if let Some(end) = self.stop_writer(&name) {
                self.finding(format!("{name}: what others did ended its load: {end:#}"));
            }
        }
        let idle: Vec<String> = self.disks.keys().filter(|name| !self.writers.contains_key(*name)).cloned().collect();
        if self.writers.len() < WRITERS
            && let Some(name) = self.random.choice(&idle).cloned()
        {
            let seed = self.random.u64(..);
            let writer = Writer::start(&name, self.host.runtime_dir().join(&name), &self.disks[&name], seed)?;
            self.writers.insert(name, writer);
        } else if self.random.u8(..4) == 0
            && let Some(name) = self.random.choice(&self.writers.keys().cloned().collect::<Vec<_>>())
        {
            drop(self.stop_writer(name));
        }
        Ok(())
    }

    /// Why the writer had ended before, if it had.
    fn stop_writer(&mut self, name: &str) -> Option<anyhow::Error> {
        let Some(did) = self.writers.remove(name)?.stop() else {
            self.finding(format!("{name}: its writer panicked"));
            return None;
        };
        self.report.written_blocks += did.blocks;
        self.report.checked_blocks += did.checked;
        did.findings.into_iter().for_each(|finding| self.finding(finding));
        did.end
    }

    fn stop_writers(&mut self) {
        let names: Vec<String> = self.writers.keys().cloned().collect();
        // They end with the daemon.
        names.iter().for_each(|name| drop(self.stop_writer(name)));
    }

    /// All of all disks, through their sockets.
    fn check_contents(&mut self) -> Result<()> {
        let never = AtomicBool::new(false);
        for (name, known) in self.disks.clone() {
            let mut disk = Attached::new(&self.host.runtime_dir().join(&name), &never).with_context(|| name.clone())?;
            let mut piece = vec![0; READ_BYTES as usize];
            for offset_bytes in (0..known.mib * MIB).step_by(READ_BYTES as usize) {
                disk.run(Direction::Read, offset_bytes, &mut piece, &never).with_context(|| name.clone())?;
                for (index, found) in piece.chunks(BLOCK_BYTES as usize).enumerate() {
                    let at = (offset_bytes / BLOCK_BYTES) as usize + index;
                    self.report.checked_blocks += 1;
                    if !lock(&known.content).fits(known.owner, at, found) {
                        let known = lock(&known.content).versions[at];
                        self.finding(format!("{name}: block {at} is not version {known}: {:?}", &found[..32]));
                    }
                }
            }
        }
        Ok(())
    }

    /// No daemon runs: no byte of the drive is two disks', and what is nobody's holds nothing.
    fn check_files(&mut self) -> Result<()> {
        let image = self.host.path("drive.img");
        let file =
            LayoutFile::open(Some(self.host.path("drive.img.layout.toml"))).map_err(|error| anyhow!("{error}"))?;
        let Some(layout) = file.layout() else { return Ok(()) };
        let mut taken: Vec<(u64, u64, String)> = Vec::new();
        for placement in layout.placements() {
            let extents = placement.extents.iter();
            taken.extend(extents.map(|it| (it.offset_bytes, it.end_bytes(), placement.name.clone())));
        }
        let wiping = layout.wiping().iter().map(layout::Wiping::extent);
        taken.extend(wiping.map(|it| (it.offset_bytes, it.end_bytes(), "what is wiped".to_owned())));
        taken.push((DRIVE_MIB * MIB, DRIVE_MIB * MIB, "the end".to_owned()));
        taken.sort();
        let image = File::open(image)?;
        let mut at = 0;
        for (start, end, who) in taken {
            if start < at {
                self.finding(format!("{who} has bytes from {start} on that somebody else has up to {at}"));
            }
            let mut free = vec![0; start.saturating_sub(at) as usize];
            image.read_exact_at(&mut free, at)?;
            if let Some(byte) = free.iter().position(|byte| *byte != 0) {
                self.finding(format!("what is free holds something at {}", at + byte as u64));
            }
            at = at.max(end);
        }
        Ok(())
    }

    /// Deletes everything; then nothing of anybody is left.
    fn end(&mut self) -> Result<()> {
        let daemon = self.host.start()?;
        self.check_contents()?;
        for name in self.disks.keys() {
            self.rest().delete(name, Deletion { force: true, wipe: Wipe::default() })?;
        }
        self.disks.clear();
        let start = Instant::now();
        while !self.rest().operations()?.is_empty() {
            if start.elapsed() > HANG {
                bail!("the wiper does not end");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(daemon);
        let image = fs::read(self.host.path("drive.img"))?;
        if let Some(at) = image.iter().position(|byte| *byte != 0) {
            self.finding(format!("all disks are deleted and wiped, and there is something at {at}"));
        }
        Ok(())
    }
}
