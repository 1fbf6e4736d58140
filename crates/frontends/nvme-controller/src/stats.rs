//! What a controller counts, for operators and for the guest's health log.

use bytemuck::{Pod, Zeroable};

use crate::queue::Kind;

/// Counters since the controller was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Commands fetched, admin and I/O.
    pub commands: u64,
    /// Of these, commands refused by a check.
    pub rejected: u64,
    /// Data that went through memory of our own (Compare, Verify).
    pub bounced_bytes: u64,
    /// Interrupts delivered.
    pub interrupts: u64,
}

/// What the SMART / Health Information log page reports; survives resets.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub(crate) struct Health {
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub host_reads: u64,
    pub host_writes: u64,
    pub power_cycles: u64,
    pub unsafe_shutdowns: u64,
    pub media_errors: u64,
}

impl Health {
    /// Adds what another part counted.
    pub fn absorb(&mut self, other: &Self) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.host_reads += other.host_reads;
        self.host_writes += other.host_writes;
        self.media_errors += other.media_errors;
    }

    #[inline]
    pub fn count(&mut self, kind: Kind, len_bytes: u32) {
        match kind {
            Kind::Read | Kind::Compare => {
                self.host_reads += 1;
                self.read_bytes += u64::from(len_bytes);
            }
            Kind::Write => {
                self.host_writes += 1;
                self.written_bytes += u64::from(len_bytes);
            }
            // SMART counts only commands that move data to or from the host, and Compare.
            Kind::Flush | Kind::WriteZeroes | Kind::Discard | Kind::Verify => {}
        }
    }
}
