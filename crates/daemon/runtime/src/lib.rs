//! The threads of the daemon that move commands, and how they and the owner talk.
//!
//! It knows nothing of HTTP, TOML or promises.
//!
//! | module | what |
//! | --- | --- |
//! | `front_end` | a tenant's queues at pollers, and the thread of its client |
//! | `poller_thread`, `poller_waker`, `doorbell_scanner` | how pollers run, sleep and wake |
//! | `pollers`, `poller_shape` | the pollers of one drive |
//! | `group_ids` | the numbers and ceilings of groups |
//! | `iteration_times`, `poller_watchdog` | what a poller does with its time; whether it makes progress |
//! | `drive`, `nvme_drive` | the back ends |
//! | `zeroer` | zeroes ranges before a guest sees them |
//! | `key_journal` | how far a re-encryption is, in a file |
//! | `happening` | what these threads tell the owner |
//! | `command` | messages to the owner, and where its answers go |
//! | `threads`, `panics`, `stderr`, `open_files` | what every thread needs |
//! | `state_versions` | the versions of the state that is left for the next daemon |

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the daemon has a clock and threads")]

pub mod command;
pub mod doorbell_scanner;
pub mod drive;
mod drive_trait;
pub mod front_end;
pub mod group_ids;
pub mod happening;
pub mod image_disk;
mod image_drive;
pub mod iteration_times;
pub mod key_journal;
pub mod nvme_drive;
pub mod open_files;
pub mod panics;
pub mod pieces;
pub mod poller_shape;
pub mod poller_thread;
pub mod poller_waker;
pub mod poller_watchdog;
pub mod pollers;
pub mod state_versions;
pub mod stderr;
pub mod threads;
pub mod zeroer;
