//! A daemon or a client as a process of its own, pinned to a CPU, gone when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The daemon's CPU.
pub const DAEMON_CPU: usize = 0;
/// The client's.
pub const CLIENT_CPU: usize = 1;

/// The release build of the daemon.
pub fn evenkeel() -> PathBuf {
    std::env::var_os("EVENKEEL_BIN").map_or_else(|| PathBuf::from("target/release/evenkeel"), PathBuf::from)
}

/// A running daemon in a directory of its own.
pub struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    /// Starts a daemon on `backend` under `policy`, with the tenants given as TOML. Its pollers share one CPU.
    pub fn start(backend: &str, policy: &str, tenants: &str) -> Result<Self> {
        Self::start_on(&format!("backend = \"{backend}\"\nsize = \"64GiB\""), policy, tenants)
    }

    /// As [`Server::start`], with the lines of `[device]`.
    pub fn start_on(device: &str, policy: &str, tenants: &str) -> Result<Self> {
        let text =
            format!("[device]\n{device}\n[policy]\nname = \"{policy}\"\n[pollers]\ncpus = [{DAEMON_CPU}]\n{tenants}");
        Self::serve(&evenkeel(), &text)
    }

    /// Starts the daemon `binary` with a configuration that names no directories.
    pub fn serve(binary: &Path, sections: &str) -> Result<Self> {
        let dir = new_directory()?;
        let config = dir.join("config.toml");
        std::fs::write(&config, format!("runtime_dir = {dir:?}\nstate_dir = {dir:?}\n{sections}"))?;
        let mut child = Command::new(binary)
            .arg("serve")
            .arg(&config)
            .arg("--json")
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.join("log"))?)
            .spawn()
            .context("can't start the daemon; build it with `make build`")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let server = Self { child, dir };
        if line.is_empty() {
            bail!("the daemon did not start: {}", server.log());
        }
        Ok(server)
    }

    /// Where a tenant's socket is.
    pub fn socket(&self, tenant: &str) -> PathBuf {
        self.dir.join(tenant)
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// One answer on the API's socket.
    pub fn get(&self, path: &str) -> Result<String> {
        let mut stream = UnixStream::connect(self.socket("api.sock")).context("the API's socket")?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, text) = answer.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Ok(text.to_owned())
    }

    /// What it said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A directory of its own for a server of this process.
pub fn new_directory() -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("evenkeel-bench-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    Ok(dir)
}

/// A tenant in TOML.
pub fn tenant(name: &str, class: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\nsize = \"2GiB\"\n{class}\n")
}

/// What the clients read: larger than any cache.
pub const WORKING_SET_BYTES: u64 = 512 << 20;

/// Writes the working set once, so that a memory drive has pages of its own there: unwritten ones are all the
/// same zeros, in the cache.
pub fn fill(socket: &Path) -> Result<()> {
    whole(socket, "write")
}

/// Reads the working set once: a hypervisor may take its time over pages that nobody used while another server was
/// measured, which is nothing that the servers differ in.
pub fn wake(socket: &Path) -> Result<()> {
    whole(socket, "read")
}

