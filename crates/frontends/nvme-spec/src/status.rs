//! The status field of a completion (Base 3.3.3.2.1) and its codes.

use core::fmt;

/// A status field: SC in bits 7:0, SCT in bits 10:8, CRD 12:11, M 13, DNR 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u16);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $sct:literal, $sc:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self::new($sct, $sc);)*

            /// The code's name in this crate, for messages. `None`: unknown here.
            pub const fn name(self) -> Option<&'static str> {
                match (self.sct(), self.sc()) {
                    $(($sct, $sc) => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Successful Completion.
    SUCCESS = 0, 0x00;
    /// Invalid Command Opcode.
    INVALID_OPCODE = 0, 0x01;
    /// Invalid Field in Command.
    INVALID_FIELD = 0, 0x02;
    /// Command ID Conflict.
    COMMAND_ID_CONFLICT = 0, 0x03;
    /// Data Transfer Error.
    DATA_TRANSFER_ERROR = 0, 0x04;
    /// Commands Aborted due to Power Loss Notification.
    ABORTED_POWER_LOSS = 0, 0x05;
    /// Internal Error.
    INTERNAL_ERROR = 0, 0x06;
    /// Command Abort Requested.
    ABORT_REQUESTED = 0, 0x07;
    /// Command Aborted due to SQ Deletion.
    ABORTED_SQ_DELETION = 0, 0x08;
    /// Command Aborted due to Failed Fused Command.
    ABORTED_FAILED_FUSED = 0, 0x09;
    /// Command Aborted due to Missing Fused Command.
    ABORTED_MISSING_FUSED = 0, 0x0a;
    /// Invalid Namespace or Format.
    INVALID_NAMESPACE = 0, 0x0b;
    /// Command Sequence Error.
    COMMAND_SEQUENCE_ERROR = 0, 0x0c;
    /// Invalid SGL Segment Descriptor.
    INVALID_SGL_SEGMENT = 0, 0x0d;
    /// Invalid Number of SGL Descriptors.
    INVALID_SGL_COUNT = 0, 0x0e;
    /// Data SGL Length Invalid.
    SGL_DATA_LENGTH_INVALID = 0, 0x0f;
    /// Metadata SGL Length Invalid.
    SGL_METADATA_LENGTH_INVALID = 0, 0x10;
    /// SGL Descriptor Type Invalid.
    SGL_TYPE_INVALID = 0, 0x11;
    /// Invalid Use of Controller Memory Buffer.
    INVALID_CMB_USE = 0, 0x12;
    /// PRP Offset Invalid.
    PRP_OFFSET_INVALID = 0, 0x13;
    /// Atomic Write Unit Exceeded.
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14;
    /// Operation Denied.
    OPERATION_DENIED = 0, 0x15;
    /// SGL Offset Invalid.
    SGL_OFFSET_INVALID = 0, 0x16;
    /// Host Identifier Inconsistent Format.
    HOST_ID_INCONSISTENT = 0, 0x18;
    /// Keep Alive Timer Expired.
    KEEP_ALIVE_EXPIRED = 0, 0x19;
    /// Keep Alive Timeout Invalid.
    KEEP_ALIVE_INVALID = 0, 0x1a;
    /// Sanitize Failed.
    SANITIZE_FAILED = 0, 0x1c;
    /// Sanitize In Progress.
    SANITIZE_IN_PROGRESS = 0, 0x1d;
    /// SGL Data Block Granularity Invalid.
    SGL_GRANULARITY_INVALID = 0, 0x1e;
    /// Command Not Supported for Queue in CMB.
    UNSUPPORTED_QUEUE_IN_CMB = 0, 0x1f;
    /// Namespace is Write Protected.
    NAMESPACE_WRITE_PROTECTED = 0, 0x20;
    /// Command Interrupted.
    COMMAND_INTERRUPTED = 0, 0x21;
    /// Transient Transport Error.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22;
    /// Command and Feature Lockdown: prohibited.
    COMMAND_PROHIBITED = 0, 0x23;
    /// Admin Command Media Not Ready.
    ADMIN_MEDIA_NOT_READY = 0, 0x24;
    /// LBA Out of Range (NVM).
    LBA_OUT_OF_RANGE = 0, 0x80;
    /// Capacity Exceeded (NVM).
    CAPACITY_EXCEEDED = 0, 0x81;
    /// Namespace Not Ready.
    NAMESPACE_NOT_READY = 0, 0x82;
    /// Reservation Conflict.
    RESERVATION_CONFLICT = 0, 0x83;
    /// Format In Progress (NVM).
    FORMAT_IN_PROGRESS = 0, 0x84;

    /// Completion Queue Invalid.
    COMPLETION_QUEUE_INVALID = 1, 0x00;
    /// Invalid Queue Identifier.
    INVALID_QUEUE_ID = 1, 0x01;
    /// Invalid Queue Size.
    INVALID_QUEUE_SIZE = 1, 0x02;
    /// Abort Command Limit Exceeded.
    ABORT_LIMIT_EXCEEDED = 1, 0x03;
    /// Asynchronous Event Request Limit Exceeded.
    AER_LIMIT_EXCEEDED = 1, 0x05;
    /// Invalid Firmware Slot.
    INVALID_FIRMWARE_SLOT = 1, 0x06;
    /// Invalid Firmware Image.
    INVALID_FIRMWARE_IMAGE = 1, 0x07;
    /// Invalid Interrupt Vector.
    INVALID_INTERRUPT_VECTOR = 1, 0x08;
    /// Invalid Log Page.
    INVALID_LOG_PAGE = 1, 0x09;
    /// Invalid Format.
    INVALID_FORMAT = 1, 0x0a;
    /// Firmware Activation Requires Conventional Reset.
    FIRMWARE_NEEDS_RESET = 1, 0x0b;
    /// Invalid Queue Deletion.
    INVALID_QUEUE_DELETION = 1, 0x0c;
    /// Feature Identifier Not Saveable.
    FEATURE_NOT_SAVEABLE = 1, 0x0d;
    /// Feature Not Changeable.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e;
    /// Feature Not Namespace Specific.
    FEATURE_NOT_NAMESPACE = 1, 0x0f;
    /// Invalid Controller Identifier.
    INVALID_CONTROLLER_ID = 1, 0x1f;
    /// I/O Command Set Not Supported.
    IOCS_NOT_SUPPORTED = 1, 0x29;
    /// I/O Command Set Combination Rejected.
    IOCS_COMBINATION_REJECTED = 1, 0x2b;
    /// Invalid I/O Command Set.
    IOCS_INVALID = 1, 0x2c;
    /// Conflicting Attributes (NVM).
    CONFLICTING_ATTRIBUTES = 1, 0x80;
    /// Invalid Protection Information (NVM).
    INVALID_PROTECTION_INFO = 1, 0x81;
    /// Attempted Write to Read Only Range (NVM).
    READ_ONLY_RANGE = 1, 0x82;
    /// Command Size Limit Exceeded (NVM).
    COMMAND_SIZE_LIMIT = 1, 0x83;

    /// Write Fault.
    WRITE_FAULT = 2, 0x80;
    /// Unrecovered Read Error.
    UNRECOVERED_READ = 2, 0x81;
    /// End-to-end Guard Check Error.
    GUARD_CHECK = 2, 0x82;
    /// End-to-end Application Tag Check Error.
    APPLICATION_TAG_CHECK = 2, 0x83;
    /// End-to-end Reference Tag Check Error.
    REFERENCE_TAG_CHECK = 2, 0x84;
    /// Compare Failure.
    COMPARE_FAILURE = 2, 0x85;
    /// Access Denied.
    ACCESS_DENIED = 2, 0x86;
    /// Deallocated or Unwritten Logical Block.
    DEALLOCATED_BLOCK = 2, 0x87;
}

impl Status {
    /// DNR, Do Not Retry: the same command would fail again.
    pub const DNR: u16 = 1 << 14;

    /// From a status code type and a status code.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self(((sct & 7) as u16) << 8 | sc as u16)
    }
    /// SC: the status code.
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }
    /// SCT: the status code type.
    pub const fn sct(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }
    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.code().0 == 0
    }
    /// With DNR set.
    pub const fn dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }
    /// SCT and SC alone, for comparing.
    pub const fn code(self) -> Self {
        Self(self.0 & 0x7ff)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dnr = if self.0 & Self::DNR != 0 { " DNR" } else { "" };
        match self.name() {
            Some(name) => write!(f, "{name} ({:x}h/{:02x}h{dnr})", self.sct(), self.sc()),
            None => write!(f, "status {:x}h/{:02x}h{dnr}", self.sct(), self.sc()),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
