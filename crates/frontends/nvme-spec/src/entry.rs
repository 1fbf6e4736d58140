//! Submission and completion queue entries (Base 3.3.3).

use bytemuck::{Pod, Zeroable};

use crate::{Status, wire_offset, wire_size};

/// Bytes of a submission queue entry.
pub const SQE_BYTES: u64 = 64;

/// Bytes of a completion queue entry.
pub const CQE_BYTES: u64 = 16;

/// Submission queue entry (Base 3.3.3.1).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Sqe {
    /// Opcode.
    pub opc: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// Command identifier.
    pub cid: u16,
    /// Namespace identifier.
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// Metadata pointer.
    pub mptr: u64,
    /// Data pointer: PRP entry 1 and 2, or one SGL descriptor.
    pub dptr: [u64; 2],
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
}

impl Sqe {
    /// FUSE: 0 for a command that stands alone.
    pub const fn fuse(&self) -> u8 {
        self.flags & 3
    }
    /// PSDT: how the data pointer is to be read, see [`crate::data::psdt`].
    pub const fn psdt(&self) -> u8 {
        self.flags >> 6
    }
    /// SLBA of an I/O command that has one: dwords 10 and 11 (NVM 3.2).
    pub const fn slba(&self) -> u64 {
        self.cdw10 as u64 | (self.cdw11 as u64) << 32
    }
    /// NLB of an I/O command that has one, 0's based: dword 12 bits 15:0 (NVM 3.2).
    pub const fn nlb(&self) -> u16 {
        self.cdw12 as u16
    }
}

/// Completion queue entry (Base 3.3.3.2).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Cqe {
    /// Command specific result.
    pub dw0: u32,
    /// Command specific result.
    pub dw1: u32,
    /// SQHD: the submission queue's head when this was posted.
    pub sqhd: u16,
    /// SQID: the submission queue.
    pub sqid: u16,
    /// Command identifier.
    pub cid: u16,
    /// Phase tag in bit 0, status field in bits 15:1.
    pub phase_status: u16,
}

impl Cqe {
    /// P: the phase tag.
    pub const fn phase(&self) -> bool {
        self.phase_status & 1 != 0
    }
    /// SF: the status field.
    pub const fn status(&self) -> Status {
        Status(self.phase_status >> 1)
    }
}

wire_size! { Sqe = 64; Cqe = 16; }
wire_offset!(Sqe: nsid = 4, mptr = 16, dptr = 24, cdw10 = 40, cdw15 = 60);
wire_offset!(Cqe: sqhd = 8, cid = 12, phase_status = 14);
