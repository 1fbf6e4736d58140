//! Evenkeel itself as the tests run it: a config, a process, its sockets and its log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::lab::{TENANTS, Tenant};

/// Size of each tenant's disk.
pub const TENANT_SIZE_MIB: u64 = 1024;

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// A running daemon. Dropping it kills it.
pub struct Daemon {
    child: Child,
    log: PathBuf,
    /// Where in the log its own words start, after those of the daemons before it.
    log_start_bytes: usize,
}

impl Daemon {
    /// Starts a daemon on an image in `dir` and waits until every tenant's socket is there. The
    /// image and the log of an earlier daemon in `dir` are kept.
    ///
    /// # Errors
    /// When it ends or a socket does not appear; the error holds its log.
    pub fn start(binary: &Path, dir: &Path) -> Result<Self> {
        let image = dir.join("drive.img");
        if !image.exists() {
            fs::File::create(&image)?.set_len(4 << 30)?;
        }
        Self::start_with(binary, dir, &configuration(dir))
    }

    /// As [`Daemon::start`], with a configuration that serves the same two tenants.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_with(binary: &Path, dir: &Path, configuration: &str) -> Result<Self> {
        let config = dir.join("evenkeel.toml");
        fs::write(&config, configuration)?;
        let log = dir.join("evenkeel.log");
        let output = fs::File::options().create(true).append(true).open(&log)?;
        let log_start_bytes = usize::try_from(output.metadata()?.len())?;
        let child = Command::new(binary)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        let mut daemon = Self { child, log, log_start_bytes };

        let deadline = Instant::now() + START_LIMIT;
        for tenant in TENANTS {
            let socket = socket_of(dir, tenant);
            while !is_listening(&socket)? {
                daemon.check()?;
                ensure!(Instant::now() < deadline, "evenkeel made no {}:\n{}", socket.display(), daemon.log_text());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(daemon)
    }

    /// Asks it to end with SIGTERM and requires that it does so with exit code 0.
    ///
    /// # Errors
    /// When it does not end in time or ends with another status.
    pub fn stop(mut self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).context("sending SIGTERM to evenkeel")?;
        let status = self.wait(STOP_LIMIT)?;
        ensure!(status.code() == Some(0), "evenkeel ended with {status}:\n{}", self.log_text());
        self.check_log()
    }

    /// Requires that it runs and that nothing in it has panicked.
    ///
    /// # Errors
    /// With its log where it has not.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("evenkeel ended ({status}):\n{}", self.log_text());
        }
        self.check_log()
    }

    fn check_log(&self) -> Result<()> {
        let log = self.log_text();
        ensure!(!log.contains("panicked"), "evenkeel panicked:\n{log}");
        Ok(())
    }

    /// All that it has written.
    pub fn log_text(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_start_bytes..).unwrap_or_default()).into_owned()
    }

    fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(
                Instant::now() < deadline,
                "evenkeel still runs {} s after SIGTERM:\n{}",
                limit.as_secs(),
                self.log_text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Nothing is left to do where the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process listens on `socket`; the file alone may be an earlier daemon's.
fn is_listening(socket: &Path) -> Result<bool> {
    let listening = fs::read_to_string("/proc/net/unix")?;
    let path = socket.to_string_lossy();
    Ok(listening.lines().any(|line| line.ends_with(&*path)))
}

/// The socket of a tenant of the daemon in `dir`.
pub fn socket_of(dir: &Path, tenant: Tenant) -> PathBuf {
    dir.join("run").join(tenant.name()).join("cntrl")
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"runtime_dir = "{dir}/run"

[device]
backend = "file"
path = "{dir}/drive.img"
size = "4GiB"

[policy]
name = "lpns"

[[tenant]]
name = "{guaranteed}"
size = "{TENANT_SIZE_MIB}MiB"
frontend = "vfio-user"
class = "guaranteed"
latency_target = "500us"

[[tenant]]
name = "{best_effort}"
size = "{TENANT_SIZE_MIB}MiB"
frontend = "vfio-user"
class = "best-effort"
weight = 1
"#,
        guaranteed = Tenant::Guaranteed.name(),
        best_effort = Tenant::BestEffort.name(),
    )
}

/// The binary under test: `EVENKEEL_BIN`, or a release build of this checkout.
///
/// # Errors
/// When the build fails.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("EVENKEEL_BIN") {
        return fs::canonicalize(&path).with_context(|| format!("EVENKEEL_BIN: {}", Path::new(&path).display()));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--quiet", "--package", "evenkeel"])
        .current_dir(&workspace)
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "building evenkeel failed");
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => workspace.join("target"),
    };
    fs::canonicalize(target.join("release/evenkeel")).context("the binary that cargo built")
}
