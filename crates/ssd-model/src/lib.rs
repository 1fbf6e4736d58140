//! A drive's timing, pure: [`Drive::submit`], [`Drive::poll`], [`Drive::next_event`].
//!
//! No clock, thread, file, lock or random source: time is passed in, and the same calls give the same
//! answers. It moves no data either; who wants content puts a memory beside it.
//!
//! A command's way through the drive:
//!
//! ```text
//!  HWQ 0 ─┐                    ┌─ unit 0 ─┐
//!  HWQ 1 ─┤ fetch: round robin ├─ unit 1 ─┤ link (read) ── pipeline ── finished
//!  ...    ├─ burst, window ────┤   ...    │ link (write, in place)
//!  HWQ n ─┘  + controller      └─ unit m ─┘
//!                              └─ link (write) ── buffer ── acknowledged     (buffered writes)
//!                                                  └─ drains at its own rate
//! ```
//!
//! - **Fetch** ([`Profile::burst`], [`Profile::window`]): up to `burst` commands from one HWQ, then the next
//!   one that has any; at most `window` commands are inside of the drive at a time, the others wait in
//!   their HWQ. The **controller** takes [`Profile::controller_ns`] for each command, one after another.
//! - **Units**: parallel servers, each first in, first out. A command is cut at multiples of
//!   [`Profile::stripe_bytes`]; each piece occupies one unit for [`Profile::read_ns`] (its first 4 KiB) plus
//!   [`Profile::further_ns`] for every further 4 KiB. Consecutive stripes go to different units
//!   ([`Placement::Hashed`]), or each piece to the unit that is free first ([`Placement::Pooled`]).
//!   A command is through when its last piece is.
//! - **Link**: one for each direction. It streams while the units work, so it adds nothing to a lone small
//!   command, but never carries more than its rate.
//! - **Writes** ([`Writes`]): in place, through the units like reads; or into a buffer, which acknowledges
//!   them and drains behind. A full buffer holds writes back, first in, first out, and they keep their place
//!   in the window meanwhile.
//! - Flush, discard and write zeroes cost the controller and the pipeline only: the drives described here
//!   have power-loss protection, and the other two change a map.
//!
//! Not implemented: garbage collection, reads delayed by the draining of writes to the same unit, weighted
//! arbitration.

#![forbid(unsafe_code)]

mod drive;
mod fetch;
mod profile;
mod units;
mod write_buffer;

pub use drive::{Drive, Kind, Request, UnknownQueue};
pub use fetch::MAX_HWQS;
pub use profile::{Placement, Profile, Writes};
