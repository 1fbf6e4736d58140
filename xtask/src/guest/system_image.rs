//! A whole Debian with systemd, as an image of its file system, made from the same archive as the other guests'
//! programs and kept beside them. It has no kernel of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::apt::quietly;
use super::debian;
use super::prepare::RELEASE;

/// Names the cached folder; raise it when what is in the image changes.
const RECIPE: u32 = 1;

/// With all that they depend on.
const PACKAGES: [&str; 6] = ["?essential", "systemd", "systemd-sysv", "passwd", "kmod", "e2fsprogs"];

/// Of the file system. The image is sparse.
const SIZE: &str = "1G";

/// The image, made before or now. Safe to interrupt and to run twice at once.
///
/// # Errors
/// When this machine cannot make it; the message says why.
pub fn find_or_make(cache: &Path) -> Result<PathBuf> {
    let dir = debian::once(cache, "system", RECIPE, |dir| build(dir).context("preparing the guest with systemd"))?;
    Ok(dir.join("system.img"))
}

fn build(dir: &Path) -> Result<()> {
    let start = Instant::now();
    let step = |text: &str| println!("guest-prepare [{:5.1} s] {text}", start.elapsed().as_secs_f64());

    step(&format!("Debian {RELEASE} with systemd"));
    let root = debian::install(dir, &[RELEASE], &PACKAGES)?;

    step("its file system");
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-d"]).args([&root, &dir.join("system.img")]).arg(SIZE);
    quietly(&mut make).context("mke2fs is e2fsprogs'")?;
    fs::remove_dir_all(&root)?;
    step("done");
    Ok(())
}
