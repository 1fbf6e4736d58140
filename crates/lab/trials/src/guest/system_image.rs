//! Whole Debians with systemd, as images of their file systems, made from the same archive as the other guests'
//! programs and kept beside them. They have no kernel of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::apt::quietly;
use super::debian;
use super::prepare::RELEASE;

/// Names the cached folders; raise it when what is in an image changes.
const RECIPE: u32 = 1;

const NEXT_RELEASE: &str = "forky";

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
    /// Of Debian's next release, whose systemd takes volumes from storage providers (since 261).
    Volumes,
}

impl System {
    /// Names the cached folder.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "system",
            Self::Containers => "containers",
            Self::Volumes => "volumes",
        }
    }

    fn suite(self) -> &'static str {
        match self {
            Self::Plain | Self::Containers => RELEASE,
            Self::Volumes => NEXT_RELEASE,
        }
    }

    fn packages(self) -> Vec<&'static str> {
        let more: &[&str] = match self {
            Self::Plain => &[],
            Self::Containers => &["udev", "podman", "crun", "systemd-container", "busybox-static"],
            Self::Volumes => &["udev", "mount", "systemd-container"],
        };
        [&PACKAGES[..], more].concat()
    }
}

/// The image, made before or now. Safe to interrupt and to run twice at once.
///
/// # Errors
/// When this machine cannot make it; the message says why.
pub fn find_or_make(cache: &Path, system: System) -> Result<PathBuf> {
    let build = |dir: &Path| build(dir, system).context("preparing the guest with systemd");
    Ok(debian::once(cache, system.name(), RECIPE, build)?.join("system.img"))
}

fn build(dir: &Path, system: System) -> Result<()> {
    let start = Instant::now();
    let step = |text: &str| println!("guest-prepare [{:5.1} s] {text}", start.elapsed().as_secs_f64());

    step(&format!("Debian {} with {}", system.suite(), system.packages().join(", ")));
    let root = debian::install(dir, &[system.suite()], &system.packages())?;

    step("its file system");
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-d"]).args([&root, &dir.join("system.img")]).arg(SIZE);
    quietly(&mut make).context("mke2fs is e2fsprogs'")?;
    fs::remove_dir_all(&root)?;
    step("done");
    Ok(())
}
