//! Gives pieces of a drive's pool to its thin disks.
//!
//! Pollers ask for pieces. One thread decides on all that were asked for at a time, makes that durable by one write of
//! the pool's file, puts it into the disks' maps, and then answers. Commands wait meanwhile; a poller never does.
//!
//! | module | what |
//! | --- | --- |
//! | `giver` | decides: a plain value |
//! | `thread` | carries that out |

mod giver;
mod thread;

pub use self::giver::{Figures, RoomState};
pub use self::thread::{Pieces, PiecesError, Wish};
