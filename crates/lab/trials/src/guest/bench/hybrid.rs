//! Each of LPNS's hybrid deployment in turn is promised a latency, without and with a policy that keeps it.
//!
//! The host is emulated with a clock that counts instructions, so that neither the machine below nor the order in which
//! the emulator takes its CPUs is measured. Its 250 million instructions a second for all four CPUs together are slow:
//! the drive is the model of an Optane P5800X slowed down 500 times, so that the drive is what limits.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::Bench;
use crate::guest::hybrid::{self, DISK_MIB, KINDS, Kind};
use crate::guest::qemu::{Accel, Guest};

const POLICIES: [&str; 2] = ["passthrough", "lpns"];
const TARGET_MS: u32 = 20;
/// Commands that each neighbour keeps in flight.
const NOISE_DEPTH: u32 = 32;
const RAMP_S: u64 = 4;
const SECONDS: u64 = 16;
/// A guest's second takes several of ours.
const LIMIT: Duration = Duration::from_secs(900);

/// A P5800X that is 500 times slower: 1,600 commands a second.
const PROFILE: &str = "\
name = \"slow\"
arbitration = \"rr\"
burst = 1
window = 256
controller_ns = 0
pipeline_ns = 20000
units = 6
placement = \"hashed\"
stripe_bytes = 16384
read_ns = 3700000
further_ns = 1000
link_read_mb_s = 7200
link_write_mb_s = 7200
[writes]
kind = \"in-place\"
write_ns = 3700000
ack_ns = 650000
";

#[derive(Debug, Serialize)]
struct Row {
    promised: &'static str,
    policy: &'static str,
    tenant: &'static str,
    iops: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    /// The daemon's own p99, from doorbell to completion.
    served_p99_us: f64,
}

/// Measures and prints a table.
pub fn measure(bench: &Bench) -> Result<Value> {
    let lab = bench.lab(Accel::Counted);
    let mut guest = hybrid::host().boot(&lab)?.context("there is no daemon")?;
    let rows = all(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))?;
    print(&rows);
    Ok(serde_json::to_value(&rows)?)
}

fn all(guest: &mut Guest) -> Result<Vec<Row>> {
    guest.write_file("/run/slow.toml", PROFILE)?;
    let mut rows = Vec::new();
    for promised in KINDS {
        for policy in POLICIES {
            println!("{} is promised {TARGET_MS} ms, {policy} …", promised.name());
            guest.serve(&configuration(policy, promised))?;
            hybrid::set_up(guest)?;
            rows.extend(beside_each_other(guest, policy, promised)?);
            hybrid::tear_down(guest)?;
            let told = guest.end_daemon("TERM")?;
            ensure!(told.code == 0, "the daemon: {told:?}");
        }
    }
    Ok(rows)
}

fn configuration(policy: &str, promised: Kind) -> String {
    let size_mib = DISK_MIB * 4;
    let terms = |kind| match kind == promised {
        true => format!(
            "class = \"guaranteed\"\nlatency_target = \"{TARGET_MS}ms\"\novercommit = true\nthreads = \"shared\"\n"
        ),
        false => String::new(),
    };
    format!(
        "[device]\nbackend = \"model\"\nprofile = \"slow.toml\"\nsize = \"{size_mib}MiB\"\n\
         [policy]\nname = \"{policy}\"\n{}",
        hybrid::tenants(terms)
    )
}

/// One reads, the others write as much as they can.
fn beside_each_other(guest: &mut Guest, policy: &'static str, promised: Kind) -> Result<Vec<Row>> {
    let fio = format!("--time_based --ramp_time={RAMP_S}");
    let ours = format!("--ramp-time {RAMP_S}s --yield always");
    for kind in KINDS {
        let (rw, depth) = if kind == promised { ("randread", 1) } else { ("randwrite", NOISE_DEPTH) };
        let words = format!("--rw={rw} --bs=4k --iodepth={depth} --runtime={SECONDS}s");
        guest.start_job(kind.name(), &kind.load(&words, &fio, &ours), LIMIT)?;
    }
    let span_s = SECONDS - 2;
    let stats = format!("sleep {RAMP_S}; evenkeel stats --once --json --interval {span_s} --runtime-dir /run/ek");
    let stats: Value = serde_json::from_str(&guest.run_within(&stats, LIMIT)?)?;
    KINDS
        .into_iter()
        .map(|kind| {
            let told = guest.finish_job(kind.name(), LIMIT)?;
            ensure!(told.code == 0, "{kind:?}: {}", told.text);
            let direction = if kind == promised { "read" } else { "write" };
            row([promised, kind], policy, direction, &told.text, &stats).with_context(|| told.text.clone())
        })
        .collect()
}

/// A tenant's figures from what its load printed.
fn row([promised, kind]: [Kind; 2], policy: &'static str, direction: &str, text: &str, stats: &Value) -> Result<Row> {
    let start = text.find('{').context("no JSON")?;
    let report: Value = serde_json::from_str(&text[start..])?;
    let counts = &report["jobs"][0][direction];
    let us = |value: &Value| value.as_f64().map(|ns| ns / 1000.0).context("a figure is missing");
    let tenants = stats["tenants"].as_array().context("no tenants")?;
    let served = tenants.iter().find(|tenant| tenant["name"] == kind.name()).context("a tenant is missing")?;
    Ok(Row {
        promised: promised.name(),
        policy,
        tenant: kind.name(),
        iops: counts["iops"].as_f64().context("no IOPS")?,
        mean_us: us(&counts["clat_ns"]["mean"])?,
        p50_us: us(&counts["clat_ns"]["percentile"]["50.000000"])?,
        p99_us: us(&counts["clat_ns"]["percentile"]["99.000000"])?,
        served_p99_us: served["p99_us"].as_f64().context("no served p99")?,
    })
}

fn print(rows: &[Row]) {
    println!(
        "\nlatencies in ms as each tenant sees them; the promise is {TARGET_MS} at the 99th percentile of what is \
         served"
    );
    print!("{:<12}{:<12}", "promised", "tenant");
    POLICIES.iter().for_each(|policy| print!("{policy:>14}: mean{:>8}{:>8}{:>8}{:>8}", "p50", "p99", "served", "IOPS"));
    println!();
    let (before, after): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.policy == POLICIES[0]);
    for pair in before.iter().zip(&after) {
        print!("{:<12}{:<12}", pair.0.promised, pair.0.tenant);
        for row in [pair.0, pair.1] {
            let ms = [row.mean_us, row.p50_us, row.p99_us, row.served_p99_us].map(|us| us / 1000.0);
            print!("{:>20.1}{:>8.1}{:>8.1}{:>8.1}{:>8.0}", ms[0], ms[1], ms[2], ms[3], row.iops);
        }
        println!();
    }
}
