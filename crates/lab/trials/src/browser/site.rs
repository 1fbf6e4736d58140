//! A daemon with its port, and the load on its tenants.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::guest::daemon::Daemon;

/// A daemon that can be killed and started again.
pub struct Site {
    binary: PathBuf,
    dir: PathBuf,
    configuration: String,
    sockets: Vec<PathBuf>,
    pub address: String,
    daemon: Option<Daemon>,
}

impl Site {
    /// A daemon that serves what `sections` say. The tenants' names are `tenants`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(binary: &Path, dir: &Path, sections: &str, tenants: &[String]) -> Result<Self> {
        fs::create_dir_all(dir)?;
        // Free a moment ago; the daemon says so if another process took it since.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut configuration = String::new();
        writeln!(configuration, "runtime_dir = {:?}\nstate_dir = {:?}", dir.join("run"), dir.join("state"))?;
        write!(configuration, "[api]\nlisten = {address:?}\n{sections}")?;
        let sockets = tenants.iter().map(|name| dir.join("run").join(name).join("cntrl")).collect();
        let mut site = Self {
            binary: binary.to_path_buf(),
            dir: dir.to_path_buf(),
            configuration,
            sockets,
            address,
            daemon: None,
        };
        site.start_again()?;
        Ok(site)
    }

    /// The token of this start.
    ///
    /// # Errors
    /// When the daemon wrote none.
    pub fn token(&self) -> Result<String> {
        let path = self.dir.join("run/token");
        let token = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(token.trim().to_owned())
    }

    /// Where the page is, with the token as it is handed over.
    pub fn page(&self, token: &str) -> String {
        format!("http://{}/#token={token}", self.address)
    }

    /// Ends it as a crash would.
    ///
    /// # Errors
    /// When it was gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.take().context("it does not run")?.kill().map(drop)
    }

    /// Starts the daemon again with its configuration.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_again(&mut self) -> Result<()> {
        self.daemon = Some(Daemon::start_with(&self.binary, &self.dir, &self.configuration, &self.sockets)?);
        Ok(())
    }

    /// Puts load on a tenant, until it is dropped.
    ///
    /// # Errors
    /// When the load does not start.
    pub fn load(&self, tenant: &str, arguments: &str) -> Result<Load> {
        let child = Command::new(&self.binary)
            .arg("load")
            .arg(self.dir.join("run").join(tenant))
            .args(["--json", "--threads", "1", "--yield", "always", "--runtime", "10m"])
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::options().create(true).append(true).open(self.dir.join("load.log"))?)
            .spawn()
            .context("starting the load")?;
        Ok(Load(child))
    }
}

/// A tenant at work. Dropping it ends it.
pub struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        // Nothing is left to do where it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
