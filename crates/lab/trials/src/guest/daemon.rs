//! Evenkeel itself as the tests run it: a config, a process, its sockets and its log.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::lab::{NVME, Tenant, VIRTIO};
use super::qemu::VCPUS;
use crate::wait;

/// Size of each tenant's disk.
pub const TENANT_SIZE_MIB: u64 = 1024;
/// Size of each read-only disk.
pub const READ_ONLY_SIZE_MIB: u64 = 16;
/// Size of the drive: four tenants' disks, two read-only ones, and room for the layout's start.
const DRIVE_SIZE_MIB: u64 = 5 << 10;

/// The configuration file, in the folder.
pub const CONFIG_FILE: &str = "evenkeel.toml";
/// What it logs, in the folder.
pub const LOG_FILE: &str = "evenkeel.log";
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// A running daemon. Dropping it kills it.
pub struct Daemon {
    child: Child,
    log: PathBuf,
    /// Where in the log its own words start, after those of the daemons before it.
    log_start_bytes: usize,
}

impl Daemon {
    /// Starts a daemon for the lab's tenants on an image in `dir` and waits until every tenant's socket
    /// is there. The image and the log of an earlier daemon in `dir` are kept.
    ///
    /// # Errors
    /// When it ends or a socket does not appear; the error holds its log.
    pub fn start(binary: &Path, dir: &Path) -> Result<Self> {
        make_image(&image_of(dir), DRIVE_SIZE_MIB)?;
        let nvme = NVME.iter().map(|&tenant| socket_of(dir, tenant));
        let virtio = VIRTIO.iter().flat_map(|&tenant| [socket_of(dir, tenant), read_only_socket_of(dir, tenant)]);
        let configuration = configuration(dir) + &keys_section(dir)?;
        Self::start_with(binary, dir, &configuration, &nvme.chain(virtio).collect::<Vec<_>>())
    }

    /// As [`Daemon::start`], with a configuration and the sockets that it makes.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_with(binary: &Path, dir: &Path, configuration: &str, sockets: &[PathBuf]) -> Result<Self> {
        let config = dir.join(CONFIG_FILE);
        fs::write(&config, configuration)?;
        let log = dir.join(LOG_FILE);
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
        wait_for_sockets(sockets, || daemon.check())?;
        Ok(daemon)
    }

    /// Ends it with SIGKILL, as a crash would, and returns its log.
    ///
    /// # Errors
    /// When it was gone already, or had panicked.
    pub fn kill(mut self) -> Result<String> {
        self.check()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.log_text())
    }

    /// Asks it to end with SIGTERM, requires that it does so with exit code 0, and returns its log.
    ///
    /// # Errors
    /// When it does not end in time or ends with another status.
    pub fn stop(mut self) -> Result<String> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).context("sending SIGTERM to evenkeel")?;
        let status = wait::for_this("evenkeel's end after SIGTERM", STOP_LIMIT, || Ok(self.child.try_wait()?))
            .with_context(|| self.log_text())?;
        ensure!(status.code() == Some(0), "evenkeel ended with {status}:\n{}", self.log_text());
        self.check_log()?;
        Ok(self.log_text())
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

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it has written.
    pub fn log_text(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_start_bytes..).unwrap_or_default()).into_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Nothing is left to do where the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a process listens on each of `sockets`; `check` fails when it never will.
///
/// # Errors
/// What `check` says, or that it took too long.
pub fn wait_for_sockets(sockets: &[PathBuf], mut check: impl FnMut() -> Result<()>) -> Result<()> {
    sockets.iter().try_for_each(|socket| {
        wait::for_this(&format!("a listener on {}", socket.display()), START_LIMIT, || {
            check()?;
            Ok(is_listening(socket)?.then_some(()))
        })
    })
}

/// Whether a process listens on `socket`; the file alone may be an earlier daemon's.
fn is_listening(socket: &Path) -> Result<bool> {
    /// Kernel's include/linux/net.h, SO_ACCEPTCON: a socket that is only bound does not have it yet.
    const LISTENING: &str = "00010000";
    let sockets = fs::read_to_string("/proc/net/unix")?;
    let path = socket.to_string_lossy();
    // The fourth field holds the flags, the last the path.
    Ok(sockets.lines().any(|line| line.ends_with(&*path) && line.split_whitespace().nth(3) == Some(LISTENING)))
}

/// Makes a sparse image where there is none.
pub fn make_image(path: &Path, size_mib: u64) -> Result<()> {
    if !path.exists() {
        fs::File::create(path)?.set_len(size_mib << 20)?;
    }
    Ok(())
}

/// The drive of the daemon in `dir`.
pub fn image_of(dir: &Path) -> PathBuf {
    dir.join("drive.img")
}

