//! What the guest tests need, made once and kept in a cache outside the clone: a QEMU that speaks
//! vfio-user, Debian's cloud kernel and a small userland for the guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::apt::{PrivateApt, RELEASE};
use super::initramfs::{self, LIBRARIES, LOADER};
use super::mirror;

/// Names the cached folder; raise it when the package lists or the userland's contents change.
const RECIPE: u32 = 1;

/// vfio-user-pci came with QEMU 10.1; the release itself has 10.0.
const HOST_PACKAGES: [&str; 1] = ["qemu-system-x86"];
const GUEST_PACKAGES: [&str; 5] = ["linux-image-cloud-amd64", "busybox-static", "e2fsprogs", "fio", "nvme-cli"];

/// The prepared files.
#[derive(Debug, Clone)]
pub struct Images {
    dir: PathBuf,
}

impl Images {
    /// The guest's kernel.
    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The guest's programs, as an uncompressed cpio archive.
    pub fn userland(&self) -> PathBuf {
        self.dir.join("userland.cpio")
    }

    /// QEMU, run with its own loader and libraries, so that the host's C library does not matter.
    pub fn qemu(&self) -> Command {
        let root = self.dir.join("qemu");
        let libraries = root.join(LIBRARIES);
        let mut command = Command::new(root.join(LOADER));
        command
            .env("QEMU_MODULE_DIR", libraries.join("qemu"))
            .arg("--library-path")
            .arg(&libraries)
            .arg(root.join("usr/bin/qemu-system-x86_64"))
            .arg("-L")
            .arg(root.join("usr/share/qemu"))
            .arg("-L")
            .arg(root.join("usr/share/seabios"));
        command
    }
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
    let images = Images { dir: cache.join(format!("{RELEASE}-{RECIPE}")) };
    if images.dir.exists() {
        return Ok(images);
    }
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

fn build(dir: &Path) -> Result<()> {
    let start = Instant::now();
    let step = |text: &str| println!("guest-prepare [{:5.1} s] {text}", start.elapsed().as_secs_f64());

    let mirror = mirror::find()?;
    step(&format!("Debian {RELEASE} and its backports, from {}", mirror.uri));
    fs::create_dir_all(dir)?;
    // apt and the loader take absolute paths only.
    let dir = &dir.canonicalize()?;
    let apt_dir = dir.join("apt");
    let apt = PrivateApt::new(&apt_dir, &mirror)?;

    step("QEMU");
    apt.unpack(&format!("{RELEASE}-backports"), &HOST_PACKAGES, &dir.join("qemu"))?;
    let images = Images { dir: dir.clone() };
    require_vfio_user(&images)?;

    step("kernel and guest programs");
    let root = dir.join("guest");
    apt.unpack(RELEASE, &GUEST_PACKAGES, &root)?;
    fs::copy(kernel_in(&root)?, images.kernel())?;
    initramfs::write_userland(&root, &images.userland())?;

    fs::remove_dir_all(&root)?;
    fs::remove_dir_all(&apt_dir)?;
    step("done");
    Ok(())
}

fn require_vfio_user(images: &Images) -> Result<()> {
    let output = images.qemu().args(["-device", "help"]).output().context("running QEMU")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        text.contains("\"vfio-user-pci\""),
        "the QEMU of {RELEASE}-backports has no vfio-user-pci (10.1 or later is needed): {}",
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
