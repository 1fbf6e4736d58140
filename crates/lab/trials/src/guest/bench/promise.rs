//! What a stock guest sees of its promise, without and with a policy.
//!
//! Two guests on the drive model. One reads 4 KiB at a time; the other keeps many large writes in
//! flight. Printed are fio's own figures inside the first guest and the daemon's for the same reads.
//! Under emulation the guest's own latency is hundreds of microseconds; what the drive adds to it is
//! what a policy can change.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::Bench;
use crate::guest::daemon::{self, Daemon};
use crate::guest::lab::{NVME, Tenant};
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Accel, Disk, Guest};

const SECONDS: u64 = 10;
const LIMIT: Duration = Duration::from_secs(180);
const TARGET_US: u32 = 500;
/// Of each guest, before anything is measured.
const WARM_UP_REQUESTS: u64 = 1000;

/// The guaranteed guest's reads.
const READS: &str = "fio --name=db --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --rw=randread --bs=4k \
                     --iodepth=1 --size=256m --time_based --runtime=10 --output-format=json";
/// Its neighbour's writes: 128 of 128 KiB.
const NOISE: &str = "fio --name=noise --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --rw=randwrite --bs=128k \
                     --iodepth=32 --numjobs=4 --group_reporting --size=256m --time_based --runtime=25 --minimal";

#[derive(Serialize)]
struct Row {
    scene: String,
    /// Mean and p99 in µs, by the guest's fio.
    guest: [f64; 2],
    daemon: serde_json::Value,
}

/// Measures and prints a table.
pub fn measure(bench: &Bench) -> Result<serde_json::Value> {
    let Bench { machine, binary, dir, .. } = bench;
    let accel = Accel::probe(machine);
    let mut rows = Vec::new();
    for (policy, noisy) in [("passthrough", false), ("passthrough", true), ("lpns", true)] {
        let scene = if noisy { format!("beside a noisy guest, {policy}") } else { "alone".to_owned() };
        println!("{scene} …");
        let sockets = NVME.map(|tenant| daemon::socket_of(dir, tenant));
        let daemon = Daemon::start_with(binary, dir, &configuration(dir, policy), &sockets)?;
        let mut guests = Vec::new();
        for tenant in NVME {
            let disk = Disk::VfioUser(daemon::socket_of(dir, tenant));
            guests.push(Guest::spawn(machine, accel, tenant.name(), Qemu::Newest, &[disk])?);
        }
        guests.iter_mut().try_for_each(Guest::wait_ready)?;
        let [db, batch] = &mut guests[..] else { anyhow::bail!("two guests were started") };
        if noisy {
            batch.start_job("noise", NOISE, LIMIT)?;
            batch.wait_for_requests("nvme0n1", WARM_UP_REQUESTS)?;
        }
        db.start_job("reads", READS, LIMIT)?;
        db.wait_for_requests("nvme0n1", WARM_UP_REQUESTS)?;
        let stats = stats(binary, dir)?;
        let output = db.finish_job("reads", LIMIT)?;
        ensure!(output.code == 0, "fio: {}", output.text);
        rows.push(Row { scene, guest: guest_figures(&output.text)?, daemon: stats });
        drop(guests);
        daemon.stop()?;
    }
    print(&rows);
    Ok(serde_json::to_value(&rows)?)
}

/// The daemon's figures over a span in the middle of the reads.
fn stats(binary: &Path, dir: &Path) -> Result<serde_json::Value> {
    let span = (SECONDS - 4).to_string();
    let output = Command::new(binary)
        .args(["stats", "--once", "--json", "--interval", &span, "--runtime-dir"])
        .arg(dir.join("run"))
        .output()?;
    ensure!(output.status.success(), "evenkeel stats: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Mean and 99th percentile of completion latency as the guest's fio has them, in microseconds.
fn guest_figures(text: &str) -> Result<[f64; 2]> {
    let start = text.find('{').context("fio printed no JSON")?;
    let report: serde_json::Value = serde_json::from_str(&text[start..]).context("fio's JSON")?;
    let clat = &report["jobs"][0]["read"]["clat_ns"];
    let us =
        |value: &serde_json::Value| value.as_f64().map(|ns| ns / 1000.0).context("a figure is missing in fio's JSON");
    Ok([us(&clat["mean"])?, us(&clat["percentile"]["99.000000"])?])
}

fn print(rows: &[Row]) {
    println!("\nlatency of the guaranteed guest's reads in µs, promised: {TARGET_US} at the 99th percentile");
    println!(
        "{:<36}{:>12}{:>12}{:>12}{:>12}{:>14}",
        "", "fio mean", "fio p99", "served mean", "served p99", "noise MB/s"
    );
    for row in rows {
        let tenant = |name: &str| row.daemon["tenants"].as_array()?.iter().find(|tenant| tenant["name"] == name);
        let figure = |name, key: &str| tenant(name).and_then(|tenant| tenant[key].as_f64()).unwrap_or(f64::NAN);
        let db = Tenant::Guaranteed.name();
        println!(
            "{:<36}{:>12.0}{:>12.0}{:>12.1}{:>12.1}{:>14.0}",
            row.scene,
            row.guest[0],
            row.guest[1],
            figure(db, "mean_us"),
            figure(db, "p99_us"),
            figure(Tenant::BestEffort.name(), "bw_bytes") / 1e6,
        );
    }
}

fn configuration(dir: &Path, policy: &str) -> String {
    format!(
        "runtime_dir = \"{dir}/run\"\n[device]\nbackend = \"model\"\nprofile = \"p5800x\"\n\
         size = \"1GiB\"\n\
         [policy]\nname = \"{policy}\"\n\
         [[tenant]]\nname = \"{db}\"\nsize = \"512MiB\"\nclass = \"guaranteed\"\nlatency_target = \"{TARGET_US}us\"\n\
         overcommit = true\nthreads = \"shared\"\n\
         [[tenant]]\nname = \"{batch}\"\nsize = \"512MiB\"\n",
        dir = dir.display(),
        db = Tenant::Guaranteed.name(),
        batch = Tenant::BestEffort.name(),
    )
}
