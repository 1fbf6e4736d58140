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
        let measured = pair.measure(options);
        figures.extend(measured.unwrap_or_else(|error| vec![Figure::refused(pair.name(), &error)]));
    }
    notes.push(format!(
        "beside SPDK's targets: {}; 4 KiB random reads by spdk_nvme_perf and by bdevperf (virtio-blk, two queues, of \
         which one works), whose own memory is in pages of 2 MiB; SPDK's null bdev beside our drive null, and its \
         malloc bdev beside our drive memory, {DISK_MIB} MiB that were written before and are read before each run; \
         our drive's pages have 4 KiB, SPDK's either (--no-huge) or 2 MiB, and only the former is held to a goal; ours \
         is under passthrough, adaptive",
        spdk::version(&tree).unwrap_or_else(|error| format!("version unknown: {error:#}"))
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

/// One side of a comparison. It is measured until it refuses; what was measured until then counts.
#[derive(Default)]
struct Side {
    /// What each round brought: of each depth, or of each number of others.
    rounds: Vec<Vec<f64>>,
    refused: Option<anyhow::Error>,
}

impl Side {
    fn new(cells: usize) -> Self {
        Self { rounds: vec![Vec::new(); cells], refused: None }
    }

    /// What `measure` gives, unless the side refused before or does now.
    fn try_to<T>(&mut self, measure: impl FnOnce() -> Result<T>) -> Option<T> {
        if self.refused.is_some() {
            return None;
        }
        measure().map_err(|error| self.refused = Some(error)).ok()
    }

    /// Another round.
    fn measure(&mut self, cell: usize, measure: impl FnOnce() -> Result<f64>) {
        if let Some(value) = self.try_to(measure) {
            self.rounds[cell].push(value);
        }
    }

    /// The row of a cell, if it was measured.
    fn figure(&self, cell: usize, name: String, unit: &'static str) -> Result<Vec<Figure>> {
        let rounds = &self.rounds[cell];
        Ok(if rounds.is_empty() { Vec::new() } else { vec![Figure::of(name, rounds.clone(), unit, None)?] })
    }

    /// The row that says that it refused, if it did.
    fn refusal(&self, name: String) -> Option<Figure> {
        self.refused.as_ref().map(|error| Figure::refused(name, error))
    }
}

/// What two sides' rounds of a cell make, one by one, as far as both were measured.
fn compared(
    cell: usize,
    [one, other]: [&Side; 2],
    row: (String, Option<Goal>),
    ratio: fn(f64, f64) -> f64,
) -> Result<Vec<Figure>> {
    let ratios: Vec<f64> = one.rounds[cell].iter().zip(&other.rounds[cell]).map(|(a, b)| ratio(*a, *b)).collect();
    Ok(if ratios.is_empty() { Vec::new() } else { vec![Figure::of(row.0, ratios, "×", row.1)?] })
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
        let side = || Side::new(DEPTHS.len());
        let (mut ours, mut looking_percent) = (side(), side());
        let server = ours.try_to(|| self.start_ours());
        let start = |shape: &Shape| {
            let mut theirs = side();
            let target = theirs.try_to(|| self.start_theirs(shape));
            (theirs, target)
        };
        let mut peers: Vec<(Side, Option<Target>)> = self.shapes().iter().map(start).collect();
        for _ in 0..options.rounds {
            for (cell, depth) in DEPTHS.into_iter().enumerate() {
                if let Some(server) = &server
                    && let Some(run) = ours.try_to(|| self.measure_ours(server, depth, options.seconds))
                {
                    ours.rounds[cell].push(run.0 / 1e6);
                    looking_percent.rounds[cell].push(run.1);
                }
                for (theirs, target) in &mut peers {
                    let measure = |target: &mut Target| {
                        theirs.measure(cell, || Ok(self.measure_theirs(target, depth, options.seconds)?.iops / 1e6));
                    };
                    target.as_mut().map(measure);
                    // Its reactor would run beside all that follows.
                    target.take_if(|_| theirs.refused.is_some());
                }
            }
        }
        let peers: Vec<Side> = peers.into_iter().map(|(theirs, _)| theirs).collect();
        self.figures(&ours, &looking_percent, &peers)
    }

    fn start_ours(&self) -> Result<Server> {
        let server = self.ours()?;
        if self.drive == Drive::Malloc {
            fill(&server.socket("a"))?;
        }
        Ok(server)
    }

    fn start_theirs(&self, shape: &Shape) -> Result<Target> {
        let mut target = Target::start(self.tree, shape)?;
        if self.drive == Drive::Malloc {
            target.awake(|target| fill(&target.socket(0)).with_context(|| target.log()))?;
        }
        Ok(target)
    }

    fn measure_theirs(&self, target: &mut Target, depth: u32, seconds: u64) -> Result<Run> {
        target.awake(|target| {
            self.wake(&target.socket(0)).with_context(|| target.log())?;
            self.client(&target.socket(0), &Target::nqn(0), depth, seconds).with_context(|| target.log())
        })
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

    /// All rows; those of sides that refused come last.
    fn figures(&self, ours: &Side, looking_percent: &Side, peers: &[Side]) -> Result<Vec<Figure>> {
        let program = self.protocol.program();
        let peer = |pages: Pages| {
            let with = if pages == Pages::Small { "--no-huge" } else { "pages of 2 MiB" };
            format!("SPDK's {program}, {with}")
        };
        let mut figures = Vec::new();
        for (cell, depth) in DEPTHS.into_iter().enumerate() {
            let name = |what: &str| format!("{}, QD {depth}: {what}", self.name());
            figures.extend(ours.figure(cell, name("evenkeeld"), "M IOPS")?);
            let looking = name("evenkeeld's poller, time in which nothing moved");
            figures.extend(looking_percent.figure(cell, looking, "%")?);
            for (&pages, theirs) in self.pages().iter().zip(peers) {
                let goal = match (self.drive, depth) {
                    (Drive::Malloc, _) if pages == Pages::Huge => None,
                    (_, 1) => Some(Goal::AtLeast(LONE_GOAL)),
                    (Drive::Null, _) => Some(Goal::AtLeast(NULL_GOAL)),
                    (Drive::Malloc, _) => Some(Goal::AtLeast(MEMORY_GOAL)),
                };
                figures.extend(theirs.figure(cell, name(&peer(pages)), "M IOPS")?);
                let row = (name(&format!("evenkeeld / ({})", peer(pages))), goal);
                figures.extend(compared(cell, [ours, theirs], row, |ours, theirs| ours / theirs)?);
            }
        }
        figures.extend(ours.refusal(format!("{}: evenkeeld", self.name())));
        let refusals = self.pages().iter().zip(peers);
        figures.extend(refusals.filter_map(|(&pages, it)| it.refusal(format!("{}: {}", self.name(), peer(pages)))));
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
    let (mut ours, mut theirs) = (Side::new(OTHERS.len()), Side::new(OTHERS.len()));
    let mut target = theirs.try_to(|| Target::start(&tree, &shape));
    let attach = |socket: PathBuf| -> Result<_> {
        let mut disk = AnyDisk::attach(&socket, Frontend::Auto)?;
        let queues = disk.open_queues(&QUEUES)?;
        Ok((disk, queues))
    };
    let lone = |socket: &Path, nqn: &str| spdk::nvme_perf(&tree, CLIENT_CPU, (socket, nqn), 1, options.seconds);
    let mut figures = Vec::new();
    for (cell, others) in OTHERS.into_iter().enumerate() {
        ours.try_to(|| {
            for number in our_idle.len() + 1..=others {
                our_idle.push(attach(server.socket(&format!("t{number}")))?);
            }
            Ok(())
        });
        if let Some(target) = &mut target {
            let attach_all = |target: &Target| -> Result<()> {
                for number in their_idle.len() + 1..=others {
                    their_idle.push(attach(target.socket(number)).with_context(|| target.log())?);
                }
                Ok(())
            };
            theirs.try_to(|| target.awake(attach_all));
        }
        for _ in 0..options.rounds {
            // Its reactor would run beside all that follows.
            target.take_if(|_| theirs.refused.is_some());
            let socket = server.socket("t0").join(Protocol::VfioUser.socket());
            ours.measure(cell, || Ok(lone(&socket, "evenkeel")?.mean_us));
            if let Some(target) = &mut target {
                let run = |target: &Target| lone(&target.socket(0), &Target::nqn(0));
                theirs.measure(cell, || Ok(target.awake(run)?.mean_us));
            }
        }
        let name = |what: &str| format!("vfio-user, null, QD 1 beside {others} idle clients: {what}");
        figures.extend(ours.figure(cell, name("evenkeeld"), "µs")?);
        figures.extend(theirs.figure(cell, name("SPDK's nvmf_tgt"), "µs")?);
        let row = (name("SPDK's / evenkeeld's"), None);
        figures.extend(compared(cell, [&ours, &theirs], row, |ours, theirs| theirs / ours)?);
    }
    let name = |what: &str| format!("vfio-user, null, beside idle clients: {what}");
    figures.extend(ours.refusal(name("evenkeeld")));
    figures.extend(theirs.refusal(name("SPDK's nvmf_tgt")));
    notes.push(format!(
        "beside idle clients: mean latencies that spdk_nvme_perf tells; each of the others has evenkeel's own driver \
         and {} queues, at the same poller or reactor",
        QUEUES.len()
    ));
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_side_that_refuses_loses_no_rows_of_the_other() {
        let [mut ours, mut theirs, mut none] = [0; 3].map(|_| Side::new(DEPTHS.len()));
        for round in [4.0, 6.0] {
            ours.measure(0, || Ok(round));
            theirs.measure(0, || if round > 5.0 { Err(anyhow!("it ended")) } else { Ok(2.0) });
            none.measure(0, || Err(anyhow!("no protocol feature")));
        }
        ours.measure(1, || Ok(8.0));
        theirs.measure(1, || panic!("it refused"));
        let pair = Pair { tree: Path::new("/"), protocol: Protocol::VhostUser, drive: Drive::Malloc };
        let figures = pair.figures(&ours, &Side::new(DEPTHS.len()), &[theirs, none]).expect("figures");
        let rows: Vec<String> = figures.iter().map(|it| format!("{}  {}", it.name, it.line())).collect();
        let has = |parts: [&str; 2]| rows.iter().filter(|row| parts.iter().all(|part| row.contains(part))).count();
        assert_eq!(has(["QD 1: evenkeeld ", "6.000"]), 1, "{rows:#?}");
        assert_eq!(has(["QD 32: evenkeeld ", "8.000"]), 1, "{rows:#?}");
        assert_eq!(has(["QD 1: evenkeeld / (SPDK's vhost, --no-huge)", "2.000"]), 1, "of the round that both have");
        assert_eq!(has(["memory: SPDK's vhost, --no-huge", "REFUSED: it ended"]), 1, "{rows:#?}");
        assert_eq!(has(["memory: SPDK's vhost, pages of 2 MiB", "REFUSED: no protocol feature"]), 1, "{rows:#?}");
        assert_eq!(rows.len(), 6, "{rows:#?}");
    }
}
