//! What the tests work on: one daemon, and two guests that are started when a test asks for them
//! and stay up for the next one.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::daemon::{self, Daemon, TENANT_SIZE_MIB};
use super::qemu::{Accel, Disk, Guest, Machine};

/// The two tenants of every test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    /// The one with a latency target.
    Guaranteed,
    /// The one with a weight.
    BestEffort,
}

/// Both tenants, in the order of their guests.
pub const TENANTS: [Tenant; 2] = [Tenant::Guaranteed, Tenant::BestEffort];

impl Tenant {
    /// The name in the daemon's config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "db",
            Self::BestEffort => "batch",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Guaranteed => Self::BestEffort,
            Self::BestEffort => Self::Guaranteed,
        }
    }
}

/// What serves the guests' drives.
pub enum Server {
    /// The daemon, by the path of its binary.
    Evenkeel(PathBuf),
    /// QEMU's own NVMe controllers: tests that fail on these are wrong themselves.
    SelfCheck,
}

/// Daemon and guests.
pub struct Lab {
    machine: Machine,
    accel: Accel,
    server: Server,
    dir: PathBuf,
    daemon: Option<Daemon>,
    guests: [Option<Guest>; 2],
}

impl Lab {
    /// A lab with nothing running yet; `dir` holds its files.
    pub fn new(machine: Machine, accel: Accel, server: Server, dir: PathBuf) -> Self {
        Self { machine, accel, server, dir, daemon: None, guests: [None, None] }
    }

    /// Whether the guests' controller is Evenkeel's.
    pub fn is_evenkeel(&self) -> bool {
        matches!(self.server, Server::Evenkeel(_))
    }

    /// A tenant's guest, booted where it is not running.
    ///
    /// # Errors
    /// When daemon or guest do not start.
    pub fn guest(&mut self, tenant: Tenant) -> Result<&mut Guest> {
        self.boot(&[tenant])?;
        self.guests[tenant as usize].as_mut().context("a booted guest is there")
    }

    /// Both guests, the guaranteed one first, booted at once where they are not running.
    ///
    /// # Errors
    /// When daemon or guests do not start.
    pub fn both(&mut self) -> Result<[&mut Guest; 2]> {
        self.boot(&TENANTS)?;
        match &mut self.guests {
            [Some(first), Some(second)] => Ok([first, second]),
            _ => anyhow::bail!("a booted guest is there"),
        }
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
        let stopped = self.daemon.take().map_or(Ok(()), Daemon::stop);
        self.guests = [None, None];
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
            let log = guest.run_within("dmesg -r -c", Duration::from_secs(60))?;
            let complaints = complaints(&log, strict);
            ensure!(
                complaints.is_empty(),
                "the kernel of guest {} complains:\n{}",
                tenant.name(),
                complaints.join("\n")
            );
        }
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
        self.guests = [None, None];
        self.daemon = None;
    }

    fn boot(&mut self, tenants: &[Tenant]) -> Result<()> {
        if let Server::Evenkeel(binary) = &self.server
            && self.daemon.is_none()
        {
            self.daemon = Some(Daemon::start(binary, &self.dir)?);
        }
        let mut started = Vec::new();
        for &tenant in tenants {
            if self.guests[tenant as usize].is_none() {
                let disk = self.disk_of(tenant)?;
                let guest = Guest::spawn(&self.machine, self.accel, tenant.name(), &disk)?;
                self.guests[tenant as usize] = Some(guest);
                started.push(tenant);
            }
        }
        for tenant in started {
            if let Some(guest) = &mut self.guests[tenant as usize] {
                guest.wait_ready()?;
            }
        }
        Ok(())
    }

    fn disk_of(&self, tenant: Tenant) -> Result<Disk> {
        Ok(match self.server {
            Server::Evenkeel(_) => Disk::VfioUser(daemon::socket_of(&self.dir, tenant)),
            Server::SelfCheck => {
                let image = self.dir.join(format!("{}.img", tenant.name()));
                if !image.exists() {
                    fs::File::create(&image)?.set_len(TENANT_SIZE_MIB << 20)?;
                }
                Disk::QemuNvme(image)
            }
        })
    }
}

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
/// the NVMe driver; QEMU's own controller earns one.
fn complaints(log: &str, strict: bool) -> Vec<&str> {
    log.lines()
        .filter(|line| {
            let lower = line.to_lowercase();
            let about_drive = lower.contains("nvme") || lower.contains("ext4-fs");
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