fn whole(socket: &Path, rw: &str) -> Result<()> {
    let size = format!("{}m", WORKING_SET_BYTES >> 20);
    let output = Command::new(evenkeel())
        .arg("load")
        .arg(socket)
        // No larger than any server takes at once.
        .args(["--rw", rw, "--bs", "128k", "--iodepth", "32", "--size", &size, "--json"])
        .output()
        .context("can't start the load generator")?;
    if !output.status.success() {
        bail!("the load generator failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// One run of our load generator.
pub struct Run {
    /// Commands per second, of all queues.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Its median, 95th and 99th percentile, of the worst queue.
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
}

/// 4 KiB random reads for `seconds` at `depth`, from the client's CPU.
pub fn load(socket: &Path, depth: u32, seconds: u64) -> Result<Run> {
    load_with(socket, seconds, &["--iodepth", &depth.to_string()])
}

/// As [`load()`], with options of the caller's.
pub fn load_with(socket: &Path, seconds: u64, options: &[&str]) -> Result<Run> {
    load_blocks(socket, ("randread", "4k"), seconds, options)
}

/// As [`load_with()`], with other commands: `randread`, `randwrite` or `randrw`, and their size. Latencies are those of
/// the reads, if there are any.
pub fn load_blocks(socket: &Path, (rw, bs): (&str, &str), seconds: u64, options: &[&str]) -> Result<Run> {
    let size = format!("{}m", WORKING_SET_BYTES >> 20);
    let output = Command::new("taskset")
        .args(["-c", &CLIENT_CPU.to_string()])
        .arg(evenkeel())
        .arg("load")
        .arg(socket)
        .args(["--rw", rw, "--bs", bs, "--size", &size])
        // It has the core to itself, as peers' clients have theirs: they never yield either.
        .args(["--ramp-time", "500ms", "--runtime", &format!("{seconds}s"), "--yield", "never", "--json"])
        .args(options)
        .output()
        .context("can't start the load generator")?;
    if !output.status.success() {
        bail!("the load generator failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).context("the load generator's JSON")?;
    let jobs = report["jobs"].as_array().filter(|jobs| !jobs.is_empty()).context("no jobs in the JSON")?;
    let side = if rw == "randwrite" { "write" } else { "read" };
    let sum = |side: &str, value: &dyn Fn(&serde_json::Value) -> Option<f64>| {
        let values: Option<Vec<f64>> = jobs.iter().map(|job| value(&job[side])).collect();
        Ok::<f64, anyhow::Error>(values.context("a figure is missing in the load generator's JSON")?.iter().sum())
    };
    let mean_ns = sum(side, &|side| side["lat_ns"]["mean"].as_f64())? / jobs.len() as f64;
    let worst_us = |percentile: &str| {
        let each_ns = jobs.iter().filter_map(|job| job[side]["lat_ns"]["percentile"][percentile].as_f64());
        each_ns.fold(0.0, f64::max) / 1000.0
    };
    let rates = [sum("read", &|side| side["iops"].as_f64())?, sum("write", &|side| side["iops"].as_f64())?];
    Ok(Run {
        iops: rates.into_iter().sum(),
        mean_us: mean_ns / 1000.0,
        p50_us: worst_us("50.000000"),
        p95_us: worst_us("95.000000"),
        p99_us: worst_us("99.000000"),
    })
}

/// Commands of 4 KiB as in [`load_blocks()`], on queues of a depth, and the percentage of a core that the server `pid`
/// took meanwhile. The client never gives its core away: it has one to itself.
pub fn load_and_cost(socket: &Path, pid: u32, rw: &str, shape: (u32, u32), seconds: u64) -> Result<(Run, f64)> {
    // Past connecting and the ramp, and not into the end.
    const MARGIN: Duration = Duration::from_millis(800);
    let (queues, depth) = (shape.0.to_string(), shape.1.to_string());
    std::thread::scope(|scope| {
        let options = ["--iodepth", &depth, "--numjobs", &queues];
        let run = scope.spawn(move || load_blocks(socket, (rw, "4k"), seconds, &options));
        std::thread::sleep(MARGIN);
        let (before, start) = (cpu_seconds(pid)?, Instant::now());
        std::thread::sleep(Duration::from_secs(seconds).saturating_sub(MARGIN / 2));
        let percent = 100.0 * (cpu_seconds(pid)? - before) / start.elapsed().as_secs_f64();
        let run = run.join().map_err(|_| anyhow::anyhow!("the client's thread failed"))??;
        Ok((run, percent))
    })
}

/// Time on a CPU of all of a process's threads, from the scheduler's own clock: the times in `/proc/PID/stat` are
/// sampled by the timer tick, which short wake-ups by timer deceive.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    threads.map(|thread| on_cpu_seconds(thread?.path())).sum()
}

/// Of one thread, whose directory under `/proc` this is.
pub fn on_cpu_seconds(thread: impl AsRef<Path>) -> Result<f64> {
    let schedstat = std::fs::read_to_string(thread.as_ref().join("schedstat"))?;
    let on_cpu_ns: u64 = schedstat.split_whitespace().next().context("unexpected schedstat")?.parse()?;
    Ok(on_cpu_ns as f64 / 1e9)
}
