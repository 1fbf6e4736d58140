//! What it costs that a disk is thin: on pieces that it has, on those that it gets, and for a promise beside them.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use load::Direction;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::strides::{BLOCK_BYTES, Strider};
use crate::bench::files::MEMORY_FILES;
use crate::bench::online::percentile_us;
use crate::bench::server::{CLIENT_CPU, DAEMON_CPU, Server, evenkeel, fill, load_blocks, tenant};
use crate::bench::sides::ScratchDrive;
use crate::bench::{Figure, Goal, Options};

/// Bytes of a piece, by default.
pub const PIECE_BYTES: u64 = 1 << 20;
const DEPTHS: [u32; 2] = [1, 128];
/// Of what a thick disk does.
const MAPPED_GOAL: f64 = 0.97;
/// A tenant's p99, beside that of a thick disk.
const PROMISE_GOAL: f64 = 1.1;
const FIRST_WRITES_GOAL_K: f64 = 20.0;
const FIRST_WRITES_DEPTH: u16 = 32;
/// First writes of a round; each takes a page of tmpfs.
const FIRST_WRITES: u64 = 40_000;

/// A tenant with a promise, in pieces.
const PROMISED_PIECES: u64 = 1024;
const WRITERS: usize = 3;
const WRITER_DEPTH: u16 = 8;
/// Of each writer: what a thin disk takes as well as a thick one, so that both meet one load.
const WRITES_PER_SECOND: f64 = 2_000.0;
const WARM_UP: Duration = Duration::from_millis(300);

/// Written pieces of a thin disk and a thick one, of one daemon by turns.
pub fn beside_thick(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let device = "backend = \"memory\"\nsize = \"8GiB\"\npool = \"2GiB\"";
    let tenants = tenant("thick", "") + &tenant("thin", "thin = true");
    let server = Server::start_on(device, "passthrough", &tenants)?;
    let sockets = ["thick", "thin"].map(|name| server.socket(name));
    sockets.iter().try_for_each(|socket| fill(socket))?;
    let mut figures = Vec::new();
    for rw in ["randread", "randwrite"] {
        for depth in DEPTHS {
            let mut rounds: [Vec<f64>; 3] = Default::default();
            for round in 0..options.rounds {
                let run = |socket: &Path| {
                    let depth = depth.to_string();
                    Ok::<f64, anyhow::Error>(
                        load_blocks(socket, (rw, "4k"), options.seconds, &["--iodepth", &depth])?.iops,
                    )
                };
                let [thick, thin] = &sockets;
                // What the machine's other work takes grows and shrinks: neither is always the first.
                let (thick, thin) = if round % 2 == 0 {
                    (run(thick)?, run(thin)?)
                } else {
                    let thin = run(thin)?;
                    (run(thick)?, thin)
                };
                let values = [thick / 1e3, thin / 1e3, thin / thick];
                rounds.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
            }
            let [thick, thin, ratios] = rounds;
            let name = |what: &str| format!("memory, 4 KiB {rw}, QD {depth}, {what}");
            figures.push(Figure::of(name("thick"), thick, "K IOPS", None)?);
            figures.push(Figure::of(name("thin, written pieces"), thin, "K IOPS", None)?);
            figures.push(Figure::of(name("thin / thick"), ratios, "×", Some(Goal::AtLeast(MAPPED_GOAL)))?);
        }
    }
    Ok(figures)
}

/// A guaranteed tenant's p99 beside three that write where nothing was written, all disks thin, and all thick.
pub fn promise_beside_first_writes(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut rounds: [Vec<f64>; 3] = Default::default();
    for _ in 0..options.rounds {
        let [thick, thin] = [p99_beside_writers(false, options.seconds)?, p99_beside_writers(true, options.seconds)?];
        rounds.iter_mut().zip([thick, thin, thin / thick]).for_each(|(all, value)| all.push(value));
    }
    notes.push(format!(
        "a promise beside first writes: {WRITERS} tenants write 4 KiB {WRITES_PER_SECOND} times a second each, each \
         time to another MiB of their disks; the modelled drive has no memory of its own. On two CPUs the \
         thread that gives pieces takes its time from the poller or from the clients"
    ));
    let name = |what: &str| format!("a guaranteed tenant's p99 beside {WRITERS} first writers, {what}");
    let [thick, thin, ratios] = rounds;
    Ok(vec![
        Figure::of(name("all thick"), thick, "µs", None)?,
        Figure::of(name("all thin"), thin, "µs", None)?,
        Figure::of(name("thin / thick"), ratios, "×", Some(Goal::AtMost(PROMISE_GOAL)))?,
    ])
}

