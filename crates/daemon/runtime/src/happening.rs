//! What a drive's pollers and threads tell the owner.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use io_model::{DeviceError, TenantId, Witness};
use layout::Wiping;
use nvme_controller::EraseRecord;
use pieces::RoomState;

/// A drive of the daemon's; given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriveId(pub u32);

/// What a drive's pollers and threads tell of themselves.
pub enum Happening {
    /// A poller has released its part of a tenant.
    Left(TenantId),
    /// A guest erases what it has; the layout must remember, and then the guest's poller hears of it.
    Erase(TenantId, EraseRecord),
    /// A controller has released its namespace of that identifier.
    NamespaceLeft(TenantId, u32),
    /// No poller has the former key of a disk any more.
    Erased(TenantId),
    /// How far the range of a new tenant is.
    Zeroed(Zeroed),
    /// How far the wiper is with what a deleted disk left.
    Wiped(WipeStep),
    /// What the wiper is to write of that range: pieces of the drive.
    Looked(Wiping, Vec<Range<u64>>),
    /// A poller has released the wiper.
    WiperLeft(TenantId),
    /// A disk has its next key everywhere; or why that can't be.
    Reencrypted(TenantId, std::result::Result<(), String>),
    /// A poller has released the re-encrypter.
    ReencrypterLeft(TenantId),
    /// Drop the witness once no command of a thin disk is in flight that was fetched before.
    Quiet(Witness),
    /// No write is in flight to the disks that were frozen for this.
    Frozen(u64),
    /// How much of the pool is left.
    Room(RoomState),
    /// The file of thin disks' maps can't be written.
    PoolFailed(String),
    /// The image of a disk can't be changed, for this reason.
    ImageFailed(String, String),
    /// The drive itself tells what goes wrong with it.
    DriveFailing(String),
}

/// Tells the owner what happens on one drive, from any thread.
#[derive(Clone)]
pub struct Teller(Arc<dyn Fn(Happening) + Send + Sync>);

impl Teller {
    /// Every happening goes to `tell`.
    pub fn new(tell: impl Fn(Happening) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Nobody hears it if the daemon has ended.
    pub fn tell(&self, happening: Happening) {
        (self.0)(happening);
    }
}

/// How far the range of a tenant is.
pub struct Zeroed {
    /// The tenant.
    pub tenant: TenantId,
    /// Bytes from its start that are zeroed durably, or why they can't be.
    pub result: Result<u64>,
    /// Nothing more is written for this job.
    pub is_over: bool,
}

/// How far a range is; or why it can't be overwritten.
#[derive(Debug)]
pub struct WipeStep {
    /// Where the range starts on the drive.
    pub offset_bytes: u64,
    /// Passes that are over, and bytes of the present one, durably; [`layout::Layout::set_wiped`] wants them.
    pub result: Result<(u8, u64), WipeError>,
}

/// Why a range can't be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WipeError {
    /// The drive failed a command.
    Drive(DeviceError),
    /// The data read back is not the data written.
    Differs,
}
