//! What a front end asks of a device, and the answer.

use crate::TenantId;

/// What a command does to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Make everything completed before it durable.
    Flush,
    /// The range reads as zeros afterwards.
    WriteZeroes,
    /// The range's content is not needed any more; it may read as zeros or as before.
    Discard,
}

impl Op {
    /// Whether a command has a buffer, which is as long as its range.
    #[inline]
    pub const fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// One command as a back end sees it, made by [`Place::command`]. The front end has checked the range against the
/// tenant's disk.
///
/// Two offsets: the drive's says where the data lies, the tenant's what it is. What depends on the data's identity (a
/// key's tweak, say) takes the latter, which stays the same wherever the disk is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub op: Op,
    /// Force unit access: a write is durable before it completes.
    pub fua: bool,
    /// The tenant whose disk it is about, also if a front end made the command by itself.
    pub tenant: TenantId,
    /// Which of the tenant's disks: an NVMe namespace's identifier less one. 0 for [`Op::Flush`].
    pub disk: u16,
    /// Start on the device. 0 for [`Op::Flush`].
    pub offset_bytes: u64,
    /// Start in the tenant's own disk. 0 for [`Op::Flush`].
    pub tenant_offset_bytes: u64,
    /// Length. 0 for [`Op::Flush`]; the buffer's length for reads and writes.
    pub len_bytes: u64,
}

/// It is copied several times per I/O: half a cache line.
const _: () = assert!(size_of::<Command>() == 32);

/// A tenant's disk, and its place on the device if it is in one piece. The creator of a front end passes it in. The
/// front end counts in offsets of the disk only, and makes each of its commands here, so that both offsets and the
/// tenant agree. A disk in several pieces has [`Placed`](crate::Placed) around its front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The tenant that the disk belongs to.
    pub tenant: TenantId,
    /// Which of the tenant's.
    pub disk: u16,
    /// Where it starts on the device.
    pub base_bytes: u64,
}

impl Place {
    /// The place of a tenant that has the device to itself.
    pub const fn whole_drive(tenant: TenantId) -> Self {
        Self { tenant, disk: 0, base_bytes: 0 }
    }

    /// A command for `len_bytes` from `tenant_offset_bytes` of the disk, without FUA. The caller has checked that the
    /// range lies inside of the disk, and that the disk ends before 2^64.
    #[inline]
    pub fn command(&self, op: Op, tenant_offset_bytes: u64, len_bytes: u64) -> Command {
        let Self { tenant, disk, base_bytes } = *self;
        let offset_bytes = base_bytes + tenant_offset_bytes;
        Command { op, fua: false, tenant, disk, offset_bytes, tenant_offset_bytes, len_bytes }
    }

    /// A flush, which has no range.
    #[inline]
    pub fn flush(&self) -> Command {
        let (disk, offset_bytes, tenant_offset_bytes, len_bytes) = (0, 0, 0, 0);
        Command { op: Op::Flush, fua: false, tenant: self.tenant, disk, offset_bytes, tenant_offset_bytes, len_bytes }
    }
}

impl Command {
    /// The command, durable before it completes if `fua`.
    #[inline]
    #[must_use]
    pub fn with_fua(self, fua: bool) -> Self {
        Self { fua, ..self }
    }
}

/// Why the device failed a command. Front ends map it to their own status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceError {
    /// The medium can't be read or written there.
    Medium,
    /// No room left behind a thin device (a full file system).
    NoSpace,
    /// The range is outside of the device.
    OutOfRange,
    /// Guest memory went away or is not what the operation needs.
    Memory,
    /// The device can't do this operation.
    Unsupported,
    /// The device is gone or does not answer.
    Gone,
}

/// How a command ended.
pub type Outcome = Result<(), DeviceError>;
