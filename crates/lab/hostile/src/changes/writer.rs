//! What a disk's blocks must hold, and loads that write and verify them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use load::disk::{Disk, DiskQueue, QueueShape, Request};
use load::{AnyDisk, AnyQueue, Direction, Frontend};

use super::{HANG, Known, MIB};

pub const BLOCK_BYTES: u64 = 4096;
/// The most that is read at a time.
pub const READ_BYTES: u64 = 64 << 10;
/// How long a command is waited for that may have lost its disk.
const GIVEN_UP: Duration = Duration::from_millis(100);

/// Whose a block is, and which of its versions.
fn block(owner: u64, at: u64, version: u32) -> Vec<u8> {
    let mut line = [0; 32];
    line[..8].copy_from_slice(b"evenkeel");
    line[8..16].copy_from_slice(&owner.to_le_bytes());
    line[16..24].copy_from_slice(&at.to_le_bytes());
    line[24..28].copy_from_slice(&version.to_le_bytes());
    line.repeat(BLOCK_BYTES as usize / line.len())
}

/// What is known of a disk's blocks.
#[derive(Debug, Default)]
pub struct Content {
    /// The version that was acknowledged last; 0: zeros.
    pub versions: Vec<u32>,
    /// Blocks whose writes were never answered, with the versions that they may have.
    pub unsettled: BTreeMap<usize, Vec<u32>>,
}

impl Content {
    fn last_version(&self) -> u32 {
        let unsettled = self.unsettled.values().flatten();
        self.versions.iter().chain(unsettled).copied().max().unwrap_or_default()
    }

    /// Whether a block may look so; settles what was not known.
    pub fn fits(&mut self, owner: u64, at: usize, found: &[u8]) -> bool {
        let known = self.versions[at];
        let is = |version: u32| match version {
            0 => found.iter().all(|byte| *byte == 0),
            version => found == block(owner, at as u64, version),
        };
        let may_be = self.unsettled.remove(&at).into_iter().flatten().chain([known]);
        let found = may_be.into_iter().find(|version| is(*version));
        self.versions[at] = found.unwrap_or(known);
        found.is_some()
    }
}

pub fn lock(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes and verifies single blocks of one disk until it is told to stop, or its connection ends.
pub struct Writer {
    stop: Arc<AtomicBool>,
    /// Commands that ended.
    commands: Arc<AtomicU64>,
    thread: JoinHandle<Written>,
}

/// What a writer did, and saw.
#[derive(Default)]
pub struct Written {
    pub blocks: u64,
    pub checked: u64,
    pub findings: Vec<String>,
    /// Why it ended before it was told to.
    pub end: Option<anyhow::Error>,
}

/// A disk with one queue.
pub struct Attached {
    // The queue goes before the disk does.
    queue: AnyQueue,
    disk: AnyDisk,
}

impl Attached {
    /// Given up once `stop` is set.
    pub fn new(directory: &Path, stop: &AtomicBool) -> Result<Self> {
        let start = Instant::now();
        loop {
            let attached = AnyDisk::attach(directory, Frontend::Auto).and_then(|mut disk| {
                let shape = QueueShape { depth: 1, buffer_bytes: READ_BYTES, priority: None };
                Ok((disk.open_queues(&[shape])?.pop(), disk))
            });
            match attached {
                Ok((Some(queue), disk)) => return Ok(Self { queue, disk }),
                Ok((None, _)) => bail!("it has no queue"),
                // Whoever had the place before may still be leaving it.
                Err(error) if stop.load(Relaxed) || start.elapsed() > Duration::from_secs(5) => {
                    return Err(error.into());
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// One command. Given up once `stop` is set and it does not end: whoever sets it may have taken the disk away.
    pub fn run(&mut self, direction: Direction, offset_bytes: u64, data: &mut [u8], stop: &AtomicBool) -> Result<()> {
        let tag = self.queue.next_tag().context("the queue is full")?;
        if direction == Direction::Write {
            self.queue.buffers().write(tag, data).context("the buffer is too small")?;
        }
        self.queue.send(Request { direction, offset_bytes, len_bytes: data.len() as u64, durable: false })?;
        self.queue.ring()?;
        let (start, mut ended) = (Instant::now(), None);
        while ended.is_none() {
            if self.queue.poll(&mut |done| ended = Some(done.outcome))? == 0 {
                if start.elapsed() > Duration::from_millis(20) {
                    self.disk.check()?;
                }
                if start.elapsed() > if stop.load(Relaxed) { GIVEN_UP } else { HANG } {
                    bail!("a command never completed");
                }
                std::thread::yield_now();
            }
        }
        if let Some(Err(failure)) = ended {
            bail!("a command failed: {failure}");
        }
        if direction == Direction::Read {
            self.queue.buffers().read(tag, data).context("the buffer is too small")?;
        }
        Ok(())
    }
}

impl Writer {
    /// Starts it, on a disk that nobody else writes to.
    pub fn start(name: &str, directory: PathBuf, known: &Known, seed: u64) -> Result<Self> {
        let (stop, commands) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, ended, known, name) = (Arc::clone(&stop), Arc::clone(&commands), known.clone(), name.to_owned());
        let thread = std::thread::Builder::new().name(format!("writer-{name}")).spawn(move || {
            let mut did = Written::default();
            did.end = write_on(&name, &directory, &known, seed, (&stopped, &ended), &mut did).err();
            did
        })?;
        Ok(Self { stop, commands, thread })
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

fn write_on(
    name: &str,
    directory: &Path,
    known: &Known,
    seed: u64,
    (stop, ended): (&AtomicBool, &AtomicU64),
    did: &mut Written,
) -> Result<()> {
    let mut disk = Attached::new(directory, stop)?;
    let mut random = Rng::with_seed(seed);
    // No version twice, whoever wrote before.
    let mut versions = lock(&known.content).last_version();
    // What it grew by may still be being zeroed.
    let blocks = disk.disk.geometry().size_bytes.min(known.mib * MIB) / BLOCK_BYTES;
    while !stop.load(Relaxed) {
        let at = random.u64(..blocks);
        if random.bool() {
            versions += 1;
            let version = versions;
            lock(&known.content).unsettled.entry(at as usize).or_default().push(version);
            disk.run(Direction::Write, at * BLOCK_BYTES, &mut block(known.owner, at, version), stop)?;
            let mut content = lock(&known.content);
            content.versions[at as usize] = version;
            content.unsettled.remove(&(at as usize));
            did.blocks += 1;
        } else {
            let mut found = vec![0; BLOCK_BYTES as usize];
            disk.run(Direction::Read, at * BLOCK_BYTES, &mut found, stop)?;
            did.checked += 1;
            if !lock(&known.content).fits(known.owner, at as usize, &found) {
                did.findings.push(format!("{name}: block {at} is not what was written: {:?}", &found[..32]));
            }
        }
        ended.fetch_add(1, Relaxed);
    }
    Ok(())
}
