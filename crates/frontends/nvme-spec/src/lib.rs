//! Wire formats of NVMe: structures and constants, without behaviour.
//!
//! Sources, cited as *Base* (NVM Express Base Specification 2.0), *NVM* (NVM Command Set Specification
//! 1.0) and *PCIe* (NVMe over PCIe Transport Specification 1.0), by section.
//!
//! | module | what | source |
//! | --- | --- | --- |
//! | [`regs`] | registers in BAR0 and views of their bits | Base 3.1.3 |
//! | [`pci`] | configuration space, capabilities, MSI-X table | PCIe 3, PCI Express Base |
//! | [`entry`] | submission and completion queue entries | Base 3.3.3 |
//! | [`opcode`] | opcodes of admin and I/O commands, fields of their dwords | Base 5, NVM 3 |
//! | [`status`] | the status field and its codes | Base 3.3.3.2.1 |
//! | [`identify`], [`namespace`] | Identify data structures | Base 5.17, NVM 4.1.5 |
//! | [`feature`] | feature identifiers and their values | Base 5.27.1, NVM 4.1.3 |
//! | [`log`] | log pages and asynchronous events | Base 5.16, 5.2 |
//! | [`vendor`] | what this project adds in places that are left to vendors | |
//! | [`virtualization`] | resources of virtual functions | Base 8.26 |
//! | [`data`] | SGL descriptors, dataset management ranges | Base 4.1, NVM 3.2.3 |
//!
//! Structures are plain old data ([`bytemuck::Pod`]) with the layout of the wire, so they can be copied
//! to and from bytes; multi-byte fields are little-endian there, and so must the machine be.
//!
//! Not described: fabrics, zoned and key-value command sets, metadata and end-to-end protection,
//! controller and persistent memory buffers, firmware download, security, directives, reservations.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the wire layouts are little-endian and are used as they are");

pub mod data;
pub mod entry;
pub mod feature;
pub mod identify;
pub mod log;
pub mod namespace;
pub mod opcode;
pub mod pci;
pub mod regs;
pub mod status;
pub mod vendor;
pub mod virtualization;

pub use entry::{Cqe, Sqe};
pub use status::Status;

/// Memory page size that this project's controllers and drivers use: CC.MPS = 0.
pub const PAGE_BYTES: u64 = 4096;

/// NSID that means every namespace (Base 3.2.1.2).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Asserts a wire structure's size at compile time.
macro_rules! wire_size {
    ($($name:ty = $bytes:expr;)*) => {
        $(const _: () = assert!(core::mem::size_of::<$name>() == $bytes);)*
    };
}
pub(crate) use wire_size;

/// Asserts where a wire structure's field starts, at compile time.
macro_rules! wire_offset {
    ($name:ty: $($field:ident = $offset:expr),* $(,)?) => {
        $(const _: () = assert!(core::mem::offset_of!($name, $field) == $offset);)*
    };
}
pub(crate) use wire_offset;
