//! What it is worth to lend out exclusive HWQs where HWQs are scarce: 2 to 16 queues of a drive for 32 of tenants.
//!
//! The drive is QEMU's NVMe controller, driven by VFIO, in front of a store without content that completes 1,500
//! commands a second, each of which takes 2 ms at least. QEMU takes these times from the clock of the machine below, so
//! the guest has the ordinary emulation, and what else runs on that machine is in the figures: they come in rounds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::Bench;
use crate::guest::inside::{Inside, VFIO_MODULES};
use crate::guest::qemu::{Accel, Guest};

const ADDRESS: &str = "0000:00:04.0";
const HWQS: [u16; 4] = [2, 4, 8, 16];
const LENDINGS: [&str; 3] = ["backlog", "turns", "never"];
const ROUNDS: u32 = 3;
const TARGET_MS: u32 = 20;
const PROMISED: [&str; 1] = ["promised"];
/// Queues of each tenant, one job for each.
const QUEUES: u16 = 4;
const LIGHT: [&str; 3] = ["light-1", "light-2", "light-3"];
const HEAVY: [&str; 4] = ["heavy-1", "heavy-2", "heavy-3", "heavy-4"];
const RAMP_S: u64 = 2;
const SECONDS: u64 = 6;
const LIMIT: Duration = Duration::from_secs(180);

const STORE: &str = "driver=null-co,size=256M,read-zeroes=on,latency-ns=2000000,throttling.iops-total=1500,\
                     if=none,id=store";
/// The same in the words of a profile.
const PROFILE: &str = "\
name = \"store\"
arbitration = \"rr\"
burst = 1
window = 256
controller_ns = 0
pipeline_ns = 0
units = 3
placement = \"pooled\"
stripe_bytes = 4096
read_ns = 2000000
further_ns = 0
link_read_mb_s = 10000
link_write_mb_s = 10000
[writes]
kind = \"in-place\"
write_ns = 2000000
ack_ns = 0
";

/// What one round of a case showed.
#[derive(Debug, Serialize)]
struct Round {
    hwqs: u16,
    lending: &'static str,
    promised_mean_us: f64,
    light_mean_us: f64,
    total_iops: f64,
}

/// Measures and prints a table.
pub fn measure(bench: &Bench) -> Result<Value> {
    let lab = bench.lab(Accel::probe(&bench.machine));
    let host = Inside::new("scarce").iommu().modules(&VFIO_MODULES);
    let device = "nvme,id=ek0,serial=ek0,drive=store,addr=0x4";
    let mut guest = host.qemu(&["-drive", STORE, "-device", device]).boot(&lab)?.context("there is no daemon")?;
    let rounds = all(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))?;
    print(&rounds);
    Ok(serde_json::to_value(&rounds)?)
}

/// The cases by turns, so that what changes on the machine below changes for all of them.
fn all(guest: &mut Guest) -> Result<Vec<Round>> {
    guest.evenkeel(&format!("drive claim {ADDRESS}"))?;
    guest.write_file("/run/store.toml", PROFILE)?;
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        println!("round {round} of {ROUNDS} …");
        for hwqs in HWQS {
            for lending in LENDINGS {
                guest.serve(&configuration(hwqs, lending))?;
                rounds.push(once(guest, hwqs, lending)?);
                let told = guest.end_daemon("TERM")?;
                ensure!(told.code == 0, "the daemon: {told:?}");
            }
        }
    }
    Ok(rounds)
}

fn configuration(hwqs: u16, lending: &str) -> String {
    let tenant = |name: &str, terms: &str| {
        format!("[[tenant]]\nname = \"{name}\"\nsize = \"16MiB\"\nqueues = {QUEUES}\n{terms}")
    };
    let promised = tenant(
        PROMISED[0],
        &format!("class = \"guaranteed\"\nlatency_target = \"{TARGET_MS}ms\"\novercommit = true\n"),
    );
    let others: String = LIGHT.iter().chain(&HEAVY).map(|name| tenant(name, "")).collect();
    format!(
        "[device]\nbackend = \"nvme\"\naddress = \"{ADDRESS}\"\nprofile = \"store.toml\"\n\
         queues = {hwqs}\n[policy]\nname = \"lpns\"\nlending = \"{lending}\"\n\
         [pollers]\nlayout = \"shared\"\n{promised}{others}"
    )
}

