//! Tenants come, change and go, in any order, beside one that runs: the whole daemon with its sockets, under each
//! policy.
//!
//! Nothing here depends on how long something takes. `EVENKEEL_SEED` replays a run, `EVENKEEL_CHANGES` makes it longer.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::disallowed_methods, reason = "it waits for threads of a real daemon, not for ever")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::{Deletion, DiskPatch, DiskSpec, DiskState, Rest};
use client_socket::Sink;
use config::{Config, Prepared};
use evenkeeld::daemon::Daemon;
use nvme_driver::{Blocks, Controller, Data, DmaMemory, QueuePair, VfioUserDevice};
use ssd_model::Profile;

const POLICIES: [&str; 6] = ["passthrough", "lpns", "evenkeel", "fair", "wrr", "drr"];
/// Tenants that come and go.
const OTHERS: usize = 12;
const PRIORITIES: [&str; 4] = ["urgent", "high", "medium", "low"];
const BLOCK_BYTES: u64 = 4096;
/// Nothing that works takes this long.
const HANG: Duration = Duration::from_secs(60);

fn configuration(dir: &Path, policy: &str) -> String {
    format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"memory\"\n\
         size = \"64MiB\"\n\
         [pollers]\nidle_after = \"1ms\"\n\
         [policy]\nname = \"{policy}\"\n[[tenant]]\nname = \"steady\"\nsize = \"4MiB\"\n"
    )
}

/// Those whose threads, class and front end decide where they are served.
fn other(at: usize) -> DiskSpec {
    let own_threads = Some("per-queue".to_owned());
    let (frontend, queues, threads) = match at % 4 {
        0 => ("vfio-user", None, None),
        1 => ("vfio-user", Some(2), own_threads),
        2 => ("vhost-user-blk", Some(2), None),
        _ => ("vhost-user-blk", Some(2), own_threads),
    };
    let new = DiskSpec {
        name: format!("other-{at}"),
        size: "1MiB".into(),
        frontend: Some(frontend.into()),
        queues,
        threads,
        ..DiskSpec::default()
    };
    if at.is_multiple_of(3) {
        DiskSpec { class: Some("guaranteed".into()), latency_target: Some("5ms".into()), overcommit: Some(true), ..new }
    } else {
        DiskSpec { weight: Some(2), ..new }
    }
}

/// An NVMe client with one queue pair.
struct Client {
    // Queues and memory go before the connection does.
    queue: QueuePair,
    data: DmaMemory,
    blocks: u64,
    count: u32,
    _controller: Controller<VfioUserDevice>,
}

impl Client {
    fn attach(directory: &Path) -> Result<Self, nvme_driver::Error> {
        let mut controller = Controller::start(VfioUserDevice::connect(directory)?)?;
        let namespace = controller.first_namespace()?;
        let queue = controller.create_queue_pair(8, None)?;
        let data = controller.allocate_dma(BLOCK_BYTES as usize)?;
        let count = BLOCK_BYTES as u32 / namespace.block_bytes;
        Ok(Self { queue, data, blocks: namespace.blocks / u64::from(count), count, _controller: controller })
    }

    /// One command; `None`: nothing came back, since the tenant went.
    fn run(&mut self, write: bool, block: u64, gone: &AtomicBool) -> Option<()> {
        let blocks = Blocks { nsid: 1, lba: block * u64::from(self.count), count: self.count };
        let data = Data { iova: self.data.iova(), len_bytes: BLOCK_BYTES };
        let sent = if write { self.queue.write(blocks, data, false) } else { self.queue.read(blocks, data) };
        sent.ok()?;
        self.queue.ring().ok()?;
        let (start, mut ended) = (Instant::now(), false);
        while !ended {
            if gone.load(Ordering::Acquire) {
                return None;
            }
            self.queue.poll(&mut |done| ended = done.status.is_success()).ok()?;
            assert!(start.elapsed() < HANG, "a command never completed");
            std::thread::yield_now();
        }
        Some(())
    }

    /// Writes a block and reads it back.
    fn verify(&mut self, number: u64, gone: &AtomicBool) -> Option<()> {
        let block = number % self.blocks;
        let content: Vec<u8> = (0..BLOCK_BYTES / 8).flat_map(|word| (number << 32 | word).to_le_bytes()).collect();
        self.data.write(0, &content).unwrap();
        self.run(true, block, gone)?;
        self.data.write(0, &[0xee; BLOCK_BYTES as usize]).unwrap();
        self.run(false, block, gone)?;
        let mut found = vec![0; BLOCK_BYTES as usize];
        self.data.read(0, &mut found).unwrap();
        assert!(found == content, "block {block} is not what was written");
        Some(())
    }
}

/// Set when this is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

/// One run's daemon and tenants.
struct World {
    api: Rest,
    dir: PathBuf,
    policy: &'static str,
    absent: Vec<DiskSpec>,
    present: Vec<DiskSpec>,
    random: fastrand::Rng,
    done: [u32; 4],
}

impl World {
    fn change_something(&mut self) {
        match self.random.u8(..10) {
            0..4 if !self.absent.is_empty() => self.add(),
            4..7 if !self.present.is_empty() => self.change(),
            7..9 if !self.present.is_empty() => self.remove(),
            _ if !self.present.is_empty() => self.attach(),
            _ => self.add(),
        }
    }

    fn any(&mut self) -> usize {
        self.random.usize(..self.present.len())
    }

    fn add(&mut self) {
        let disk = self.absent.swap_remove(self.random.usize(..self.absent.len()));
        assert_eq!(self.api.create(&disk).unwrap().state, DiskState::Served);
        let other = DiskSpec { size: "2MiB".into(), ..disk.clone() };
        assert!(self.api.create(&other).is_err(), "its name is taken");
        self.present.push(disk);
        self.done[0] += 1;
    }

