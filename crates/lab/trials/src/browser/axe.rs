//! axe-core, which looks for what keeps people from using a page. Fetched once; it is no part of the repository.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Of this version, so that it finds the same tomorrow.
const PACKAGE: &str = "axe-core@4.10.3";

/// Its script, from the cache or by npm.
///
/// # Errors
/// When it can't be had.
pub fn script(cache: &Path) -> Result<String> {
    let dir = cache.join(PACKAGE);
    let script = dir.join("package/axe.min.js");
    if !script.exists() {
        fetch(&dir).with_context(|| format!("{PACKAGE} is not in {} and can't be fetched by npm", cache.display()))?;
    }
    fs::read_to_string(&script).with_context(|| script.display().to_string())
}

fn fetch(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let packed = Command::new("npm").args(["pack", "--silent", PACKAGE]).current_dir(dir).output().context("npm")?;
    ensure!(packed.status.success(), "npm pack: {}", String::from_utf8_lossy(&packed.stderr).trim());
    let archive = String::from_utf8(packed.stdout)?;
    let unpacked = Command::new("tar").arg("-xzf").arg(archive.trim()).current_dir(dir).output().context("tar")?;
    ensure!(unpacked.status.success(), "tar: {}", String::from_utf8_lossy(&unpacked.stderr).trim());
    Ok(fs::remove_file(dir.join(archive.trim()))?)
}
