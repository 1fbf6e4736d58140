//! What the tests work on: one daemon, and a guest for each of its tenants. Guests are started when a
//! test asks for them and stay up for the next one.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::daemon::{self, Daemon, READ_ONLY_SIZE_MIB, TENANT_SIZE_MIB};
use super::prepare::Qemu;
use super::qemu::{Accel, Disk, Guest, Machine};
use super::stand_in::{Export, StandIn};

/// The tenants of every test, each with a guest of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    /// An NVMe controller with a latency target.
    Guaranteed,
    /// An NVMe controller with a weight.
    BestEffort,
    /// A virtio disk.
    Virtio,
    /// A virtio disk of a guest in the oldest QEMU.
    OldVirtio,
}

/// All, in the order of their guests.
const TENANTS: [Tenant; 4] = [Tenant::Guaranteed, Tenant::BestEffort, Tenant::Virtio, Tenant::OldVirtio];
/// Those with an NVMe controller.
pub const NVME: [Tenant; 2] = [Tenant::Guaranteed, Tenant::BestEffort];
/// Those with a virtio disk.
pub const VIRTIO: [Tenant; 2] = [Tenant::Virtio, Tenant::OldVirtio];

impl Tenant {
    /// The name in the daemon's config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "db",
            Self::BestEffort => "batch",
            Self::Virtio => "web",
            Self::OldVirtio => "mail",
        }
    }

    /// The name of the read-only disk that a virtio guest has besides its own.
    pub fn read_only_name(self) -> String {
        format!("{}-archive", self.name())
    }

    /// The other one of the same front end.
    pub fn other(self) -> Self {
        match self {
            Self::Guaranteed => Self::BestEffort,
            Self::BestEffort => Self::Guaranteed,
            Self::Virtio => Self::OldVirtio,
            Self::OldVirtio => Self::Virtio,
        }
    }

    /// Whether its front end is vhost-user-blk.
    pub fn is_virtio(self) -> bool {
        VIRTIO.contains(&self)
    }

    /// What its guest runs in.
    pub fn qemu(self) -> Qemu {
        if self == Self::OldVirtio { Qemu::Bookworm } else { Qemu::Newest }
    }
}

/// What serves the guests' drives.
#[derive(Debug, Clone)]
pub enum Server {
    /// The daemon, by the path of its binary.
    Evenkeel(PathBuf),
    /// QEMU's own NVMe controllers and storage daemon: tests that fail on these are wrong themselves.
    SelfCheck,
}

/// Daemon and guests.
pub struct Lab {
    machine: Machine,
    accel: Accel,
    server: Server,
    dir: PathBuf,
    daemon: Option<Daemon>,
    stand_in: Option<StandIn>,
    guests: [Option<Guest>; TENANTS.len()],
}

impl Lab {
    /// A lab with nothing running yet; `dir` holds its files.
    pub fn new(machine: Machine, accel: Accel, server: Server, dir: PathBuf) -> Self {
        Self { machine, accel, server, dir, daemon: None, stand_in: None, guests: Default::default() }
    }

    /// Whether the guests' controller is Evenkeel's.
    pub fn is_evenkeel(&self) -> bool {
        matches!(self.server, Server::Evenkeel(_))
    }

    /// The daemon's binary; none in a self-check.
    pub fn binary(&self) -> Option<PathBuf> {
        match &self.server {
            Server::Evenkeel(binary) => Some(binary.clone()),
            Server::SelfCheck => None,
        }
    }

    /// What guests are made of.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// What executes them.
    pub fn accel(&self) -> Accel {
        self.accel
    }

    /// The folder of the run's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A tenant's guest, booted where it is not running.
    ///
    /// # Errors
    /// When daemon or guest do not start.
    pub fn guest(&mut self, tenant: Tenant) -> Result<&mut Guest> {
        let [guest] = self.guests([tenant])?;
        Ok(guest)
    }

