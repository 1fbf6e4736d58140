//! What attached but idle tenants cost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use nvme_driver::{Controller, VfioUserDevice};

use super::server::{Server, cpu_seconds, on_cpu_seconds, tenant};
use super::{Figure, Goal, Options};

const TENANTS: usize = 64;
const QUEUES: usize = 4;

/// Doorbells are looked at the more seldom the longer nothing happens; so long after the last I/O it is as seldom as
/// ever.
pub(super) const FALLS_ASLEEP: Duration = Duration::from_secs(21);
/// From one look at doorbells to the next by then.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// What one round brought.
#[derive(Default)]
struct Rounds {
    /// Of one core.
    cpu_percent: Vec<f64>,
    /// Of a thread that does nothing but sleep as long as the daemon does, at the same time.
    sleeper_percent: Vec<f64>,
    /// Of all of the daemon's threads, per second.
    wakeups: Vec<f64>,
    memory_mib: Vec<f64>,
}

/// CPU and memory of a daemon with attached idle tenants: best-effort ones, which share a poller, and guaranteed ones,
/// which have one each.
pub fn measure(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (who, class) in
        [("best-effort", "weight = 1"), ("guaranteed", "class = \"guaranteed\"\nlatency_target = \"100us\"")]
    {
        let mut rounds = Rounds::default();
        for _ in 0..options.rounds.min(3) {
            idle_tenants(class, options.seconds, &mut rounds)?;
        }
        let Rounds { cpu_percent, sleeper_percent, wakeups, memory_mib } = rounds;
        let name = |what| format!("{TENANTS} idle {who} tenants, {QUEUES} queues each: {what}");
        figures.push(Figure::of(name("CPU, of one core"), cpu_percent, "%", Some(Goal::AtMost(0.5)))?);
        let sleeper = format!("a program that does nothing but sleep {} ms at a time", LOOKS_EVERY.as_millis());
        figures.push(Figure::of(name(&sleeper), sleeper_percent, "%", None)?);
        figures.push(Figure::of(name("wake-ups"), wakeups, "/s", None)?);
        figures.push(Figure::of(name("memory, each"), memory_mib, "MiB", Some(Goal::AtMost(4.0)))?);
    }
    Ok(figures)
}

fn idle_tenants(class: &str, seconds: u64, rounds: &mut Rounds) -> Result<()> {
    let start = |count: usize| {
        let tenants: String = (0..count).map(|n| tenant(&format!("t{n}"), class)).collect();
        Server::start_on("backend = \"memory\"\nsize = \"1TiB\"", "lpns", &tenants)
    };
    let one = start(1)?;
    let base_bytes = resident_bytes(one.pid())?;
    drop(one);
    let server = start(TENANTS)?;
    let mut attached = Vec::new();
    for n in 0..TENANTS {
        let device = VfioUserDevice::connect(&server.socket(&format!("t{n}")))?;
        let mut controller = Controller::start(device)?;
        let queues = (0..QUEUES).map(|_| controller.create_queue_pair(128, None)).collect::<Result<Vec<_>, _>>()?;
        attached.push((controller, queues));
    }
    std::thread::sleep(FALLS_ASLEEP);
    let (cpu_before, wakeups_before) = (cpu_seconds(server.pid())?, wakeups(server.pid())?);
    let sleeper_seconds = beside_sleeper(|| std::thread::sleep(Duration::from_secs(seconds)))?;
    let percent = |cpu_seconds: f64| 100.0 * cpu_seconds / seconds as f64;
    rounds.cpu_percent.push(percent(cpu_seconds(server.pid())? - cpu_before));
    rounds.sleeper_percent.push(percent(sleeper_seconds));
    rounds.wakeups.push((wakeups(server.pid())? - wakeups_before) as f64 / seconds as f64);
    let grown = resident_bytes(server.pid())?.saturating_sub(base_bytes);
    rounds.memory_mib.push(grown as f64 / (TENANTS - 1) as f64 / f64::from(1 << 20));
    Ok(())
}

/// The time on a CPU of a thread that only sleeps while `measured` runs.
fn beside_sleeper(measured: impl FnOnce()) -> Result<f64> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(LOOKS_EVERY);
            }
            on_cpu_seconds("/proc/thread-self")
        });
        measured();
        is_over.store(true, Ordering::Relaxed);
        sleeper.join().map_err(|_| anyhow::anyhow!("the sleeping thread failed"))?
    })
}

/// How often the threads of a process went to sleep so far.
fn wakeups(pid: u32) -> Result<u64> {
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        total += count.context("unexpected status")?.trim().parse::<u64>()?;
    }
    Ok(total)
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
