//! Data pointers (Base 4.1) and Dataset Management ranges (NVM 3.2.3).

use bytemuck::{Pod, Zeroable};

use crate::{wire_offset, wire_size};

/// PSDT values: what an SQE's data pointer holds (Base 3.3.3.1).
pub mod psdt {
    /// PRP entries.
    pub const PRP: u8 = 0b00;
    /// An SGL descriptor; the metadata pointer is one contiguous buffer.
    pub const SGL: u8 = 0b01;
}

/// Bytes of a PRP entry.
pub const PRP_BYTES: u64 = 8;

/// SGL descriptor types (Base 4.1.2.1).
pub mod sgl_type {
    /// Data block.
    pub const DATA_BLOCK: u8 = 0;
    /// Bit bucket: read data that the host doesn't want.
    pub const BIT_BUCKET: u8 = 1;
    /// Segment: more descriptors, another segment after them.
    pub const SEGMENT: u8 = 2;
    /// Last segment: more descriptors, none of them a segment.
    pub const LAST_SEGMENT: u8 = 3;
    /// Keyed data block.
    pub const KEYED_DATA_BLOCK: u8 = 4;
}

/// SGL descriptor (Base 4.1.2.1); for the types that this project uses.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct SglDescriptor {
    /// Where the data or the next segment is.
    pub address: u64,
    /// Bytes of it.
    pub length: u32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Type in bits 7:4, sub type in bits 3:0.
    pub kind: u8,
}

impl SglDescriptor {
    /// A descriptor of type `sgl_type` with sub type 0 (an address).
    pub const fn new(sgl_type: u8, address: u64, length: u32) -> Self {
        Self { address, length, reserved: [0; 3], kind: sgl_type << 4 }
    }
    /// SGL descriptor type.
    pub const fn sgl_type(&self) -> u8 {
        self.kind >> 4
    }
    /// SGL descriptor sub type: 0 for an address.
    pub const fn sub_type(&self) -> u8 {
        self.kind & 0xf
    }
}

/// One range of a Dataset Management command.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct DsmRange {
    /// Context attributes: hints.
    pub cattr: u32,
    /// Length in logical blocks; 1's based.
    pub nlb: u32,
    /// Starting LBA.
    pub slba: u64,
}

wire_size! { SglDescriptor = 16; DsmRange = 16; }
wire_offset!(SglDescriptor: length = 8, kind = 15);
