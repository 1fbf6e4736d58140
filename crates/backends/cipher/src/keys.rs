//! The keys that pollers know, by disk.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_model::TenantId;

use crate::change::KeyChange;
use crate::key::DataKey;

/// How a disk's data lies on the drive.
#[derive(Debug, Clone)]
pub enum Access {
    /// As the guest wrote it.
    Plain,
    /// Encrypted with this key.
    Key(Arc<DataKey>),
    /// Encrypted with one key up to some place, and with another one behind it.
    Changing(Arc<KeyChange>),
    /// Encrypted, and the key is not here: commands fail.
    Locked,
}

impl Access {
    fn has_key(&self) -> bool {
        matches!(self, Self::Key(_) | Self::Changing(_))
    }
}

/// Which disk: a tenant, and the number of its disk as commands have it.
pub(crate) type DiskId = (TenantId, u16);

/// How each disk of a drive is encrypted. All pollers of the drive share it, and look it up only after a change.
///
/// Where any disk is or was encrypted, commands of a disk that is not named fail: else a key that comes late would find
/// plain text on the drive. Name an encrypted disk before its first command.
#[derive(Debug, Default)]
pub struct Keys {
    disks: Mutex<BTreeMap<DiskId, Access>>,
    /// Changes so far.
    changes: AtomicU64,
}

impl Keys {
    /// From now on, a disk is encrypted this way. A poller heeds it at its next
    /// [`kick`](io_model::Backend::kick) or submission.
    pub fn set(&self, tenant: TenantId, disk: u16, access: Access) {
        self.lock().insert((tenant, disk), access);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// A tenant is gone, with all of its disks. `true`: one of them had a key, which pollers still have.
    pub fn forget(&self, tenant: TenantId) -> bool {
        let mut disks = self.lock();
        let had_key = disks.iter().any(|((of, _), access)| *of == tenant && access.has_key());
        disks.retain(|(of, _), _| *of != tenant);
        self.changes.fetch_add(1, Ordering::Release);
        had_key
    }

    /// A disk is gone. `true`: it had a key, which pollers still have.
    pub fn forget_disk(&self, tenant: TenantId, disk: u16) -> bool {
        let mut disks = self.lock();
        let had_key = disks.get(&(tenant, disk)).is_some_and(Access::has_key);
        if had_key {
            disks.insert((tenant, disk), Access::Locked);
            self.changes.fetch_add(1, Ordering::Release);
        }
        had_key
    }

    /// How often anything has changed.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// All disks, in order.
    pub(crate) fn disks(&self) -> Vec<(DiskId, Access)> {
        self.lock().iter().map(|(disk, access)| (*disk, access.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DiskId, Access>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
