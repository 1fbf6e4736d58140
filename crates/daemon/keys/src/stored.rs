//! The key in a disk's record.

use serde::{Deserialize, Serialize};

use crate::check::CheckValue;
use crate::host_key::HostKey;
use crate::secret::DataSecret;
use crate::wrapped::WrappedKey;

/// What the record of an encrypted disk says about its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StoredKey {
    /// The key itself, wrapped by the host key.
    Host(WrappedKey),
    /// The tenant has the key.
    Tenant {
        /// Tells the key from others. `None`: none was handed over yet.
        check: Option<CheckValue>,
    },
}

impl StoredKey {
    /// The key's owner, as configurations name it.
    pub fn owner(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Tenant { .. } => "tenant",
        }
    }

    /// The host can replace the key.
    pub fn is_of_host(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// A random key for the disk with that serial number, and the form in which it is stored. `None`: the system gives
    /// no random bytes.
    pub fn random(host: &HostKey, serial: &str) -> Option<(DataSecret, Self)> {
        let secret = DataSecret::random().ok()?;
        let wrapped = WrappedKey::wrap(&secret, host, serial)?;
        Some((secret, Self::Host(wrapped)))
    }
}
