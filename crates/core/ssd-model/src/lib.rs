//! A model of a drive's timing: [`Drive::submit`], [`Drive::poll`], [`Drive::next_event`].
//!
//! It has no clock, thread, file, lock or random source: time is passed in, and the same calls give the same answers.
//! It moves no data either: callers that need content add a memory.
//!
//! A command's way through the drive:
//!
//! ```text
//!  HWQ 0 ─┐                     ┌─ unit 0 ─┐
//!  HWQ 1 ─┤ fetch: arbitration, ├─ unit 1 ─┤ link (read) ── pipeline ── finished
//!  ...    ├─ window ────────────┤   ...    │ link (write, in place)
//!  HWQ n ─┘  + controller       └─ unit m ─┘
//!                               └─ link (write) ── buffer ── acknowledged     (buffered writes)
//!                                                   ├─ drains at its own rate
//!                                                   └─ or programs pages into the dies that reads use
//! ```
//!
//! - **Fetch** ([`Profile::arbitration`], [`Profile::window`]): an [`Arbiter`](arbitration::Arbiter) picks the next HWQ
//!   by round robin, by weighted round robin with an urgent class, or by deficit round robin; at most `window` commands
//!   are inside of the drive at a time, the others wait in their HWQ. The **controller** takes
//!   [`Profile::controller_ns`] for each command, one after another.
//! - **Units**: parallel servers, each first in, first out. A command is cut at multiples of
//!   [`Profile::stripe_bytes`]; each piece occupies one unit for [`Profile::read_ns`] (its first 4 KiB) plus
//!   [`Profile::further_ns`] for every further 4 KiB. Consecutive stripes go to different units
//!   ([`Placement::Hashed`]), or each piece to the unit that is free first ([`Placement::Pooled`]).
//!   A command is through when its last piece is.
//! - **Link**: one for each direction. It streams while the units work, so it adds nothing to a lone small
//!   command, but never carries more than its rate.
//! - **Writes** ([`Writes`]): in place, through the units like reads; or into a buffer, which acknowledges
//!   them in their order. A full buffer holds writes back, first in, first out, and they keep their place in the window
//!   meanwhile. It drains at a known rate beside the reads, or page by page into flash.
//! - **Flash** ([`Nand`]): the units are dies on channels that carry one page at a time. A die senses, programs or
//!   erases; reads wait for a program, or suspend it. Pages go to the dies in turn, whatever their address.
//! - **Garbage collection** ([`Gc`], off in every built-in profile): copies and erasures paced with the host's
//!   writes, as many as a closed form for random overwrites says. In flash they occupy dies and channels; a plain
//!   buffer just drains more slowly.
//! - Flush, discard and write zeroes cost the controller and the pipeline only: the drives described here
//!   have power-loss protection or are taken as if, and the other two change a map.
//!
//! The drives are TOML files that say where their numbers come from: [`Profile`].
//!
//! Not implemented: a map of the flash (so no effect of the order of writing on reads, and no write amplification that
//! depends on the workload), bursts of garbage collection, a read cache, reads served out of the write buffer, wear,
//! errors, thermal throttling; draining of a plain buffer does not delay reads.

#![forbid(unsafe_code)]

mod drive;
mod fetch;
mod link;
mod nand;
mod profile;
mod units;
mod write_buffer;

pub use drive::{Drive, Kind, MAX_COMMAND_BYTES, Request, UnknownQueue};
pub use fetch::MAX_QUEUES;
pub use nand::READS_PER_PROGRAM;
pub use profile::{Basis, Cipher, Gc, Nand, Placement, Profile, ProfileError, Writes};
