//! Whole Debians with systemd, as images of their file systems: made as `debootstrap` would, from the same archive as
//! the other guests' programs, and kept beside them. They have no kernel of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::apt::{PrivateApt, extract, quietly};
use super::mirror;
use super::prepare::RELEASE;

/// Names the cached folders; raise it when what is in an image changes.
const RECIPE: u32 = 1;

/// What each system has, with all that they depend on.
const PACKAGES: [&str; 6] = ["?essential", "systemd", "systemd-sysv", "passwd", "kmod", "e2fsprogs"];

/// Of the file system. The image is sparse.
const SIZE: &str = "1G";

/// A system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// Little more than systemd.
    Plain,
    /// A host of containers, with what they can be made of without a registry.
    Containers,
}

impl System {
    /// Names the cached folder.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "system",
            Self::Containers => "containers",
        }
    }

    fn packages(self) -> Vec<&'static str> {
        let more: &[&str] = match self {
            Self::Plain => &[],
            Self::Containers => &["udev", "podman", "crun", "systemd-container", "busybox-static"],
        };
        [&PACKAGES[..], more].concat()
    }
}

/// Configures the packages in the root `$1`, in a mount namespace of its own: what is mounted here goes with it.
const INSTALL: &str = "mount -t proc proc \"$1/proc\" && mount --bind /dev \"$1/dev\" && \
                       exec chroot \"$1\" sh -c 'exec dpkg --force-depends --install /packages/*.deb'";

/// The image, made before or now. Safe to interrupt and to run twice at once.
///
/// # Errors
/// When this machine cannot make it; the message says why.
pub fn find_or_make(cache: &Path, system: System) -> Result<PathBuf> {
    let name = system.name();
    let dir = cache.join(format!("{name}-{RELEASE}-{RECIPE}"));
    let lock = fs::File::create(cache.join(format!("{name}-lock")))?;
    lock.lock()?;
    if !dir.exists() {
        let partial = cache.join(format!("{name}-partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial).context("removing an interrupted preparation")?;
        }
        fs::create_dir_all(&partial)?;
        build(&partial.canonicalize()?, system).context("preparing the guest with systemd")?;
        fs::rename(&partial, &dir)?;
    }
    Ok(dir.join("system.img"))
}

fn build(dir: &Path, system: System) -> Result<()> {
    let start = Instant::now();
    let step = |text: &str| println!("guest-prepare [{:5.1} s] {text}", start.elapsed().as_secs_f64());
    ensure!(rustix::process::geteuid().is_root(), "packages are installed by root alone: run this as root once");

    step(&format!("Debian {RELEASE} with {}", system.packages().join(", ")));
    let (apt_dir, root) = (dir.join("apt"), dir.join("root"));
    let apt = PrivateApt::new(&apt_dir, &mirror::find()?, &[RELEASE])?;
    let mut archives = apt.fetch(RELEASE, &system.packages())?;
    // The one with the links from /bin to /usr/bin comes first.
    archives.sort_by_key(|archive| !file_name(archive).starts_with("base-files_"));
    archives.iter().try_for_each(|archive| extract(archive, &root))?;

    step("its packages configure themselves");
    let inside = root.join("packages");
    fs::create_dir(&inside)?;
    archives.iter().try_for_each(|archive| fs::rename(archive, inside.join(file_name(archive))))?;
    let mut install = Command::new("unshare");
    install.args(["--mount", "--fork", "sh", "-c", INSTALL, "sh"]).arg(&root);
    install.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DEBIAN_FRONTEND", "noninteractive");
    quietly(&mut install)?;
    fs::remove_dir_all(&inside)?;

    step("its file system");
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-d"]).args([&root, &dir.join("system.img")]).arg(SIZE);
    quietly(&mut make).context("mke2fs is e2fsprogs'")?;
    fs::remove_dir_all(&root)?;
    fs::remove_dir_all(&apt_dir)?;
    step("done");
    Ok(())
}

fn file_name(archive: &Path) -> String {
    archive.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
