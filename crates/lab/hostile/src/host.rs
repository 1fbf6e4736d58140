//! A host with a daemon on it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The guaranteed victim, over vfio-user: always busy.
pub const STEADY: &str = "steady";
/// The guaranteed victim, over vfio-user, whose poller sleeps between its commands.
pub const CALM: &str = "calm";
/// The best-effort victim, over vhost-user: on the attackers' poller.
pub const WEB: &str = "web";
/// The best-effort victim, over vhost-user, whose virtqueue outlives the daemon.
pub const VM: &str = "vm";
/// Attached anew all the time, over vfio-user.
pub const NEWCOMER: &str = "newcomer";
/// The attackers' tenant over vfio-user.
pub const BAD: &str = "bad";
/// The attackers' tenant over vhost-user.
pub const EVIL: &str = "evil";
/// An attackers' tenant over vfio-user that is guaranteed: alone on a poller that sleeps.
pub const LONE: &str = "lone";
/// An attackers' tenant over vfio-user with a thread of its own: for what tenants of a poller do share.
pub const APART: &str = "apart";
/// All that attackers have.
pub const ATTACKERS: [&str; 4] = [BAD, EVIL, LONE, APART];

/// Files here are memory.
const IN_MEMORY: &str = "/dev/shm";

/// A poller sleeps soon, so that [`CALM`] is served by one that sleeps.
const CONFIG: &str = r#"runtime_dir = "HOST/run"
state_dir = "HOST/state"
[device]
backend = "file"
path = "HOST/drive.img"
size = "320MiB"
create = true
[policy]
name = "lpns"
[pollers]
idle_after = "20ms"
[[tenant]]
name = "steady"
size = "32MiB"
class = "guaranteed"
latency_target = "10ms"
[[tenant]]
name = "calm"
size = "32MiB"
class = "guaranteed"
latency_target = "10ms"
[[tenant]]
name = "web"
size = "32MiB"
frontend = "vhost-user-blk"
[[tenant]]
name = "vm"
size = "32MiB"
frontend = "vhost-user-blk"
[[tenant]]
name = "newcomer"
size = "32MiB"
[[tenant]]
name = "bad"
size = "64MiB"
[[tenant]]
name = "evil"
size = "32MiB"
frontend = "vhost-user-blk"
[[tenant]]
name = "lone"
size = "32MiB"
class = "guaranteed"
latency_target = "10ms"
[[tenant]]
name = "apart"
size = "32MiB"
threads = "dedicated"
"#;

/// A host's directories, for daemons one after the other on the same drive.
pub struct Host {
    root: TempDir,
    program: PathBuf,
}

impl Host {
    /// Directories of its own, for daemons of `program`. In memory, if there are such: nothing waits there for this
    /// machine's own disk, whose journal can hold up everybody for a second, and what is measured is the daemon.
    ///
    /// # Errors
    /// The directory can't be made.
    pub fn new(program: &Path) -> Result<Self> {
        let root = tempfile::tempdir_in(IN_MEMORY).or_else(|_| tempfile::tempdir())?;
        Self::in_directory(root, program, CONFIG)
    }

    /// On a disk, with another configuration, in which HOST stands for its directory.
    ///
    /// # Errors
    /// The directory can't be made.
    pub fn with_config(program: &Path, config: &str) -> Result<Self> {
        Self::in_directory(tempfile::tempdir()?, program, config)
    }

    fn in_directory(root: TempDir, program: &Path, config: &str) -> Result<Self> {
        let host = Self { root, program: program.to_owned() };
        host.configure(config)?;
        Ok(host)
    }

    /// A configuration with its directory in the place of HOST.
    ///
    /// # Errors
    /// The directory's name is not UTF-8.
    pub fn fill_in(&self, config: &str) -> Result<String> {
        let root = self.root.path().to_str().context("the temporary directory's path is not UTF-8")?;
        Ok(config.replace("HOST", root))
    }

    /// The daemons that start from now on have another configuration: the whole of it, or the one before.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn configure(&self, config: &str) -> Result<()> {
        let new = self.path("evenkeel.toml.new");
        fs::write(&new, self.fill_in(config)?)?;
        Ok(fs::rename(new, self.config())?)
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.path("evenkeel.toml")
    }

    /// Something in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Where the tenants' sockets and the API's are.
    pub fn runtime_dir(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// Starts a daemon and waits until it serves.
    ///
    /// # Errors
    /// It does not serve.
    pub fn start(&self) -> Result<Daemon> {
        let log = self.root.path().join("evenkeeld.log");
        let stderr = File::options().create(true).append(true).open(&log)?;
        let mut child = Command::new(&self.program)
            .arg("--json")
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("can't start {}", self.program.display()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let daemon = Daemon { child, log };
        if line.is_empty() {
            bail!("it does not serve: {}", daemon.log());
        }
        Ok(daemon)
    }
}

/// A running daemon. Dropped while it runs, it is killed.
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// What the host's daemons logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// A size in kB of `/proc/PID/status`: `VmSize`, `RssShmem`, …
    pub fn status_kib(&self, field: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }

    /// SIGTERM, and the time until the process was gone with exit status 0. `None`: it was not within `limit`.
    ///
    /// # Errors
    /// It ended otherwise.
    pub fn terminate(&mut self, limit: Duration) -> Result<Option<Duration>> {
        let start = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        while start.elapsed() < limit {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(Some(start.elapsed())),
                Some(status) => bail!("after SIGTERM it ended with {status}"),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(None)
    }

    /// SIGKILL. The kernel takes it apart when it can: see [`Daemon::wait`].
    pub fn kill(&mut self) {
        // Fails after its end.
        let _ = self.child.kill();
    }

    /// Waits until it is gone.
    pub fn wait(mut self) {
        // Fails when somebody else did.
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail after its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
