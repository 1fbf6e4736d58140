//! Files and block devices through io_uring: our daemon beside `qemu-storage-daemon` on the same kind of drive.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::sides::{ScratchDrive, Shape, Side};
use super::storage_daemon::{HOW_TO_GET, version};
use super::{Figure, Goal, Options};

/// One queue, with what our throughput is to be beside the peer's.
const SHAPES: [(Shape, f64); 2] = [((1, 1), 2.0), ((1, 32), 1.0)];

/// Where files are memory.
pub const MEMORY_FILES: &str = "/dev/shm";

type MakeDrive = fn(&Path, &str) -> Result<ScratchDrive>;

/// What is measured: a title, how a drive is made, and where.
fn places() -> Result<[(&'static str, MakeDrive, PathBuf); 3]> {
    Ok([
        ("file on tmpfs", ScratchDrive::file, MEMORY_FILES.into()),
        ("file on disk", ScratchDrive::file, std::path::absolute("target")?),
        ("loop device on tmpfs", ScratchDrive::loop_over, MEMORY_FILES.into()),
    ])
}

/// Each place by itself; in it the sides by turns, round by round.
pub fn throughput(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    match version() {
        Some(version) => notes.push(format!("files: the peer is {version}, io_uring and O_DIRECT on both sides")),
        None => notes.push(format!("qemu-storage-daemon was not measured: {HOW_TO_GET}")),
    }
    notes.push(format!("the file on disk is on {}", file_system("target")));
    let mut figures = Vec::new();
    for (title, make, directory) in places()? {
        let sides = match sides(title, make, &directory) {
            Ok(sides) => sides,
            Err(error) => {
                notes.push(format!("{title} was not measured: {error:#}"));
                continue;
            }
        };
        for (shape, goal) in SHAPES {
            figures.extend(measure(&sides, shape, goal, options)?);
        }
    }
    Ok(figures)
}

/// Ours in two modes, and the peer last where there is one.
fn sides(title: &str, make: MakeDrive, directory: &Path) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    for mode in ["polling", "event"] {
        sides.push(Side::ours_on(title, mode, make(directory, mode)?)?);
    }
    if version().is_some() {
        sides.push(Side::theirs_on(&format!("qemu-storage-daemon, {title}"), make(directory, "theirs")?)?);
    }
    Ok(sides)
}

fn measure(sides: &[Side], shape: Shape, goal: f64, options: &Options) -> Result<Vec<Figure>> {
    let mut rounds: Vec<[Vec<f64>; 3]> = sides.iter().map(|_| Default::default()).collect();
    for _ in 0..options.rounds {
        for (side, [kilo_iops, p99_us, cpu_percent]) in sides.iter().zip(&mut rounds) {
            let (run, cpu) = side.measure(shape, options.seconds)?;
            kilo_iops.push(run.iops / 1e3);
            p99_us.push(run.p99_us);
            cpu_percent.push(cpu);
        }
    }
    let depth = shape.1;
    let kilo_iops: Vec<Vec<f64>> = rounds.iter().map(|[kilo_iops, ..]| kilo_iops.clone()).collect();
    let mut figures = Vec::new();
    for (side, [kilo_iops, p99_us, cpu_percent]) in sides.iter().zip(rounds) {
        let name = |what: &str| format!("{}, QD {depth}{what}", side.title);
        figures.push(Figure::of(name(""), kilo_iops, "K IOPS", None)?);
        figures.push(Figure::of(name(", 99th percentile"), p99_us, "µs", None)?);
        figures.push(Figure::of(name(", server's CPU"), cpu_percent, "%", None)?);
    }
    let (Some(theirs), Some(their_kilo_iops)) = (sides.last(), kilo_iops.last()) else { return Ok(figures) };
    if version().is_none() {
        return Ok(figures);
    }
    for (number, (side, kilo_iops)) in sides.iter().zip(&kilo_iops).take(sides.len() - 1).enumerate() {
        let ratios = kilo_iops.iter().zip(their_kilo_iops).map(|(ours, theirs)| ours / theirs).collect();
        let name = format!("({}) / ({}), QD {depth}", side.title, theirs.title);
        figures.push(Figure::of(name, ratios, "×", (number == 0).then_some(Goal::AtLeast(goal)))?);
    }
    Ok(figures)
}

/// The type of the file system of a path, as `stat` calls it.
fn file_system(path: &str) -> String {
    let output = std::process::Command::new("stat").args(["--file-system", "--format=%T", path]).output();
    output.map_or_else(|_| "?".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
