//! ublk devices that hold nothing: ours beside ublksrv's, in one guest.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Bench, median};
use crate::guest::inside::{Inside, UBLK_MODULES};
use crate::guest::load::ENDLESS;
use crate::guest::qemu::{Accel, Guest};

const OURS: &str = "/dev/evenkeel/data";
/// By the number that it is told to take.
const PEERS: &str = "/dev/ublkb7";
const PEER: &str = "ublk.null";
const TURNS: u32 = 5;
const SECONDS: u32 = 5;
const LIMIT: Duration = Duration::from_secs(120);
const GOAL: f64 = 1.0;

/// Measures and prints a table.
pub fn measure(bench: &Bench) -> Result<serde_json::Value> {
    let mut guest = Inside::new("ublk-bench").modules(&UBLK_MODULES);
    if let Some(peer) = &bench.ublksrv {
        guest = guest.program(&format!("usr/bin/{PEER}"), peer.clone());
    }
    let mut guest = guest.boot(&bench.lab(Accel::probe(&bench.machine)))?.context("there are no programs")?;
    let measured = take_turns(&mut guest, bench.ublksrv.is_some());
    let (ours, theirs) = measured.with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))?;
    print(&ours, &theirs)?;
    Ok(json!({"evenkeeld_iops": ours, "ublksrv_iops": theirs}))
}

/// Both have one queue of 32 requests.
fn take_turns(guest: &mut Guest, has_peer: bool) -> Result<(Vec<f64>, Vec<f64>)> {
    guest.serve(
        "[device]\nbackend = \"null\"\nsize = \"1GiB\"\n[policy]\nname = \"passthrough\"\n\
         [[tenant]]\nname = \"data\"\nsize = \"512MiB\"\nfrontend = \"ublk\"\nqueues = 1\n",
    )?;
    guest.wait_for("our device", &format!("test -b {OURS}"))?;
    if has_peer {
        guest.start_job("ublksrv", &format!("{PEER} add -n 7 -q 1 -d 32"), ENDLESS)?;
        guest.wait_for("ublksrv's device", &format!("test -b {PEERS}"))?;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        ours.push(reads_per_second(guest, OURS)?);
        if has_peer {
            theirs.push(reads_per_second(guest, PEERS)?);
        }
    }
    Ok((ours, theirs))
}

/// 4 KiB at random, 32 in flight.
fn reads_per_second(guest: &mut Guest, device: &str) -> Result<f64> {
    let told = guest.run_within(
        &format!(
            "fio --name=r --filename={device} --ioengine=io_uring --direct=1 --rw=randread --bs=4k --iodepth=32 \
             --size=512m --runtime={SECONDS} --ramp_time=1 --time_based --output-format=terse"
        ),
        LIMIT,
    )?;
    let iops = told.split(';').nth(7).with_context(|| told.clone())?;
    iops.parse().context("fio's IOPS")
}

fn print(ours: &[f64], theirs: &[f64]) -> Result<()> {
    println!("4 KiB random reads at depth 32, one queue, reads per second: median (lowest … highest of {TURNS} turns)");
    let row = |name: &str, values: &[f64], decimals: usize| -> Result<()> {
        let middle = median(values)?;
        let (low, high) = values.iter().fold((f64::MAX, 0.0_f64), |(low, high), &it| (low.min(it), high.max(it)));
        println!("{name:<28}{middle:>10.decimals$} ({low:.decimals$} … {high:.decimals$})");
        Ok(())
    };
    row("evenkeeld, null", ours, 0)?;
    if theirs.is_empty() {
        println!("ublksrv was not run: --ublksrv PATH (its program {PEER}) adds it as a peer");
        return Ok(());
    }
    row("ublksrv, null", theirs, 0)?;
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    row("ours / ublksrv's", &ratios, 2)?;
    println!("held to at least {GOAL:.1} ×: {}", if median(&ratios)? >= GOAL { "met" } else { "MISSED" });
    Ok(())
}
