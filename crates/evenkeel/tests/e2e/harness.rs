//! The binary as a test runs it: in a directory of its own, with its log kept for when the test fails.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use api::Problem;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::guest::Guest;

/// Nothing that works takes this long.
pub const HANG: Duration = Duration::from_secs(60);

/// A host's directories, for any number of daemons, one after another or at once.
pub struct Home {
    root: TempDir,
}

impl Home {
    pub fn new() -> Self {
        let home = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(home.host()).unwrap();
        home
    }

    /// What a daemon may change.
    fn host(&self) -> PathBuf {
        self.root.path().join("host")
    }

    /// A path on the host.
    pub fn path(&self, name: &str) -> PathBuf {
        self.host().join(name)
    }

    /// Where the daemons of [`Home::configure`] have their sockets.
    pub fn runtime_dir(&self) -> PathBuf {
        self.path("run")
    }

    pub fn config(&self) -> PathBuf {
        self.root.path().join("ek.toml")
    }

    /// Writes a configuration file. `HOST` stands for the host's directory.
    pub fn write_config(&self, name: &str, text: &str) -> PathBuf {
        let path = self.root.path().join(name);
        fs::write(&path, text.replace("HOST", self.host().to_str().unwrap())).unwrap();
        path
    }

    /// Writes the usual configuration: directories first (lines 1 and 2), then `text`.
    pub fn configure(&self, text: &str) -> PathBuf {
        self.write_config("ek.toml", &format!("runtime_dir = \"HOST/run\"\nstate_dir = \"HOST/state\"\n{text}"))
    }

    /// Everything there is, with its size, mode, time of change, and content where it is short enough to keep.
    pub fn listing(&self) -> BTreeMap<PathBuf, (u64, u32, i64, Vec<u8>)> {
        let mut found = BTreeMap::new();
        let mut rest = vec![self.host()];
        while let Some(dir) = rest.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                // A daemon that runs keeps its summaries there when it is time to.
                if path.ends_with("state/history") {
                    continue;
                }
                let metadata = path.symlink_metadata().unwrap();
                let mut content = Vec::new();
                if metadata.is_file() {
                    File::open(&path).unwrap().take(1 << 20).read_to_end(&mut content).unwrap();
                } else if metadata.is_dir() {
                    rest.push(path.clone());
                }
                let (len, mtime_nsec) =
                    if metadata.is_dir() { (0, 0) } else { (metadata.len(), metadata.mtime_nsec()) };
                found.insert(path, (len, metadata.mode(), mtime_nsec, content));
            }
        }
        found
    }

    /// Starts a daemon on [`Home::config`] and waits until it serves.
    pub fn serve(&self) -> Daemon {
        self.serve_config(&self.config())
    }

    pub fn serve_config(&self, config: &Path) -> Daemon {
        self.try_serve(config, &[]).unwrap_or_else(|line| {
            let log = fs::read_to_string(config.with_extension("log")).unwrap_or_default();
            panic!("not ready: {line:?}\n{log}")
        })
    }

    /// With these environment variables. What it printed instead of being ready.
    pub fn try_serve(&self, config: &Path, environment: &[(&str, &str)]) -> Result<Daemon, String> {
        let log = config.with_extension("log");
        let log_start = fs::metadata(&log).map_or(0, |metadata| metadata.len() as usize);
        let mut child = evenkeel()
            .args(["serve", "--json"])
            .arg(config)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut daemon = Daemon { child, log, log_start, ready: Value::Null };
        daemon.ready = serde_json::from_str(&line).map_err(|_| line)?;
        Ok(daemon)
    }

    /// Runs `evenkeel load` against a tenant of [`Home::configure`], in the background.
    pub fn load(&self, tenant: &str, arguments: &str) -> Load {
        let child = evenkeel()
            .arg("load")
            .arg(self.runtime_dir().join(tenant))
            .args(["--json", "--threads", "1", "--yield", "always"])
            .args(arguments.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Load { child: Some(child) }
    }

    /// Attaches a guest to a tenant of [`Home::configure`].
    pub fn attach(&self, tenant: &str) -> Guest {
        Guest::attach(&self.runtime_dir().join(tenant))
    }
}

