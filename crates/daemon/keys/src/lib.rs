//! Keys of disks, from where they come from to how they are stored. Two files: the host key's, and journals of
//! re-encryptions.
//!
//! | module | what |
//! | --- | --- |
//! | `secret` | key bytes that leave no trace in memory |
//! | `host_key` | the key of this host, and the file that it is read from |
//! | `wrapped` | a data key as the layout stores it, wrapped by the host key |
//! | `stored` | the key in a disk's record |
//! | `journal` | how far a disk is on its way from one key to another |
//! | `check` | what tells a tenant's own key from a wrong one |
//!
//! A disk's data key is random. Under `encryption = "host"` it is stored beside the disk's record, wrapped by
//! AES-256-GCM under the host key. Under `encryption = "tenant"` only a check value is stored.

#![forbid(unsafe_code)]

mod check;
mod host_key;
mod journal;
mod secret;
mod stored;
mod wrapped;

pub use check::{CheckValue, WrongKey};
pub use host_key::{HostKey, HostKeyError, HostKeyId, HostKeys, LONGEST_FILE_BYTES};
pub use journal::{ChangeId, ChangeJournal, JournalError, JournalMark, Position, WINDOW_BYTES};
pub use secret::{DATA_KEY_BYTES, DataSecret, NoRandomBytes, Secret};
pub use stored::StoredKey;
pub use wrapped::{UnwrapError, WrappedKey};
