//! A namespace's Identify data structures (NVM 4.1.5, Base 5.17.2).

use bytemuck::{Pod, Zeroable};

use crate::{wire_offset, wire_size};

/// Bits of [`IdentifyNamespace::nsfeat`].
pub mod nsfeat {}

/// Values of [`IdentifyNamespace::dlfeat`] bits 2:0: what deallocated blocks read as.
pub mod dlfeat {
    /// Not reported.
    pub const UNKNOWN: u8 = 0;
    /// All bytes 00h.
    pub const ZEROES: u8 = 1;
    /// Write Zeroes takes the DEAC bit.
    pub const DEAC: u8 = 1 << 3;
}

/// Bits of [`IdentifyNamespace::nmic`].
pub mod nmic {
    /// Other controllers may have the namespace too.
    pub const SHARED: u8 = 1;
}

/// Bits of [`IdentifyNamespace::nsattr`].
pub mod nsattr {
    /// Write protected.
    pub const WRITE_PROTECTED: u8 = 1;
}

/// LBA format (NVM 4.1.5.1).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct LbaFormat {
    /// MS: metadata bytes per block.
    pub ms: u16,
    /// LBADS: a block has `1 << lbads` bytes.
    pub lbads: u8,
    /// RP: relative performance in bits 1:0; 0 is best.
    pub rp: u8,
}

/// Identify Namespace for the NVM command set (NVM 4.1.5.1; CNS 00h). Field names as in the
/// specification; sizes are in logical blocks and 0's based where it says so.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct IdentifyNamespace {
    /// Namespace Size.
    pub nsze: u64,
    /// Namespace Capacity.
    pub ncap: u64,
    /// Namespace Utilization.
    pub nuse: u64,
    /// Namespace Features, see [`nsfeat`].
    pub nsfeat: u8,
    /// Number of LBA Formats, 0's based.
    pub nlbaf: u8,
    /// Formatted LBA Size: the format's index in bits 3:0 and 6:5.
    pub flbas: u8,
    /// Metadata Capabilities.
    pub mc: u8,
    /// End-to-end Data Protection Capabilities.
    pub dpc: u8,
    /// End-to-end Data Protection Type Settings.
    pub dps: u8,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities, see [`nmic`].
    pub nmic: u8,
    /// Reservation Capabilities.
    pub rescap: u8,
    /// Format Progress Indicator: supported in bit 7, percent that remains in bits 6:0.
    pub fpi: u8,
    /// Deallocate Logical Block Features, see [`dlfeat`].
    pub dlfeat: u8,
    /// Namespace Atomic Write Unit Normal.
    pub nawun: u16,
    /// Namespace Atomic Write Unit Power Fail.
    pub nawupf: u16,
    /// Namespace Atomic Compare & Write Unit.
    pub nacwu: u16,
    /// Namespace Atomic Boundary Size Normal.
    pub nabsn: u16,
    /// Namespace Atomic Boundary Offset.
    pub nabo: u16,
    /// Namespace Atomic Boundary Size Power Fail.
    pub nabspf: u16,
    /// Namespace Optimal I/O Boundary.
    pub noiob: u16,
    /// NVM Capacity in bytes, low half first.
    pub nvmcap: [u64; 2],
    /// Namespace Preferred Write Granularity, 0's based.
    pub npwg: u16,
    /// Namespace Preferred Write Alignment, 0's based.
    pub npwa: u16,
    /// Namespace Preferred Deallocate Granularity, 0's based.
    pub npdg: u16,
    /// Namespace Preferred Deallocate Alignment, 0's based.
    pub npda: u16,
    /// Namespace Optimal Write Size, 0's based.
    pub nows: u16,
    /// Maximum Single Source Range Length (Copy).
    pub mssrl: u16,
    /// Maximum Copy Length.
    pub mcl: u32,
    /// Maximum Source Range Count (Copy), 0's based.
    pub msrc: u8,
    /// Reserved.
    pub reserved81: [u8; 11],
    /// ANA Group Identifier.
    pub anagrpid: u32,
    /// Reserved.
    pub reserved96: [u8; 3],
    /// Namespace Attributes, see [`nsattr`].
    pub nsattr: u8,
    /// NVM Set Identifier.
    pub nvmsetid: u16,
    /// Endurance Group Identifier.
    pub endgid: u16,
    /// Namespace Globally Unique Identifier.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier.
    pub eui64: [u8; 8],
    /// LBA formats.
    pub lbaf: [LbaFormat; 64],
    /// Vendor Specific.
    pub vendor: [u8; 3712],
}

/// Identify Namespace of the NVM command set, its own part (NVM 4.1.5.3; CNS 05h, CSI 00h).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct IdentifyNamespaceNvm {
    /// Logical Block Storage Tag Mask.
    pub lbstm: u64,
    /// Protection Information Capabilities.
    pub pic: u8,
    /// Reserved.
    pub reserved9: [u8; 3],
    /// Extended LBA formats.
    pub elbaf: [u32; 64],
    /// Reserved.
    pub reserved268: [u8; 3828],
}

/// I/O Command Set Independent Identify Namespace (Base 5.17.2.8; CNS 08h).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct IdentifyNamespaceIndependent {
    /// Common Namespace Features.
    pub nsfeat: u8,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities.
    pub nmic: u8,
    /// Reservation Capabilities.
    pub rescap: u8,
    /// Format Progress Indicator.
    pub fpi: u8,
    /// ANA Group Identifier.
    pub anagrpid: u32,
    /// Namespace Attributes.
    pub nsattr: u8,
    /// Reserved.
    pub reserved9: u8,
    /// NVM Set Identifier.
    pub nvmsetid: u16,
    /// Endurance Group Identifier.
    pub endgid: u16,
    /// Namespace Status: ready in bit 0.
    pub nstat: u8,
    /// Reserved.
    pub reserved15: [u8; 4081],
}

/// Namespace identification descriptor types: NIDT (Base 5.17.2.3; CNS 03h). Each descriptor is NIDT,
/// NIDL (bytes of the identifier), two reserved bytes, then the identifier.
pub mod nidt {
    /// Namespace Globally Unique Identifier, 16 bytes.
    pub const NGUID: u8 = 2;
    /// UUID, 16 bytes.
    pub const UUID: u8 = 3;
    /// Command Set Identifier, 1 byte.
    pub const CSI: u8 = 4;
}

wire_size! {
    LbaFormat = 4;
    IdentifyNamespace = 4096;
    IdentifyNamespaceNvm = 4096;
    IdentifyNamespaceIndependent = 4096;
}
wire_offset!(IdentifyNamespace: nsfeat = 24, dlfeat = 33, nawun = 34, noiob = 46, nvmcap = 48, npwg = 64, mcl = 76,
    anagrpid = 92, nsattr = 99, nguid = 104, eui64 = 120, lbaf = 128, vendor = 384);
wire_offset!(IdentifyNamespaceNvm: elbaf = 12);
wire_offset!(IdentifyNamespaceIndependent: nstat = 14);
