//! Loads that write and verify all disks of one tenant, while namespaces come to it, grow and go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fastrand::Rng;
use load::Direction;
use load::disk::Failure;
use nvme_driver::Status;

use super::HANG;
use super::client::{Client, Piece};
use super::content::{BLOCK_BYTES, Shared, block, lock};

/// In a block that must never be written.
const FORBIDDEN: u64 = u64::MAX;

/// Whether a disk is there for a tenant's client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// All commands succeed.
    Here,
    /// It is being taken away: commands may fail.
    Leaving,
    /// Commands fail from now on.
    Gone,
    /// Commands fail as soon as the daemon has come to it.
    SoonGone,
}

/// A disk that a tenant's client is to write and verify.
#[derive(Clone)]
pub struct Target {
    /// Given once: the same disk may go and come again.
    pub serial: u64,
    pub name: String,
    pub nsid: u32,
    pub read_only: bool,
    pub content: Shared,
    pub phase: Phase,
}

type Targets = Arc<Mutex<Vec<Target>>>;

fn locked(targets: &Targets) -> MutexGuard<'_, Vec<Target>> {
    targets.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes and verifies single blocks until it is told to stop, or its connection ends.
pub struct Writer {
    stop: Arc<AtomicBool>,
    /// Commands that ended.
    commands: Arc<AtomicU64>,
    targets: Targets,
    thread: JoinHandle<Written>,
}

/// What a writer did, and saw.
#[derive(Default)]
pub struct Written {
    pub blocks: u64,
    pub checked: u64,
    /// Commands that had to be refused, and were.
    pub forbidden: u64,
    pub findings: Vec<String>,
    /// Why it ended before it was told to.
    pub end: Option<anyhow::Error>,
}

impl Writer {
    /// Starts it, on the disks of the tenant that has this directory.
    pub fn start(name: &str, directory: PathBuf, disks: Vec<Target>, seed: u64) -> Result<Self> {
        let (stop, commands) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let targets = Arc::new(Mutex::new(disks));
        let (stopped, ended, shared) = (Arc::clone(&stop), Arc::clone(&commands), Arc::clone(&targets));
        let thread = std::thread::Builder::new().name(format!("writer-{name}")).spawn(move || {
            let mut did = Written::default();
            did.end = Client::attach(&directory, &stopped)
                .and_then(|client| {
                    let random = Rng::with_seed(seed);
                    let sizes = BTreeMap::new();
                    Work { client, targets: shared, random, sizes, stop: &stopped, did: &mut did }.run(&ended)
                })
                .err();
            did
        })?;
        Ok(Self { stop, commands, targets, thread })
    }

