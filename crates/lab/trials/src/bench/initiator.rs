//! What driving an NVMe drive without the kernel costs: per command in the initiator alone, and end to end.

use anyhow::{Context, Result};

use super::pairs::{BEST_EFFORT, crate_bench};
use super::server::{CLIENT_CPU, Server, load, tenant};
use super::{Figure, Goal, Options};
use crate::spdk::nvme_perf;

const DEPTH: u32 = 32;
const COMMAND_GOAL_NS: f64 = 150.0;

/// 4 KiB reads at depth 32.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut figures = alone(options)?;
    figures.extend(end_to_end(options, notes)?);
    notes.push(
        "the initiator alone drives a controller in memory on the other CPU, which works while no clock runs; moving \
         commands allocates nothing (tests no_allocation of nvme-driver and backend-nvme)"
            .into(),
    );
    Ok(figures)
}

/// Nanoseconds of a command in the queue pair, and in the daemon's back end around it.
fn alone(options: &Options) -> Result<Vec<Figure>> {
    let rounds = crate_bench(options, "backend-nvme", "initiator")?;
    let mut figures = Vec::new();
    for layer in ["queue pair", "back end"] {
        let part = |key: &str| -> Result<Vec<f64>> {
            let find = |round: &serde_json::Value| {
                round["initiator"].as_array()?.iter().find(|row| row["layer"] == layer)?[key].as_f64()
            };
            rounds
                .iter()
                .map(|round| find(round).context("a row is missing in the initiator benchmark's JSON"))
                .collect()
        };
        let (submit, reap) = (part("submit_ns_per_command")?, part("reap_ns_per_command")?);
        let both = submit.iter().zip(&reap).map(|(submit, reap)| submit + reap).collect();
        let name = |what: &str| format!("the initiator alone, {layer}, QD {DEPTH}{what}");
        figures.push(Figure::of(name(""), both, "ns/cmd", Some(Goal::AtMost(COMMAND_GOAL_NS)))?);
        figures.push(Figure::of(name(": submitting"), submit, "ns/cmd", None)?);
        figures.push(Figure::of(name(": taking completions"), reap, "ns/cmd", None)?);
    }
    Ok(figures)
}

/// Against our own controller with a drive that costs nothing: what the slower of both does.
fn end_to_end(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let spdk = options.spdk.dir();
    let server = Server::start("null", "passthrough", &tenant("a", BEST_EFFORT))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        ours.push(load(&server.socket("a"), DEPTH, options.seconds)?.iops / 1e6);
        if let Some(spdk) = &spdk {
            let ours = (&*server.socket("a"), "evenkeel");
            theirs.push(nvme_perf(spdk, CLIENT_CPU, ours, DEPTH, options.seconds)?.iops / 1e6);
        }
    }
    let name = |client: &str| format!("the initiator and evenkeeld's null drive, QD {DEPTH}, {client}");
    let mut figures = vec![Figure::of(name("evenkeel load"), ours.clone(), "M IOPS", None)?];
    if spdk.is_some() {
        let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        figures.push(Figure::of(name("spdk_nvme_perf"), theirs, "M IOPS", None)?);
        figures.push(Figure::of(name("ours / SPDK's"), ratios, "×", Some(Goal::AtLeast(1.0)))?);
    } else {
        notes.push("SPDK's initiator was not run beside ours; --spdk DIR (a build tree) adds it".into());
    }
    Ok(figures)
}
