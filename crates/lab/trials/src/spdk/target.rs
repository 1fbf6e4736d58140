//! `nvmf_tgt` and `vhost`, which have one reactor each and are gone when dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::guest::daemon::wait_for_sockets;

/// Where files are memory: what a client maps of a target's must be, as it is of ours.
const MEMORY_FILES: &str = "/dev/shm";
const BLOCK_BYTES: u64 = 4096;
/// What a target takes beside the memory of its disks, in huge pages or small ones.
const OWN_MIB: u64 = 512;
/// And more where it has many disks, each with queues.
const OF_A_DISK_MIB: u64 = 4;

/// What a target speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    VfioUser,
    VhostUser,
}

impl Protocol {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::VfioUser => "vfio-user",
            Self::VhostUser => "vhost-user-blk",
        }
    }

    /// The program that speaks it.
    pub fn program(self) -> &'static str {
        match self {
            Self::VfioUser => "nvmf_tgt",
            Self::VhostUser => "vhost",
        }
    }

    /// The file of a socket, in the directory of its disk.
    pub fn socket(self) -> &'static str {
        match self {
            Self::VfioUser => "cntrl",
            Self::VhostUser => "vhost.sock",
        }
    }
}

/// What its disks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drive {
    /// They hold nothing.
    Null,
    /// Each is memory.
    Malloc,
}

/// What its own memory, that of its disks included, is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    Small,
    Huge,
}

/// What is started.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub protocol: Protocol,
    pub drive: Drive,
    pub pages: Pages,
    /// Each has a socket of its own.
    pub disks: usize,
    /// Of each disk.
    pub disk_mib: u64,
    /// Where its reactor runs.
    pub cpu: usize,
}

impl Shape {
    /// The memory that it takes.
    fn memory_mib(&self) -> u64 {
        let disks = self.disks as u64;
        let content_mib = if self.drive == Drive::Malloc { self.disk_mib } else { 0 };
        OWN_MIB + disks * (OF_A_DISK_MIB + content_mib)
    }

    /// How much of it is in huge pages.
    pub fn huge_mib(&self) -> u64 {
        if self.pages == Pages::Huge { self.memory_mib() } else { 0 }
    }

    /// The configuration of a target whose disks are at `dir`.
    fn configuration(&self, dir: &Path) -> Value {
        let create = if self.drive == Drive::Null { "bdev_null_create" } else { "bdev_malloc_create" };
        let blocks = (self.disk_mib << 20) / BLOCK_BYTES;
        let each = 0..self.disks;
        let bdev =
            |number| call(create, &json!({"name": name(number), "num_blocks": blocks, "block_size": BLOCK_BYTES}));
        let (subsystem, calls): (_, Vec<Value>) = match self.protocol {
            Protocol::VfioUser => {
                let transport = call("nvmf_create_transport", &json!({"trtype": "VFIOUSER"}));
                let disks = each.clone().flat_map(|number| nvmf_disk(number, dir));
                ("nvmf", std::iter::once(transport).chain(disks).collect())
            }
            Protocol::VhostUser => {
                let mask = mask(self.cpu);
                let disk = |number| {
                    let socket = format!("{}/{}", name(number), self.protocol.socket());
                    let parameters = json!({"ctrlr": socket, "dev_name": name(number), "cpumask": mask});
                    call("vhost_create_blk_controller", &parameters)
                };
                ("vhost_blk", each.clone().map(disk).collect())
            }
        };
        json!({"subsystems": [
            {"subsystem": "bdev", "config": each.map(bdev).collect::<Vec<_>>()},
            {"subsystem": subsystem, "config": calls},
        ]})
    }
}

/// A subsystem, its namespace and its listener.
fn nvmf_disk(number: usize, dir: &Path) -> [Value; 3] {
    let (nqn, traddr) = (nqn(number), dir.join(name(number)));
    let address = json!({"trtype": "VFIOUSER", "traddr": traddr, "trsvcid": "0"});
    [
        call("nvmf_create_subsystem", &json!({"nqn": nqn, "allow_any_host": true, "serial_number": name(number)})),
        call("nvmf_subsystem_add_ns", &json!({"nqn": nqn, "namespace": {"bdev_name": name(number)}})),
        call("nvmf_subsystem_add_listener", &json!({"nqn": nqn, "listen_address": address})),
    ]
}

