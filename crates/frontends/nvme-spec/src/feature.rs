//! Features: identifiers, dword 10 of Get and Set Features, and values (Base 5.15, 5.27; NVM 4.1.3).

use bytemuck::{Pod, Zeroable};

use crate::wire_size;

/// Feature identifiers (FID).
pub mod fid {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt Coalescing.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt Vector Configuration.
    pub const INTERRUPT_VECTOR_CONFIG: u8 = 0x09;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// I/O Command Set Profile.
    pub const IOCS_PROFILE: u8 = 0x19;
}

/// SEL: which value Get Features returns (dword 10 bits 10:8).
pub mod sel {
    /// Current.
    pub const CURRENT: u8 = 0;
    /// Default.
    pub const DEFAULT: u8 = 1;
    /// Saved.
    pub const SAVED: u8 = 2;
    /// Supported capabilities, see [`super::capability`].
    pub const SUPPORTED: u8 = 3;
}

/// What Get Features with [`sel::SUPPORTED`] returns in dword 0.
pub mod capability {
    /// Specific to a namespace.
    pub const NAMESPACE: u32 = 1 << 1;
    /// Changeable.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// SV of Set Features: save (dword 10).
pub const SAVE: u32 = 1 << 31;

/// Bits of Asynchronous Event Configuration (Base 5.27.1.8) and of OAES in Identify Controller.
pub mod async_event {
    /// Critical warnings of the SMART log, bits 7:0.
    pub const SMART: u32 = 0xff;
    /// Namespace Attribute Notices.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
}

/// The Arbitration feature's value (Base 5.27.1.1). Weights are commands, 0's based.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArbitrationValue {
    /// AB: a queue's commands in one turn as a power of two; [`ArbitrationValue::NO_LIMIT`] is no limit.
    pub ab: u8,
    /// LPW: low priority weight.
    pub lpw: u8,
    /// MPW: medium priority weight.
    pub mpw: u8,
    /// HPW: high priority weight.
    pub hpw: u8,
}

impl ArbitrationValue {
    /// AB: no limit.
    pub const NO_LIMIT: u8 = 0b111;

    /// From dword 11 of Set Features or dword 0 of Get Features. Reserved bits are dropped.
    pub const fn from_dword(dword: u32) -> Self {
        let [ab, lpw, mpw, hpw] = dword.to_le_bytes();
        Self { ab: ab & 0b111, lpw, mpw, hpw }
    }

    /// The dword.
    pub const fn to_dword(self) -> u32 {
        u32::from_le_bytes([self.ab & 0b111, self.lpw, self.mpw, self.hpw])
    }
}

/// IV of Interrupt Vector Configuration: bits 15:0 (Base 5.27.1.7).
pub const INTERRUPT_VECTOR: u32 = 0xffff;

/// CD of Interrupt Vector Configuration: coalescing disabled for the vector.
pub const COALESCING_DISABLED: u32 = 1 << 16;

/// Host Behavior Support's data (Base 5.27.1.18).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct HostBehavior {
    /// ACRE: Advanced Command Retry Enable.
    pub acre: u8,
    /// ETDAS: Extended Telemetry Data Area 4 Supported.
    pub etdas: u8,
    /// LBAFEE: LBA Format Extension Enable.
    pub lbafee: u8,
    /// Reserved.
    pub reserved3: [u8; 509],
}

/// Timestamp's data (Base 5.27.1.12).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Timestamp {
    /// Milliseconds since 1970, 48 bits, least significant byte first.
    pub ms: [u8; 6],
    /// Synch in bit 0, origin in bits 3:1.
    pub attributes: u8,
    /// Reserved.
    pub reserved7: u8,
}

wire_size! { HostBehavior = 512; Timestamp = 8; }
