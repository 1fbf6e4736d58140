//! Summaries of what each tenant got, ten seconds at a time, over the last day: in files that survive a restart, and
//! what changed when one of the tenants was slow.
//!
//! | module | what |
//! | --- | --- |
//! | `summary` | what is kept: [`Interval`], [`Summary`], [`Past event`](PastEvent) |
//! | `frame` | their bytes, each with a checksum |
//! | `files` | the ring of files: their names, their header |
//! | `store` | who writes: [`Store`] |
//! | `past` | who reads: [`read()`], and what was wrong with the files: [`Flaw`] |
//! | `comparison` | a slow spell beside the time before: [`Comparison`] |
//!
//! # The files
//!
//! `<directory>/<number, 8 hexadecimal digits>.summaries`, of [`INTERVALS_PER_FILE`] intervals each; [`FILES`] are
//! kept, and numbers only grow. All integers are little-endian. A file begins with 8 bytes `EKHISTRY`, the version
//! (u32), 4 zero bytes, and the time of its first interval (u64, ms since 1970). Then come frames: kind (u32), length
//! (u32), the CRC-32 (ISO 3309) of kind, length and payload (u32), the payload.
//!
//! There is one ring for all tenants, and not one for each: what a thousand tenants got is one system call, and who was
//! beside whom lies together.
//!
//! A file is only ever appended to, by one daemon at a time, which holds a lock on `<directory>/lock`. Within a file
//! time does not go back: a clock that was set back begins another one.
//!
//! # Bounds
//!
//! A tenant that did nothing in an interval takes no room in it. One that is always busy takes
//! [`MOST_BYTES_PER_TENANT`] at most.

#![forbid(unsafe_code)]

mod comparison;
mod files;
mod frame;
mod past;
mod store;
mod summary;

pub use comparison::{Change, Comparison, Did, Neighbour, NoComparison, Spell};
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
