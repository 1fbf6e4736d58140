//! Throughput and latency of the whole path, and what a policy costs.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::server::{CLIENT_CPU, Server, fill, load, tenant};
use super::{Figure, Goal, Options};
use crate::spdk::nvme_perf;

pub(super) const BEST_EFFORT: &str = "weight = 1";
const GUARANTEED: &str = "class = \"guaranteed\"\nlatency_target = \"100us\"";

/// One poller core, one client core, 4 KiB random read.
pub fn throughput(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let spdk = options.spdk.dir();
    let mut figures = Vec::new();
    for backend in ["null", "memory"] {
        let server = Server::start(backend, "passthrough", &tenant("a", BEST_EFFORT))?;
        fill(&server.socket("a"))?;
        for depth in [1, 32, 128] {
            let (mut ours, mut mean_us, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..options.rounds {
                let run = load(&server.socket("a"), depth, options.seconds)?;
                ours.push(run.iops / 1e6);
                mean_us.push(run.mean_us);
                if let Some(spdk) = &spdk {
                    let ours = (&*server.socket("a"), "evenkeel");
                    theirs.push(nvme_perf(spdk, CLIENT_CPU, ours, depth, options.seconds)?.iops / 1e6);
                }
            }
            let goal = (depth == 128).then_some(Goal::AtLeast(1.5));
            let name = |client| format!("{backend}, 4 KiB randread, QD {depth}, {client}");
            figures.push(Figure::of(name("evenkeel load"), ours, "M IOPS", goal)?);
            if depth == 1 {
                figures.push(Figure::of(name("mean latency"), mean_us, "µs", Some(Goal::AtMost(1.7)))?);
            }
            if !theirs.is_empty() {
                figures.push(Figure::of(name("spdk_nvme_perf"), theirs, "M IOPS", None)?);
            }
        }
    }
    if spdk.is_none() {
        notes.push("SPDK's client was not run; --spdk DIR (a build tree) adds it as a peer".into());
    }
    Ok(figures)
}

/// What `lpns` costs beside `passthrough`: a lone best-effort tenant, and a lone guaranteed one. `null` shows the
/// worst case, a drive that costs nothing; `memory` one that costs a copy.
pub fn policies(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (who, class) in [("best-effort", BEST_EFFORT), ("guaranteed", GUARANTEED)] {
        for (backend, depth) in [("null", 1), ("null", 128), ("memory", 128)] {
            let mut ratios = Vec::new();
            for _ in 0..options.rounds {
                let mut iops = Vec::new();
                for policy in ["passthrough", "lpns"] {
                    let server = Server::start(backend, policy, &tenant("a", class))?;
                    if backend == "memory" {
                        fill(&server.socket("a"))?;
                    }
                    iops.push(load(&server.socket("a"), depth, options.seconds)?.iops);
                }
                ratios.push(100.0 * iops[1] / iops[0]);
            }
            let name = format!("lpns / passthrough, {who} tenant, {backend}, QD {depth}");
            figures.push(Figure::of(name, ratios, "%", Some(Goal::AtLeast(97.0)))?);
        }
    }
    Ok(figures)
}

/// What a crate's own benchmark printed, round by round.
pub(super) fn crate_bench(options: &Options, package: &str, bench: &str) -> Result<Vec<serde_json::Value>> {
    let round = |_| {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["bench", "--quiet", "--package", package, "--bench", bench, "--", "--json"])
            .output()
            .with_context(|| format!("can't run the benchmark {bench}"))?;
        if !output.status.success() {
            bail!("the benchmark {bench} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("the JSON of the benchmark {bench}"))
    };
    (0..options.rounds).map(round).collect()
}

/// Nanoseconds that it adds to a command that its disk may lie in ranges, or be thin.
pub fn extents(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let rounds = crate_bench(options, "io-model", "placed")?;
    let figure = |(disk, name): (&str, &str)| {
        let find = |round: &serde_json::Value| {
            let row = round["placed"].as_array()?.iter().find(|row| row["disk"] == disk)?;
            row["added_ns_per_command"].as_f64()
        };
        let found = rounds.iter().map(|round| find(round).context("a row is missing in the benchmark's JSON"));
        let name = format!("a command to a disk {name}, beside one without extents");
        Figure::of(name, found.collect::<Result<_>>()?, "ns/cmd", Some(Goal::AtMost(5.0)))
    };
    let disks = [
        ("1 range", "in 1 range"),
        ("4 ranges", "in 4 ranges"),
        ("16 ranges", "in 16 ranges"),
        ("thin", "of 1 TiB that is thin"),
    ];
    disks.into_iter().map(figure).collect()
}

/// Nanoseconds that a policy takes for one command, from arrival to completion.
pub fn policy_cost(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let rounds = crate_bench(options, "policy", "policy_cost")?;
    let mut figures = Vec::new();
    for policy in [
        "passthrough",
        "lpns, nobody guaranteed",
        "lpns, one guaranteed",
        "lpns as published",
        "evenkeel, nobody guaranteed",
        "evenkeel, one guaranteed",
    ] {
        let at = |tenants: u64| -> Result<Vec<f64>> {
            let find = |round: &serde_json::Value| {
                let row = round["policy_cost"]
                    .as_array()?
                    .iter()
                    .find(|row| row["policy"] == policy && row["tenants"] == tenants)?;
                row["ns_per_command"].as_f64()
            };
            rounds.iter().map(|round| find(round).context("a row is missing in the policy benchmark's JSON")).collect()
        };
        let (small, large) = (at(16)?, at(1024)?);
        let ratios = large.iter().zip(&small).map(|(large, small)| large / small).collect();
        figures.push(Figure::of(
            format!("a command through {policy}, 16 tenants"),
            small,
            "ns/cmd",
            Some(Goal::AtMost(30.0)),
        )?);
        figures.push(Figure::of(
            format!("a command through {policy}, 1024 tenants / 16"),
            ratios,
            "×",
            Some(Goal::AtMost(1.3)),
        )?);
    }
    Ok(figures)
}