/// On a thread of its own, which is all four clients.
fn p99_beside_writers(is_thin: bool, seconds: u64) -> Result<f64> {
    let measured = std::thread::scope(|scope| scope.spawn(|| p99_on_this_thread(is_thin, seconds)).join());
    measured.map_err(|_| anyhow!("the clients' thread failed"))?
}

fn p99_on_this_thread(is_thin: bool, seconds: u64) -> Result<f64> {
    let (pool, thin) = if is_thin { ("pool = \"800GiB\"\n", "thin = true\n") } else { ("", "") };
    let mut sections = format!(
        "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"1TiB\"\nmemory_backed = false\n{pool}\
         [policy]\nname = \"evenkeel\"\n[pollers]\ncpus = [{DAEMON_CPU}]\n\
         [[tenant]]\nname = \"db\"\nsize = \"{PROMISED_PIECES}MiB\"\nclass = \"guaranteed\"\n\
         latency_target = \"200us\"\nthreads = \"shared\"\n{thin}"
    );
    for writer in 0..WRITERS {
        write!(sections, "[[tenant]]\nname = \"writer{writer}\"\nsize = \"256GiB\"\n{thin}")?;
    }
    let server = Server::serve(&evenkeel(), &sections)?;
    let attach = |name: &str, depth| {
        Strider::attach(&server.socket(name), depth).with_context(|| format!("{name}: {}", server.log()))
    };
    let mut promised = attach("db", 1)?;
    promised.write_each(0..PROMISED_PIECES, PIECE_BYTES)?;
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        writers.push((attach(&format!("writer{writer}"), WRITER_DEPTH)?, 0_u64));
    }
    // Past the start of the daemon, the threads of which may go where they like.
    let mut set = CpuSet::new();
    set.set(CLIENT_CPU);
    sched_setaffinity(None, &set).context("can't run a client on its CPU")?;
    let mut random = fastrand::Rng::with_seed(1);
    let (mut took_ns, mut sent_at) = (Vec::new(), None::<Instant>);
    let (begun, span) = (Instant::now(), WARM_UP + Duration::from_secs(seconds));
    while begun.elapsed() < span {
        if promised.poll()? > 0
            && let Some(sent) = sent_at.take()
            && begun.elapsed() > WARM_UP
        {
            took_ns.push(sent.elapsed().as_nanos() as u64);
        }
        if sent_at.is_none() {
            sent_at = Some(Instant::now());
            let block = random.u64(..PROMISED_PIECES * PIECE_BYTES / BLOCK_BYTES);
            promised.send(Direction::Read, block * BLOCK_BYTES)?;
        }
        let due = (begun.elapsed().as_secs_f64() * WRITES_PER_SECOND) as u64;
        for (writer, sent) in &mut writers {
            writer.poll()?;
            if *sent < due && writer.send(Direction::Write, *sent * PIECE_BYTES)? {
                *sent += 1;
            }
        }
    }
    let wanted = span.as_secs_f64() * WRITES_PER_SECOND;
    let least = writers.iter().map(|(_, sent)| *sent).min().unwrap_or(0) as f64;
    let kind = if is_thin { "thin" } else { "thick" };
    ensure!(least > 0.9 * wanted, "{kind}: a writer got {least} of {wanted} writes: the figures are of unlike loads");
    took_ns.sort_unstable();
    ensure!(!took_ns.is_empty(), "nothing was read");
    Ok(percentile_us(&took_ns, 99.0))
}

/// Writes to pieces that a thin disk does not have yet.
pub fn first_writes(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut rates = Vec::new();
    for _ in 0..options.rounds {
        let drive = ScratchDrive::file(Path::new(MEMORY_FILES), "first")?;
        let device = format!(
            "backend = \"file\"\npath = {:?}\nsize = \"64GiB\"\ncreate = true\npool = \"60GiB\"",
            drive.directory().join("new.img")
        );
        let tenants = "[[tenant]]\nname = \"a\"\nsize = \"48GiB\"\nthin = true\n";
        let server = Server::start_on(&device, "passthrough", tenants)?;
        let mut client = Strider::attach(&server.socket("a"), FIRST_WRITES_DEPTH)?;
        let seconds = client.write_each(0..FIRST_WRITES, PIECE_BYTES)?;
        rates.push(FIRST_WRITES as f64 / seconds / 1e3);
    }
    let name = format!("file on tmpfs, first writes to pieces of a thin disk, QD {FIRST_WRITES_DEPTH}");
    Ok(vec![Figure::of(name, rates, "K/s", Some(Goal::AtLeast(FIRST_WRITES_GOAL_K)))?])
}
