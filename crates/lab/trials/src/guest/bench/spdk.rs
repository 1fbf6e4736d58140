//! What a second of the serving process's CPU brings: ours beside SPDK's target, each with two guests.
//!
//! All guests stay up, and the sides take turns: SPDK's target is stopped while ours is measured, and ours sleeps while
//! SPDK's is. Speeds of emulated guests mean nothing; what a server spends on their commands does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Bench, median};
use crate::bench::server::cpu_seconds;
use crate::guest::daemon::{self, Daemon};
use crate::guest::lab::{NVME, Tenant, VIRTIO};
use crate::guest::load::ENDLESS;
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Accel, Disk, Guest};
use crate::spdk::{self, Drive, Pages, Protocol, Shape, Target};

const TURNS: u32 = 3;
/// Of each turn, with all guests under load.
const SPAN: Duration = Duration::from_secs(4);
/// Of each guest, before a span.
const WARM_UP_REQUESTS: u64 = 200;
const LIMIT: Duration = Duration::from_secs(60);
/// Commands that each guest keeps in flight.
const DEPTHS: [u32; 2] = [1, 32];
const DISK_MIB: u64 = 256;
/// Where SPDK's reactor runs; it has to be on one CPU.
const CPU: usize = 0;

/// Of one protocol at one depth, commands per second of CPU in each turn.
#[derive(Serialize)]
struct Row {
    protocol: &'static str,
    depth: u32,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// Measures and prints a table.
pub fn measure(bench: &Bench) -> Result<serde_json::Value> {
    let Some(tree) = &bench.spdk else {
        println!("SPDK's targets were not run: --spdk DIR (a build tree) has them measured beside our daemon");
        return Ok(serde_json::Value::Null);
    };
    let mut rows = Vec::new();
    for protocol in [Protocol::VfioUser, Protocol::VhostUser] {
        rows.extend(beside(bench, tree, protocol).with_context(|| protocol.name())?);
    }
    print(&rows, &spdk::version(tree)?)?;
    Ok(serde_json::to_value(rows)?)
}

fn beside(bench: &Bench, tree: &Path, protocol: Protocol) -> Result<Vec<Row>> {
    let tenants = if protocol == Protocol::VfioUser { NVME } else { VIRTIO };
    let dir = bench.dir.join(protocol.program());
    std::fs::create_dir_all(&dir)?;
    let sockets = tenants.map(|tenant| daemon::socket_of(&dir, tenant));
    let server = Daemon::start_with(&bench.binary, &dir, &configuration(&dir, tenants), &sockets)?;
    let shape =
        Shape { protocol, drive: Drive::Null, pages: Pages::Huge, disks: tenants.len(), disk_mib: DISK_MIB, cpu: CPU };
    spdk::check_host(shape.huge_mib())?;
    let mut target = Target::start(tree, &shape)?;
    let mut our_guests = boot(bench, "ours", protocol, &sockets)?;
    let theirs = [0, 1].map(|number| target.socket(number));
    let mut their_guests =
        target.awake(|target| boot(bench, "spdk", protocol, &theirs).with_context(|| target.log()))?;
    let mut rows = DEPTHS.map(|depth| Row { protocol: protocol.name(), depth, ours: Vec::new(), theirs: Vec::new() });
    for turn in 1..=TURNS {
        println!("{}, turn {turn} of {TURNS} …", protocol.name());
        for row in &mut rows {
            row.ours.push(commands_per_cpu_second(&mut our_guests, protocol, row.depth, server.pid())?);
            row.theirs.push(target.awake(|target| {
                let measured = commands_per_cpu_second(&mut their_guests, protocol, row.depth, target.pid());
                measured.with_context(|| target.log())
            })?);
        }
    }
    Ok(rows.into())
}

fn boot(bench: &Bench, side: &str, protocol: Protocol, sockets: &[PathBuf]) -> Result<Vec<Guest>> {
    let accel = Accel::probe(&bench.machine);
    let spawn = |(number, socket): (usize, &PathBuf)| {
        let disk = match protocol {
            Protocol::VfioUser => Disk::VfioUser(socket.clone()),
            Protocol::VhostUser => Disk::VhostUser(socket.clone()),
        };
        let name = format!("{side}-{}-{number}", protocol.program());
        Guest::spawn(&bench.machine, accel, &name, Qemu::Newest, &[disk])
    };
    let mut guests = sockets.iter().enumerate().map(spawn).collect::<Result<Vec<_>>>()?;
    guests.iter_mut().try_for_each(Guest::wait_ready)?;
    Ok(guests)
}

/// 4 KiB random reads in both guests, over a span in the middle of them.
fn commands_per_cpu_second(guests: &mut [Guest], protocol: Protocol, depth: u32, pid: u32) -> Result<f64> {
    let drive = if protocol == Protocol::VfioUser { "nvme0n1" } else { "vda" };
    let fio = format!(
        "fio --name=reads --filename=/dev/{drive} --direct=1 --ioengine=io_uring --rw=randread --bs=4k \
         --iodepth={depth} --time_based --runtime=600 --minimal & fio=$!; while ! test -e /run/reads.stop; do sleep \
         0.1; done; kill -INT $fio; wait $fio; rm /run/reads.stop"
    );
    for guest in &mut *guests {
        guest.start_job("reads", &fio, ENDLESS)?;
    }
    for guest in &mut *guests {
        guest.wait_for_requests(drive, WARM_UP_REQUESTS)?;
    }
    let mut so_far = || -> Result<(f64, f64)> {
        let mut requests = 0;
        for guest in &mut *guests {
            requests += guest.requests(drive)?.0;
        }
        Ok((requests as f64, cpu_seconds(pid)?))
    };
    let (requests_before, cpu_before_s) = so_far()?;
    std::thread::sleep(SPAN);
    let (requests, cpu_s) = so_far()?;
    for guest in guests {
        guest.finish_rounds("reads", LIMIT)?;
    }
    Ok((requests - requests_before) / (cpu_s - cpu_before_s))
}

fn configuration(dir: &Path, tenants: [Tenant; 2]) -> String {
    let tenant = |tenant: Tenant| {
        let frontend = if tenant.is_virtio() { "vhost-user-blk" } else { "vfio-user" };
        format!("[[tenant]]\nname = \"{}\"\nsize = \"{DISK_MIB}MiB\"\nfrontend = \"{frontend}\"\n", tenant.name())
    };
    format!(
        "runtime_dir = \"{dir}/run\"\nstate_dir = \"{dir}/state\"\n[device]\nbackend = \"null\"\nsize = \"1GiB\"\n{}",
        tenants.map(tenant).concat(),
        dir = dir.display(),
    )
}

fn print(rows: &[Row], version: &str) -> Result<()> {
    println!("\n4 KiB random reads of two guests, drives that hold nothing, beside {version}");
    println!("commands served per second of the server's CPU: medians of {TURNS} turns (the ratio's lowest … highest)");
    println!("{:<30}{:>12}{:>12}{:>14}", "", "evenkeeld", "SPDK", "ours / SPDK's");
    for Row { protocol, depth, ours, theirs } in rows {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        let (low, high) = ratios.iter().fold((f64::MAX, 0.0_f64), |(low, high), &it| (low.min(it), high.max(it)));
        println!(
            "{:<30}{:>12.0}{:>12.0}{:>12.2} × ({low:.2} … {high:.2})",
            format!("{protocol}, depth {depth}"),
            median(ours)?,
            median(theirs)?,
            median(&ratios)?,
        );
    }
    Ok(())
}
