//! Controller registers ("properties") in BAR0 (Base 3.1.3) and the doorbells after them (PCIe 3.1.2).

/// Offsets of the registers, in bytes from the start of BAR0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Reg {
    /// Controller Capabilities, 64 bits, read only.
    Cap = 0x00,
    /// Version, 32 bits, read only.
    Vs = 0x08,
    /// Interrupt Mask Set, 32 bits.
    Intms = 0x0c,
    /// Interrupt Mask Clear, 32 bits.
    Intmc = 0x10,
    /// Controller Configuration, 32 bits.
    Cc = 0x14,
    /// Controller Status, 32 bits.
    Csts = 0x1c,
    /// NVM Subsystem Reset, 32 bits.
    Nssr = 0x20,
    /// Admin Queue Attributes, 32 bits.
    Aqa = 0x24,
    /// Admin Submission Queue Base Address, 64 bits.
    Asq = 0x28,
    /// Admin Completion Queue Base Address, 64 bits.
    Acq = 0x30,
    /// Controller Memory Buffer Location, 32 bits.
    Cmbloc = 0x38,
    /// Controller Memory Buffer Size, 32 bits.
    Cmbsz = 0x3c,
    /// Boot Partition Information, 32 bits.
    Bpinfo = 0x40,
    /// Controller Ready Timeouts, 32 bits, read only.
    Crto = 0x68,
}

impl Reg {
    /// The offset.
    pub const fn offset(self) -> u64 {
        self as u64
    }
}

/// Where the doorbells start.
pub const DOORBELL_BASE: u64 = 0x1000;

/// Bytes of the registers before the doorbells.
pub const REGS_BYTES: u64 = 0x1000;

/// The version this crate describes, as in VS: 2.0.0.
pub const VERSION_2_0: u32 = 0x0002_0000;

/// What to write to NSSR for a subsystem reset: "NVMe" (Base 3.1.3.7).
pub const NSSR_RESET: u32 = 0x4e56_4d65;

/// Offset in BAR0 of queue `qid`'s submission tail doorbell at stride `dstrd` (PCIe 3.1.2.1).
pub const fn sq_tail_doorbell(qid: u16, dstrd: u8) -> u64 {
    DOORBELL_BASE + (2 * qid as u64) * (4 << dstrd)
}

/// Offset in BAR0 of queue `qid`'s completion head doorbell at stride `dstrd` (PCIe 3.1.2.2).
pub const fn cq_head_doorbell(qid: u16, dstrd: u8) -> u64 {
    DOORBELL_BASE + (2 * qid as u64 + 1) * (4 << dstrd)
}

/// Cuts `width` bits at `shift` out of `value`.
const fn bits(value: u64, shift: u32, width: u32) -> u64 {
    (value >> shift) & ((1 << width) - 1)
}

/// Controller Capabilities (Base 3.1.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cap(pub u64);

impl Cap {
    /// CQR: queues must be physically contiguous.
    pub const CQR: u64 = 1 << 16;
    /// AMS bit 0: weighted round robin with urgent priority class (CC.AMS = 001b).
    pub const AMS_WEIGHTED: u64 = 1 << 17;
    /// AMS bit 1: a vendor's own arbitration (CC.AMS = 111b).
    pub const AMS_VENDOR: u64 = 1 << 18;
    /// NSSRS: NVM Subsystem Reset supported.
    pub const NSSRS: u64 = 1 << 36;
    /// CSS bit 0: the NVM command set.
    pub const CSS_NVM: u64 = 1 << 37;
    /// CSS bit 6: one or more I/O command sets, chosen by CC.CSS = 110b.
    pub const CSS_IOCS: u64 = 1 << 43;
    /// CRMS bit 0: ready means that the media is ready; CRTO tells how long that takes.
    pub const CRWMS: u64 = 1 << 59;

    /// A value with the queue limit (`mqes`, 0's based), the ready timeout (`to`, units of 500 ms) and
    /// `flags`; doorbell stride 4 bytes, 4 KiB pages only.
    pub const fn new(mqes: u16, to: u8, flags: u64) -> Self {
        Self(mqes as u64 | (to as u64) << 24 | flags)
    }
    /// MQES: the most entries that an I/O queue may have, 0's based.
    pub const fn mqes(self) -> u16 {
        bits(self.0, 0, 16) as u16
    }
    /// CQR: whether queues must be physically contiguous.
    pub const fn cqr(self) -> bool {
        self.0 & Self::CQR != 0
    }
    /// Whether a value of CC.AMS is one of the arbitration mechanisms offered. Round robin always is.
    pub const fn offers_ams(self, ams: u8) -> bool {
        match ams {
            Cc::AMS_ROUND_ROBIN => true,
            Cc::AMS_WEIGHTED => self.0 & Self::AMS_WEIGHTED != 0,
            Cc::AMS_VENDOR => self.0 & Self::AMS_VENDOR != 0,
            _ => false,
        }
    }
    /// TO: worst time for CSTS.RDY to change, in units of 500 ms.
    pub const fn to(self) -> u8 {
        bits(self.0, 24, 8) as u8
    }
    /// DSTRD: doorbells are `4 << dstrd` bytes apart.
    pub const fn dstrd(self) -> u8 {
        bits(self.0, 32, 4) as u8
    }
    /// CSS: bitmap of command sets.
    pub const fn css(self) -> u8 {
        bits(self.0, 37, 8) as u8
    }
    /// MPSMIN: the smallest memory page is `1 << (12 + mpsmin)` bytes.
    pub const fn mpsmin(self) -> u8 {
        bits(self.0, 48, 4) as u8
    }
}

