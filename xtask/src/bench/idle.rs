//! What attached but idle tenants cost.

use std::time::Duration;

use anyhow::{Context, Result};
use nvme_driver::{Controller, VfioUserDevice};

use super::server::{Server, cpu_seconds, tenant};
use super::{Figure, Goal, Options};

const TENANTS: usize = 16;

/// Pollers fall asleep half a second after the last I/O, and the scan of doorbells slows down a second later and four
/// more seconds later.
pub(super) const FALLS_ASLEEP: Duration = Duration::from_secs(6);

/// CPU and memory of a daemon with 16 attached idle tenants: best-effort ones, which share a poller, and
/// guaranteed ones, which have one each.
pub fn measure(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (who, class) in
        [("best-effort", "weight = 1"), ("guaranteed", "class = \"guaranteed\"\nlatency_target = \"100us\"")]
    {
        let (mut cpu, mut memory) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds.min(3) {
            let (percent, mib) = idle_tenants(class, options.seconds)?;
            cpu.push(percent);
            memory.push(mib);
        }
        let name = |what| format!("16 idle {who} tenants, 4 queues each: {what}");
        figures.push(Figure::of(name("CPU, of one core"), cpu, "%", Some(Goal::AtMost(1.0)))?);
        figures.push(Figure::of(name("memory, each"), memory, "MiB", Some(Goal::AtMost(4.0)))?);
    }
    Ok(figures)
}

/// CPU of one core in percent, and memory of each tenant in MiB.
fn idle_tenants(class: &str, seconds: u64) -> Result<(f64, f64)> {
    let start = |count: usize| {
        let tenants: String = (0..count).map(|n| tenant(&format!("t{n}"), class)).collect();
        Server::start_with("memory", "lpns", "per-guaranteed", &tenants)
    };
    let one = start(1)?;
    let base_bytes = resident_bytes(one.pid())?;
    drop(one);
    let server = start(TENANTS)?;
    let mut attached = Vec::new();
    for n in 0..TENANTS {
        let device = VfioUserDevice::connect(&server.socket(&format!("t{n}")))?;
        let mut controller = Controller::start(device)?;
        let queues = (0..4).map(|_| controller.create_queue_pair(128, None)).collect::<Result<Vec<_>, _>>()?;
        attached.push((controller, queues));
    }
    std::thread::sleep(FALLS_ASLEEP);
    let before = cpu_seconds(server.pid())?;
    std::thread::sleep(Duration::from_secs(seconds));
    let percent = 100.0 * (cpu_seconds(server.pid())? - before) / seconds as f64;
    let grown = resident_bytes(server.pid())?.saturating_sub(base_bytes);
    Ok((percent, grown as f64 / (TENANTS - 1) as f64 / f64::from(1 << 20)))
}

/// Memory that only this process has.
pub(super) fn resident_bytes(pid: u32) -> Result<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = |key| {
        let line = smaps.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).context("unexpected smaps_rollup")
    };
    Ok((kib("Private_Dirty:")? + kib("Private_Clean:")?) * 1024)
}
