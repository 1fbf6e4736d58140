//! What a call works with: the daemon, the host, and the volumes that are found there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use api::{Disk, DiskState, Reason, Rest, TenantKey};
use tonic::Status;

use crate::host::Host;
use crate::names::{MARK, is_name};
use crate::refusal;

/// How long a call waits for a new disk to be zeroed. Kubernetes' callers give up after 2 minutes, and try again.
const READY_LIMIT: Duration = Duration::from_secs(30);
const READY_PERIOD: Duration = Duration::from_millis(100);

/// Key in a node-stage secret that holds a tenant's own key of a disk: 128 hexadecimal digits.
const SECRET: &str = "key";

/// How the plugin presents itself.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's name in the cluster.
    pub node: String,
    /// The front end of new disks: `ublk`, where the host mounts them.
    pub frontend: String,
    /// The most volumes that Kubernetes places on the node. 0: no limit.
    pub max_volumes: i64,
}

/// What a call works with.
pub struct Parts {
    pub daemon: Rest,
    pub host: Box<dyn Host>,
    pub settings: Settings,
}

impl Parts {
    /// The disk of a volume.
    ///
    /// # Errors
    /// `NOT_FOUND`: there is none, or this plugin did not make it. Else as [`refusal::status`].
    pub fn volume(&self, id: &str) -> Result<Disk, Status> {
        self.volume_if_any(id)?.ok_or_else(|| Status::not_found(format!("there is no volume {id:?} on this node")))
    }

    /// As [`Parts::volume`], where there may be none.
    pub fn volume_if_any(&self, id: &str) -> Result<Option<Disk>, Status> {
        let found = self.disk_if_any(id)?;
        Ok(found.filter(|disk| disk.labels.contains_key(MARK) && disk.state != DiskState::Leaving))
    }

    /// A disk, of a volume or not.
    pub fn disk_if_any(&self, name: &str) -> Result<Option<Disk>, Status> {
        if name.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        if !is_name(name) {
            return Ok(None);
        }
        match self.daemon.disk(name) {
            Ok(disk) => Ok(Some(disk)),
            Err(error) if refusal::is(&error, Reason::NoSuchDisk) => Ok(None),
            Err(error) => Err(refusal::status(&error)),
        }
    }

    /// Hands over the volume's key if it is locked, and waits until it is served.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`: it has no key, or a wrong one. `UNAVAILABLE`: it is not served yet.
    pub fn ready(&self, mut disk: Disk, secret: Option<&String>) -> Result<Disk, Status> {
        if disk.is_locked() && disk.encryption.as_deref() == Some("tenant") {
            let words = format!("volume {:?} is locked; name a node-stage secret with {SECRET:?}", disk.name);
            let key = secret.ok_or_else(|| Status::failed_precondition(words))?;
            let key = TenantKey { key: key.trim().to_owned(), erase: false, force: false };
            disk = self.daemon.unlock(&disk.name, &key).map_err(|error| match refusal::status(&error) {
                status if refusal::is_away(&error) => status,
                status => Status::failed_precondition(status.message()),
            })?;
        }
        let start = Instant::now();
        loop {
            let why = match disk.state {
                DiskState::Served => return Ok(disk),
                DiskState::Zeroing if start.elapsed() < READY_LIMIT => None,
                DiskState::Zeroing => Some("is still being zeroed".to_owned()),
                DiskState::Locked => Some(disk.locked_why.clone().unwrap_or_else(|| "is locked".to_owned())),
                state => Some(format!("is {}; see the daemon's log", state.name())),
            };
            if let Some(why) = why {
                return Err(Status::unavailable(format!("volume {:?} {why}", disk.name)));
            }
            std::thread::sleep(READY_PERIOD);
            disk = self.volume(&disk.name)?;
        }
    }

    /// The key among a call's secrets.
    pub fn key(secrets: &HashMap<String, String>) -> Option<&String> {
        secrets.get(SECRET)
    }
}