/// The program under test, without arguments. It starts the `evenkeeld` beside it, which cargo builds for tests of the
/// workspace, but not for those of this package alone.
pub fn evenkeel() -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_evenkeel"));
    let daemon = program.with_file_name("evenkeeld");
    assert!(daemon.exists(), "{daemon:?} is missing: cargo build --package evenkeeld (cargo test --workspace does)");
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub fn run(arguments: &[&str]) -> Output {
    evenkeel().args(arguments).output().unwrap()
}

/// What it wrote to its standard error; of an object of JSON, the words for people.
pub fn errors(output: &Output) -> String {
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    // Progress may stand before it.
    let last = told.lines().last().unwrap_or_default();
    let problem: Option<Problem> = serde_json::from_str(last).ok();
    problem.map_or(told.clone(), |problem| told.replace(last, &format!("evenkeel: {problem}")))
}

/// Asks until `found` says what it was looking for.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < HANG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn wait_exit(child: &mut Child, what: &str) -> ExitStatus {
    wait_for(what, || child.try_wait().unwrap())
}

/// A running daemon. Dropped while it runs, it is killed.
pub struct Daemon {
    child: Child,
    log: PathBuf,
    /// Where its part begins: daemons on the same configuration share a file.
    log_start: usize,
    /// The line with which it said that it serves.
    pub ready: Value,
}

impl Daemon {
    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap().split_off(self.log_start)
    }

    /// Waits until its log has `count` lines with `text`.
    pub fn wait_log(&self, text: &str, count: usize) {
        wait_for(text, || (self.log().lines().filter(|line| line.contains(text)).count() >= count).then_some(()));
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to end, without waiting.
    pub fn terminate(&self) {
        signal(&self.child, Signal::TERM);
    }

    /// Has it read its file again, without waiting.
    pub fn reload(&self) {
        signal(&self.child, Signal::HUP);
    }

    /// Waits for its end, which must be a good one.
    pub fn wait(&mut self) {
        let status = wait_exit(&mut self.child, "the daemon's end");
        assert_eq!(status.code(), Some(0), "{status}");
    }

    /// Waits for its end by something else than a request.
    pub fn end(mut self) -> ExitStatus {
        wait_exit(&mut self.child, "the daemon's end")
    }

    pub fn stop(mut self) {
        assert!(self.is_alive(), "the daemon ended by itself");
        self.terminate();
        self.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail after its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("--- {}\n{log}---", self.log.display());
        }
    }
}

/// `evenkeel load` in the background. Dropped while it runs, it is killed.
pub struct Load {
    child: Option<Child>,
}

impl Load {
    /// Waits for its end; gives its exit code and its report.
    pub fn end(mut self) -> (Option<i32>, Value) {
        let mut child = self.child.take().unwrap();
        // Its report is longer than a pipe holds only with hundreds of jobs.
        wait_exit(&mut child, "the load's end");
        let output = child.wait_with_output().unwrap();
        let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::String(errors(&output)));
        (output.status.code(), report)
    }

    /// Waits for its end: everything must have gone well.
    pub fn expect_clean(self) -> Value {
        let (code, report) = self.end();
        assert_eq!(code, Some(0), "{report:#}");
        report
    }

    /// Asks it to end, and waits as [`Load::expect_clean`] does.
    pub fn stop(self) -> Value {
        signal(self.child.as_ref().unwrap(), Signal::TERM);
        self.expect_clean()
    }

    /// As [`Load::stop`], of jobs with `--verify` that read: they found what they wrote. Jobs that only write check
    /// nothing if they are stopped.
    pub fn stop_verified(self) {
        let report = self.stop();
        for job in report["jobs"].as_array().unwrap() {
            assert_eq!(job["verify"]["bad_blocks"], 0, "{report:#}");
            assert!(job["verify"]["checked_blocks"].as_u64().unwrap() > 0, "{report:#}");
        }
    }

    /// SIGKILL, and waits until the kernel has taken it apart.
    pub fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        assert_eq!(child.try_wait().unwrap(), None, "it must be at work");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
