//! Which disk of a drive is re-encrypted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use io_model::TenantId;

use runtime::pollers::PollerId;

/// The re-encryptions of a drive.
#[derive(Default)]
pub(crate) struct Reencryptions {
    pub(crate) state: State,
    /// Disks whose pollers do not all know yet that they are re-encrypted.
    pub(crate) untold: BTreeSet<String>,
    /// Disks that the drive or a journal failed, and why.
    pub(crate) failed: BTreeMap<String, String>,
}

/// Where the re-encrypter is.
#[derive(Default)]
pub(crate) enum State {
    #[default]
    Away,
    Busy(Busy),
    /// It was told to go.
    Leaving(TenantId),
}

/// The re-encrypter at work.
pub(crate) struct Busy {
    pub(crate) poller: PollerId,
    pub(crate) id: TenantId,
    pub(crate) disk: String,
    pub(crate) begun: Instant,
    pub(crate) begun_at_bytes: u64,
}

impl Reencryptions {
    /// The re-encrypter, unless it was told to go.
    pub(crate) fn busy(&self) -> Option<&Busy> {
        match &self.state {
            State::Busy(busy) => Some(busy),
            State::Away | State::Leaving(_) => None,
        }
    }

    /// Whether that is the re-encrypter, and it was told to go.
    pub(crate) fn is_leaving(&self, id: TenantId) -> bool {
        matches!(self.state, State::Leaving(leaving) if leaving == id)
    }
}
