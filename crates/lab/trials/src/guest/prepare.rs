//! What the guest tests need, made once and kept in a cache outside the clone: a QEMU that speaks
//! vfio-user, an old one that speaks vhost-user only, Debian's cloud kernel and a small userland for
//! the guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::apt::PrivateApt;
use super::firmware::Firmware;
use super::initramfs::{self, LIBRARIES};
use super::system_image::{self, System};
use super::{firmware, host, mirror};

/// Names the cached folder; raise it when the package lists or the userland's contents change.
const RECIPE: u32 = 4;

/// Debian's release that the guest's kernel and programs come from.
pub const RELEASE: &str = "trixie";
/// vfio-user-pci came with QEMU 10.1; the release itself has 10.0.
pub const BACKPORTS: &str = "trixie-backports";
/// The release before it, whose QEMU is the oldest that the tests attach.
const OLD_RELEASE: &str = "bookworm";

/// qemu-utils holds qemu-storage-daemon.
const HOST_PACKAGES: [&str; 2] = ["qemu-system-x86", "qemu-utils"];
const OLD_HOST_PACKAGES: [&str; 1] = ["qemu-system-x86"];
const GUEST_PACKAGES: [&str; 7] =
    ["linux-image-cloud-amd64", "busybox-static", "cryptsetup-bin", "e2fsprogs", "fio", "nvme-cli", "util-linux"];

/// Debian's program loader, in its folder of libraries.
const LOADER: &str = "ld-linux-x86-64.so.2";

/// The QEMUs that guests run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qemu {
    /// The newest that Debian has for its stable release; vfio-user and vhost-user.
    Newest,
    /// Debian bookworm's; vhost-user only.
    Bookworm,
}

/// Both, the newest first.
pub const QEMUS: [Qemu; 2] = [Qemu::Newest, Qemu::Bookworm];

impl Qemu {
    /// Its version, as commands and reports name it.
    pub fn version(self) -> &'static str {
        match self {
            Self::Newest => "11.1",
            Self::Bookworm => "7.2",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Newest => "qemu",
            Self::Bookworm => "qemu-bookworm",
        }
    }
}

/// The prepared files.
#[derive(Debug, Clone)]
pub struct Images {
    dir: PathBuf,
}

impl Images {
    /// A whole Debian on a drive, which the first one to ask for it makes.
    ///
    /// # Errors
    /// When this machine cannot make it; the message says why.
    pub fn system(&self, system: System) -> Result<PathBuf> {
        let cache = self.dir.parent().context("the guests' cache has no place")?;
        system_image::find_or_make(cache, system)
    }

    /// The root of hosts that recipes are typed in, which the first one to ask for it makes.
    ///
    /// # Errors
    /// When this machine cannot make it; the message says why.
    pub fn host(&self) -> Result<PathBuf> {
        let cache = self.dir.parent().context("the guests' cache has no place")?;
        host::find_or_make(cache)
    }

    /// Firmware, and what makes disks that it boots from, which the first one to ask for it makes.
    ///
    /// # Errors
    /// When this machine cannot make it; the message says why.
    pub fn firmware(&self) -> Result<Firmware> {
        let cache = self.dir.parent().context("the guests' cache has no place")?;
        firmware::find_or_make(cache)
    }

    /// The guest's kernel.
    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The guest's programs, as an uncompressed cpio archive.
    pub fn userland(&self) -> PathBuf {
        self.dir.join("userland.cpio")
    }

    /// A QEMU, without arguments of the caller's yet.
    pub fn qemu(&self, qemu: Qemu) -> Command {
        let root = self.dir.join(qemu.folder());
        let mut command = run_in(&root, "usr/bin/qemu-system-x86_64");
        command
            .env("QEMU_MODULE_DIR", root.join(LIBRARIES).join("qemu"))
            .arg("-L")
            .arg(root.join("usr/share/qemu"))
            .arg("-L")
            .arg(root.join("usr/share/seabios"));
        command
    }

    /// QEMU's storage daemon, without arguments of the caller's yet.
    pub fn storage_daemon(&self) -> Command {
        self.tool("usr/bin/qemu-storage-daemon")
    }

    /// `qemu-img`.
    pub fn image_tool(&self) -> Command {
        self.tool("usr/bin/qemu-img")
    }

    fn tool(&self, program: &str) -> Command {
        let root = self.dir.join(Qemu::Newest.folder());
        let mut command = run_in(&root, program);
        command.env("QEMU_MODULE_DIR", root.join(LIBRARIES).join("qemu"));
        command
    }
}

