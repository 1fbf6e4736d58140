//! Virtualization enhancements: queues that a primary controller lends to secondary ones, its virtual functions
//! (Base 8.26).

use bytemuck::{Pod, Zeroable};

use crate::{wire_offset, wire_size};

/// Virtualization Management, dword 10 bits 3:0 (Base 5.28).
pub mod action {
    /// Secondary controller offline.
    pub const OFFLINE: u32 = 0x7;
    /// Secondary controller's resources.
    pub const ASSIGN: u32 = 0x8;
    /// Secondary controller online.
    pub const ONLINE: u32 = 0x9;
}

/// Virtualization Management, dword 10 bits 10:8 (Base 5.28), and a bit for each in
/// [`PrimaryCapabilities::crt`].
pub mod resource {
    /// Queue pairs, the admin queues among them.
    pub const QUEUES: u32 = 0;
    /// Interrupt vectors.
    pub const INTERRUPTS: u32 = 1;
}

/// What there is of one kind of resource.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Flexible {
    /// FRT: all that can be lent.
    pub total: u32,
    /// FRA: lent to secondary controllers.
    pub lent: u32,
    /// FRAP: lent to the primary controller itself.
    pub own: u16,
    /// PRT: what the primary controller always has.
    pub private: u16,
    /// FRSM: the most that a secondary controller can have.
    pub most: u16,
    /// GRAN: what it is lent in.
    pub step: u16,
    /// Reserved.
    pub reserved: [u8; 16],
}

/// Identify Primary Controller Capabilities (Base 5.17.2.14).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct PrimaryCapabilities {
    /// CNTLID.
    pub cntlid: u16,
    /// PORTID.
    pub portid: u16,
    /// CRT: which of [`resource`] are lent.
    pub crt: u8,
    /// Reserved.
    pub reserved5: [u8; 27],
    /// Of [`resource::QUEUES`].
    pub queues: Flexible,
    /// Of [`resource::INTERRUPTS`].
    pub interrupts: Flexible,
    /// Reserved.
    pub reserved96: [u8; 4000],
}

/// A secondary controller.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Secondary {
    /// SCID: its controller identifier.
    pub scid: u16,
    /// PCID: the primary's.
    pub pcid: u16,
    /// SCS: bit 0, online.
    pub scs: u8,
    /// Reserved.
    pub reserved5: [u8; 3],
    /// VFN: the virtual function's number, from 1.
    pub vfn: u16,
    /// NVQ: queue pairs that it has.
    pub queues: u16,
    /// NVI: interrupt vectors that it has.
    pub interrupts: u16,
    /// Reserved.
    pub reserved14: [u8; 18],
}

/// Identify Secondary Controller List (Base 5.17.2.15).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct SecondaryList {
    /// How many of `entries` there are.
    pub count: u8,
    /// Reserved.
    pub reserved1: [u8; 31],
    /// By SCID.
    pub entries: [Secondary; 127],
}

wire_size! {
    Flexible = 32;
    PrimaryCapabilities = 4096;
    Secondary = 32;
    SecondaryList = 4096;
}
wire_offset!(PrimaryCapabilities: crt = 4, queues = 32, interrupts = 64);
wire_offset!(Flexible: own = 8, private = 10, most = 12, step = 14);
wire_offset!(Secondary: scs = 4, vfn = 8, queues = 10, interrupts = 12);
