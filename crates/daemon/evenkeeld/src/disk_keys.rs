//! Keys of encrypted disks: the host key, the keys of new disks, and what pollers are told.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::{DiskError, Reason};
use backend_cipher::{Access, DataKey};
use config::{Config, Encryption};
use keys::{HostKey, StoredKey};
use layout::{Placement, serial_of};
use zeroize::Zeroizing;

/// The name of the host key among the service manager's credentials.
const CREDENTIAL: &str = "evenkeel-host-key";

/// What opens the keys of disks.
#[derive(Clone, Default)]
pub(crate) struct DiskKeys {
    host: Option<Arc<HostKey>>,
}

impl DiskKeys {
    /// Reads the host key of `[keys]`, or else the service manager's credential, if there is one.
    ///
    /// # Errors
    /// The key can't be read, or others may read it.
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let credential = || Some(PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?).join(CREDENTIAL));
        let given = credential().filter(|path| path.exists());
        let Some(path) = config.keys.host_key.clone().or(given) else { return Ok(Self::default()) };
        let host = HostKey::read(&path).context("can't use the host key")?;
        Ok(Self { host: Some(Arc::new(host)) })
    }

    /// A key for a new disk. `None`: it is not encrypted.
    ///
    /// # Errors
    /// There is no host key.
    pub(crate) fn of_new(&self, name: &str, encryption: Encryption) -> Result<Option<StoredKey>, DiskError> {
        match (encryption, &self.host) {
            (Encryption::None, _) => Ok(None),
            (Encryption::Tenant, _) => Ok(Some(StoredKey::Tenant { check: None })),
            (Encryption::Host, None) => {
                let title = format!("disk {name:?} is to be encrypted, and this host has no key");
                let remedy = format!(
                    "write host_key = \"/etc/evenkeel/host.key\" under [keys], or pass the credential {CREDENTIAL}; \
                     `openssl rand -hex 32` makes a key"
                );
                Err(DiskError::new(Reason::Invalid, title, remedy))
            }
            (Encryption::Host, Some(host)) => {
                let (_, stored) = StoredKey::random(host, &serial_of(name)).ok_or_else(|| {
                    let title = format!("there are no random bytes for a key of disk {name:?}");
                    DiskError::new(Reason::Failed, title, "see to the system's random numbers, and try again")
                })?;
                Ok(Some(stored))
            }
        }
    }

    /// Whether the key of an encrypted disk is not here.
    pub(crate) fn is_locked(&self, placement: &Placement) -> bool {
        matches!(self.access(placement).0, Access::Locked)
    }

    /// How a disk's data lies on the drive; for a locked disk, why.
    pub(crate) fn access(&self, placement: &Placement) -> (Access, Option<String>) {
        let wrapped = match &placement.key {
            None => return (Access::Plain, None),
            Some(StoredKey::Tenant { .. }) => {
                return (Access::Locked, Some("its tenant has not handed over its key".to_owned()));
            }
            Some(StoredKey::Host(wrapped)) => wrapped,
        };
        let Some(host) = &self.host else {
            let why = format!("its key was wrapped by host key {}, and this daemon has none", wrapped.host_key);
            return (Access::Locked, Some(why));
        };
        let opened = wrapped.unwrap(host, &placement.serial).map_err(|error| error.to_string());
        let usable = opened.and_then(|secret| {
            DataKey::new(Zeroizing::new(*secret.bytes()), placement.lba_bytes).map_err(|error| error.to_string())
        });
        match usable {
            Ok(key) => (Access::Key(Arc::new(key)), None),
            Err(why) => (Access::Locked, Some(why)),
        }
    }
}