fn call(method: &str, parameters: &Value) -> Value {
    json!({"method": method, "params": parameters})
}

fn name(number: usize) -> String {
    format!("disk{number}")
}

fn nqn(number: usize) -> String {
    format!("nqn.2016-06.io.spdk:{}", name(number))
}

pub(super) fn mask(cpu: usize) -> String {
    format!("{:#x}", 1_u64 << cpu)
}

/// A running target. Its reactor polls without end, so it is stopped but for [`Target::awake`].
pub struct Target {
    child: Child,
    protocol: Protocol,
    dir: TempDir,
}

impl Target {
    /// Starts the program of the tree `tree` and waits for its sockets.
    ///
    /// # Errors
    /// When it ends, which is explained by what it said.
    pub fn start(tree: &Path, shape: &Shape) -> Result<Self> {
        let place = Some(PathBuf::from(MEMORY_FILES)).filter(|place| place.is_dir());
        let dir = tempfile::Builder::new()
            .prefix("evenkeel-spdk-")
            .tempdir_in(place.unwrap_or_else(std::env::temp_dir))
            .context("can't make a directory for SPDK's target")?;
        for number in 0..shape.disks {
            std::fs::create_dir(dir.path().join(name(number)))?;
        }
        let configuration = dir.path().join("target.json");
        std::fs::write(&configuration, shape.configuration(dir.path()).to_string())?;
        let log = std::fs::File::create(dir.path().join("log"))?;
        let program = tree.join("build/bin").join(shape.protocol.program());
        let mut command = Command::new(&program);
        command.args(["-m", &mask(shape.cpu), "-s", &shape.memory_mib().to_string(), "--no-pci", "--no-rpc-server"]);
        // Several take turns on one CPU. One that is killed leaves a trace behind, if it has any.
        command.args(["--disable-cpumask-locks", "--silence-noticelog", "--num-trace-entries", "0", "-c"]);
        command.arg(configuration);
        if shape.pages == Pages::Small {
            command.arg("--no-huge");
        }
        if shape.protocol == Protocol::VhostUser {
            command.arg("-S").arg(dir.path());
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("can't start {}: is this an SPDK build tree?", program.display()))?;
        let mut target = Self { child, protocol: shape.protocol, dir };
        let sockets: Vec<PathBuf> = (0..shape.disks).map(|number| target.socket(number)).collect();
        wait_for_sockets(&sockets, || target.check())?;
        target.signal(Signal::STOP)?;
        Ok(target)
    }

    /// Requires that it runs.
    fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("SPDK's {} ended ({status}): {}", self.protocol.program(), self.log());
        }
        Ok(())
    }

    /// Has it run while `what` does, and gives back what that does.
    ///
    /// # Errors
    /// As `what`, and when it ends meanwhile.
    pub fn awake<T>(&mut self, what: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.signal(Signal::CONT)?;
        let done = what(self);
        self.check()?;
        self.signal(Signal::STOP)?;
        done
    }

    /// The socket of a disk.
    pub fn socket(&self, number: usize) -> PathBuf {
        self.dir.path().join(name(number)).join(self.protocol.socket())
    }

    /// What its clients call the subsystem of a disk.
    pub fn nqn(number: usize) -> String {
        nqn(number)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default().trim().to_owned()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("sending a signal to SPDK's target")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Nothing is left to do where the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_has_a_socket_of_its_own() {
        let shape = |protocol, drive| Shape { protocol, drive, pages: Pages::Huge, disks: 2, disk_mib: 8, cpu: 3 };
        let nvmf = shape(Protocol::VfioUser, Drive::Malloc).configuration(Path::new("/dir"));
        assert_eq!(nvmf["subsystems"][0]["config"][1]["params"]["num_blocks"], 2048);
        let listener = &nvmf["subsystems"][1]["config"][6];
        assert_eq!(listener["method"], "nvmf_subsystem_add_listener");
        assert_eq!(listener["params"]["listen_address"]["traddr"], "/dir/disk1");
        let vhost = shape(Protocol::VhostUser, Drive::Null).configuration(Path::new("/dir"));
        let controller = &vhost["subsystems"][1]["config"][1]["params"];
        assert_eq!(*controller, json!({"ctrlr": "disk1/vhost.sock", "dev_name": "disk1", "cpumask": "0x8"}));
    }
}
