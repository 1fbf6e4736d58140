//! One tenant that works among many that are attached and do nothing: all on one poller.

use std::path::Path;

use anyhow::{Context, Result};
use load::disk::{Disk, QueueShape};
use load::{AnyDisk, Frontend};

use super::server::{Run, Server, load_with, tenant};
use super::{Figure, Goal, Options};

/// How many are attached, the one that works included.
const ATTACHED: [usize; 4] = [1, 16, 64, 256];
/// Each one's.
const QUEUES: usize = 16;
const SHAPE: QueueShape = QueueShape { depth: 32, buffer_bytes: 4096, priority: None };
/// Commands in flight; the first is for latency, the other for throughput.
const DEPTHS: [u32; 2] = [1, 128];
/// Commands so far apart find their queue at rest, and the poller awake. Of these the 95th percentile is told: one in a
/// hundred waits for what a hypervisor gives to others, which is no queue's doing.
const SELDOM_PER_SECOND: u32 = 200;
/// Attached where the wait of such a command is held to [`LONGEST_WAIT_US`].
const WAIT_AMONG: usize = 64;
const LONGEST_WAIT_US: f64 = 50.0;

/// What the one gets, of each round.
#[derive(Default)]
struct Rounds {
    /// At each depth, beside nothing: the tenant has one queue.
    alone: [Vec<f64>; 2],
    /// At each depth, how much slower it is, and among how many: its own queues that are idle count as well.
    slower: Vec<(usize, [Vec<f64>; 2])>,
    seldom_us: Vec<f64>,
}

/// The tenant that works, `t0`, for both front ends.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (protocol, keys) in
        [("vfio-user", ""), ("vhost-user-blk", "frontend = \"vhost-user-blk\"\nmode = \"polling\"\n")]
    {
        let keys = format!("{keys}queues = {QUEUES}\nweight = 1");
        let slower = ATTACHED.map(|attached| (attached, Default::default())).into();
        let mut rounds = Rounds { slower, ..Rounds::default() };
        for _ in 0..options.rounds {
            round(&keys, options.seconds, &mut rounds).with_context(|| protocol.to_owned())?;
        }
        figures.extend(figures_of(protocol, rounds)?);
    }
    notes.push(format!(
        "beside idle queues: null, passthrough, one poller; each attached tenant has {QUEUES} queues, of which one \
         works in all; times are beside those of a lone tenant with a single queue in the same round"
    ));
    Ok(figures)
}

/// More and more of a daemon's tenants attach, and each time the one is measured.
fn round(keys: &str, seconds: u64, rounds: &mut Rounds) -> Result<()> {
    let tenants: String = (0..ATTACHED[ATTACHED.len() - 1]).map(|n| tenant(&format!("t{n}"), keys)).collect();
    let server = Server::start_on("backend = \"null\"\nsize = \"1TiB\"", "passthrough", &tenants)?;
    let socket = server.socket("t0");
    let mut alone = Vec::new();
    for (depth, rounds) in DEPTHS.into_iter().zip(&mut rounds.alone) {
        let run = run(&socket, depth, 1, seconds)?;
        rounds.push(if depth == 1 { run.p50_us } else { run.iops / 1e6 });
        alone.push(run);
    }
    let mut idle = Vec::new();
    for (attached, slower) in &mut rounds.slower {
        while idle.len() + 1 < *attached {
            let mut disk = AnyDisk::attach(&server.socket(&format!("t{}", idle.len() + 1)), Frontend::Auto)?;
            let queues = disk.open_queues(&[SHAPE; QUEUES])?;
            idle.push((disk, queues));
        }
        for ((depth, alone), slower) in DEPTHS.into_iter().zip(&alone).zip(slower) {
            let run = run(&socket, depth, QUEUES, seconds)?;
            slower.push(if depth == 1 { run.p50_us / alone.p50_us } else { alone.iops / run.iops });
        }
        if *attached == WAIT_AMONG {
            let idle_queues = (QUEUES - 1).to_string();
            let rate = SELDOM_PER_SECOND.to_string();
            let options = ["--iodepth", "1", "--rate-iops", &rate, "--idle-queues", &idle_queues];
            rounds.seldom_us.push(load_with(&socket, seconds, &options)?.p95_us);
        }
    }
    Ok(())
}

/// 4 KiB random reads on one queue of as many.
fn run(socket: &Path, depth: u32, queues: usize, seconds: u64) -> Result<Run> {
    let (depth, idle_queues) = (depth.to_string(), (queues - 1).to_string());
    load_with(socket, seconds, &["--iodepth", &depth, "--idle-queues", &idle_queues])
}

fn figures_of(protocol: &str, rounds: Rounds) -> Result<Vec<Figure>> {
    let Rounds { alone: [latency_us, mega_iops], slower, seldom_us } = rounds;
    let name = |what: &str| format!("beside idle queues, {protocol}: {what}");
    let mut figures = vec![
        Figure::of(name("one queue alone, QD 1"), latency_us, "µs", None)?,
        Figure::of(name("one queue alone, QD 128"), mega_iops, "M IOPS", None)?,
    ];
    for (attached, slower) in slower {
        let goal = match attached {
            ..=64 => 1.2,
            _ => 1.5,
        };
        for (depth, rounds) in DEPTHS.into_iter().zip(slower) {
            let name = name(&format!("{attached} attached, QD {depth}, slower than alone"));
            figures.push(Figure::of(name, rounds, "×", Some(Goal::AtMost(goal)))?);
        }
    }
    let name = name(&format!("{WAIT_AMONG} attached, a command each 5 ms, 95th percentile"));
    figures.push(Figure::of(name, seldom_us, "µs", Some(Goal::AtMost(LONGEST_WAIT_US)))?);
    Ok(figures)
}
