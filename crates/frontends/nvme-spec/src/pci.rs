//! An NVMe controller's PCI function (PCIe 3) and the PCI structures it uses (PCI Express Base
//! Specification 7.5, 7.7).

/// Bytes of configuration space with the PCI Express extension.
pub const CONFIG_BYTES: usize = 4096;

/// Class code of an NVMe I/O controller: base class 01h, sub class 08h, interface 02h.
pub const CLASS_NVME: u32 = 0x01_08_02;

/// Offsets in a type 0 configuration header.
pub mod header {
    /// Vendor ID, 16 bits.
    pub const VENDOR_ID: usize = 0x00;
    /// Device ID, 16 bits.
    pub const DEVICE_ID: usize = 0x02;
    /// Command, 16 bits, see [`super::command`].
    pub const COMMAND: usize = 0x04;
    /// Status, 16 bits, see [`super::status`].
    pub const STATUS: usize = 0x06;
    /// Revision ID, 8 bits, then the 24-bit class code.
    pub const REVISION_ID: usize = 0x08;
    /// Cache line size, 8 bits.
    pub const CACHE_LINE_SIZE: usize = 0x0c;
    /// First base address register, 32 bits; six of them.
    pub const BAR0: usize = 0x10;
    /// Subsystem Vendor ID, 16 bits.
    pub const SUBSYSTEM_VENDOR_ID: usize = 0x2c;
    /// Subsystem ID, 16 bits.
    pub const SUBSYSTEM_ID: usize = 0x2e;
    /// First capability, 8 bits.
    pub const CAPABILITIES: usize = 0x34;
    /// Interrupt line, 8 bits.
    pub const INTERRUPT_LINE: usize = 0x3c;
    /// Interrupt pin, 8 bits: 1 for INTA.
    pub const INTERRUPT_PIN: usize = 0x3d;
}

/// Bits of the Command register.
pub mod command {
    /// Memory space enable.
    pub const MEMORY: u16 = 1 << 1;
    /// Bus master enable.
    pub const BUS_MASTER: u16 = 1 << 2;
    /// Parity error response.
    pub const PARITY: u16 = 1 << 6;
    /// SERR# enable.
    pub const SERR: u16 = 1 << 8;
    /// Pin interrupts disabled.
    pub const INTX_DISABLE: u16 = 1 << 10;
}

/// Bits of the Status register.
pub mod status {
    /// There is a capability list.
    pub const CAPABILITIES: u16 = 1 << 4;
}

/// Bits of a memory base address register.
pub mod bar {
    /// 64 bits wide: the next register holds the upper half.
    pub const MEMORY_64: u32 = 0b10 << 1;
}

/// Capability IDs.
pub mod capability {
    /// PCI Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x01;
    /// PCI Express.
    pub const EXPRESS: u8 = 0x10;
    /// MSI-X.
    pub const MSIX: u8 = 0x11;
}

/// PCI Express capability: offsets from its start, and bits.
pub mod express {
    /// Bytes of the capability, version 2.
    pub const BYTES: usize = 60;
    /// PCI Express Capabilities, 16 bits: version in 3:0, device type in 7:4 (0: endpoint).
    pub const CAPABILITIES: usize = 2;
    /// Device Capabilities, 32 bits.
    pub const DEVICE_CAPABILITIES: usize = 4;
    /// Device Control, 16 bits.
    pub const DEVICE_CONTROL: usize = 8;
    /// Link Capabilities, 32 bits.
    pub const LINK_CAPABILITIES: usize = 12;
    /// Link Status, 16 bits.
    pub const LINK_STATUS: usize = 18;
    /// Device Capabilities: role-based error reporting.
    pub const ROLE_BASED_ERRORS: u32 = 1 << 15;
    /// Device Capabilities: function level reset.
    pub const FLR: u32 = 1 << 28;
    /// Device Control: start a function level reset; reads as 0.
    pub const INITIATE_FLR: u16 = 1 << 15;
}

/// MSI-X capability: offsets from its start, bits, and the table (PCI Express Base 7.7.2).
pub mod msix {
    /// Bytes of the capability.
    pub const BYTES: usize = 12;
    /// Message Control, 16 bits: table size, 0's based, in bits 10:0.
    pub const CONTROL: usize = 2;
    /// Table offset and BAR indicator, 32 bits.
    pub const TABLE: usize = 4;
    /// Pending bit array offset and BAR indicator, 32 bits.
    pub const PBA: usize = 8;
    /// Message Control: every vector masked.
    pub const FUNCTION_MASK: u16 = 1 << 14;
    /// Message Control: MSI-X enabled.
    pub const ENABLE: u16 = 1 << 15;
    /// Bytes of a table entry: address, data, vector control.
    pub const ENTRY_BYTES: usize = 16;
    /// Vector control's offset in an entry, 32 bits.
    pub const VECTOR_CONTROL: usize = 12;
    /// Vector control: masked.
    pub const MASKED: u32 = 1;
}
