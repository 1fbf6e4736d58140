//! A disk on its way from one key to another.

use std::fmt;
use std::sync::Arc;

use io_model::HeldRange;

use crate::key::DataKey;

/// The keys of a disk that is re-encrypted, from its start to its end. All pollers share it.
///
/// What lies before the held range has the next key, what lies behind it the former one. No command is in flight to the
/// held range while its data is rewritten.
pub struct KeyChange {
    former: Arc<DataKey>,
    next: Arc<DataKey>,
    held: Arc<HeldRange>,
}

impl KeyChange {
    /// From one key to another, with the disk's range, which keeps commands away.
    pub fn new(former: Arc<DataKey>, next: Arc<DataKey>, held: Arc<HeldRange>) -> Arc<Self> {
        Arc::new(Self { former, next, held })
    }

    /// The key that is replaced.
    pub fn former(&self) -> &Arc<DataKey> {
        &self.former
    }

    /// The key that replaces it.
    pub fn next(&self) -> &Arc<DataKey> {
        &self.next
    }

    /// The range that is rewritten. All before it has the next key.
    pub fn held(&self) -> &Arc<HeldRange> {
        &self.held
    }
}

impl fmt::Debug for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyChange").field("held", &self.held).finish_non_exhaustive()
    }
}
