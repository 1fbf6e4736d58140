//! A daemon or a client as a process of its own, pinned to a CPU, gone when dropped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

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
    /// Starts a daemon on `backend` under `policy`, with the tenants given as TOML and one poller, pinned.
    pub fn start(backend: &str, policy: &str, tenants: &str) -> Result<Self> {
        Self::start_with(backend, policy, "shared", tenants)
    }

    /// As [`Server::start`], with another layout of pollers.
    pub fn start_with(backend: &str, policy: &str, layout: &str, tenants: &str) -> Result<Self> {
        let text = format!(
            "[device]\nbackend = \"{backend}\"\nsize = \"64GiB\"\n[policy]\nname = \"{policy}\"\n\
             [pollers]\nlayout = \"{layout}\"\ncpus = [{DAEMON_CPU}]\n{tenants}"
        );
        Self::serve(&evenkeel(), &text)
    }

    /// Starts the daemon `binary` with a configuration that names no directories.
    pub fn serve(binary: &Path, sections: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("evenkeel-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
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

    fn log(&self) -> String {
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

/// A tenant in TOML.
pub fn tenant(name: &str, class: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\nsize = \"2GiB\"\n{class}\n")
}

/// What the clients read: larger than any cache.
pub const WORKING_SET_BYTES: u64 = 512 << 20;

/// Writes the working set once, so that a memory drive has pages of its own there: unwritten ones are all the
/// same zeros, in the cache.
pub fn fill(socket: &Path) -> Result<()> {
    let size = format!("{}m", WORKING_SET_BYTES >> 20);
    let output = Command::new(evenkeel())
        .arg("load")
        .arg(socket)
        .args(["--rw", "write", "--bs", "1m", "--iodepth", "4", "--size", &size, "--json"])
        .output()
        .context("can't start the load generator")?;
    if !output.status.success() {
        bail!("the load generator failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// One run of our load generator against `socket`.
pub struct Run {
    /// Reads per second.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
}

/// 4 KiB random reads for `seconds` at `depth`, from the client's CPU.
pub fn load(socket: &Path, depth: u32, seconds: u64) -> Result<Run> {
    let size = format!("{}m", WORKING_SET_BYTES >> 20);
    let output = Command::new("taskset")
        .args(["-c", &CLIENT_CPU.to_string()])
        .arg(evenkeel())
        .arg("load")
        .arg(socket)
        .args(["--rw", "randread", "--bs", "4k", "--iodepth", &depth.to_string(), "--size", &size])
        .args(["--ramp-time", "500ms", "--runtime", &format!("{seconds}s"), "--json"])
        .output()
        .context("can't start the load generator")?;
    if !output.status.success() {
        bail!("the load generator failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).context("the load generator's JSON")?;
    let read = &report["jobs"][0]["read"];
    let number = |value: &serde_json::Value| value.as_f64().context("a figure is missing in the load generator's JSON");
    Ok(Run { iops: number(&read["iops"])?, mean_us: number(&read["lat_ns"]["mean"])? / 1000.0 })
}
