//! Evenkeel's own additions where the specification leaves room for vendors.
//!
//! [`PromiseLog`] is a log page. Deficit round robin is CC.AMS = 111b. Urgent queues come first, as in weighted round
//! robin. The others take turns, and a turn is the quantum of the class in *bytes*. A driver must check [`SIGNATURE`]
//! first: in other controllers these values mean other things.

use bytemuck::{Pod, Zeroable};

use crate::{wire_offset, wire_size};

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

/// Log page identifier of [`PromiseLog`]. Of the controller: the namespace identifier is not looked at.
pub const LID_PROMISE: u8 = 0xc0;

/// Buckets of [`PromiseLog::counts`].
pub const LATENCY_BUCKETS: usize = 32;

/// What the controller's tenant is promised, and how its commands fare. Counters start anew with the daemon.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct PromiseLog {
    /// [`PromiseLog::MAGIC`].
    pub magic: [u8; 8],
    /// [`PromiseLog::VERSION`]. A higher one may add fields where this one has zeros.
    pub version: u32,
    /// The last verdict: 0 not judged, 1 kept, 2 broken.
    pub verdict: u32,
    /// The promised latency; 0: none.
    pub target_ns: u64,
    /// Commands of a million that must be that fast; 0: no latency is promised.
    pub percentile_ppm: u32,
    /// Reserved.
    pub reserved28: u32,
    /// The time that the last verdict covers.
    pub judged_span_ns: u64,
    /// The latency at the promised percentile in that time; 0: unknown.
    pub at_percentile_ns: u64,
    /// Judged spans of the current and the 23 previous hours, by the daemon's uptime, in which the promise was kept.
    pub day_kept: u64,
    /// Of these hours, spans in which it was broken.
    pub day_broken: u64,
    /// Of these hours, spans in which the tenant's load was all that its own limits allow.
    pub day_at_limits: u64,
    /// Commands completed: the sum of `counts`.
    pub completed: u64,
    /// Commands that took longer than the target then in force.
    pub late: u64,
    /// Commands that the drive failed.
    pub failed: u64,
    /// The time that commands waited in their queues, by its limits or for other reasons, as a sum.
    pub waited_ns: u64,
    /// Reserved.
    pub reserved104: [u8; 24],
    /// Where each bucket ends: its latencies are shorter than this, and no shorter than the previous bucket's end.
    pub ends_ns: [u64; LATENCY_BUCKETS],
    /// Commands by latency.
    pub counts: [u64; LATENCY_BUCKETS],
    /// Reserved.
    pub reserved640: [u8; 3456],
}

impl PromiseLog {
    /// The first bytes, in ASCII.
    pub const MAGIC: [u8; 8] = *b"EVENKEEL";

    /// Of the layout.
    pub const VERSION: u32 = 1;

    /// Nothing promised, nothing counted. Buckets end at powers of two from 256 ns on; the last one has no end.
    pub fn blank() -> Self {
        let mut ends_ns = core::array::from_fn(|bucket| 256 << bucket);
        ends_ns[LATENCY_BUCKETS - 1] = u64::MAX;
        Self { magic: Self::MAGIC, version: Self::VERSION, ends_ns, ..Self::zeroed() }
    }
}

wire_size! { PromiseLog = 4096; }
wire_offset!(PromiseLog: verdict = 12, target_ns = 16, percentile_ppm = 24, judged_span_ns = 32, at_percentile_ns = 40);
wire_offset!(PromiseLog: day_kept = 48, day_broken = 56, day_at_limits = 64, completed = 72, late = 80, failed = 88);
wire_offset!(PromiseLog: waited_ns = 96, ends_ns = 128, counts = 384);
