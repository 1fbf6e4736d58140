//! What a poller pays for a command to one NVMe drive: through the kernel's driver and io_uring, as a block request or
//! as an NVMe command, and without either.
//!
//! The drive is QEMU's, behind an emulated IOMMU, in one guest: it is the kernel's and ours by turns. Where the guest
//! is emulated too, its nanoseconds are none of a processor's, and only the ratio says something.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Bench, median};
use crate::guest::daemon;
use crate::guest::inside::{Inside, PROGRAM_LIMIT, VFIO_MODULES};
use crate::guest::qemu::{Accel, Guest};

const ADDRESS: &str = "0000:00:04.0";
const DISK: &str = "/dev/nvme0n1";
const CHARACTER_DEVICE: &str = "/dev/ng0n1";
const PROGRAM: &str = "drive_cost";
const DRIVE_MIB: u64 = 64;
const TURNS: u32 = 3;

/// Bytes and depth.
type Shape = (u64, u64);

/// What the turns brought.
#[derive(Default)]
struct Turns {
    submit_ns: Vec<f64>,
    reap_ns: Vec<f64>,
}

/// Per command.
#[derive(Serialize)]
struct Cost {
    submit_ns: f64,
    reap_ns: f64,
}

impl Cost {
    fn of(turns: &Turns) -> Result<Self> {
        Ok(Self { submit_ns: median(&turns.submit_ns)?, reap_ns: median(&turns.reap_ns)? })
    }

    fn sum_ns(&self) -> f64 {
        self.submit_ns + self.reap_ns
    }
}

#[derive(Serialize)]
struct Row {
    bytes: u64,
    depth: u64,
    /// Block requests.
    kernel: Cost,
    /// NVMe commands.
    passed: Cost,
    ours: Cost,
}

/// Measures and prints a table.
pub fn measure(bench: &Bench) -> Result<serde_json::Value> {
    let example = ["--package", "backend-nvme", "--example", PROGRAM];
    let program = daemon::build(daemon::Profile::Release, &example)?.join("examples").join(PROGRAM);
    let guest = Inside::new("initiator").iommu().modules(&VFIO_MODULES).nvme("ek0", 4, DRIVE_MIB);
    let guest = guest.program(&format!("usr/bin/{PROGRAM}"), program);
    let mut guest = guest.boot(&bench.lab(Accel::probe(&bench.machine)))?.context("there are no programs")?;
    let rows = take_turns(&mut guest).with_context(|| guest.logs())?;
    print(&rows);
    Ok(serde_json::to_value(rows)?)
}

fn take_turns(guest: &mut Guest) -> Result<Vec<Row>> {
    let (mut kernel, mut passed, mut ours) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for _ in 0..TURNS {
        guest.wait_for("the kernel's disk", &format!("test -b {DISK}"))?;
        read_turn(&guest.run_within(&format!("{PROGRAM} block {DISK}"), PROGRAM_LIMIT)?, &mut kernel)?;
        let ng = format!("{PROGRAM} ng {DISK} {CHARACTER_DEVICE}");
        read_turn(&guest.run_within(&ng, PROGRAM_LIMIT)?, &mut passed)?;
        guest.evenkeel(&format!("drive claim {ADDRESS}"))?;
        read_turn(&guest.run_within(&format!("{PROGRAM} nvme {ADDRESS}"), PROGRAM_LIMIT)?, &mut ours)?;
        guest.evenkeel(&format!("drive release {ADDRESS}"))?;
    }
    let row = |(&(bytes, depth), turns): (&Shape, &Turns)| {
        let cost =
            |turns: &BTreeMap<Shape, Turns>| Cost::of(turns.get(&(bytes, depth)).context("a shape was not measured")?);
        Ok(Row { bytes, depth, kernel: Cost::of(turns)?, passed: cost(&passed)?, ours: cost(&ours)? })
    };
    kernel.iter().map(row).collect()
}

/// What the program printed: a line of JSON for each shape.
fn read_turn(text: &str, shapes: &mut BTreeMap<Shape, Turns>) -> Result<()> {
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).with_context(|| text.to_owned())?;
        let shape = row["bytes"].as_u64().zip(row["depth"].as_u64()).with_context(|| text.to_owned())?;
        let turns = shapes.entry(shape).or_default();
        turns.submit_ns.extend(row["submit_ns"].as_f64());
        turns.reap_ns.extend(row["reap_ns"].as_f64());
    }
    Ok(())
}

fn print(rows: &[Row]) {
    println!("ns per read, medians of {TURNS} turns; interrupts, which only the kernel's side takes, are not counted");
    println!("{:>14}{:^28}{:^28}{:^28}", "", "backend = \"block\"", "nvme_commands = true", "backend = \"nvme\"");
    print!("{:>8}{:>6}", "bytes", "depth");
    for _ in 0..3 {
        print!("{:>10}{:>8}{:>10}", "submit", "reap", "both");
    }
    println!("   block / the others");
    for Row { bytes, depth, kernel, passed, ours } in rows {
        print!("{bytes:>8}{depth:>6}");
        for cost in [kernel, passed, ours] {
            print!("{:>10.0}{:>8.0}{:>10.0}", cost.submit_ns, cost.reap_ns, cost.sum_ns());
        }
        println!("{:>6.1} ×{:>6.1} ×", kernel.sum_ns() / passed.sum_ns(), kernel.sum_ns() / ours.sum_ns());
    }
}