/// A program of an unpacked `root`, run with that root's own loader and libraries, so that the host's
/// C library does not matter.
pub fn run_in(root: &Path, program: &str) -> Command {
    // bookworm still keeps some libraries, and the loader, outside of /usr.
    let folders = [root.join(LIBRARIES), root.join("lib/x86_64-linux-gnu")];
    let loader = folders.iter().map(|folder| folder.join(LOADER)).find(|path| path.exists());
    let search: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let mut command = Command::new(loader.unwrap_or_else(|| folders[0].join(LOADER)));
    command.arg("--library-path").arg(search.join(":")).arg(root.join(program));
    command
}

/// The default cache: `EVENKEEL_CACHE`, or `evenkeel/guest` in the user's cache folder.
pub fn default_cache() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(dir) = variable("EVENKEEL_CACHE") {
        return Ok(PathBuf::from(dir));
    }
    let base = match variable("XDG_CACHE_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(&variable("HOME").context("HOME is not set; give --cache DIR")?).join(".cache"),
    };
    Ok(base.join("evenkeel/guest"))
}

/// Makes the images, or finds them made. Safe to interrupt and to run twice at once.
///
/// # Errors
/// When this machine cannot make them; the message says why.
pub fn images(cache: &Path) -> Result<Images> {
    if let Some(images) = found(cache) {
        return Ok(images);
    }
    let images = Images { dir: cache.join(format!("{RELEASE}-{RECIPE}")) };
    ensure!(cfg!(target_arch = "x86_64"), "the guests need an x86-64 host");
    fs::create_dir_all(cache).with_context(|| format!("creating {}", cache.display()))?;
    let lock = fs::File::create(cache.join("lock"))?;
    lock.lock()?;
    if !images.dir.exists() {
        let partial = cache.join("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial).context("removing an interrupted preparation")?;
        }
        build(&partial).context("preparing the guests")?;
        fs::rename(&partial, &images.dir)?;
    }
    Ok(images)
}

/// The images, if they were made before.
pub fn found(cache: &Path) -> Option<Images> {
    let images = Images { dir: cache.join(format!("{RELEASE}-{RECIPE}")) };
    images.dir.exists().then_some(images)
}

fn build(dir: &Path) -> Result<()> {
    let start = Instant::now();
    let step = |text: &str| println!("guest-prepare [{:5.1} s] {text}", start.elapsed().as_secs_f64());

    let mirror = mirror::find()?;
    step(&format!("Debian {RELEASE}, its backports and {OLD_RELEASE}, from {}", mirror.uri));
    fs::create_dir_all(dir)?;
    // apt and the loader take absolute paths only.
    let dir = &dir.canonicalize()?;
    let images = Images { dir: dir.clone() };
    let apt_dirs = [dir.join("apt"), dir.join("apt-old")];
    let apt = PrivateApt::new(&apt_dirs[0], &mirror, &[RELEASE, BACKPORTS])?;
    let old_apt = PrivateApt::new(&apt_dirs[1], &mirror, &[OLD_RELEASE])?;

    step("QEMU and its storage daemon");
    apt.unpack(BACKPORTS, &HOST_PACKAGES, &dir.join(Qemu::Newest.folder()))?;
    require(&images, Qemu::Newest, "vfio-user-pci")?;
    ensure!(
        images.storage_daemon().arg("--version").output()?.status.success(),
        "the storage daemon of {BACKPORTS} does not run"
    );

    step(&format!("QEMU of {OLD_RELEASE}"));
    old_apt.unpack(OLD_RELEASE, &OLD_HOST_PACKAGES, &dir.join(Qemu::Bookworm.folder()))?;
    require(&images, Qemu::Bookworm, "vhost-user-blk-pci")?;

    step("kernel and guest programs");
    let root = dir.join("guest");
    apt.unpack(RELEASE, &GUEST_PACKAGES, &root)?;
    fs::copy(kernel_in(&root)?, images.kernel())?;
    initramfs::write_userland(&root, &images.userland())?;

    fs::remove_dir_all(&root)?;
    for apt_dir in apt_dirs {
        fs::remove_dir_all(apt_dir)?;
    }
    step("done");
    Ok(())
}

/// Requires that a QEMU runs and has a device. Asks for that one alone: for a list, QEMU loads every module that it
/// finds, also those of another QEMU that the host has installed.
fn require(images: &Images, qemu: Qemu, device: &str) -> Result<()> {
    let output = images.qemu(qemu).args(["-device", &format!("{device},help")]).output().context("running QEMU")?;
    ensure!(
        output.status.success(),
        "Debian's QEMU {} has no {device}: {}",
        qemu.version(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

fn kernel_in(root: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(root.join("boot"))? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")) {
            return Ok(path);
        }
    }
    bail!("the kernel package holds no vmlinuz")
}
