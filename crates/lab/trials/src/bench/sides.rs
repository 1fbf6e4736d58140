//! Servers of one virtio-blk disk, ours and the peer's, which the same client measures on the same cores.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::server::{DAEMON_CPU, Run, Server, evenkeel, fill, load_and_cost, tenant};
use super::storage_daemon::StorageDaemon;
use crate::guest::{self, daemon::host_key};

/// Queues, and commands in flight on each.
pub type Shape = (u32, u32);

/// Enough for pages that are larger than any cache; what is not used takes no place.
const FILE_BYTES: u64 = 4 << 30;

enum Running {
    Ours(Server),
    Theirs(StorageDaemon),
}

/// A server that runs through all rounds; it is idle while others are measured.
pub struct Side {
    pub title: String,
    running: Running,
    /// Goes after the server that has it.
    _drive: Option<ScratchDrive>,
}

impl Side {
    /// Our daemon on a drive without a file.
    pub fn ours(drive: &str, mode: &str) -> Result<Self> {
        let server = Server::start(drive, "passthrough", &vhost_tenant(mode))?;
        let side = Self { title: format!("{drive}, {mode}"), running: Running::Ours(server), _drive: None };
        if drive == "null" { Ok(side) } else { side.filled() }
    }

    /// Our daemon on a file or block device.
    pub fn ours_on(title: &str, mode: &str, drive: ScratchDrive) -> Result<Self> {
        let backend = if drive.loop_device.is_some() { "block" } else { "file" };
        let device = format!("backend = \"{backend}\"\npath = {:?}", drive.path());
        let server = Server::start_on(&device, "passthrough", &vhost_tenant(mode))?;
        let title = format!("{title}, {mode}");
        Self { title, running: Running::Ours(server), _drive: Some(drive) }.filled()
    }

    /// The peer on a node without a file.
    pub fn theirs(title: &str, blockdev: &str) -> Result<Self> {
        let running = Running::Theirs(StorageDaemon::start(&format!("{blockdev},node-name=drive"))?);
        Ok(Self { title: title.into(), running, _drive: None })
    }

    /// The peer on a file or block device.
    pub fn theirs_on(title: &str, drive: ScratchDrive) -> Result<Self> {
        let driver = if drive.loop_device.is_some() { "host_device" } else { "file" };
        // The cache is passed by, as our daemon does it where the file system lets it.
        let blockdev = format!("driver={driver},filename={},aio=io_uring,cache.direct=on", drive.path().display());
        let side = Self::theirs(title, &blockdev)?;
        Self { _drive: Some(drive), ..side }.filled()
    }

    /// Our daemon on a directory, with a disk that is a new image in it.
    pub fn ours_with_qcow2(title: &str, mode: &str, drive: ScratchDrive) -> Result<Self> {
        let image = drive.qcow2()?;
        let sections = format!(
            "[[drive]]\nname = \"images\"\nbackend = \"directory\"\npath = {:?}\n[policy]\nname = \"passthrough\"\n\
             [pollers]\ncpus = [{DAEMON_CPU}]\n{}image = {:?}\n",
            drive.directory,
            vhost_tenant(mode),
            image.file_name().unwrap_or_default()
        );
        let running = Running::Ours(Server::serve(&evenkeel(), &sections)?);
        Self { title: format!("{title}, {mode}"), running, _drive: Some(drive) }.filled()
    }

    /// The peer on such an image, with the file's `options`.
    pub fn theirs_with_qcow2(title: &str, options: &str, drive: ScratchDrive) -> Result<Self> {
        let file = drive.qcow2()?;
        let side =
            Self::theirs(title, &format!("driver=qcow2,file.driver=file,file.filename={},{options}", file.display()))?;
        Self { _drive: Some(drive), ..side }.filled()
    }

