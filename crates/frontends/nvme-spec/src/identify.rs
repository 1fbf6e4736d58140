//! The Identify command and the controller's data structures (Base 5.17).

use bytemuck::{Pod, Zeroable};

use crate::{wire_offset, wire_size};

/// Bytes that Identify returns.
pub const IDENTIFY_BYTES: usize = 4096;

/// CNS values: what Identify is asked for (Base 5.17, dword 10 bits 7:0).
pub mod cns {
    /// Namespace, for the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespace ID list.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Namespace, for one I/O command set.
    pub const IOCS_NAMESPACE: u8 = 0x05;
    /// Controller, for one I/O command set.
    pub const IOCS_CONTROLLER: u8 = 0x06;
    /// Active namespace ID list of one I/O command set.
    pub const IOCS_ACTIVE_NAMESPACES: u8 = 0x07;
    /// Namespace, independent of I/O command sets.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Allocated namespace ID list, of the whole NVM subsystem.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Controllers that a namespace is attached to.
    pub const CONTROLLERS_OF_NAMESPACE: u8 = 0x12;
    /// Primary controller's capabilities.
    pub const PRIMARY_CAPABILITIES: u8 = 0x14;
    /// Secondary controllers.
    pub const SECONDARY_LIST: u8 = 0x15;
    /// I/O command sets of a controller.
    pub const IO_COMMAND_SETS: u8 = 0x1c;
}

/// CSI values: I/O command sets (Base 5.17, dword 11 bits 31:24).
pub mod csi {
    /// NVM command set.
    pub const NVM: u8 = 0;
}

/// Bits of [`IdentifyController::oacs`]: optional admin commands.
pub mod oacs {
    /// Format NVM.
    pub const FORMAT: u16 = 1 << 1;
    /// Namespace Management and Attachment.
    pub const NAMESPACE_MANAGEMENT: u16 = 1 << 3;
    /// Doorbell Buffer Config.
    pub const DOORBELL_BUFFER: u16 = 1 << 8;
}

/// Bits of [`IdentifyController::sanicap`]: sanitize operations.
pub mod sanicap {
    /// CES: crypto erase.
    pub const CRYPTO_ERASE: u32 = 1;
    /// BES: block erase.
    pub const BLOCK_ERASE: u32 = 1 << 1;
    /// OWS: overwrite.
    pub const OVERWRITE: u32 = 1 << 2;
    /// NODMMAS 01b: media is not modified further once a sanitize operation has ended.
    pub const NOT_MODIFIED_AFTER: u32 = 1 << 30;
}

/// Bits of [`IdentifyController::fna`]: Format NVM attributes.
pub mod fna {
    /// A format is of all namespaces.
    pub const FORMAT_ALL: u8 = 1;
    /// A secure erase is of all namespaces.
    pub const ERASE_ALL: u8 = 1 << 1;
    /// Cryptographic erase.
    pub const CRYPTO_ERASE: u8 = 1 << 2;
}

/// Bits of [`IdentifyController::oncs`]: optional I/O commands.
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Save and Select in Set and Get Features.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Timestamp feature.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
}

/// Bits of [`IdentifyController::lpa`]: log page attributes.
pub mod lpa {
    /// The Commands Supported and Effects log page.
    pub const COMMANDS_EFFECTS: u8 = 1 << 1;
    /// 32-bit lengths and offsets in Get Log Page.
    pub const EXTENDED_DATA: u8 = 1 << 2;
}

/// Bits of [`IdentifyController::vwc`]: volatile write cache.
pub mod vwc {
    /// A volatile write cache is present.
    pub const PRESENT: u8 = 1;
    /// Flush takes NSID FFFFFFFFh for all namespaces.
    pub const FLUSH_ALL: u8 = 0b11 << 1;
}

/// Bits of [`IdentifyController::sgls`]: SGL support.
pub mod sgls {
    /// SGLs in I/O commands, of any alignment.
    pub const SUPPORTED: u32 = 0b01;
    /// SGLs in I/O commands, of dword alignment and granularity.
    pub const SUPPORTED_DWORD: u32 = 0b10;
    /// Bit bucket descriptors.
    pub const BIT_BUCKET: u32 = 1 << 16;
}

