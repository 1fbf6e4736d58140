//! Log pages (Base 5.16) and asynchronous events (Base 5.2).

use bytemuck::{Pod, Zeroable};

use crate::{wire_offset, wire_size};

/// Log page identifiers (LID).
pub mod lid {
    /// Supported Log Pages.
    pub const SUPPORTED_PAGES: u8 = 0x00;
    /// Error Information.
    pub const ERROR: u8 = 0x01;
    /// SMART / Health Information.
    pub const SMART: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects.
    pub const COMMANDS_EFFECTS: u8 = 0x05;
    /// Sanitize Status.
    pub const SANITIZE_STATUS: u8 = 0x81;
}

/// Dword 10 of Get Log Page.
pub mod get_log {
    /// RAE: keep the asynchronous event that this page belongs to.
    pub const RAE: u32 = 1 << 15;
}

/// Error Information log entry (Base 5.16.1.2).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct ErrorEntry {
    /// Error Count: 1 for the first ever; 0 marks an unused entry.
    pub error_count: u64,
    /// Submission Queue ID.
    pub sqid: u16,
    /// Command ID.
    pub cid: u16,
    /// Status Field in bits 15:1, phase tag in bit 0.
    pub status: u16,
    /// Parameter Error Location: byte in bits 7:0, bit in bits 10:8; FFFFh means none.
    pub parameter_location: u16,
    /// First LBA that failed.
    pub lba: u64,
    /// Namespace.
    pub nsid: u32,
    /// Vendor Specific Information Available.
    pub vendor_log: u8,
    /// Transport Type.
    pub trtype: u8,
    /// Reserved.
    pub reserved30: [u8; 2],
    /// Command Specific Information.
    pub command_specific: u64,
    /// Transport Type Specific Information.
    pub transport_specific: u16,
    /// Reserved.
    pub reserved42: [u8; 22],
}

/// SMART / Health Information (Base 5.16.1.3). The 128-bit counters have their low half first.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct SmartLog {
    /// Critical Warning.
    pub critical_warning: u8,
    /// Composite Temperature, kelvin, little-endian.
    pub temperature_k: [u8; 2],
    /// Available Spare, percent.
    pub available_spare: u8,
    /// Available Spare Threshold, percent.
    pub available_spare_threshold: u8,
    /// Percentage Used.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_warning: u8,
    /// Reserved.
    pub reserved7: [u8; 25],
    /// Data Units Read: thousands of 512-byte units, rounded up.
    pub data_units_read: [u64; 2],
    /// Data Units Written: thousands of 512-byte units, rounded up.
    pub data_units_written: [u64; 2],
    /// Host Read Commands.
    pub host_reads: [u64; 2],
    /// Host Write Commands.
    pub host_writes: [u64; 2],
    /// Controller Busy Time, minutes.
    pub busy_minutes: [u64; 2],
    /// Power Cycles.
    pub power_cycles: [u64; 2],
    /// Power On Hours.
    pub power_on_hours: [u64; 2],
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: [u64; 2],
    /// Media and Data Integrity Errors.
    pub media_errors: [u64; 2],
    /// Number of Error Information Log Entries.
    pub error_entries: [u64; 2],
    /// Warning Composite Temperature Time, minutes.
    pub warning_temperature_minutes: u32,
    /// Critical Composite Temperature Time, minutes.
    pub critical_temperature_minutes: u32,
    /// Temperature Sensors, kelvin; 0 means none.
    pub sensors_k: [u16; 8],
    /// Thermal Management Temperature Transition Counts.
    pub thermal_transitions: [u32; 2],
    /// Total Times For Thermal Management, seconds.
    pub thermal_seconds: [u32; 2],
    /// Reserved.
    pub reserved232: [u8; 280],
}

/// Firmware Slot Information (Base 5.16.1.4).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct FirmwareSlotLog {
    /// Active Firmware Info: active slot in bits 2:0.
    pub afi: u8,
    /// Reserved.
    pub reserved1: [u8; 7],
    /// Firmware Revision of slots 1 to 7, ASCII.
    pub frs: [[u8; 8]; 7],
    /// Reserved.
    pub reserved64: [u8; 448],
}

