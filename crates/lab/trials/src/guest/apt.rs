//! A private apt: its own sources, lists and cache in one folder, so that packages of another
//! Debian release can be fetched and unpacked without root and without touching the system.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::mirror::Mirror;

/// An apt whose whole state lies in one folder.
pub struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    /// Lays out the folder and fetches the package lists of Debian's `suites`.
    ///
    /// # Errors
    /// When the archive cannot be reached or is not signed by a key that this machine trusts.
    pub fn new(dir: &Path, mirror: &Mirror, suites: &[&str]) -> Result<Self> {
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        fs::write(dir.join("state/status"), "")?;
        let option = match &mirror.keyring {
            Some(keyring) => format!("[signed-by={}] ", keyring.display()),
            None => String::new(),
        };
        let uri = &mirror.uri;
        let sources: Vec<String> = suites.iter().map(|suite| format!("deb {option}{uri} {suite} main\n")).collect();
        fs::write(dir.join("sources.list"), sources.concat())?;
        fs::write(dir.join("apt.conf"), configuration(dir)?)?;
        let apt = Self { dir: dir.to_path_buf() };
        apt.run(&["update"]).context("fetching Debian's package lists")?;
        Ok(apt)
    }

    /// Fetches `packages` with all that they depend on and unpacks them into `root`. No package's
    /// own scripts run. `suite` prefers the versions of that suite.
    ///
    /// # Errors
    /// When a package is unknown, cannot be fetched or cannot be unpacked.
    pub fn unpack(&self, suite: &str, packages: &[&str], root: &Path) -> Result<()> {
        for archive in self.fetch(suite, packages)? {
            extract(&archive, root)?;
            fs::remove_file(&archive)?;
        }
        Ok(())
    }

    /// Fetches `packages` with all that they depend on, and returns where they are.
    ///
    /// # Errors
    /// When a package is unknown or cannot be fetched.
    pub fn fetch(&self, suite: &str, packages: &[&str]) -> Result<Vec<PathBuf>> {
        let mut arguments = vec!["install", "--yes", "--download-only", "-t", suite];
        arguments.extend_from_slice(packages);
        self.run(&arguments).with_context(|| format!("fetching {}", packages.join(", ")))?;
        let files = fs::read_dir(self.dir.join("cache/archives"))?.map(|entry| Ok(entry?.path()));
        let files: Vec<PathBuf> = files.collect::<Result<_>>()?;
        Ok(files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "deb")).collect())
    }

    fn run(&self, arguments: &[&str]) -> Result<()> {
        quietly(Command::new("apt-get").env("APT_CONFIG", self.dir.join("apt.conf")).arg("-qq").args(arguments))
    }
}

/// The private apt's settings: the machine's own ways to reach an archive (proxies,
/// certificates) and nothing else of it, above all none of its hooks.
fn configuration(dir: &Path) -> Result<String> {
    let dump = Command::new("apt-config").arg("dump").output().context("apt-config dump")?;
    let mut text: String = String::from_utf8_lossy(&dump.stdout)
        .lines()
        .filter(|line| line.starts_with("Acquire::") && !line.contains("IndexTargets"))
        .fold(String::new(), |text, line| text + line + "\n");
    let dir = dir.display();
    write!(
        text,
        r#"Dir::State "{dir}/state";
Dir::State::status "{dir}/state/status";
Dir::Cache "{dir}/cache";
Dir::Etc::Main "/dev/null";
Dir::Etc::Parts "/dev/null";
Dir::Etc::SourceList "{dir}/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Acquire::Languages "none";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Debug::NoLocking "true";
"#
    )?;
    Ok(text)
}

/// Unpacks a package into `root`. None of its scripts run.
///
/// # Errors
/// When it can't be unpacked.
pub fn extract(archive: &Path, root: &Path) -> Result<()> {
    fs::create_dir_all(root)?;
    quietly(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(root))
}

/// Runs a command, showing its output only when it fails.
///
/// # Errors
/// When it does.
pub fn quietly(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{program} cannot be run"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({}): {}", output.status, text.trim());
    }
    Ok(())
}