/// Where on the drive a disk of the daemon in `dir` starts, in bytes.
///
/// # Errors
/// When `evenkeel check` fails or names no such tenant.
pub fn offset_of(binary: &Path, dir: &Path, tenant_name: &str) -> Result<u64> {
    let output = Command::new(binary).args(["check", "--json"]).arg(dir.join(CONFIG_FILE)).output()?;
    ensure!(output.status.success(), "evenkeel check: {}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let tenants = summary["items"].as_array().into_iter().flatten();
    let tenants = tenants.flat_map(|drive| drive["tenants"].as_array().into_iter().flatten());
    tenants
        .filter(|tenant| tenant["name"] == tenant_name)
        .find_map(|tenant| tenant["offset_bytes"].as_u64())
        .with_context(|| format!("evenkeel check names no tenant {tenant_name}"))
}

/// What the command line says to `arguments`, asked of the daemon in `dir`.
///
/// # Errors
/// When it fails; the error holds its reason.
pub fn evenkeel(binary: &Path, dir: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(binary).args(arguments).env("EVENKEEL_SOCKET", dir.join("run/api.sock")).output()?;
    let reason = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "evenkeel {}: {}", arguments.join(" "), reason.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// The socket of a tenant of the daemon in `dir`.
pub fn socket_of(dir: &Path, tenant: Tenant) -> PathBuf {
    let file = if tenant.is_virtio() { "vhost.sock" } else { "cntrl" };
    dir.join("run").join(tenant.name()).join(file)
}

/// The socket of the read-only disk beside a tenant's own.
pub fn read_only_socket_of(dir: &Path, tenant: Tenant) -> PathBuf {
    dir.join("run").join(tenant.read_only_name()).join("vhost.sock")
}

/// A tenant's lines: its tests are to hold for an encrypted disk too.
pub const ENCRYPTED: &str = "encryption = \"host\"\nlba_size = 512";

/// The host key's file of the daemon in `dir`, written if that is not done yet. Only its owner may read it.
///
/// # Errors
/// The file can't be written.
pub fn host_key(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("host.key");
    if !path.exists() {
        fs::write(&path, "5a".repeat(32)).context("the host key")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400))?;
    }
    Ok(path)
}

/// The section that names the host key.
///
/// # Errors
/// As [`host_key`].
pub fn keys_section(dir: &Path) -> Result<String> {
    Ok(format!("\n[keys]\nhost_key = {:?}\n", host_key(dir)?))
}

fn configuration(dir: &Path) -> String {
    let mut text = format!(
        r#"runtime_dir = "{dir}/run"

[device]
backend = "file"
path = "{image}"
size = "{DRIVE_SIZE_MIB}MiB"

[policy]
name = "evenkeel"

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
{ENCRYPTED}
"#,
        dir = dir.display(),
        image = image_of(dir).display(),
        guaranteed = Tenant::Guaranteed.name(),
        best_effort = Tenant::BestEffort.name(),
    );
    for tenant in VIRTIO {
        let disks =
            [(tenant.name().to_owned(), TENANT_SIZE_MIB, false), (tenant.read_only_name(), READ_ONLY_SIZE_MIB, true)];
        for (name, size_mib, read_only) in disks {
            text += &format!(
                r#"
[[tenant]]
name = "{name}"
size = "{size_mib}MiB"
frontend = "vhost-user-blk"
queues = {VCPUS}
read_only = {read_only}
"#
            );
        }
    }
    text
}

/// How cargo builds what is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// As for the other tests: built already where those ran.
    Dev,
    /// As for packages and benches.
    Release,
}

/// The binary under test: `EVENKEEL_BIN`, or a build of this checkout.
///
/// # Errors
/// When the build fails.
pub fn binary(profile: Profile) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("EVENKEEL_BIN") {
        return fs::canonicalize(&path).with_context(|| format!("EVENKEEL_BIN: {}", Path::new(&path).display()));
    }
    let packages = ["evenkeel", "evenkeeld", "keeper", "csi"];
    let folder = build(profile, &packages.map(|package| ["--package", package]).concat())?;
    fs::canonicalize(folder.join("evenkeel")).context("the binary that cargo built")
}

/// Has cargo build what the arguments name; returns the folder that it is in.
///
/// # Errors
/// When the build fails.
pub fn build(profile: Profile, arguments: &[&str]) -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let (option, folder) = match profile {
        Profile::Dev => (None, "debug"),
        Profile::Release => (Some("--release"), "release"),
    };
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet"])
        .args(option)
        .args(arguments)
        .current_dir(&workspace)
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "cargo build {} failed", arguments.join(" "));
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => workspace.join("target"),
    };
    Ok(target.join(folder))
}
