//! A real daemon, on a file that counts as the model of a fast drive.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use api::Rest;
use csi::{Plugin, Settings};
use tempfile::TempDir;

use crate::fake::Fake;

/// Thin disks get 1 GiB of the drive's 4.
const CONFIG: &str = r#"
runtime_dir = "HOST/run"
state_dir = "HOST/state"

[device]
backend = "file"
path = "HOST/drive.img"
size = "4GiB"
create = true
profile = "p5800x"
pool = "1GiB"
"#;

pub struct Daemon {
    pub home: TempDir,
    child: Child,
}

impl Daemon {
    /// `None`, in words: this build has no daemon.
    pub fn start() -> Option<Self> {
        let program = program()?;
        let home = tempfile::tempdir().unwrap();
        let config = CONFIG.replace("HOST", home.path().to_str().unwrap());
        fs::write(home.path().join("config.toml"), config).unwrap();
        let child = serve(&program, home.path());
        Some(Self { home, child })
    }

    pub fn rest(&self) -> Rest {
        Rest::new(self.home.path().join("run/api.sock"))
    }

    /// A plugin whose disks are virtio ones: a host without the driver ublk has those.
    pub fn plugin(&self, host: &Fake) -> Plugin {
        let frontend = "vhost-user-blk".to_owned();
        let settings = Settings { node: "node-1".to_owned(), frontend, max_volumes: 100 };
        Plugin::new(self.rest(), host.clone(), settings)
    }

    /// Ends it as SIGKILL does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn start_again(&mut self) {
        self.child = serve(&program().unwrap(), self.home.path());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the daemon and waits until it says that it serves.
fn serve(program: &Path, home: &Path) -> Child {
    let log = File::options().create(true).append(true).open(home.join("log")).unwrap();
    let mut command = Command::new(program);
    command.arg(home.join("config.toml")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let serves = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("serving"));
    assert!(serves, "{}", fs::read_to_string(home.join("log")).unwrap_or_default());
    // What it prints later is read, so that it is not held up.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    child
}

/// The daemon of this build, or the one that `EVENKEELD` names.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("EVENKEELD").map(PathBuf::from);
    let test = std::env::current_exe().unwrap();
    let program = named.unwrap_or_else(|| test.ancestors().nth(2).unwrap().join("evenkeeld"));
    if program.exists() {
        return Some(program);
    }
    assert!(std::env::var_os("CI").is_none(), "{} is not built", program.display());
    eprintln!("skipped: {} is not built (`cargo build -p evenkeeld`)", program.display());
    None
}