/// Power state descriptor (Base 5.17.2.1).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct PowerState {
    /// MP: maximum power, in units of 0.01 W unless `flags` says otherwise.
    pub mp: u16,
    /// Reserved.
    pub reserved2: u8,
    /// MXPS in bit 0 (scale), NOPS in bit 1 (non-operational).
    pub flags: u8,
    /// ENLAT: entry latency in µs.
    pub enlat: u32,
    /// EXLAT: exit latency in µs.
    pub exlat: u32,
    /// RRT: relative read throughput.
    pub rrt: u8,
    /// RRL: relative read latency.
    pub rrl: u8,
    /// RWT: relative write throughput.
    pub rwt: u8,
    /// RWL: relative write latency.
    pub rwl: u8,
    /// IDLP: idle power.
    pub idlp: u16,
    /// IPS: idle power scale, bits 7:6.
    pub ips: u8,
    /// Reserved.
    pub reserved19: u8,
    /// ACTP: active power.
    pub actp: u16,
    /// APW in bits 2:0, APS in bits 7:6.
    pub apw_aps: u8,
    /// Reserved.
    pub reserved23: [u8; 9],
}

/// Identify Controller (Base 5.17.2.1). Field names as in the specification.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct IdentifyController {
    /// PCI Vendor ID.
    pub vid: u16,
    /// PCI Subsystem Vendor ID.
    pub ssvid: u16,
    /// Serial Number, ASCII, space padded.
    pub sn: [u8; 20],
    /// Model Number, ASCII, space padded.
    pub mn: [u8; 40],
    /// Firmware Revision, ASCII, space padded.
    pub fr: [u8; 8],
    /// Recommended Arbitration Burst.
    pub rab: u8,
    /// IEEE OUI Identifier, least significant byte first.
    pub ieee: [u8; 3],
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities.
    pub cmic: u8,
    /// Maximum Data Transfer Size: `1 << mdts` minimum memory pages; 0 means no limit.
    pub mdts: u8,
    /// Controller ID.
    pub cntlid: u16,
    /// Version.
    pub ver: u32,
    /// RTD3 Resume Latency, µs.
    pub rtd3r: u32,
    /// RTD3 Entry Latency, µs.
    pub rtd3e: u32,
    /// Optional Asynchronous Events Supported.
    pub oaes: u32,
    /// Controller Attributes.
    pub ctratt: u32,
    /// Read Recovery Levels Supported.
    pub rrls: u16,
    /// Reserved.
    pub reserved102: [u8; 9],
    /// Controller Type: 1 for an I/O controller.
    pub cntrltype: u8,
    /// FRU GUID.
    pub fguid: [u8; 16],
    /// Command Retry Delay Time 1, in 100 ms.
    pub crdt1: u16,
    /// Command Retry Delay Time 2, in 100 ms.
    pub crdt2: u16,
    /// Command Retry Delay Time 3, in 100 ms.
    pub crdt3: u16,
    /// Reserved.
    pub reserved134: [u8; 119],
    /// NVM Subsystem Report.
    pub nvmsr: u8,
    /// VPD Write Cycle Information.
    pub vwci: u8,
    /// Management Endpoint Capabilities.
    pub mec: u8,
    /// Optional Admin Command Support, see [`oacs`].
    pub oacs: u16,
    /// Abort Command Limit, 0's based.
    pub acl: u8,
    /// Asynchronous Event Request Limit, 0's based.
    pub aerl: u8,
    /// Firmware Updates.
    pub frmw: u8,
    /// Log Page Attributes, see [`lpa`].
    pub lpa: u8,
    /// Error Log Page Entries, 0's based.
    pub elpe: u8,
    /// Number of Power States Support, 0's based.
    pub npss: u8,
    /// Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// Warning Composite Temperature Threshold, kelvin.
    pub wctemp: u16,
    /// Critical Composite Temperature Threshold, kelvin.
    pub cctemp: u16,
    /// Maximum Time for Firmware Activation, in 100 ms.
    pub mtfa: u16,
    /// Host Memory Buffer Preferred Size.
    pub hmpre: u32,
    /// Host Memory Buffer Minimum Size.
    pub hmmin: u32,
    /// Total NVM Capacity in bytes, low half first.
    pub tnvmcap: [u64; 2],
    /// Unallocated NVM Capacity in bytes, low half first.
    pub unvmcap: [u64; 2],
    /// Replay Protected Memory Block Support.
    pub rpmbs: u32,
    /// Extended Device Self-test Time.
    pub edstt: u16,
    /// Device Self-test Options.
    pub dsto: u8,
    /// Firmware Update Granularity.
    pub fwug: u8,
    /// Keep Alive Support: granularity in 100 ms; 0 means not supported.
    pub kas: u16,
    /// Host Controlled Thermal Management Attributes.
    pub hctma: u16,
    /// Minimum Thermal Management Temperature.
    pub mntmt: u16,
    /// Maximum Thermal Management Temperature.
    pub mxtmt: u16,
    /// Sanitize Capabilities, see [`sanicap`].
    pub sanicap: u32,
    /// Host Memory Buffer Minimum Descriptor Entry Size.
    pub hmminds: u32,
    /// Host Memory Maximum Descriptors Entries.
    pub hmmaxd: u16,
    /// NVM Set Identifier Maximum.
    pub nsetidmax: u16,
    /// Endurance Group Identifier Maximum.
    pub endgidmax: u16,
    /// ANA Transition Time.
    pub anatt: u8,
    /// Asymmetric Namespace Access Capabilities.
    pub anacap: u8,
    /// ANA Group Identifier Maximum.
    pub anagrpmax: u32,
    /// Number of ANA Group Identifiers.
    pub nanagrpid: u32,
    /// Persistent Event Log Size.
    pub pels: u32,
    /// Domain Identifier.
    pub did: u16,
    /// Reserved.
    pub reserved358: [u8; 10],
    /// Max Endurance Group Capacity, low half first.
    pub megcap: [u64; 2],
    /// Reserved.
    pub reserved384: [u8; 128],
    /// Submission Queue Entry Size: required in bits 3:0, maximum in bits 7:4, powers of two.
    pub sqes: u8,
    /// Completion Queue Entry Size: required in bits 3:0, maximum in bits 7:4, powers of two.
    pub cqes: u8,
    /// Maximum Outstanding Commands.
    pub maxcmd: u16,
    /// Number of Namespaces: the highest NSID.
    pub nn: u32,
    /// Optional NVM Command Support, see [`oncs`].
    pub oncs: u16,
    /// Fused Operation Support.
    pub fuses: u16,
    /// Format NVM Attributes, see [`fna`].
    pub fna: u8,
    /// Volatile Write Cache, see [`vwc`].
    pub vwc: u8,
    /// Atomic Write Unit Normal in logical blocks, 0's based.
    pub awun: u16,
    /// Atomic Write Unit Power Fail in logical blocks, 0's based.
    pub awupf: u16,
    /// I/O Command Set Vendor Specific Command Configuration.
    pub icsvscc: u8,
    /// Namespace Write Protection Capabilities.
    pub nwpc: u8,
    /// Atomic Compare & Write Unit in logical blocks, 0's based.
    pub acwu: u16,
    /// Copy Descriptor Formats Supported.
    pub cdfs: u16,
    /// SGL Support, see [`sgls`].
    pub sgls: u32,
    /// Maximum Number of Allowed Namespaces.
    pub mnan: u32,
    /// Maximum Domain Namespace Attachments, low half first.
    pub maxdna: [u64; 2],
    /// Maximum I/O Controller Namespace Attachments.
    pub maxcna: u32,
    /// Reserved.
    pub reserved564: [u8; 204],
    /// NVM Subsystem NVMe Qualified Name, UTF-8, NUL terminated.
    pub subnqn: [u8; 256],
    /// Reserved.
    pub reserved1024: [u8; 768],
    /// For NVMe over Fabrics.
    pub fabrics: [u8; 256],
    /// Power State Descriptors.
    pub psd: [PowerState; 32],
    /// Vendor Specific.
    pub vendor: [u8; 1024],
}