/// One reads, others read and write with as little in flight, the rest with much.
fn once(guest: &mut Guest, hwqs: u16, lending: &'static str) -> Result<Round> {
    let groups = [("heavy", &HEAVY[..], 32, 70), ("light", &LIGHT[..], 1, 70), ("promised", &PROMISED[..], 1, 100)];
    for (job, tenants, depth, reads) in groups {
        let sockets: String = tenants.iter().map(|name| format!("/run/ek/{name} ")).collect();
        let load = format!(
            "evenkeel load {sockets} --rw randrw --rwmixread {reads} --bs 4k --numjobs {QUEUES} --iodepth {depth} \
             --ramp-time {RAMP_S}s --runtime {SECONDS}s --threads 1 --yield always --json"
        );
        guest.start_job(job, &load, LIMIT)?;
    }
    let mut seen = [(0.0, 0.0); 3];
    for ((job, ..), seen) in groups.iter().zip(&mut seen) {
        let told = guest.finish_job(job, LIMIT)?;
        ensure!(told.code == 0, "{job}: {}", told.text);
        *seen = figures(&told.text).with_context(|| told.text.clone())?;
    }
    let [(heavy_iops, _), (light_iops, light_mean_us), (promised_iops, promised_mean_us)] = seen;
    let total_iops = heavy_iops + light_iops + promised_iops;
    Ok(Round { hwqs, lending, promised_mean_us, light_mean_us, total_iops })
}

/// IOPS of all jobs, and their commands' mean latency in µs.
fn figures(text: &str) -> Result<(f64, f64)> {
    let report: Value = serde_json::from_str(text)?;
    let (mut iops, mut count, mut sum_ns) = (0.0, 0.0, 0.0);
    let jobs = report["jobs"].as_array().context("no jobs")?;
    for counts in jobs.iter().flat_map(|job| [&job["read"], &job["write"]]) {
        let figure = |value: &Value| value.as_f64().context("a figure is missing");
        let latencies = &counts["clat_ns"];
        let commands = figure(&latencies["N"])?;
        iops += figure(&counts["iops"])?;
        count += commands;
        sum_ns += commands * figure(&latencies["mean"])?;
    }
    ensure!(count > 0.0, "nothing completed");
    Ok((iops, sum_ns / count / 1000.0))
}

fn print(rounds: &[Round]) {
    println!("\nmedians (lowest … highest of {ROUNDS} rounds)");
    println!("{:>4} {:<10}{:>26}{:>26}{:>26}", "HWQs", "lending", "promised mean ms", "light mean ms", "total IOPS");
    for hwqs in HWQS {
        for lending in LENDINGS {
            let of_case = || rounds.iter().filter(|round| round.hwqs == hwqs && round.lending == lending);
            let columns = [
                spread(of_case().map(|round| round.promised_mean_us / 1000.0).collect(), 1),
                spread(of_case().map(|round| round.light_mean_us / 1000.0).collect(), 1),
                spread(of_case().map(|round| round.total_iops).collect(), 0),
            ];
            println!("{hwqs:>4} {lending:<10}{:>26}{:>26}{:>26}", columns[0], columns[1], columns[2]);
        }
    }
}

/// Median, lowest and highest.
fn spread(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let [low, middle, high] = [0, values.len() / 2, values.len().saturating_sub(1)].map(|at| values.get(at));
    let show = |value: Option<&f64>| value.map_or("–".to_owned(), |value| format!("{value:.digits$}"));
    format!("{} ({} … {})", show(middle), show(low), show(high))
}
