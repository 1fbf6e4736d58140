//! `qemu-storage-daemon` as the peer: one export over vhost-user-blk, pinned like our daemon.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::server::{DAEMON_CPU, new_directory};
use crate::guest;

/// How it is got where it is missing.
pub const HOW_TO_GET: &str = "install Debian's package qemu-system-common (from trixie on: qemu-utils) or run \
                              `cargo xtask guest-prepare`";

/// Long enough for anything but a hang.
const START_LIMIT: Duration = Duration::from_secs(20);

/// The program: from `PATH`, else from the guest tests' cache. `None`: in neither.
fn program() -> Option<Command> {
    let runs = |mut command: Command| command.arg("--version").output().is_ok_and(|output| output.status.success());
    let installed = || Command::new("qemu-storage-daemon");
    if runs(installed()) {
        return Some(installed());
    }
    guest::storage_daemon().filter(|_| guest::storage_daemon().is_some_and(runs))
}

/// What it calls itself. `None`: there is none.
pub fn version() -> Option<String> {
    let output = program()?.arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
}

/// A running one.
pub struct StorageDaemon {
    child: Child,
    dir: PathBuf,
}

impl StorageDaemon {
    /// Exports the node `drive` that `blockdev` describes, with two queues and an I/O thread of its own: what its
    /// documentation advises for speed.
    pub fn start(blockdev: &str) -> Result<Self> {
        Self::start_with(&[], blockdev)
    }

    /// As [`start`](Self::start), with a file that gets LUKS first; `directory` is for its passphrase.
    pub fn with_luks(file: &Path, directory: &Path) -> Result<Self> {
        let passphrase = directory.join("passphrase");
        std::fs::write(&passphrase, "evenkeel")?;
        let size = std::fs::metadata(file)?.len().to_string();
        let secret = format!("secret,id=key,file={}", passphrase.display());
        let mut image_tool = guest::image_tool().context("there is no qemu-img: `cargo xtask guest-prepare`")?;
        image_tool.args(["create", "-q", "-f", "luks", "--object", &secret, "-o", "key-secret=key,iter-time=10"]);
        let made = image_tool.arg(file).arg(&size).output().context("can't start qemu-img")?;
        if !made.status.success() {
            bail!("qemu-img: {}", String::from_utf8_lossy(&made.stderr).trim());
        }
        let blockdev = format!(
            "driver=luks,key-secret=key,node-name=drive,cache.direct=on,file.driver=file,file.filename={},\
             file.aio=io_uring,file.cache.direct=on",
            file.display()
        );
        Self::start_with(&["--object", &secret], &blockdev)
    }

    fn start_with(objects: &[&str], blockdev: &str) -> Result<Self> {
        let dir = new_directory()?;
        let socket = dir.join("vhost.sock");
        let export = format!(
            "vhost-user-blk,id=export,node-name=drive,writable=on,num-queues=2,iothread=thread,addr.type=unix,\
             addr.path={}",
            socket.display()
        );
        let program = program().context("there is no qemu-storage-daemon")?;
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", &DAEMON_CPU.to_string()]).arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => pinned.env(name, value),
                None => pinned.env_remove(name),
            };
        }
        let log = std::fs::File::create(dir.join("log"))?;
        let child = pinned
            .args(objects)
            .args(["--blockdev", blockdev, "--object", "iothread,id=thread", "--export", &export])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("can't start qemu-storage-daemon")?;
        let mut daemon = Self { child, dir };
        daemon.wait_for(&socket)?;
        Ok(daemon)
    }

    fn wait_for(&mut self, socket: &Path) -> Result<()> {
        let start = Instant::now();
        while !socket.exists() {
            if self.child.try_wait()?.is_some() || start.elapsed() > START_LIMIT {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                bail!("qemu-storage-daemon did not start: {}", log.trim());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("vhost.sock")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for StorageDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
