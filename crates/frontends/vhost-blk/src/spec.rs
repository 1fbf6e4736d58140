//! Numbers of the specification: Virtual I/O Device (VIRTIO) 1.2, by section.

/// Unit of `sector` and `capacity` (5.2.4), whatever the block size.
pub const SECTOR_BYTES: u64 = 512;

/// Feature bits (5.2.3 and 6).
pub mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const CONFIG_WCE: u64 = 1 << 11;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Request types (5.2.6).
pub mod request {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;

    /// Offset of the priority in the header: `ioprio`, formerly `reserved`. It may always be ignored.
    pub const IOPRIO: u64 = 4;
    /// Bytes of type, priority and sector.
    pub const HEADER_BYTES: u64 = 16;
    /// Bytes of one range of a discard or write zeroes.
    pub const RANGE_BYTES: usize = 16;
    /// Flag of a range: it may be unmapped.
    pub const UNMAP: u32 = 1;
}

/// Descriptors and rings (2.7.5 to 2.7.8).
pub mod ring {
    pub const DESC_BYTES: u64 = 16;
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;

    /// Available ring: offsets, and bytes of an entry.
    pub const AVAIL_FLAGS: u64 = 0;
    pub const AVAIL_IDX: u64 = 2;
    pub const AVAIL_RING: u64 = 4;
    pub const AVAIL_BYTES: u64 = 2;
    pub const NO_INTERRUPT: u16 = 1;

    /// Used ring: offsets, and bytes of an element.
    pub const USED_FLAGS: u64 = 0;
    pub const USED_IDX: u64 = 2;
    pub const USED_RING: u64 = 4;
    pub const USED_BYTES: u64 = 8;
    pub const NO_NOTIFY: u16 = 1;

    /// Bytes of the event index behind either ring.
    pub const EVENT_BYTES: u64 = 2;
}
