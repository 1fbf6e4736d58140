//! Keys of encrypted disks: the host key, the keys of new disks, and what pollers are told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use api::{DiskError, Reason};
use backend_cipher::{Access, DataKey, KeyChange};
use client_socket::{Level, Sink};
use config::{Config, Encryption, KeySource};
use keys::{ChangeId, CheckValue, DataSecret, HostKey, HostKeyError, HostKeys, JournalMark, StoredKey, WrappedKey};
use layout::{Placement, serial_of};
use runtime::command::Handed;
use zeroize::Zeroizing;

use crate::key_command;

/// The name of the host key among the service manager's credentials.
const CREDENTIAL: &str = "evenkeel-host-key";

/// Why a disk is locked, and what unlocks it.
const NOT_HANDED_OVER: &str = "its tenant has not handed over its key; `evenkeel disk unlock` does that";

/// What opens the keys of disks.
#[derive(Clone, Default)]
pub(crate) struct DiskKeys {
    host: Option<Arc<HostKeys>>,
    /// Why the configured host key could not be read.
    why_none: Option<String>,
    /// Tenants' own keys, by the names of their disks.
    handed: BTreeMap<String, Arc<DataSecret>>,
    /// Disks that are re-encrypted, by name; or why not.
    changes: BTreeMap<String, Result<Arc<KeyChange>, String>>,
}

/// The two keys of a disk that is re-encrypted, and the mark of its journal.
pub(crate) struct Change {
    pub(crate) former: Arc<DataKey>,
    pub(crate) next: Arc<DataKey>,
    pub(crate) id: ChangeId,
}