    /// The guests of different tenants, in their order, booted at once where they are not running.
    ///
    /// # Errors
    /// When daemon or guests do not start.
    pub fn guests<const N: usize>(&mut self, tenants: [Tenant; N]) -> Result<[&mut Guest; N]> {
        self.boot(&tenants)?;
        let guests = self.guests.get_disjoint_mut(tenants.map(|tenant| tenant as usize))?;
        let guests: Vec<&mut Guest> = guests.into_iter().flatten().collect();
        guests.try_into().or_else(|_| bail!("a booted guest is not there"))
    }

    /// Ends a tenant's guest with SIGKILL.
    pub fn kill(&mut self, tenant: Tenant) {
        if let Some(guest) = self.guests[tenant as usize].take() {
            guest.kill();
        }
    }

    /// Ends the daemon with SIGTERM while guests are attached, then those guests, whose
    /// controllers are gone with it. The next guest starts a new daemon on the same drive. In a
    /// self-check only the guests end.
    ///
    /// # Errors
    /// When the daemon does not end with exit code 0.
    pub fn restart_daemon(&mut self) -> Result<()> {
        let stopped = self.daemon.take().map_or(Ok(()), |daemon| daemon.stop().map(drop));
        self.guests = Default::default();
        stopped
    }

    /// Requires that nothing complained since the last call: neither a guest's kernel nor the
    /// daemon.
    ///
    /// # Errors
    /// With the lines that do.
    pub fn check_quiet(&mut self) -> Result<()> {
        let strict = self.is_evenkeel();
        for (tenant, guest) in TENANTS.into_iter().zip(&mut self.guests) {
            let Some(guest) = guest else { continue };
            let log = guest.run("dmesg -r -c")?;
            let complaints = complaints(&log, strict);
            ensure!(
                complaints.is_empty(),
                "the kernel of guest {} complains:\n{}",
                tenant.name(),
                complaints.join("\n")
            );
        }
        self.stand_in.as_mut().map_or(Ok(()), StandIn::check)?;
        self.daemon.as_mut().map_or(Ok(()), Daemon::check)
    }

    /// All that helps to explain a failure.
    pub fn logs(&self) -> String {
        let mut logs: Vec<String> = self.guests.iter().flatten().map(Guest::logs).collect();
        if let Some(daemon) = &self.daemon {
            logs.push(format!("--- evenkeel ---\n{}", daemon.log_text()));
        }
        logs.join("\n")
    }

    /// Ends everything at once, so that the next test starts afresh.
    pub fn discard(&mut self) {
        self.guests = Default::default();
        self.daemon = None;
        self.stand_in = None;
    }

    /// The file on the host that holds a disk, by the name of its tenant, and where in it the disk
    /// starts, in bytes.
    ///
    /// # Errors
    /// When the daemon does not know the tenant.
    pub fn place_of(&self, name: &str) -> Result<(PathBuf, u64)> {
        match &self.server {
            Server::Evenkeel(binary) => Ok((daemon::image_of(&self.dir), daemon::offset_of(binary, &self.dir, name)?)),
            Server::SelfCheck => Ok((self.dir.join(format!("{name}.img")), 0)),
        }
    }

    fn boot(&mut self, tenants: &[Tenant]) -> Result<()> {
        self.serve()?;
        let mut started = Vec::new();
        for &tenant in tenants {
            if self.guests[tenant as usize].is_none() {
                let disks = self.disks_of(tenant)?;
                let guest = Guest::spawn(&self.machine, self.accel, tenant.name(), tenant.qemu(), &disks)?;
                self.guests[tenant as usize] = Some(guest);
                started.push(tenant);
            }
        }
        for tenant in started {
            self.guests[tenant as usize].as_mut().map_or(Ok(()), Guest::wait_ready)?;
        }
        Ok(())
    }