    /// Waits until one more of its commands has ended, or it has.
    pub fn wait_for_command(&self) -> Result<()> {
        let (start, before) = (Instant::now(), self.commands.load(Relaxed));
        while self.commands.load(Relaxed) == before && !self.has_ended() {
            if start.elapsed() > HANG {
                bail!("{:?} gets no further", self.thread.thread().name());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// A disk is there from now on.
    pub fn add(&self, target: Target) {
        locked(&self.targets).push(target);
    }

    /// The disk of that name is in another phase. What must be refused is not tried any more once something may have
    /// its number again: see [`Writer::forget_gone`].
    pub fn set_phase(&self, name: &str, phase: Phase) {
        let mut targets = locked(&self.targets);
        let is_it = |it: &&mut Target| it.name == name && matches!(it.phase, Phase::Here | Phase::Leaving);
        targets.iter_mut().filter(is_it).for_each(|it| it.phase = phase);
    }

    /// Namespaces that are gone may come again.
    pub fn forget_gone(&self) {
        locked(&self.targets).retain(|it| matches!(it.phase, Phase::Here | Phase::Leaving));
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it. `None`: it panicked.
    pub fn stop(self) -> Option<Written> {
        self.stop.store(true, Relaxed);
        self.thread.join().ok()
    }
}

struct Work<'a> {
    client: Client,
    targets: Targets,
    random: Rng,
    /// Blocks that are seen, by the targets' serial numbers.
    sizes: BTreeMap<u64, u64>,
    stop: &'a AtomicBool,
    did: &'a mut Written,
}

impl Work<'_> {
    fn run(&mut self, ended: &AtomicU64) -> Result<()> {
        while !self.stop.load(Relaxed) {
            let target = {
                let targets = Arc::clone(&self.targets);
                let mut targets = locked(&targets);
                let index = self.random.usize(..targets.len().max(1));
                let Some(target) = targets.get(index).cloned() else { bail!("it has no disk") };
                if target.phase == Phase::Gone {
                    // Under the lock: nothing gets its number meanwhile.
                    self.must_fail(&target)?;
                    targets.remove(index);
                    continue;
                }
                target
            };
            if self.command(&target)? {
                ended.fetch_add(1, Relaxed);
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }

    /// A namespace that was detached answers nobody.
    fn must_fail(&mut self, target: &Target) -> Result<()> {
        let mut found = vec![0; BLOCK_BYTES as usize];
        let piece = Piece { nsid: target.nsid, offset_bytes: 0 };
        match self.client.run(Direction::Read, piece, &mut found, self.stop)? {
            Err(failure) if is_of_no_namespace(failure) => self.did.forbidden += 1,
            outcome => {
                let Target { name, nsid, .. } = target;
                self.did
                    .findings
                    .push(format!("{name} was detached, and a read of namespace {nsid} ended: {outcome:?}"));
            }
        }
        Ok(())
    }

    /// One command of a disk; `false`: there is nothing to be done now.
    fn command(&mut self, target: &Target) -> Result<bool> {
        let had = lock(&target.content).versions.len() as u64;
        let mut seen = self.sizes.get(&target.serial).copied().unwrap_or(0);
        // What it grew by may still be being zeroed.
        if seen == 0 || (seen < had && self.random.u8(..16) == 0) {
            seen = self.client.size_bytes(target.nsid)? / BLOCK_BYTES;
            self.sizes.insert(target.serial, seen);
        }
        let blocks = seen.min(had);
        if blocks == 0 {
            return Ok(false);
        }
        let at = self.random.u64(..blocks) as usize;
        let is_write = self.random.bool();
        if !lock(&target.content).claim(at) {
            return Ok(false);
        }
        let done = match (is_write, target.read_only) {
            (true, true) => self.write_what_is_read_only(target, at),
            (true, false) => self.write(target, at),
            (false, _) => self.read(target, at),
        };
        // A command that was never answered may still be under way: its block stays claimed.
        done.map(|()| {
            lock(&target.content).release(at);
            true
        })
    }

    fn run_at(
        &mut self,
        direction: Direction,
        target: &Target,
        at: usize,
        data: &mut [u8],
    ) -> Result<Result<(), Failure>> {
        let piece = Piece { nsid: target.nsid, offset_bytes: at as u64 * BLOCK_BYTES };
        self.client.run(direction, piece, data, self.stop)
    }

    fn write(&mut self, target: &Target, at: usize) -> Result<()> {
        let (version, mut data) = lock(&target.content).stamp(at);
        match self.run_at(Direction::Write, target, at, &mut data)? {
            Ok(()) => {
                lock(&target.content).written(at, version);
                self.did.blocks += 1;
                Ok(())
            }
            Err(failure) => self.failed(target, failure),
        }
    }

    fn read(&mut self, target: &Target, at: usize) -> Result<()> {
        let mut found = vec![0; BLOCK_BYTES as usize];
        match self.run_at(Direction::Read, target, at, &mut found)? {
            Ok(()) => {
                self.did.checked += 1;
                if !lock(&target.content).fits(at, &found) {
                    let what = format!("{}: block {at} is not what was written: {:?}", target.name, &found[..32]);
                    self.did.findings.push(what);
                }
                Ok(())
            }
            Err(failure) => self.failed(target, failure),
        }
    }

    fn write_what_is_read_only(&mut self, target: &Target, at: usize) -> Result<()> {
        match self.run_at(Direction::Write, target, at, &mut block(FORBIDDEN, at as u64, 0))? {
            Err(Failure::Nvme(status)) if status.code() == Status::NAMESPACE_WRITE_PROTECTED => {
                self.did.forbidden += 1;
                Ok(())
            }
            Err(failure) => self.failed(target, failure),
            Ok(()) => {
                self.did.findings.push(format!("{} is read-only, and block {at} was written", target.name));
                Ok(())
            }
        }
    }

    /// A command of a disk that is taken away may fail so.
    fn failed(&mut self, target: &Target, failure: Failure) -> Result<()> {
        let mut targets = locked(&self.targets);
        let index = targets.iter().position(|it| it.serial == target.serial);
        let phase = index.map_or(Phase::Gone, |index| targets[index].phase);
        if phase == Phase::Here || !is_of_no_namespace(failure) {
            bail!("{}: a command failed: {failure}", target.name);
        }
        if let Some(index) = index.filter(|_| phase == Phase::SoonGone) {
            targets.remove(index);
        }
        Ok(())
    }
}

/// What a command ends with that is sent to a namespace which is not active (Base 2.0, 3.2.1.4).
fn is_of_no_namespace(failure: Failure) -> bool {
    matches!(failure, Failure::Nvme(status) if status.code() == Status::INVALID_FIELD)
}