/// Identify Controller for the NVM command set (NVM 4.1.5.4; CNS 06h, CSI 00h). Sizes are powers of two
/// in minimum memory pages; 0 means no limit.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct IdentifyControllerNvm {
    /// Verify Size Limit.
    pub vsl: u8,
    /// Write Zeroes Size Limit.
    pub wzsl: u8,
    /// Write Uncorrectable Size Limit.
    pub wusl: u8,
    /// Dataset Management Ranges Limit: the most ranges in a command.
    pub dmrl: u8,
    /// Dataset Management Range Size Limit: the most logical blocks in a range.
    pub dmrsl: u32,
    /// Dataset Management Size Limit: the most logical blocks in a command.
    pub dmsl: u64,
    /// Reserved.
    pub reserved16: [u8; 4080],
}

wire_size! { PowerState = 32; IdentifyController = 4096; IdentifyControllerNvm = 4096; }
wire_offset!(IdentifyController: fr = 64, mdts = 77, oaes = 92, cntrltype = 111, crdt1 = 128, oacs = 256,
    aerl = 259, tnvmcap = 280, kas = 320, sanicap = 328, anagrpmax = 344, megcap = 368, sqes = 512, nn = 516,
    oncs = 520, fna = 524, vwc = 525, sgls = 536, maxcna = 560, subnqn = 768, psd = 2048, vendor = 3072);
wire_offset!(IdentifyControllerNvm: dmrl = 3, dmsl = 8);