/// Bits of an entry of Commands Supported and Effects (Base 5.16.1.6).
pub mod effect {
    /// CSUPP: supported.
    pub const SUPPORTED: u32 = 1;
    /// LBCC: changes logical block content.
    pub const LBCC: u32 = 1 << 1;
    /// NCC: changes namespace capabilities.
    pub const NCC: u32 = 1 << 2;
    /// CSE 001b in bits 18:16: no other command to the namespace may be outstanding.
    pub const CSE_NAMESPACE: u32 = 1 << 16;
    /// CSE 010b: no other command to any namespace may be outstanding.
    pub const CSE_ALL: u32 = 2 << 16;
}

/// Commands Supported and Effects (Base 5.16.1.6), see [`effect`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct CommandsEffectsLog {
    /// Admin commands, by opcode.
    pub acs: [u32; 256],
    /// I/O commands, by opcode.
    pub iocs: [u32; 256],
    /// Reserved.
    pub reserved2048: [u8; 2048],
}

/// Sanitize Status (Base 5.16.1.25). Times are in seconds; FFFFFFFFh means not reported.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct SanitizeLog {
    /// SPROG: how much is done, in 65536ths; FFFFh while nothing is going on.
    pub sprog: u16,
    /// SSTAT: see [`sstat`].
    pub sstat: u16,
    /// SCDW10: dword 10 of the Sanitize command that began it.
    pub scdw10: u32,
    /// Estimated time for overwrite.
    pub eto: u32,
    /// Estimated time for block erase.
    pub etbe: u32,
    /// Estimated time for crypto erase.
    pub etce: u32,
    /// The three estimates above, without deallocation.
    pub no_deallocate: [u32; 3],
    /// Reserved.
    pub reserved32: [u8; 480],
}

/// Bits of [`SanitizeLog::sstat`]: the most recent sanitize operation.
pub mod sstat {
    /// How far it is: bits 2:0.
    pub const STATUS: u16 = 0b111;
    /// It ended, successfully.
    pub const COMPLETED: u16 = 1;
    /// It goes on.
    pub const IN_PROGRESS: u16 = 2;
    /// It failed.
    pub const FAILED: u16 = 3;
    /// It ended, successfully, and all blocks were deallocated although that was not asked for.
    pub const COMPLETED_DEALLOCATED: u16 = 4;
    /// Completed passes of an overwrite: bits 7:3.
    pub const PASSES_SHIFT: u32 = 3;
    /// GDE, global data erased: nothing was written since it ended.
    pub const NOTHING_WRITTEN: u16 = 1 << 8;
}

/// Asynchronous events as completions of Asynchronous Event Requests carry them (Base 5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type, see [`event_type`].
    pub kind: u8,
    /// Information: which event of that type.
    pub info: u8,
    /// The log page that tells more and clears the event.
    pub log_page: u8,
}

impl AsyncEvent {
    /// Host wrote to a doorbell of a queue that does not exist.
    pub const INVALID_DOORBELL_REGISTER: Self = Self { kind: event_type::ERROR, info: 0, log_page: lid::ERROR };
    /// Host wrote a value to a doorbell that is not possible.
    pub const INVALID_DOORBELL_VALUE: Self = Self { kind: event_type::ERROR, info: 1, log_page: lid::ERROR };
    /// A namespace's Identify data changed.
    pub const NAMESPACE_CHANGED: Self = Self { kind: event_type::NOTICE, info: 0, log_page: lid::CHANGED_NAMESPACES };

    /// A sanitize operation has ended.
    pub const SANITIZED: Self = Self { kind: event_type::IO_COMMAND, info: 1, log_page: lid::SANITIZE_STATUS };

    /// As dword 0 of the completion.
    pub const fn dw0(self) -> u32 {
        self.kind as u32 | (self.info as u32) << 8 | (self.log_page as u32) << 16
    }
}

/// Types of asynchronous events.
pub mod event_type {
    /// Error status.
    pub const ERROR: u8 = 0;
    /// SMART / health status.
    pub const SMART: u8 = 1;
    /// Notice.
    pub const NOTICE: u8 = 2;
    /// I/O command specific status.
    pub const IO_COMMAND: u8 = 6;
}

wire_size! { ErrorEntry = 64; SmartLog = 512; FirmwareSlotLog = 512; CommandsEffectsLog = 4096; SanitizeLog = 512; }
wire_offset!(ErrorEntry: lba = 16, nsid = 24, command_specific = 32);
wire_offset!(SanitizeLog: sstat = 2, scdw10 = 4, etbe = 12, etce = 16);
wire_offset!(SmartLog: data_units_read = 32, power_cycles = 112, error_entries = 176, sensors_k = 200);