    fn change(&mut self) {
        let at = self.any();
        let class = if self.random.bool() {
            let floor = (self.policy == "evenkeel").then(|| self.random.u64(1..500).to_string());
            DiskSpec {
                class: Some("best-effort".into()),
                weight: Some(self.random.u32(1..100)),
                min_iops: floor,
                ..DiskSpec::default()
            }
        } else {
            let target = format!("{}us", self.random.u64(1_000..9_000));
            let overcommit = Some(true);
            DiskSpec {
                class: Some("guaranteed".into()),
                latency_target: Some(target),
                overcommit,
                ..DiskSpec::default()
            }
        };
        let has_priorities = matches!(self.policy, "wrr" | "drr");
        let priority = has_priorities.then(|| (*self.random.choice(&PRIORITIES).unwrap()).to_owned());
        let rw_iops = Some(self.random.u64(1_000..100_000).to_string());
        self.api.change(&self.present[at].name, &DiskPatch::of(&DiskSpec { priority, rw_iops, ..class })).unwrap();
        self.done[1] += 1;
    }

    fn remove(&mut self) {
        let at = self.any();
        self.delete(at);
        self.done[2] += 1;
    }

    /// Deletes a disk, even while a client uses it. Its name is free again once its data is wiped.
    fn delete(&mut self, at: usize) {
        let disk = self.present.swap_remove(at);
        self.api.delete(&disk.name, Deletion { force: true, ..Deletion::default() }).unwrap();
        wait_for("the end of a wipe", || self.api.operations().unwrap().is_empty());
        assert!(self.api.disk(&disk.name).is_err(), "it is gone");
        self.absent.push(disk);
    }

    /// A client comes to one of them; half of the time the disk is deleted under its hands.
    fn attach(&mut self) {
        let at = self.any();
        let disk = &self.present[at];
        if disk.frontend.as_deref() != Some("vfio-user") {
            return;
        }
        let directory = self.dir.join(&disk.name);
        let Ok(mut client) = Client::attach(&directory) else { panic!("{} accepts no client", disk.name) };
        let (verified, gone) = (AtomicU64::new(0), never());
        let removed = self.random.bool();
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                for number in 0..if removed { u64::MAX } else { 20 } {
                    if client.verify(number, &gone).is_none() {
                        return;
                    }
                    verified.fetch_add(1, Ordering::Release);
                }
            });
            if removed {
                wait_for("the client's first commands", || verified.load(Ordering::Acquire) > 2);
                self.delete(at);
                gone.store(true, Ordering::Release);
            }
            working.join().unwrap();
        });
        self.done[3] += 1;
    }
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < HANG, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Threads of this process whose names begin so.
fn threads(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

fn play(policy: &'static str, seed: u64, changes: u32) {
    let dir = tempfile::tempdir().unwrap();
    let text = configuration(dir.path(), policy);
    let config = Config::parse(Path::new("membership.toml"), &text).unwrap_or_else(|errors| panic!("{errors}"));
    let prepared = Prepared::new(config).unwrap_or_else(|errors| panic!("{errors}"));
    let profile = Profile::by_name("p5800x").unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&log);
    let sink: Sink = Arc::new(move |_, line: &str| lines.lock().unwrap().push(line.to_owned()));
    let daemon = Daemon::start(vec![(prepared, profile)], sink).unwrap();
    let (stop, verified) = (never(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let steady = scope.spawn(|| {
            let mut client = Client::attach(&dir.path().join("steady")).unwrap();
            let mut number = 0;
            while !stop.load(Ordering::Acquire) {
                client.verify(number, &never()).unwrap();
                number += 1;
                verified.store(number, Ordering::Release);
            }
        });
        // Whatever happens here, the running tenant's thread is to end.
        let _stop = Stop(&stop);
        let random = fastrand::Rng::with_seed(seed);
        let path = dir.path().to_owned();
        let absent = (0..OTHERS).map(other).collect();
        let api = Rest::new(api::api_path(&path));
        let mut world = World { api, dir: path, policy, absent, present: Vec::new(), random, done: [0; 4] };
        for _ in 0..changes {
            let before = verified.load(Ordering::Acquire);
            world.change_something();
            wait_for("the running tenant's next block", || verified.load(Ordering::Acquire) > before + 1);
        }
        while !world.present.is_empty() {
            world.delete(0);
        }
        println!("{policy}: seed {seed}: added, changed, removed, attached to {:?}", world.done);
        // All of them at a time: a thread that was just started has its name a little later.
        let left = || ["closing", "vhost-", "vfio-other"].map(threads);
        wait_for("threads of tenants that left to end", || threads("poller-") == 1 && left() == [0; 3]);
        let others: Vec<_> = (0..OTHERS).map(|at| dir.path().join(format!("other-{at}"))).collect();
        let sockets = others.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().count();
        assert_eq!(sockets, 0, "sockets left behind");
        stop.store(true, Ordering::Release);
        steady.join().unwrap();
    });
    assert_eq!(daemon.stop(), 0, "the drive answered everything");
    assert_eq!(io_model::lost_tokens(), 0);
    let log = log.lock().unwrap();
    assert!(!log.iter().any(|line| line.contains("is left so")), "{log:#?}");
}

/// One test, since it counts the process's threads.
#[test]
fn tenants_come_change_and_go_beside_one_that_runs() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let seed = number("EVENKEEL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let changes = number("EVENKEEL_CHANGES").unwrap_or(60) as u32;
    for policy in POLICIES {
        println!("EVENKEEL_SEED={seed} replays this");
        play(policy, seed, changes);
    }
}
