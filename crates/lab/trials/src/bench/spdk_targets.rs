//! SPDK's targets in our daemon's place: the same client, SPDK's own, by turns, with a core for each side.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use load::disk::{Disk, QueueShape};
use load::{AnyDisk, Frontend};

use super::server::{CLIENT_CPU, DAEMON_CPU, Server, WORKING_SET_BYTES, fill, wake};
use super::{Figure, Goal, Options};
use crate::spdk::{self, Drive, Pages, Protocol, Run, Shape, Target};

const DEPTHS: [u32; 3] = [1, 32, 128];
/// All of a disk is read, so that no page of one in memory is unwritten.
const DISK_MIB: u64 = WORKING_SET_BYTES >> 20;
/// What ours is to be, of SPDK's: with one command in flight, and with more.
const LONE_GOAL: f64 = 1.0;
const NULL_GOAL: f64 = 1.3;
const MEMORY_GOAL: f64 = 1.1;

const NOT_RUN: &str = "SPDK's targets were not run beside our daemon; --spdk DIR (a build tree) adds them";

/// Both protocols, on disks that hold nothing and on memory.
pub fn throughput(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let Some(tree) = options.spdk.dir() else {
        notes.push(NOT_RUN.into());
        return Ok(Vec::new());
    };
    let pairs = [Protocol::VfioUser, Protocol::VhostUser]
        .map(|protocol| [Drive::Null, Drive::Malloc].map(|drive| Pair { tree: &tree, protocol, drive }));
    let pairs = pairs.as_flattened();
    let huge_mib = pairs.iter().map(|pair| pair.shapes().iter().map(Shape::huge_mib).sum()).max();
    spdk::check_host(huge_mib.unwrap_or(0) + spdk::CLIENT_MIB)?;
    let mut figures = Vec::new();
    for pair in pairs {
        figures.extend(pair.measure(options).with_context(|| pair.name())?);
    }
    notes.push(format!(
        "beside SPDK's targets: {}; 4 KiB random reads by spdk_nvme_perf and by bdevperf (virtio-blk, two queues, of \
         which one works), whose own memory is in pages of 2 MiB; SPDK's null bdev beside our drive null, and its \
         malloc bdev beside our drive memory, {DISK_MIB} MiB that were written before and are read before each run; \
         our drive's pages have 4 KiB, SPDK's either (--no-huge) or 2 MiB, and only the former is held to a goal; ours \
         is under passthrough, adaptive",
        spdk::version(&tree)?
    ));
    notes.push(
        "the time in which our poller moved nothing is out of all in which the client had commands for it: where there \
         is much of it and nothing else runs, the client is what limits; without its CPU a poller moves nothing either"
            .into(),
    );
    Ok(figures)
}

/// Our daemon and SPDK's target on the same kind of drive.
struct Pair<'a> {
    tree: &'a Path,
    protocol: Protocol,
    drive: Drive,
}

/// What the rounds at one depth brought.
#[derive(Default)]
struct Cell {
    ours: Vec<f64>,
    looking_percent: Vec<f64>,
    /// Of each peer.
    theirs: Vec<Vec<f64>>,
}