    /// Our daemon on a file, with an encrypted disk.
    pub fn ours_encrypted(title: &str, drive: ScratchDrive) -> Result<Self> {
        let key = host_key(&drive.directory)?;
        let sections = format!(
            "[keys]\nhost_key = {key:?}\n[device]\nbackend = \"file\"\npath = {:?}\nencryption = \"host\"\n\
             [policy]\nname = \"passthrough\"\n[pollers]\ncpus = [{DAEMON_CPU}]\n{}",
            drive.path(),
            vhost_tenant("polling")
        );
        let running = Running::Ours(Server::serve(&evenkeel(), &sections)?);
        Self { title: title.into(), running, _drive: Some(drive) }.filled()
    }

    /// The peer with LUKS over a file.
    pub fn theirs_with_luks(title: &str, drive: ScratchDrive) -> Result<Self> {
        let daemon = StorageDaemon::with_luks(drive.path(), &drive.directory)?;
        Self { title: title.into(), running: Running::Theirs(daemon), _drive: Some(drive) }.filled()
    }

    /// Gives the drive pages of its own.
    fn filled(self) -> Result<Self> {
        fill(&self.socket()).with_context(|| self.title.clone())?;
        Ok(self)
    }

    /// One run of random reads, and the server's CPU in percent of a core.
    pub fn measure(&self, shape: Shape, seconds: u64) -> Result<(Run, f64)> {
        self.measure_as("randread", shape, seconds)
    }

    /// As [`measure`](Self::measure), with `randread`, `randwrite` or `randrw`.
    pub fn measure_as(&self, rw: &str, shape: Shape, seconds: u64) -> Result<(Run, f64)> {
        let pid = match &self.running {
            Running::Ours(server) => server.pid(),
            Running::Theirs(daemon) => daemon.pid(),
        };
        load_and_cost(&self.socket(), pid, rw, shape, seconds).with_context(|| self.title.clone())
    }

    pub fn socket(&self) -> PathBuf {
        match &self.running {
            Running::Ours(server) => server.socket("a"),
            Running::Theirs(daemon) => daemon.socket(),
        }
    }
}

/// The lines of a virtio-blk tenant.
pub fn vhost_tenant(mode: &str) -> String {
    tenant("a", &format!("frontend = \"vhost-user-blk\"\nqueues = 4\nmode = \"{mode}\""))
}

/// A new file in a directory of its own, where a daemon may put more, or a loop device over one; gone when dropped.
pub struct ScratchDrive {
    directory: PathBuf,
    file: PathBuf,
    loop_device: Option<PathBuf>,
}

impl ScratchDrive {
    /// A sparse file at `place`.
    pub fn file(place: &Path, name: &str) -> Result<Self> {
        let directory = place.join(format!("evenkeel-bench-{}-{name}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| format!("can't make {}", directory.display()))?;
        let made = Self { file: directory.join("drive.img"), directory, loop_device: None };
        std::fs::File::create(&made.file)
            .and_then(|file| file.set_len(FILE_BYTES))
            .with_context(|| format!("can't make {}", made.file.display()))?;
        Ok(made)
    }

    /// A loop device over such a file; making one takes root.
    pub fn loop_over(place: &Path, name: &str) -> Result<Self> {
        let mut made = Self::file(place, name)?;
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&made.file).output();
        let output = output.context("can't start losetup")?;
        if !output.status.success() {
            bail!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        made.loop_device = Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
        Ok(made)
    }

    /// Where it is; gone with it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A new image beside it, as large as a tenant's disk, empty.
    fn qcow2(&self) -> Result<PathBuf> {
        let image = self.directory.join("disk.qcow2");
        let mut tool = guest::image_tool().context("there is no qemu-img: `cargo xtask guest-prepare`")?;
        let made = tool.args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("2G").output()?;
        if !made.status.success() {
            bail!("qemu-img: {}", String::from_utf8_lossy(&made.stderr).trim());
        }
        Ok(image)
    }

    fn path(&self) -> &Path {
        self.loop_device.as_ref().unwrap_or(&self.file)
    }
}

impl Drop for ScratchDrive {
    fn drop(&mut self) {
        if let Some(device) = &self.loop_device {
            // A server that was killed may have it for a moment; the device then goes with its last user.
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