    /// Starts what serves the drives where it is not running.
    fn serve(&mut self) -> Result<()> {
        match &self.server {
            Server::Evenkeel(binary) if self.daemon.is_none() => {
                self.daemon = Some(Daemon::start(binary, &self.dir)?);
            }
            Server::SelfCheck if self.stand_in.is_none() => {
                let mut exports = Vec::new();
                for tenant in VIRTIO {
                    let own = (tenant.name(), daemon::socket_of(&self.dir, tenant), TENANT_SIZE_MIB, false);
                    let name = tenant.read_only_name();
                    let other = (&*name, daemon::read_only_socket_of(&self.dir, tenant), READ_ONLY_SIZE_MIB, true);
                    for (name, socket, size_mib, read_only) in [own, other] {
                        if let Some(folder) = socket.parent() {
                            std::fs::create_dir_all(folder)?;
                        }
                        exports.push(Export { socket, image: self.image(name, size_mib)?, read_only });
                    }
                }
                self.stand_in = Some(StandIn::start(self.machine.images().storage_daemon(), &self.dir, &exports)?);
            }
            _ => {}
        }
        Ok(())
    }

    fn disks_of(&self, tenant: Tenant) -> Result<Vec<Disk>> {
        let socket = daemon::socket_of(&self.dir, tenant);
        Ok(match self.server {
            _ if tenant.is_virtio() => {
                vec![Disk::VhostUser(socket), Disk::VhostUser(daemon::read_only_socket_of(&self.dir, tenant))]
            }
            Server::Evenkeel(_) => vec![Disk::VfioUser(socket)],
            Server::SelfCheck => vec![Disk::QemuNvme(self.image(tenant.name(), TENANT_SIZE_MIB)?)],
        })
    }

    /// An image of a self-check, made where it is missing.
    fn image(&self, name: &str, size_mib: u64) -> Result<PathBuf> {
        let image = self.dir.join(format!("{name}.img"));
        daemon::make_image(&image, size_mib)?;
        Ok(image)
    }
}

/// What marks a line as one about a drive.
const DRIVES: [&str; 5] = ["nvme", "ext4-fs", "virtio", " vda", " vdb"];

/// Words with which the kernel reports that a drive misbehaved, at whatever level.
const COMPLAINTS: [&str; 7] = [
    "timeout",
    "abort",
    "i/o error",
    "removing after probe failure",
    "ext4-fs error",
    "device not ready",
    "invalid id",
];

/// What the driver says of a reset that was asked for, and of any passed-through command to a
/// controller without SGLs.
const EXPECTED: [&str; 2] = ["resetting controller", "using unchecked data buffer"];

/// The lines of `dmesg -r` that a sound drive gives no cause for. `strict` adds every warning of
/// the drive's driver; QEMU's own controller earns one.
pub fn complaints(log: &str, strict: bool) -> Vec<&str> {
    log.lines()
        .filter(|line| {
            let lower = line.to_lowercase();
            let about_drive = DRIVES.iter().any(|word| lower.contains(word));
            // Facility 0, level warning or worse.
            let warns = ["<0>", "<1>", "<2>", "<3>", "<4>"].iter().any(|level| line.starts_with(level));
            let expected = EXPECTED.iter().any(|words| lower.contains(words));
            about_drive && !expected && (COMPLAINTS.iter().any(|word| lower.contains(word)) || (strict && warns))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::complaints;

    #[test]
    fn a_timeout_is_a_complaint_and_a_greeting_is_none() {
        let log = "\
<6>[ 2.3] nvme nvme0: 4/0/0 default/read/poll queues
<4>[ 2.4] nvme nvme0: Ignoring bogus Namespace Identifiers
<4>[ 2.5] nvme nvme0: resetting controller
<4>[ 9.9] nvme nvme0: I/O tag 3 (1003) QID 1 timeout, aborting
<3>[ 9.9] unrelated: timeout
";
        assert_eq!(complaints(log, false).len(), 1);
        assert_eq!(complaints(log, true).len(), 2);
    }
}
