//! Checked access to memory that a tenant shares with us.
//!
//! Everything here is written by somebody else while we read it: a value is read once into our own
//! memory and checked there; and it may vanish under our hands, which `access` survives once [`install`] was called.
//! Three things leave this crate:
//!
//! - [`Mapping`]: one shared mapping of a file descriptor, unmapped when its last user is done;
//! - [`GuestMemory`]: a tenant's DMA address space (IOVA to [`Mapping`]), built by DMA map messages;
//! - [`IoBuf`]: the pieces of guest memory that one command moves data to or from. It *pins* the
//!   mappings that it points into, so data never lands in memory that was unmapped meanwhile; a DMA
//!   unmap is finished when [`GuestMemory::take_unmapped`] says that no command uses the range any more, and that the
//!   device ([`MemoryListener`]) can't reach it any more.
//!
//! Not implemented: memory that can't be mapped (vfio-user DMA read/write messages). Such ranges are
//! known as holes, and touching one is a [`Fault`].

mod access;
mod budget;
mod buf;
mod mapping;
mod space;
mod view;

pub use access::install;
pub use budget::{Budget, OverBudget};
pub use buf::{IoBuf, Segment};
pub use mapping::{CACHE_LINE_BYTES, MapError, Mapping, check_memory};
pub use space::{Access, Fault, GuestMemory, MAX_RANGES, MemoryListener, Refused, SpaceError};
pub use view::{MappedRange, MappedU32};
