//! What can happen to a drive's disks, and what the daemon does about it.

use std::ops::Range;

use config::{Config, Encryption, Namespace, Tenant};
use io_model::TenantId;
use io_model::units::Size;
use keys::StoredKey;
use layout::{Layout, Sanitize, Snapshot, WantedPool, WipeMethod};

use crate::attachments::{At, NamespaceOrder};
use crate::disks::Kind;

/// A disk that comes.
#[derive(Debug, Clone)]
pub struct NewDisk {
    /// Unique among all disks of the daemon.
    pub name: String,
    /// Its size, if it has no place on the drive yet.
    pub size: Size,
    /// Where it begins on the drive. `None`: anywhere.
    pub offset: Option<Size>,
    /// Its block size, if it has no place on the drive yet: 512 or 4096 bytes.
    pub lba_bytes: u32,
    /// A tenant's own disk, or a namespace.
    pub kind: Kind,
    /// Owner of the key that it gets, if it has no place on the drive yet.
    pub encryption: Encryption,
    /// That key. `None`: it is not encrypted.
    pub key: Option<StoredKey>,
    /// It gets room from the pool, if it has no place on the drive yet.
    pub is_thin: bool,
}

impl From<&Tenant> for NewDisk {
    fn from(tenant: &Tenant) -> Self {
        Self {
            name: tenant.name.clone(),
            size: tenant.size,
            offset: tenant.offset,
            lba_bytes: tenant.lba_bytes,
            kind: Kind::Tenant { has_controller: tenant.frontend.is_controller() },
            encryption: tenant.encryption,
            key: None,
            is_thin: tenant.is_thin,
        }
    }
}

impl From<&Namespace> for NewDisk {
    fn from(namespace: &Namespace) -> Self {
        Self {
            name: namespace.name.clone(),
            size: namespace.size,
            offset: None,
            lba_bytes: namespace.lba_bytes,
            kind: Kind::Namespace(Box::new(namespace.clone())),
            encryption: namespace.encryption,
            key: None,
            is_thin: false,
        }
    }
}

/// A wish of an operator, or news from pollers and threads.
#[derive(Debug, Clone)]
pub enum Command {
    /// A disk comes. It gets a place on the drive if it has none, and its section is recorded if the API made it.
    Create {
        /// Never used before.
        id: TenantId,
        /// The disk.
        disk: NewDisk,
        /// A `[[tenant]]` or `[[namespace]]` section. `None`: the configuration file has it.
        section: Option<String>,
    },
    /// All pollers of a tenant serve its queues.
    Placed(TenantId),
    /// A disk that no guest has seen came to nothing. Its range is free again.
    Withdraw(TenantId),
    /// A tenant is no longer served. Its range stays reserved.
    Remove(TenantId),
    /// A disk gets another section, and grows to a size.
    Change {
        /// The disk.
        name: String,
        /// As for [`Command::Create`].
        section: Option<String>,
        /// At least its present size.
        size_bytes: u64,
    },
    /// A disk is deleted, or the data of a disk that is not served. What it leaves is wiped before it is free.
    Delete {
        /// The disk.
        name: String,
        /// How its data is overwritten. `None`: with zeros, and not at all if it was encrypted.
        wipe: Option<WipeMethod>,
    },
    /// Encrypted disks get other keys: nobody can read their data any more. Or the keys are stored in another way.
    ReplaceKeys(Vec<(String, StoredKey)>),
    /// Thin disks have snapshots, by disk. The pool has their maps.
    Snapshot(Vec<(String, Snapshot)>),
    /// A snapshot goes.
    DeleteSnapshot {
        /// Its disk.
        disk: String,
        /// Its name.
        snapshot: String,
    },
    /// The pool's file has this number, or does not exist (`None`), and gets another one.
    RenewPool {
        /// What the file has.
        former: Option<u32>,
        /// What it gets.
        id: u32,
    },
    /// The pool's file says which pieces are clean.
    PoolRenewed,
    /// The pool is to be as large as this, and to allow as much. It is made if there is none.
    SetPool(Option<WantedPool>),
    /// The configuration file has a disk that the API made.
    Declare(String),
    /// Another configuration holds. Namespaces are attached as it says.
    Take(Box<Config>),
    /// The last poller of a tenant released it.
    Left(TenantId),
    /// A controller released a namespace.
    Detached(At),
    /// Bytes from the start of a disk that need no zeroing any more; or why the rest can't be zeroed.
    Zeroed {
        /// The disk, which may have left meanwhile.
        id: TenantId,
        /// Bytes, or why not.
        result: Result<u64, String>,
        /// The job has ended.
        is_over: bool,
    },
    /// Passes that are over and bytes of the present one; or why the range can't be wiped.
    Wiped {
        /// Where the range starts.
        offset_bytes: u64,
        /// Passes and bytes, or why not.
        result: Result<(u8, u64), String>,
    },
    /// A guest formats a namespace to other blocks.
    Format {
        /// The tenant.
        id: TenantId,
        /// The namespace of its controller. 1: the tenant's own disk.
        nsid: u32,
        /// 512 or 4096.
        lba_bytes: u32,
        /// `false`: it begins.
        has_ended: bool,
    },
    /// A guest sanitizes what its controller has, or has done so.
    Sanitize {
        /// The tenant.
        id: TenantId,
        /// How far it is.
        sanitize: Sanitize,
        /// Namespaces that are to be erased from now on, as for [`Command::Format`]: that of NSID `n` as bit `n - 1`.
        nsids: u32,
    },
}

/// A layout to record.
#[derive(Debug, Clone)]
pub enum Record {
    /// It loses no disk that the recorded one has, unless the disk's ranges wait to be wiped.
    Keep(Layout),
    /// A disk that came to nothing is not in it.
    Withdraw(Layout),
}

/// What the daemon does, in this order.
#[derive(Debug, Clone, Default)]
pub struct Effects {
    /// Comes first. If it fails, the command has failed, and nothing has changed.
    pub record: Option<Record>,
    /// What follows. One that fails does not keep the daemon from the next.
    pub then: Vec<Effect>,
}

impl Effects {
    /// Nothing is recorded.
    pub(crate) fn only(then: Vec<Effect>) -> Self {
        Self { record: None, then }
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Clients may connect to a tenant. Fails: the tenant is not served.
    Connect(TenantId),
    /// Zero the new range of a disk; [`Command::Zeroed`] reports the result.
    Zero(TenantId),
    /// Have pollers release a tenant; [`Command::Left`] reports the result.
    Leave(TenantId),
    /// Cancel the zeroing of a disk.
    StopZeroing(TenantId),
    /// An order to a tenant's controller. [`Command::Detached`] tells of each detached namespace.
    Order(TenantId, NamespaceOrder),
    /// A tenant's guest sees that its disk is larger.
    ShowSize(TenantId),
    /// A controller has released a namespace. Requests may wait for that.
    TellDetached(At),
    /// New ranges of a disk are zeroed.
    TellZeroed(TenantId),
    /// New ranges of a disk can't be zeroed.
    TellNotZeroed(TenantId, String),
    /// A range may have to be wiped: [`Jobs::next`](crate::Jobs::next) says which.
    Wipe,
    /// Nothing uses these maps of the pool any more.
    RemoveMaps(Vec<u32>),
    /// The pool has these pieces of the drive too, each range with whether it reads as zeros.
    ExtendPool(Vec<(Range<u32>, bool)>),
}
