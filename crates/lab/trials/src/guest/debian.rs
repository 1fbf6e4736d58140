//! Debians that are made once, as `debootstrap` would, and kept in the guests' cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{PrivateApt, extract, quietly};
use super::mirror;
use super::prepare::RELEASE;

/// Configures the packages in the root `$1`, in a mount namespace of its own: what is mounted here goes with it.
const INSTALL: &str = "mount -t proc proc \"$1/proc\" && mount --bind /dev \"$1/dev\" && \
                       exec chroot \"$1\" sh -c 'exec dpkg --force-depends --install /packages/*.deb'";

/// The folder `name` of the cache, made before or now by `build`. `recipe` is raised when its content is to change.
/// Safe to interrupt and to run twice at once.
///
/// # Errors
/// What `build` fails with, or that the cache can't be written.
pub fn once(cache: &Path, name: &str, recipe: u32, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let dir = cache.join(format!("{name}-{RELEASE}-{recipe}"));
    let lock = fs::File::create(cache.join(format!("{name}-lock")))?;
    lock.lock()?;
    if !dir.exists() {
        let partial = cache.join(format!("{name}-partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial).context("removing an interrupted preparation")?;
        }
        fs::create_dir_all(&partial)?;
        build(&partial.canonicalize()?)?;
        fs::rename(&partial, &dir)?;
    }
    Ok(dir)
}

/// Installs `packages`, with all that they depend on, in `dir`'s folder `root`, which is returned. What two of
/// `suites` have is taken from the last.
///
/// # Errors
/// When a package can't be had or does not configure itself.
pub fn install(dir: &Path, suites: &[&str], packages: &[&str]) -> Result<PathBuf> {
    ensure!(rustix::process::geteuid().is_root(), "packages are installed by root alone: run this as root once");
    let suite = suites.last().context("packages come from a suite")?;
    let (apt_dir, root) = (dir.join("apt"), dir.join("root"));
    let apt = PrivateApt::new(&apt_dir, &mirror::find()?, suites)?;
    let mut archives = apt.fetch(suite, packages)?;
    // The one with the links from /bin to /usr/bin comes first.
    archives.sort_by_key(|archive| !file_name(archive).starts_with("base-files_"));
    archives.iter().try_for_each(|archive| extract(archive, &root))?;

    let inside = root.join("packages");
    fs::create_dir(&inside)?;
    archives.iter().try_for_each(|archive| fs::rename(archive, inside.join(file_name(archive))))?;
    let mut install = Command::new("unshare");
    install.args(["--mount", "--fork", "sh", "-c", INSTALL, "sh"]).arg(&root);
    install.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DEBIAN_FRONTEND", "noninteractive");
    quietly(&mut install)?;
    fs::remove_dir_all(&inside)?;
    fs::remove_dir_all(&apt_dir)?;
    Ok(root)
}

fn file_name(archive: &Path) -> String {
    archive.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
