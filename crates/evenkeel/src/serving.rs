//! A daemon for as long as something is measured on it: the demo, experiments in real time.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};

use crate::serve;

/// The daemon, in a directory that goes with it.
pub struct Serving {
    child: Child,
    dir: PathBuf,
}

impl Serving {
    /// Starts one and waits until its sockets accept clients. `purpose` names its directory, `configuration` makes its
    /// file; sockets and layout belong into the directory.
    ///
    /// # Errors
    /// What the daemon said if it did not start.
    pub fn start(purpose: &str, configuration: impl FnOnce(&Path) -> String) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("evenkeel-{purpose}-{}", std::process::id()));
        // Ours alone: the daemon takes no directory that others may write to.
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("can't create {}", dir.display()))?;
        let config = dir.join(format!("{purpose}.toml"));
        std::fs::write(&config, configuration(&dir))?;
        let mut child = serve::command()
            .arg("--json")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.join("log"))?)
            .spawn()
            .context("can't start the daemon")?;
        let mut ready = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut ready)?;
        }
        let serving = Self { child, dir };
        if ready.is_empty() {
            let log = std::fs::read_to_string(serving.dir.join("log")).unwrap_or_default();
            bail!("the daemon did not start: {}", log.trim());
        }
        Ok(serving)
    }

    /// Where its sockets are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stops it as an operator would.
    ///
    /// # Errors
    /// It did not end well.
    pub fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the daemon ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Both fail harmlessly after `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
