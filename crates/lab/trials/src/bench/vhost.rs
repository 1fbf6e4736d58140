//! vhost-user-blk: our daemon in its modes beside `qemu-storage-daemon`, with the same client on the same cores.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use load::disk::{Disk, QueueShape};
use load::{AnyDisk, Frontend};

use super::files::MEMORY_FILES;
use super::server::{Server, cpu_seconds};
use super::sides::{ScratchDrive, Shape, Side, vhost_tenant};
use super::storage_daemon::{HOW_TO_GET, StorageDaemon, version};
use super::{Figure, Goal, Options};

const SHAPES: [Shape; 4] = [(1, 1), (1, 32), (2, 1), (2, 32)];
/// What the goals are for.
const BUSY: Shape = (1, 32);
const MODES: [&str; 3] = ["polling", "adaptive", "event"];

/// Our sides that the others are compared with.
const OUR_NULL: &str = "null, polling";
const OUR_MEMORY: &str = "memory, polling";
const THEIR_NULL: &str = "qemu-storage-daemon, null-co";
const THEIR_ZEROES: &str = "qemu-storage-daemon, null-co that fills with zeros";
const THEIR_FILE: &str = "qemu-storage-daemon, file in memory";

/// QEMU's drive without content, of a tenant's size.
fn null_co(zeroes: &str) -> String {
    format!("driver=null-co,size={},read-zeroes={zeroes}", 2_u64 << 30)
}

/// What the rounds of one side in one shape brought.
#[derive(Default)]
struct Cell {
    mega_iops: Vec<f64>,
    mean_us: Vec<f64>,
    cpu_percent: Vec<f64>,
}

type Cells = BTreeMap<(usize, Shape), Cell>;

/// Every side in every shape, in turn, round by round; then the ratios of sides within rounds.
pub fn throughput(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let sides = sides(notes)?;
    let mut cells = Cells::new();
    for _ in 0..options.rounds {
        for shape in SHAPES {
            for (number, side) in sides.iter().enumerate() {
                let (run, cpu_percent) = side.measure(shape, options.seconds)?;
                let cell = cells.entry((number, shape)).or_default();
                cell.mega_iops.push(run.iops / 1e6);
                cell.mean_us.push(run.mean_us);
                cell.cpu_percent.push(cpu_percent);
            }
        }
    }
    let titles: Vec<&str> = sides.iter().map(|side| side.title.as_str()).collect();
    let mut figures = Vec::new();
    for (number, title) in titles.iter().enumerate() {
        for shape in SHAPES {
            figures.extend(figures_of(title, shape, &cells[&(number, shape)])?);
        }
    }
    figures.extend(ratios(&titles, &cells)?);
    Ok(figures)
}

fn sides(notes: &mut Vec<String>) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    for drive in ["null", "memory"] {
        for mode in MODES {
            sides.push(Side::ours(drive, mode)?);
        }
    }
    let Some(version) = version() else {
        notes.push(format!("qemu-storage-daemon was not measured: {HOW_TO_GET}"));
        return Ok(sides);
    };
    notes.push(format!("the peer is {version}; its export has an I/O thread, whose adaptive polling is on"));
    notes.push(
        "null and null-co touch no data; null-co that fills with zeros writes each 4 KiB, memory reads them from 512 \
         MiB and writes them; the file in memory is tmpfs, through io_uring with O_DIRECT"
            .into(),
    );
    sides.push(Side::theirs(THEIR_NULL, &null_co("off"))?);
    sides.push(Side::theirs(THEIR_ZEROES, &null_co("on"))?);
    if Path::new(MEMORY_FILES).is_dir() {
        let file = ScratchDrive::file(Path::new(MEMORY_FILES), "vhost")?;
        sides.push(Side::theirs_on(THEIR_FILE, file)?);
    } else {
        notes.push(format!("a file in memory was not measured: there is no {MEMORY_FILES}"));
    }
    Ok(sides)
}