impl DiskKeys {
    /// Reads the host key of `[keys]`, or else the service manager's credential, if there is one. Without its file,
    /// disks of the host key are locked and all others are served.
    ///
    /// # Errors
    /// The file has no key, others may read it, or the command for it fails.
    pub(crate) fn read(config: &Config, sink: &Sink) -> Result<Self> {
        backend_cipher::prepare();
        let credential = || Some(PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?).join(CREDENTIAL));
        let given = || credential().filter(|path| path.exists()).map(KeySource::File);
        let host = match config.keys.host_key.clone().or_else(given) {
            None => return Ok(Self::default()),
            Some(KeySource::File(path)) => HostKeys::read(&path).map_err(anyhow::Error::from),
            Some(KeySource::Command(words)) => key_command::host_keys(&words),
        };
        match host {
            Ok(host) => Ok(Self { host: Some(Arc::new(host)), ..Self::default() }),
            Err(error) if matches!(error.downcast_ref(), Some(HostKeyError::Unreadable { .. })) => {
                let line = format!(
                    "no host key: {error}; disks with encryption = \"host\" are locked until it is back: put the file \
                     there, and run `evenkeel disk rewrap --host-key FILE`"
                );
                sink(Level::Warn.of_daemon(), &line);
                Ok(Self { why_none: Some(error.to_string()), ..Self::default() })
            }
            Err(error) => Err(error.context("can't use the host key")),
        }
    }

    /// That there is no host key, and what helps.
    fn no_host_key(&self) -> (String, String) {
        match &self.why_none {
            Some(why) => {
                let remedy = "put the file back, and run `evenkeel disk rewrap --host-key FILE`".to_owned();
                (format!("this daemon has no host key ({why})"), remedy)
            }
            None => {
                let remedy = format!(
                    "write host_key = \"/etc/evenkeel/host.key\" under [keys], or pass the credential {CREDENTIAL}; \
                     `openssl rand -hex 32` makes a key"
                );
                ("this daemon has no host key".to_owned(), remedy)
            }
        }
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
                let (what, remedy) = self.no_host_key();
                Err(DiskError::new(Reason::Invalid, format!("disk {name:?} is to be encrypted, and {what}"), remedy))
            }
            (Encryption::Host, Some(host)) => {
                random_key(host.present(), name, &serial_of(name)).map(|key| Some(StoredKey::Host(key)))
            }
        }
    }

    /// The key of a clone, which is that of its origin. `None`: neither is encrypted.
    ///
    /// # Errors
    /// The origin's key is its tenant's, or not here.
    pub(crate) fn of_clone(&self, origin: &Placement, name: &str) -> Result<Option<StoredKey>, DiskError> {
        let title = format!("disk {:?} can't be cloned", origin.name);
        match (&origin.key, &self.host) {
            (None, _) => Ok(None),
            (Some(StoredKey::Host(wrapped)), Some(host)) => {
                let opened = wrapped.unwrap(host, &origin.serial);
                let secret = opened.map_err(|why| DiskError::new(Reason::Invalid, title, why.to_string()))?;
                let key = WrappedKey::wrap(&secret, host.present(), &serial_of(name));
                key.map(StoredKey::Host).map(Some).ok_or_else(|| no_random_bytes(name))
            }
            (Some(StoredKey::Tenant { .. }), _) => {
                let remedy = "its key is its tenant's: create another disk, and copy the data in a guest";
                Err(DiskError::new(Reason::Invalid, title, remedy))
            }
            _ => Err(DiskError::new(Reason::Invalid, title, self.no_host_key().1)),
        }
    }

    /// Another key of a disk, which makes its data noise.
    ///
    /// # Errors
    /// The key is not the host's, or there is no host key.
    pub(crate) fn replacing(&self, Placement { name, serial, key, .. }: &Placement) -> Result<StoredKey, DiskError> {
        match (key, &self.host) {
            (Some(key), Some(host)) if key.is_of_host() => {
                random_key(host.present(), name, serial).map(StoredKey::Host)
            }
            (Some(key), None) if key.is_of_host() => {
                let (what, remedy) = self.no_host_key();
                let title = format!("the new key of disk {name:?} would have to be wrapped, and {what}");
                Err(DiskError::new(Reason::Invalid, title, remedy))
            }
            _ => {
                let title = format!("disk {name:?} is encrypted by a key of its tenant");
                let remedy = format!("hand over another key: `evenkeel disk unlock {name} --key-file FILE --erase`");
                Err(DiskError::new(Reason::Invalid, title, remedy))
            }
        }
    }

    /// The record of a disk that is re-encrypted from now on.
    ///
    /// # Errors
    /// It is not encrypted, is being re-encrypted already, is locked, or its key is its tenant's.
    pub(crate) fn changing(&self, placement: &Placement) -> Result<StoredKey, DiskError> {
        let Placement { name, serial, key, .. } = placement;
        let refused = |title, remedy: String| Err(DiskError::new(Reason::Invalid, title, remedy));
        let copy = "create another disk with encryption = \"host\", copy the data, and delete this one".to_owned();
        let locked = self.access(placement).1;
        match (key, &self.host, locked) {
            (None, ..) => refused(format!("disk {name:?} is not encrypted, and has no key to be replaced"), copy),
            (Some(StoredKey::Tenant { .. }), ..) => {
                refused(format!("disk {name:?} is encrypted by a key of its tenant, and can't be re-encrypted"), copy)
            }
            (Some(StoredKey::Host(former)), Some(host), None) => {
                let next = random_key(host.present(), name, serial)?;
                let journal = JournalMark::random().map_err(|_| no_random_bytes(name))?;
                Ok(StoredKey::Changing { former: former.clone(), next, journal })
            }
            (Some(StoredKey::Changing { .. }), _, None) => Err(state::errors::being_reencrypted(name)),
            (Some(_), _, why) => {
                let title = format!("disk {name:?} is locked: {}", why.unwrap_or_else(|| self.no_host_key().0));
                let remedy = format!("put that right; or else `evenkeel disk erase {name}` gives up its data");
                refused(title, remedy)
            }
        }
    }

    /// Both keys of a record that [`changing`](Self::changing) made.
    ///
    /// # Errors
    /// One of them does not open.
    pub(crate) fn open_change(&self, placement: &Placement, record: &StoredKey) -> Result<Change, String> {
        let (StoredKey::Changing { former, next, journal }, Some(host)) = (record, &self.host) else {
            let (what, remedy) = self.no_host_key();
            return Err(format!("{what}; {remedy}"));
        };
        let open = |key: &WrappedKey| key.unwrap(host, &placement.serial).map_err(|error| error.to_string());
        let (former, next) = (open(former)?, open(next)?);
        let id = ChangeId::of(&next, &placement.serial, *journal);
        let [former, next] = [&former, &next].map(|secret| data_key(secret, placement).map(Arc::new));
        Ok(Change { former: former?, next: next?, id })
    }

    /// The record of a disk that is re-encrypted, with another mark of its journal.
    ///
    /// # Errors
    /// It is not re-encrypted, or there are no random bytes.
    pub(crate) fn with_another_mark(Placement { name, key, .. }: &Placement) -> Result<StoredKey, DiskError> {
        let Some(StoredKey::Changing { former, next, .. }) = key else { return Err(state::errors::broken()) };
        let journal = JournalMark::random().map_err(|_| no_random_bytes(name))?;
        Ok(StoredKey::Changing { former: former.clone(), next: next.clone(), journal })
    }

    /// A disk is re-encrypted; or why it can't be, and is locked.
    pub(crate) fn set_change(&mut self, name: &str, change: Result<Arc<KeyChange>, String>) {
        self.changes.insert(name.to_owned(), change);
    }

    /// A disk is not re-encrypted any more.
    pub(crate) fn forget_change(&mut self, name: &str) {
        self.changes.remove(name);
    }

    /// A disk that is re-encrypted.
    pub(crate) fn change_of(&self, name: &str) -> Option<&Arc<KeyChange>> {
        self.changes.get(name).and_then(|change| change.as_ref().ok())
    }

    /// These host keys instead, beside those that are known.
    pub(crate) fn with_host_keys(&self, host: Arc<HostKeys>) -> Self {
        Self { host: Some(host), why_none: None, ..self.clone() }
    }

    /// The keys that a former host key has wrapped, wrapped by the present one, with the names of their disks.
    pub(crate) fn wrapped_anew<'p>(&self, placements: impl Iterator<Item = &'p Placement>) -> Vec<(String, StoredKey)> {
        let Some(host) = &self.host else { return Vec::new() };
        let anew = |placement: &Placement| {
            let anew = placement.key.as_ref()?.wrapped_anew(host, &placement.serial)?;
            Some((placement.name.clone(), anew))
        };
        placements.filter_map(anew).collect()
    }

    /// Reads a tenant's own key. Returns it, and what the disk's record is to say, if that changes.
    ///
    /// # Errors
    /// The key is not the disk's, or no key at all.
    pub(crate) fn read_handed(
        placement: &Placement,
        handed: &Handed,
    ) -> Result<(DataSecret, Option<StoredKey>), DiskError> {
        let Placement { name, serial, key, .. } = placement;
        let refused = |title: String, remedy: &str| Err(DiskError::new(Reason::Invalid, title, remedy));
        let Some(StoredKey::Tenant { check }) = key else {
            let title = format!("disk {name:?} has no key of its tenant");
            return refused(title, "a disk has one that is created with encryption = \"tenant\"");
        };
        let Some(secret) = DataSecret::from_hex(handed.key.as_bytes()) else {
            let title = format!("the key of disk {name:?} is to be 64 bytes in hexadecimal, two different halves");
            return refused(title, "`openssl rand -hex 64` makes one");
        };
        let is_present = check.as_ref().map(|check| check.check(&secret, serial).is_ok());
        let record = match is_present {
            Some(true) if handed.erase => {
                let title = format!("the key is that which disk {name:?} has, and erases nothing");
                return refused(title, "hand over another key: `openssl rand -hex 64` makes one");
            }
            Some(is_present) if !handed.erase => {
                if !is_present {
                    let title = format!("the key is not that of disk {name:?}");
                    return refused(title, "hand over the disk's key, or erase the disk by another one (erase)");
                }
                None
            }
            _ => {
                let check = CheckValue::of(&secret, serial);
                Some(StoredKey::Tenant { check: Some(check.ok_or_else(state::errors::broken)?) })
            }
        };
        if let Err(why) = data_key(&secret, placement) {
            return refused(
                format!("the key of disk {name:?} can't be used: {why}"),
                "`openssl rand -hex 64` makes one",
            );
        }
        Ok((secret, record))
    }

    /// A disk has this key of its tenant.
    pub(crate) fn remember(&mut self, name: &str, secret: DataSecret) {
        self.handed.insert(name.to_owned(), Arc::new(secret));
    }

    /// The client of a disk has left. `true`: the disk had a key of its tenant, which is gone.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        self.handed.remove(name).is_some()
    }

    /// Whether the key of an encrypted disk is not here.
    pub(crate) fn is_locked(&self, placement: &Placement) -> bool {
        matches!(self.access(placement).0, Access::Locked)
    }

    /// How a disk's data lies on the drive; for a locked disk, why.
    pub(crate) fn access(&self, placement: &Placement) -> (Access, Option<String>) {
        let opened = match (&placement.key, &self.host) {
            (None, _) => return (Access::Plain, None),
            (Some(StoredKey::Tenant { .. }), _) => {
                let secret = self.handed.get(&placement.name).ok_or_else(|| NOT_HANDED_OVER.to_owned());
                secret.and_then(|secret| data_key(secret, placement))
            }
            (Some(record @ StoredKey::Changing { .. }), _) => {
                let change =
                    self.open_change(placement, record).and_then(|_| match self.changes.get(&placement.name) {
                        Some(change) => change.clone(),
                        None => Err("the journal of its re-encryption was not read".to_owned()),
                    });
                return change
                    .map_or_else(|why| (Access::Locked, Some(why)), |change| (Access::Changing(change), None));
            }
            (Some(StoredKey::Host(wrapped)), None) => {
                let (what, remedy) = self.no_host_key();
                Err(format!("its key was wrapped by host key {}, and {what}; {remedy}", wrapped.host_key))
            }
            (Some(StoredKey::Host(wrapped)), Some(host)) => {
                let secret = wrapped.unwrap(host, &placement.serial).map_err(|error| error.to_string());
                secret.and_then(|secret| data_key(&secret, placement))
            }
        };
        match opened {
            Ok(key) => (Access::Key(Arc::new(key)), None),
            Err(why) => (Access::Locked, Some(why)),
        }
    }
}

/// A disk keeps its encryption: tells where the file says something else.
pub(crate) fn warn_of_change(config: &Config, name: &str, encryption: Encryption, is_encrypted: bool, sink: &Sink) {
    if (encryption != Encryption::None) != is_encrypted {
        let (is, of) = (if is_encrypted { "encrypted" } else { "not encrypted" }, encryption.name());
        let line = format!(
            "disk {name:?} stays {is}, though {} says encryption = {of:?}: make another disk and copy the data",
            config.file().display()
        );
        sink(Level::Warn.of_tenant(name), &line);
    }
}

fn data_key(secret: &DataSecret, placement: &Placement) -> Result<DataKey, String> {
    DataKey::new(Zeroizing::new(*secret.bytes()), placement.lba_bytes).map_err(|error| error.to_string())
}

fn random_key(host: &HostKey, name: &str, serial: &str) -> Result<WrappedKey, DiskError> {
    WrappedKey::random(host, serial).ok_or_else(|| no_random_bytes(name))
}

fn no_random_bytes(name: &str) -> DiskError {
    let title = format!("there are no random bytes for a key of disk {name:?}");
    DiskError::new(Reason::Failed, title, "see to the system's random numbers, and try again")
}
