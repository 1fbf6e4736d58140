//! Disks that are qcow2 files with data in all clusters that are used: beside `qemu-storage-daemon`, and beside ranges
//! of files.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::bench::files::MEMORY_FILES;
use crate::bench::sides::{ScratchDrive, Side};
use crate::bench::storage_daemon::{HOW_TO_GET, version};
use crate::bench::{Figure, Goal, Options};
use crate::guest;

/// The modes of our daemon. The goals are for the first one.
const MODES: [&str; 2] = ["polling", "event"];
/// Beside the peer: a depth, and what our throughput is to be of the peer's.
const GOALS: [(u32, f64); 2] = [(1, 2.0), (32, 1.2)];
/// The peer with each way to its file that it has; we are compared with the fastest of the round.
const PEERS: [(&str, &str); 4] = [
    ("io_uring, direct", "cache.direct=on,file.aio=io_uring,file.cache.direct=on"),
    ("native, direct", "cache.direct=on,file.aio=native,file.cache.direct=on"),
    ("io_uring", "file.aio=io_uring"),
    ("threads", "file.aio=threads"),
];
/// Beside a range of a file.
const DEPTHS: [u32; 4] = [1, 8, 32, 128];
const PATTERNS: [&str; 3] = ["randread", "randwrite", "randrw"];

/// Whether there is nothing to make images with; says so.
fn is_without_tool(notes: &mut Vec<String>) -> bool {
    let is_missing = guest::image_tool().is_none();
    if is_missing {
        notes.push("disks of qcow2 were not measured: `cargo xtask guest-prepare` fetches qemu-img".to_owned());
    }
    is_missing
}

/// Random reads of our daemon and of the peer, each with an image of its own on tmpfs.
pub fn beside_storage_daemon(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    if is_without_tool(notes) {
        return Ok(Vec::new());
    }
    let place = Path::new(MEMORY_FILES);
    let mut sides = Vec::new();
    for mode in MODES {
        sides.push(Side::ours_with_qcow2("qcow2 on tmpfs", mode, ScratchDrive::file(place, mode)?)?);
    }
    match version() {
        Some(version) => {
            notes.push(format!("qcow2: the peer is {version}, with an I/O thread and one queue in use"));
            for (number, (title, settings)) in PEERS.into_iter().enumerate() {
                let title = format!("qemu-storage-daemon, qcow2 on tmpfs, {title}");
                let drive = ScratchDrive::file(place, &format!("theirs{number}"))?;
                sides.push(Side::theirs_with_qcow2(&title, settings, drive)?);
            }
        }
        None => notes.push(format!("qemu-storage-daemon was not measured: {HOW_TO_GET}")),
    }
    let mut figures = Vec::new();
    for (depth, goal) in GOALS {
        let rounds = by_turns(&sides, "randread", depth, options)?;
        figures.extend(figures_of(&sides, "randread", depth, &rounds)?);
        let (ours, theirs) = rounds.split_at(MODES.len());
        if theirs.is_empty() {
            continue;
        }
        for (number, (mode, [ours, _])) in MODES.iter().zip(ours).enumerate() {
            let fastest = |round: usize| theirs.iter().map(|[theirs, _]| theirs[round]).fold(0.0, f64::max);
            let ratios = ours.iter().enumerate().map(|(round, ours)| ours / fastest(round)).collect();
            let name = format!("qcow2 on tmpfs, randread, QD {depth}: {mode} / qemu-storage-daemon as it is fastest");
            figures.push(Figure::of(name, ratios, "×", (number == 0).then_some(Goal::AtLeast(goal)))?);
        }
    }
    Ok(figures)
}

/// A disk that is a range of a file, and one that is an image, both on tmpfs.
pub fn beside_range_in_memory(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    beside_range("on tmpfs", MEMORY_FILES.into(), options, notes)
}

/// As [`beside_range_in_memory`], on the file system of the build.
pub fn beside_range_on_disk(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    beside_range("on disk", std::path::absolute("target")?, options, notes)
}

fn beside_range(title: &str, place: PathBuf, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    if is_without_tool(notes) {
        return Ok(Vec::new());
    }
    let mut sides = Vec::new();
    for mode in MODES {
        let [range, image] = ["range", "image"].map(|kind| ScratchDrive::file(&place, &format!("{kind}-{mode}")));
        sides.push(Side::ours_on(&format!("range of a file {title}"), mode, range?)?);
        sides.push(Side::ours_with_qcow2(&format!("qcow2 {title}"), mode, image?)?);
    }
    let mut figures = Vec::new();
    for rw in PATTERNS {
        for depth in DEPTHS {
            let rounds = by_turns(&sides, rw, depth, options)?;
            figures.extend(figures_of(&sides, rw, depth, &rounds)?);
            for (mode, pair) in MODES.iter().zip(rounds.chunks(2)) {
                let ratios = pair[1][0].iter().zip(&pair[0][0]).map(|(image, range)| image / range).collect();
                let name = format!("{title}, {rw}, QD {depth}, {mode}: qcow2 / range of a file");
                figures.push(Figure::of(name, ratios, "×", None)?);
            }
        }
    }
    Ok(figures)
}

/// Of each side: K IOPS, and µs of the server's CPU time for a command, round by round.
type Rounds = Vec<[Vec<f64>; 2]>;

/// Commands of 4 KiB on one queue.
fn by_turns(sides: &[Side], rw: &str, depth: u32, options: &Options) -> Result<Rounds> {
    let mut rounds = vec![<[Vec<f64>; 2]>::default(); sides.len()];
    for round in 0..options.rounds as usize {
        for turn in 0..sides.len() {
            // What the machine's other work takes grows and shrinks: none is always the first.
            let number = (round + turn) % sides.len();
            let (run, cpu_percent) = sides[number].measure_as(rw, (1, depth), options.seconds)?;
            rounds[number][0].push(run.iops / 1e3);
            rounds[number][1].push(cpu_percent / 100.0 / run.iops * 1e6);
        }
    }
    Ok(rounds)
}

fn figures_of(sides: &[Side], rw: &str, depth: u32, rounds: &Rounds) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (side, [kilo_iops, cpu_us]) in sides.iter().zip(rounds) {
        let name = format!("{}, {rw}, QD {depth}", side.title);
        figures.push(Figure::of(name.clone(), kilo_iops.clone(), "K IOPS", None)?);
        figures.push(Figure::of(name + ", server's CPU", cpu_us.clone(), "µs/cmd", None)?);
    }
    Ok(figures)
}
