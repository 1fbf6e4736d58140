//! Evenkeel's own additions where the specification leaves room for vendors: deficit round robin, with CC.AMS = 111b.
//!
//! Urgent queues come first, as in weighted round robin. The others take turns, and a turn is the quantum of the class
//! in *bytes*. A driver must check [`SIGNATURE`] first: in other controllers these values mean other things.

/// Start of the vendor specific area of Identify Controller (byte 3072), in text for those who print it.
pub const SIGNATURE: &[u8; 24] = b"evenkeel:ams7=drr,fid=C0";

/// Feature identifier of the quanta of deficit round robin. Changeable, not saveable, of the controller.
pub const FID_QUANTA: u8 = 0xc0;

/// The quanta of deficit round robin, in KiB: dword 11 of Set Features, dword 0 of Get Features. There they are 0's
/// based: low in bits 9:0, medium in bits 19:10, high in bits 29:20. Bits 31:30 are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quanta {
    /// Of low priority queues, 1 to [`Quanta::MAX_KIB`].
    pub low_kib: u16,
    /// Of medium priority queues, 1 to [`Quanta::MAX_KIB`].
    pub medium_kib: u16,
    /// Of high priority queues, 1 to [`Quanta::MAX_KIB`].
    pub high_kib: u16,
}

impl Quanta {
    /// The largest quantum.
    pub const MAX_KIB: u16 = 1024;

    /// From a dword. `None`: a reserved bit is set.
    pub const fn from_dword(dword: u32) -> Option<Self> {
        if dword >> 30 != 0 {
            return None;
        }
        const fn kib(dword: u32, shift: u32) -> u16 {
            (dword >> shift & 0x3ff) as u16 + 1
        }
        Some(Self { low_kib: kib(dword, 0), medium_kib: kib(dword, 10), high_kib: kib(dword, 20) })
    }

    /// The dword. `None`: a quantum is out of its range.
    pub const fn to_dword(self) -> Option<u32> {
        let Self { low_kib, medium_kib, high_kib } = self;
        const fn fits(kib: u16) -> bool {
            0 < kib && kib <= Quanta::MAX_KIB
        }
        if !fits(low_kib) || !fits(medium_kib) || !fits(high_kib) {
            return None;
        }
        Some((low_kib - 1) as u32 | ((medium_kib - 1) as u32) << 10 | ((high_kib - 1) as u32) << 20)
    }
}