impl Pair<'_> {
    fn name(&self) -> String {
        format!("{}, {}", self.protocol.name(), self.backend())
    }

    fn backend(&self) -> &'static str {
        if self.drive == Drive::Null { "null" } else { "memory" }
    }

    /// What SPDK's memory is made of; the first is what ours is made of.
    fn pages(&self) -> &'static [Pages] {
        if self.drive == Drive::Null { &[Pages::Huge] } else { &[Pages::Small, Pages::Huge] }
    }

    fn measure(&self, options: &Options) -> Result<Vec<Figure>> {
        let shapes = self.shapes();
        let server = self.ours()?;
        let peers: Result<Vec<Target>> = shapes.iter().map(|shape| Target::start(self.tree, shape)).collect();
        let mut peers = peers?;
        if self.drive == Drive::Malloc {
            fill(&server.socket("a"))?;
            for peer in &mut peers {
                peer.awake(|peer| fill(&peer.socket(0)).with_context(|| peer.log()))?;
            }
        }
        let mut cells = DEPTHS.map(|_| Cell { theirs: vec![Vec::new(); peers.len()], ..Cell::default() });
        for _ in 0..options.rounds {
            for (depth, cell) in DEPTHS.into_iter().zip(&mut cells) {
                let (iops, looking_percent) = self.measure_ours(&server, depth, options.seconds)?;
                cell.ours.push(iops / 1e6);
                cell.looking_percent.push(looking_percent);
                for (peer, theirs) in peers.iter_mut().zip(&mut cell.theirs) {
                    let run = peer.awake(|peer| {
                        self.wake(&peer.socket(0)).with_context(|| peer.log())?;
                        let run = self.client(&peer.socket(0), &Target::nqn(0), depth, options.seconds);
                        run.with_context(|| peer.log())
                    })?;
                    theirs.push(run.iops / 1e6);
                }
            }
        }
        let figures = DEPTHS.into_iter().zip(cells).map(|(depth, cell)| self.figures(depth, cell));
        Ok(figures.collect::<Result<Vec<_>>>()?.concat())
    }

    /// SPDK's targets, in the order of [`Pair::pages`].
    fn shapes(&self) -> Vec<Shape> {
        let &Self { protocol, drive, .. } = self;
        let shape = |&pages| Shape { protocol, drive, pages, disks: 1, disk_mib: DISK_MIB, cpu: DAEMON_CPU };
        self.pages().iter().map(shape).collect()
    }

    fn ours(&self) -> Result<Server> {
        let keys = if self.protocol == Protocol::VfioUser { "" } else { "frontend = \"vhost-user-blk\"\nqueues = 4\n" };
        let tenant = format!("[[tenant]]\nname = \"a\"\nsize = \"{DISK_MIB}MiB\"\n{keys}");
        Server::start(self.backend(), "passthrough", &tenant)
    }

    /// Our reads per second, and the percentage of the time of the load in which our poller moved nothing.
    fn measure_ours(&self, server: &Server, depth: u32, seconds: u64) -> Result<(f64, f64)> {
        self.wake(&server.socket("a"))?;
        let socket = server.socket("a").join(self.protocol.socket());
        let before_s = busy_seconds(server)?;
        let run = self.client(&socket, "evenkeel", depth, seconds)?;
        let busy_s = busy_seconds(server)? - before_s;
        let load_s = seconds + if self.protocol == Protocol::VfioUser { spdk::WARM_UP_S } else { 0 };
        Ok((run.iops, 100.0 * (1.0 - busy_s / load_s as f64).max(0.0)))
    }

    fn wake(&self, disk: &Path) -> Result<()> {
        if self.drive == Drive::Malloc { wake(disk) } else { Ok(()) }
    }

    fn client(&self, socket: &Path, nqn: &str, depth: u32, seconds: u64) -> Result<Run> {
        match self.protocol {
            Protocol::VfioUser => spdk::nvme_perf(self.tree, CLIENT_CPU, (socket, nqn), depth, seconds),
            Protocol::VhostUser => spdk::bdevperf(self.tree, CLIENT_CPU, socket, depth, seconds),
        }
    }

    fn figures(&self, depth: u32, cell: Cell) -> Result<Vec<Figure>> {
        let Cell { ours, looking_percent, theirs } = cell;
        let name = |what: &str| format!("{}, QD {depth}: {what}", self.name());
        let mut figures = vec![
            Figure::of(name("evenkeeld"), ours.clone(), "M IOPS", None)?,
            Figure::of(name("evenkeeld's poller, time in which nothing moved"), looking_percent, "%", None)?,
        ];
        for (&pages, theirs) in self.pages().iter().zip(theirs) {
            let with = if pages == Pages::Small { "--no-huge" } else { "pages of 2 MiB" };
            let peer = format!("SPDK's {}, {with}", self.protocol.program());
            let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
            let goal = match (self.drive, depth) {
                (Drive::Malloc, _) if pages == Pages::Huge => None,
                (_, 1) => Some(Goal::AtLeast(LONE_GOAL)),
                (Drive::Null, _) => Some(Goal::AtLeast(NULL_GOAL)),
                (Drive::Malloc, _) => Some(Goal::AtLeast(MEMORY_GOAL)),
            };
            figures.push(Figure::of(name(&peer), theirs, "M IOPS", None)?);
            figures.push(Figure::of(name(&format!("evenkeeld / ({peer})")), ratios, "×", goal)?);
        }
        Ok(figures)
    }
}

