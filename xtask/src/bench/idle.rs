//! What attached but idle tenants cost.

use std::time::Duration;

use anyhow::{Context, Result};
use nvme_driver::{Controller, VfioUserDevice};

use super::server::{Server, tenant};
use super::{Figure, Goal, Options};

const TENANTS: usize = 16;

/// CPU and memory of a daemon with 16 attached idle tenants, under both poller layouts' worst case: each
/// guaranteed tenant would have a poller of its own, here all share one.
pub fn measure(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let (mut cpu, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.min(3) {
        let one = Server::start("memory", "lpns", &tenant("t0", "weight = 1"))?;
        let base_bytes = resident_bytes(one.pid())?;
        drop(one);
        let tenants: String = (0..TENANTS).map(|n| tenant(&format!("t{n}"), "weight = 1")).collect();
        let server = Server::start("memory", "lpns", &tenants)?;
        let mut attached = Vec::new();
        for n in 0..TENANTS {
            let device = VfioUserDevice::connect(&server.socket(&format!("t{n}")))?;
            let mut controller = Controller::start(device)?;
            let queues = (0..4).map(|_| controller.create_queue_pair(128, None)).collect::<Result<Vec<_>, _>>()?;
            attached.push((controller, queues));
        }
        // Pollers fall asleep after half a second without I/O.
        std::thread::sleep(Duration::from_secs(1));
        let before = cpu_seconds(server.pid())?;
        std::thread::sleep(Duration::from_secs(options.seconds));
        cpu.push(100.0 * (cpu_seconds(server.pid())? - before) / options.seconds as f64);
        let grown = resident_bytes(server.pid())?.saturating_sub(base_bytes);
        memory.push(grown as f64 / (TENANTS - 1) as f64 / f64::from(1 << 20));
    }
    Ok(vec![
        Figure::of("16 idle tenants, 4 queues each: CPU of one core", cpu, "%", Some(Goal::AtMost(1.0)))?,
        Figure::of("an idle tenant's memory", memory, "MiB", Some(Goal::AtMost(4.0)))?,
    ])
}

/// User and system time of a process and all its threads.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may hold spaces; fields count from behind it (proc(5): 14 and 15).
    let (_, rest) = stat.rsplit_once(')').context("unexpected /proc/PID/stat")?;
    let ticks: u64 = rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / 100.0)
}

/// Memory that only this process has.
fn resident_bytes(pid: u32) -> Result<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = |key| {
        let line = smaps.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).context("unexpected smaps_rollup")
    };
    Ok((kib("Private_Dirty:")? + kib("Private_Clean:")?) * 1024)
}
