//! The key in a disk's record.

use serde::{Deserialize, Serialize};

use crate::check::CheckValue;
use crate::host_key::{HostKeyId, HostKeys};
use crate::journal::JournalMark;
use crate::wrapped::WrappedKey;

/// What the record of an encrypted disk says about its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StoredKey {
    /// The key itself, wrapped by the host key.
    Host(WrappedKey),
    /// The disk is re-encrypted. A journal says how far that is.
    Changing {
        /// The key of what is not re-encrypted yet.
        former: WrappedKey,
        /// The key of what is.
        next: WrappedKey,
        /// The mark of the journal. Journals with other marks are older copies.
        journal: JournalMark,
    },
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
            Self::Host(_) | Self::Changing { .. } => "host",
            Self::Tenant { .. } => "tenant",
        }
    }

    /// The host can replace the key.
    pub fn is_of_host(&self) -> bool {
        matches!(self, Self::Host(_) | Self::Changing { .. })
    }

    /// The disk is on its way from one key to another.
    pub fn is_changing(&self) -> bool {
        matches!(self, Self::Changing { .. })
    }

    /// The host key that opens this key, if it is none of `hosts`.
    pub fn missing_host_key(&self, hosts: &HostKeys) -> Option<HostKeyId> {
        let wrapped = match self {
            Self::Host(key) => vec![key],
            Self::Changing { former, next, .. } => vec![former, next],
            Self::Tenant { .. } => Vec::new(),
        };
        wrapped.into_iter().map(|key| key.host_key).find(|id| hosts.find(*id).is_none())
    }

    /// The key wrapped by the present host key. `None`: it is already, or does not open.
    pub fn wrapped_anew(&self, hosts: &HostKeys, serial: &str) -> Option<Self> {
        let anew = |key: &WrappedKey| key.wrapped_anew(hosts, serial);
        match self {
            Self::Host(key) => anew(key).map(Self::Host),
            Self::Changing { former, next, journal } => match (anew(former), anew(next)) {
                (None, None) => None,
                (its_former, its_next) => Some(Self::Changing {
                    former: its_former.unwrap_or_else(|| former.clone()),
                    next: its_next.unwrap_or_else(|| next.clone()),
                    journal: *journal,
                }),
            },
            Self::Tenant { .. } => None,
        }
    }
}
