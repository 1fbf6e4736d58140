//! Ten-second summaries of each tenant over the last day, in files, and comparisons of slow spells.
//!
//! The files survive a restart. A comparison shows what changed when a tenant was slow.
//!
//! | module | what |
//! | --- | --- |
//! | `summary` | the data: [`Interval`], [`Summary`], [`Past event`](PastEvent) |
//! | `frame` | the data as bytes, with checksums |
//! | `files` | the ring of files: their names, their header |
//! | `store` | the writer: [`Store`] |
//! | `past` | the reader: [`read()`], and problems of the files: [`Flaw`] |
//! | `comparison` | a slow spell beside the time before: [`Comparison`] |
//!
//! # The files
//!
//! `<directory>/<number, 8 hexadecimal digits>.summaries`, of [`INTERVALS_PER_FILE`] intervals each; [`FILES`] are
//! kept, and numbers only grow. All integers are little-endian. A file begins with 8 bytes `EKHISTRY`, the version
//! (u32), 4 zero bytes, and the time of its first interval (u64, ms since 1970). Then come frames: kind (u32), length
//! (u32), the CRC-32 (ISO 3309) of kind, length and payload (u32), the payload.
//!
//! There is one ring for all tenants, not one per tenant: then a thousand tenants need one system call per interval,
//! and neighbours' data lie together.
//!
//! A file is only ever appended to, by one daemon at a time, which holds a lock on `<directory>/lock`. Time never goes
//! back within a file: a clock that is set back starts a new file.
//!
//! # Bounds
//!
//! A tenant that did nothing in an interval takes no space in it. A tenant that is always busy takes
//! [`MOST_BYTES_PER_TENANT`] at most.

#![forbid(unsafe_code)]

mod comparison;
mod files;
mod frame;
mod past;
mod store;
mod summary;

pub use comparison::{Comparison, Did, Neighbour, NoComparison, Spell};
pub use past::{Flaw, Past, read};
pub use store::{Store, Written};
pub use summary::{Interval, PastEvent, Promise, Summary};

/// How long an interval is, in seconds.
pub const INTERVAL_S: u64 = 10;

/// Intervals in one file: ten minutes.
pub const INTERVALS_PER_FILE: u32 = 60;

/// Files that are kept: a day and the ten minutes that go on.
pub const FILES: usize = 24 * 6 + 1;

/// Longest name of a tenant, a drive or a policy that is kept whole.
pub const MOST_NAME_BYTES: usize = 63;

/// What one tenant can take of all files together.
pub const MOST_BYTES_PER_TENANT: u64 =
    FILES as u64 * INTERVALS_PER_FILE as u64 * (1 + MOST_NAME_BYTES + summary::FIXED_BYTES) as u64;

const _: () = assert!(MOST_BYTES_PER_TENANT <= 2 << 20);

/// What events can take of one file; those beyond are left out, and counted.
pub const MOST_EVENT_BYTES_PER_FILE: u64 = 16 << 10;
