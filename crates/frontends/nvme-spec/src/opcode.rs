//! Opcodes and the bits of their command dwords.

/// Admin commands (Base 5, Figure "Opcodes for Admin Commands").
pub mod admin {
    /// Delete I/O Submission Queue.
    pub const DELETE_SQ: u8 = 0x00;
    /// Create I/O Submission Queue.
    pub const CREATE_SQ: u8 = 0x01;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue.
    pub const DELETE_CQ: u8 = 0x04;
    /// Create I/O Completion Queue.
    pub const CREATE_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Virtualization Management.
    pub const VIRTUALIZATION_MANAGEMENT: u8 = 0x1c;
    /// Doorbell Buffer Config.
    pub const DOORBELL_BUFFER_CONFIG: u8 = 0x7c;
    /// Format NVM.
    pub const FORMAT_NVM: u8 = 0x80;
    /// Sanitize.
    pub const SANITIZE: u8 = 0x84;
}

/// I/O commands of the NVM command set (NVM 3.2).
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
}

/// Dword 12 of Read, Write, Compare, Verify and Write Zeroes (NVM 3.2).
pub mod rw {
    /// FUA: force unit access.
    pub const FUA: u32 = 1 << 30;
    /// DEAC: a Write Zeroes that deallocates.
    pub const DEAC: u32 = 1 << 25;
    /// DTYPE: directive type, of Write.
    pub const DTYPE: u32 = 0xf << 20;
}

/// Dword 11 of Dataset Management (NVM 3.2.3).
pub mod dsm {
    /// AD: deallocate.
    pub const AD: u32 = 1 << 2;
    /// IDR: integral dataset for read.
    pub const IDR: u32 = 1;
    /// The most ranges one command carries.
    pub const MAX_RANGES: usize = 256;
}

/// Dword 11 of Create I/O Completion Queue and Create I/O Submission Queue (Base 5.4, 5.5).
pub mod create {
    /// PC: physically contiguous.
    pub const PC: u32 = 1;
    /// IEN of a completion queue: interrupts enabled. IV follows in bits 31:16.
    pub const IEN: u32 = 1 << 1;
    /// QPRIO of a submission queue: bits 2:1. CQID follows in bits 31:16.
    pub const QPRIO_SHIFT: u32 = 1;
    /// QPRIO: urgent.
    pub const QPRIO_URGENT: u8 = 0b00;
    /// QPRIO: high.
    pub const QPRIO_HIGH: u8 = 0b01;
    /// QPRIO: medium.
    pub const QPRIO_MEDIUM: u8 = 0b10;
    /// QPRIO: low.
    pub const QPRIO_LOW: u8 = 0b11;
}

/// Dword 10 of Format NVM (NVM 4.1.2, Base 5.14).
pub mod format {
    /// LBAF: bits 3:0, index of the LBA format; bits 13:12 hold its upper part.
    pub const LBAF: u32 = 0xf;
    /// MSET: metadata as part of an extended LBA.
    pub const MSET: u32 = 1 << 4;
    /// PI: protection information, bits 7:5.
    pub const PI: u32 = 7 << 5;
    /// SES: secure erase settings, bits 11:9.
    pub const SES_SHIFT: u32 = 9;
    /// SES: no secure erase.
    pub const SES_NONE: u32 = 0;
    /// SES: user data erase.
    pub const SES_USER_DATA: u32 = 1;
    /// SES: cryptographic erase.
    pub const SES_CRYPTO: u32 = 2;
    /// PIL: protection information in the first bytes of the metadata.
    pub const PIL: u32 = 1 << 8;
    /// LBAFU: bits 13:12.
    pub const LBAFU: u32 = 3 << 12;
}

/// Dword 10 of Sanitize (Base 5.24).
pub mod sanitize {
    /// SANACT, bits 2:0: what to do.
    pub const ACTION: u32 = 7;
    /// SANACT: exit failure mode.
    pub const EXIT_FAILURE: u32 = 1;
    /// SANACT: block erase.
    pub const BLOCK_ERASE: u32 = 2;
    /// SANACT: overwrite, with the pattern in dword 11.
    pub const OVERWRITE: u32 = 3;
    /// SANACT: crypto erase.
    pub const CRYPTO_ERASE: u32 = 4;
    /// AUSE: a failure can be left by [`EXIT_FAILURE`].
    pub const UNRESTRICTED_EXIT: u32 = 1 << 3;
    /// OWPASS, bits 7:4: how often is overwritten; 0 is 16 times.
    pub const OWPASS_SHIFT: u32 = 4;
    /// OIPBP: the pattern is inverted between passes.
    pub const INVERT: u32 = 1 << 8;
    /// NDAS: nothing is deallocated afterwards.
    pub const NO_DEALLOCATE: u32 = 1 << 9;
}