/// How long our pollers moved commands so far.
fn busy_seconds(server: &Server) -> Result<f64> {
    let metrics = server.get("/metrics")?;
    let pollers = metrics.lines().filter(|line| line.starts_with("evenkeel_poller_busy_seconds_total{"));
    let seconds = pollers.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()));
    seconds.sum::<Option<f64>>().context("a poller's busy seconds are no number")
}

/// How many others are attached.
const OTHERS: [usize; 3] = [0, 15, 63];
/// Each one's.
const QUEUES: [QueueShape; 4] = [QueueShape { depth: 32, buffer_bytes: 4096, priority: None }; 4];

/// What a lone command takes, beside more and more others' queues at the same poller that are idle.
pub fn idle(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let Some(tree) = options.spdk.dir() else {
        // `throughput` says so.
        return Ok(Vec::new());
    };
    let disks = OTHERS[OTHERS.len() - 1] + 1;
    let shape = Shape {
        protocol: Protocol::VfioUser,
        drive: Drive::Null,
        pages: Pages::Huge,
        disks,
        disk_mib: DISK_MIB,
        cpu: DAEMON_CPU,
    };
    spdk::check_host(shape.huge_mib() + spdk::CLIENT_MIB)?;
    // They go after their servers: one that is stopped lets nobody go.
    let (mut our_idle, mut their_idle) = (Vec::new(), Vec::new());
    let tenants: String =
        (0..disks).map(|n| format!("[[tenant]]\nname = \"t{n}\"\nsize = \"{DISK_MIB}MiB\"\n")).collect();
    let server = Server::start("null", "passthrough", &tenants)?;
    let mut target = Target::start(&tree, &shape)?;
    let mut figures = Vec::new();
    for others in OTHERS {
        let attach = |socket: PathBuf| -> Result<_> {
            let mut disk = AnyDisk::attach(&socket, Frontend::Auto)?;
            let queues = disk.open_queues(&QUEUES)?;
            Ok((disk, queues))
        };
        for number in our_idle.len() + 1..=others {
            our_idle.push(attach(server.socket(&format!("t{number}")))?);
        }
        target.awake(|target| {
            for number in their_idle.len() + 1..=others {
                their_idle.push(attach(target.socket(number)).with_context(|| target.log())?);
            }
            Ok(())
        })?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            let lone = |socket: &Path, nqn: &str| spdk::nvme_perf(&tree, CLIENT_CPU, (socket, nqn), 1, options.seconds);
            ours.push(lone(&server.socket("t0").join(Protocol::VfioUser.socket()), "evenkeel")?.mean_us);
            theirs.push(target.awake(|target| lone(&target.socket(0), &Target::nqn(0)))?.mean_us);
        }
        let name = |what: &str| format!("vfio-user, null, QD 1 beside {others} idle clients: {what}");
        let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| theirs / ours).collect();
        figures.push(Figure::of(name("evenkeeld"), ours, "µs", None)?);
        figures.push(Figure::of(name("SPDK's nvmf_tgt"), theirs, "µs", None)?);
        figures.push(Figure::of(name("SPDK's / evenkeeld's"), ratios, "×", None)?);
    }
    notes.push(format!(
        "beside idle clients: mean latencies that spdk_nvme_perf tells; each of the others has evenkeel's own driver \
         and {} queues, at the same poller or reactor",
        QUEUES.len()
    ));
    Ok(figures)
}
