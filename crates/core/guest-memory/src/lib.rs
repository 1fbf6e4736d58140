//! Checked access to memory that the daemon shares with a tenant.
//!
//! A tenant may write this memory at any time. Each value is read once into private memory and checked there. The
//! memory may also vanish (a truncated file): `access` survives that once [`install`] was called. The crate exports
//! three things:
//!
//! - [`Mapping`]: one shared mapping of a file descriptor, unmapped when its last user is done;
//! - [`GuestMemory`]: a tenant's DMA address space (IOVA to [`Mapping`]), built by DMA map messages;
//! - [`IoBuf`]: the pieces of guest memory that one command moves data to or from. It *pins* its mappings, so data
//!   never lands in memory that was unmapped meanwhile. A DMA unmap is finished when [`GuestMemory::take_unmapped`]
//!   says that no command uses the range any more and that the device ([`MemoryListener`]) can't reach it.
//!
//! Not implemented: memory that can't be mapped (vfio-user DMA read/write messages). Such ranges are holes, and an
//! access to one is a [`Fault`].

mod access;
mod budget;
mod buf;
mod mapping;
mod space;
mod view;

pub use access::install;
pub use budget::{Budget, OverBudget};
pub use buf::{IoBuf, Segment};
pub use mapping::{CACHE_LINE_BYTES, MapError, Mapping, check_memory, keep_in_memory};
pub use space::{Access, Fault, GuestMemory, MAX_RANGES, MemoryListener, Refused, SpaceError};
pub use view::{MappedRange, MappedU32};
