//! A disk from a qcow2 file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::{Deletion, Rest};

use crate::bench::files::MEMORY_FILES;
use crate::bench::server::{CLIENT_CPU, Server, evenkeel};
use crate::bench::sides::ScratchDrive;
use crate::bench::{Figure, Goal, Options};
use crate::guest;

const SIZE_BYTES: u64 = 10 << 30;
const DATA_BYTES: u64 = 1 << 30;
/// Data lies in runs of this length, with holes between.
const RUN_BYTES: u64 = 16 << 20;
const RATE_GOAL_GB: f64 = 1.0;
const MEMORY_GOAL_MIB: f64 = 64.0;
/// Between looks at the importer's memory, of which the kernel keeps the peak.
const PERIOD: Duration = Duration::from_millis(2);

/// By turns to a disk with a range of its own, and to a thin one.
pub fn from_qcow2(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let Some(tool) = guest::image_tool() else {
        notes.push("imports were not measured: `cargo xtask guest-prepare` fetches qemu-img".to_owned());
        return Ok(Vec::new());
    };
    let place = ScratchDrive::file(Path::new(MEMORY_FILES), "import")?;
    let image = make_image(tool, place.directory())?;
    let device = "backend = \"memory\"\nsize = \"24GiB\"\npool = \"12GiB\"";
    let server = Server::start_on(device, "passthrough", "")?;
    let kinds = [("a disk", &[][..]), ("a thin disk", &["--thin"][..])];
    let mut rounds: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..options.rounds {
        for ((_, arguments), [rates, memory]) in kinds.iter().zip(&mut rounds) {
            let (seconds, peak_bytes) = import(&server, &image, arguments)?;
            rates.push(DATA_BYTES as f64 / seconds / 1e9);
            memory.push(peak_bytes as f64 / f64::from(1 << 20));
        }
    }
    notes.push(
        "imports: a new memory drive's pages are the kernel's to find, so the first round is the slowest; 10 GiB, of \
         which 1 GiB is data"
            .to_owned(),
    );
    let mut figures = Vec::new();
    for ((kind, _), [rates, memory]) in kinds.iter().zip(rounds) {
        let name = |what: &str| format!("import of a qcow2 file on tmpfs to {kind} in memory, {what}");
        figures.push(Figure::of(name("data"), rates, "GB/s", Some(Goal::AtLeast(RATE_GOAL_GB)))?);
        figures.push(Figure::of(name("importer's memory"), memory, "MiB", Some(Goal::AtMost(MEMORY_GOAL_MIB)))?);
    }
    Ok(figures)
}

fn make_image(mut tool: Command, directory: &Path) -> Result<PathBuf> {
    let (raw, image) = (directory.join("raw.img"), directory.join("image.qcow2"));
    let file = File::create_new(&raw)?;
    file.set_len(SIZE_BYTES)?;
    let mut run = vec![0; RUN_BYTES as usize];
    let runs = DATA_BYTES / RUN_BYTES;
    for number in 0..runs {
        fastrand::Rng::with_seed(number).fill(&mut run);
        file.write_all_at(&run, number * (SIZE_BYTES / runs))?;
    }
    let made = tool.args(["convert", "-f", "raw", "-O", "qcow2"]).args([&raw, &image]).output()?;
    ensure!(made.status.success(), "qemu-img: {}", String::from_utf8_lossy(&made.stderr).trim());
    std::fs::remove_file(raw)?;
    Ok(image)
}

/// Seconds, and the most bytes of memory that the command had; the disk is gone again.
fn import(server: &Server, image: &Path, arguments: &[&str]) -> Result<(f64, u64)> {
    let begun = Instant::now();
    let mut importer = Command::new("taskset")
        .args(["-c", &CLIENT_CPU.to_string()])
        .arg(evenkeel())
        .args(["disk", "create", "imported", "--from"])
        .arg(image)
        .args(arguments)
        .env("EVENKEEL_SOCKET", server.socket("api.sock"))
        .stdout(Stdio::null())
        .spawn()
        .context("can't start the import")?;
    let status = format!("/proc/{}/status", importer.id());
    let mut peak_bytes = 0;
    let ended = loop {
        if let Some(ended) = importer.try_wait()? {
            break ended;
        }
        peak_bytes = peak_bytes.max(peak_of(&status));
        std::thread::sleep(PERIOD);
    };
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(ended.success(), "the import failed: {}", server.log());
    ensure!(peak_bytes > 0, "the importer's memory was not seen");
    let daemon = Rest::new(server.socket("api.sock"));
    let mut left = daemon.delete("imported", Deletion { force: true, ..Deletion::default() })?;
    while !left.is_empty() {
        std::thread::sleep(PERIOD);
        left = daemon.operations()?;
    }
    Ok((seconds, peak_bytes))
}

/// `VmHWM`; 0 once the process has no memory any more.
fn peak_of(status: &str) -> u64 {
    let text = std::fs::read_to_string(status).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}