fn figures_of(title: &str, shape: Shape, cell: &Cell) -> Result<Vec<Figure>> {
    let (queues, depth) = shape;
    let plural = if queues == 1 { "" } else { "s" };
    let name = |what: &str| format!("vhost-user-blk, {title}, {queues} queue{plural}, QD {depth}{what}");
    let goal = (title == OUR_MEMORY && shape == BUSY).then_some(Goal::AtLeast(1.3));
    let mut figures = vec![Figure::of(name(""), cell.mega_iops.clone(), "M IOPS", goal)?];
    if shape == (1, 1) {
        figures.push(Figure::of(name(", round trip"), cell.mean_us.clone(), "µs", None)?);
    }
    figures.push(Figure::of(name(", server's CPU"), cell.cpu_percent.clone(), "%", None)?);
    Ok(figures)
}

/// Pairs of the same round, one queue at depth 32.
fn ratios(titles: &[&str], cells: &Cells) -> Result<Vec<Figure>> {
    let find = |title: &str| titles.iter().position(|known| *known == title).map(|number| &cells[&(number, BUSY)]);
    let peers = [(OUR_NULL, THEIR_NULL), (OUR_MEMORY, THEIR_ZEROES), (OUR_MEMORY, THEIR_FILE)];
    let mut pairs: Vec<_> =
        peers.iter().map(|&(ours, theirs)| (ours, theirs, 1.0, "×", Some(Goal::AtLeast(3.0)))).collect();
    pairs.push(("memory, adaptive", OUR_MEMORY, 100.0, "%", Some(Goal::AtLeast(95.0))));
    pairs.push(("memory, event", OUR_MEMORY, 100.0, "%", None));
    let mut figures = Vec::new();
    for (ours, theirs, scale, unit, goal) in pairs {
        let (Some(ours_cell), Some(theirs_cell)) = (find(ours), find(theirs)) else { continue };
        let rounds = ours_cell.mega_iops.iter().zip(&theirs_cell.mega_iops);
        let rounds = rounds.map(|(ours, theirs)| scale * ours / theirs).collect();
        figures.push(Figure::of(format!("({ours}) / ({theirs}), 1 queue, QD 32"), rounds, unit, goal)?);
    }
    Ok(figures)
}

/// What an attached client that does nothing costs.
pub fn idle(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (mode, goal) in [("adaptive", Some(Goal::AtMost(1.0))), ("event", None)] {
        let mut rounds = Vec::new();
        for _ in 0..options.rounds.min(3) {
            let server = Server::start("memory", "passthrough", &vhost_tenant(mode))?;
            rounds.push(idle_percent(&server.socket("a"), server.pid(), 4, options.seconds)?);
        }
        figures.push(Figure::of(
            format!("vhost-user-blk, {mode}, 4 idle queues: CPU, of one core"),
            rounds,
            "%",
            goal,
        )?);
    }
    if version().is_some() {
        let daemon = StorageDaemon::start(&format!("{},node-name=drive", null_co("off")))?;
        let rounds = vec![idle_percent(&daemon.socket(), daemon.pid(), 2, options.seconds)?];
        figures.push(Figure::of("qemu-storage-daemon, 2 idle queues: CPU, of one core", rounds, "%", None)?);
    }
    Ok(figures)
}

fn idle_percent(socket: &Path, pid: u32, queues: usize, seconds: u64) -> Result<f64> {
    let mut disk = AnyDisk::attach(socket, Frontend::Auto)?;
    let attached = disk.open_queues(&vec![QueueShape { depth: 32, buffer_bytes: 4096, priority: None }; queues])?;
    // Pollers fall asleep after half a second without I/O.
    std::thread::sleep(Duration::from_secs(2));
    let before = cpu_seconds(pid)?;
    std::thread::sleep(Duration::from_secs(seconds));
    let percent = 100.0 * (cpu_seconds(pid)? - before) / seconds as f64;
    drop(attached);
    Ok(percent)
}