/// Controller Configuration (Base 3.1.3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cc(pub u32);

impl Cc {
    /// EN: enable.
    pub const EN: u32 = 1;
    /// CSS: the NVM command set.
    pub const CSS_NVM: u8 = 0b000;
    /// CSS: every supported I/O command set.
    pub const CSS_IOCS: u8 = 0b110;
    /// AMS: round robin among all submission queues.
    pub const AMS_ROUND_ROBIN: u8 = 0b000;
    /// AMS: weighted round robin with urgent priority class.
    pub const AMS_WEIGHTED: u8 = 0b001;
    /// AMS: a vendor's own.
    pub const AMS_VENDOR: u8 = 0b111;
    /// SHN: no shutdown.
    pub const SHN_NONE: u8 = 0;
    /// SHN: normal shutdown.
    pub const SHN_NORMAL: u8 = 1;
    /// SHN: abrupt shutdown.
    pub const SHN_ABRUPT: u8 = 2;

    /// EN set, NVM command set, 4 KiB pages, round robin, 64-byte SQEs and 16-byte CQEs.
    pub const fn enable_nvm() -> Self {
        Self(Self::EN | 6 << 16 | 4 << 20)
    }
    /// EN: enabled.
    pub const fn en(self) -> bool {
        self.0 & Self::EN != 0
    }
    /// CSS: selected command set.
    pub const fn css(self) -> u8 {
        bits(self.0 as u64, 4, 3) as u8
    }
    /// MPS: memory page is `1 << (12 + mps)` bytes.
    pub const fn mps(self) -> u8 {
        bits(self.0 as u64, 7, 4) as u8
    }
    /// AMS: the arbitration mechanism among submission queues.
    pub const fn ams(self) -> u8 {
        bits(self.0 as u64, 11, 3) as u8
    }
    /// With another AMS.
    pub const fn with_ams(self, ams: u8) -> Self {
        Self(self.0 & !(7 << 11) | (ams as u32 & 7) << 11)
    }
    /// SHN: shutdown notification.
    pub const fn shn(self) -> u8 {
        bits(self.0 as u64, 14, 2) as u8
    }
    /// With another SHN.
    pub const fn with_shn(self, shn: u8) -> Self {
        Self(self.0 & !(3 << 14) | (shn as u32 & 3) << 14)
    }
    /// IOSQES: I/O submission queue entries have `1 << iosqes` bytes.
    pub const fn iosqes(self) -> u8 {
        bits(self.0 as u64, 16, 4) as u8
    }
    /// IOCQES: I/O completion queue entries have `1 << iocqes` bytes.
    pub const fn iocqes(self) -> u8 {
        bits(self.0 as u64, 20, 4) as u8
    }
}

/// Controller Status (Base 3.1.3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Csts(pub u32);

impl Csts {
    /// RDY: ready.
    pub const RDY: u32 = 1;
    /// CFS: fatal status.
    pub const CFS: u32 = 1 << 1;
    /// NSSRO: a subsystem reset occurred; write 1 to clear.
    pub const NSSRO: u32 = 1 << 4;
    /// SHST: normal operation.
    pub const SHST_NONE: u8 = 0;
    /// SHST: shutdown in progress.
    pub const SHST_BUSY: u8 = 1;
    /// SHST: shutdown complete.
    pub const SHST_DONE: u8 = 2;

    /// RDY: the controller takes commands.
    pub const fn rdy(self) -> bool {
        self.0 & Self::RDY != 0
    }
    /// CFS: the controller needs a reset.
    pub const fn cfs(self) -> bool {
        self.0 & Self::CFS != 0
    }
    /// SHST: shutdown status.
    pub const fn shst(self) -> u8 {
        bits(self.0 as u64, 2, 2) as u8
    }
    /// With another SHST.
    pub const fn with_shst(self, shst: u8) -> Self {
        Self(self.0 & !(3 << 2) | (shst as u32 & 3) << 2)
    }
}

/// Admin Queue Attributes (Base 3.1.3.8). Both sizes are 0's based, at least 2 entries, at most 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Aqa(pub u32);

impl Aqa {
    /// From both sizes, 0's based.
    pub const fn new(asqs: u16, acqs: u16) -> Self {
        Self((asqs & 0xfff) as u32 | ((acqs & 0xfff) as u32) << 16)
    }
    /// ASQS: entries of the admin submission queue, 0's based.
    pub const fn asqs(self) -> u16 {
        bits(self.0 as u64, 0, 12) as u16
    }
    /// ACQS: entries of the admin completion queue, 0's based.
    pub const fn acqs(self) -> u16 {
        bits(self.0 as u64, 16, 12) as u16
    }
}
