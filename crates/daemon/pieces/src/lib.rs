//! Which pieces of a drive its thin disks have, and the file that records it. No thread, no clock.
//!
//! | module | what |
//! | --- | --- |
//! | `page` | a part of a map, as the file has it |
//! | `file` | the file: batches of pages that are there as a whole or not at all |
//! | `pool` | the maps, and the pieces that are free |
//! | `giver` | what becomes of pollers' wishes |
//!
//! A thin disk and a snapshot are each a *map*: for each of the disk's pieces, a piece of the drive or none. Maps share
//! pieces. How many maps share a piece is counted at the start, and is in no file.

#![forbid(unsafe_code)]

mod bits;
mod file;
mod giver;
mod page;
mod pool;
#[cfg(test)]
mod volatile;

pub use file::{Batch, FileError, Maps, PieceFile, PoolId, Storage};
pub use giver::{Figures, Giver, Job, Jobs, RoomState};
pub use page::{ENTRIES, MapId, PageKey};
pub use pool::{Damaged, Grant, NoRoom, Place, Pool};
