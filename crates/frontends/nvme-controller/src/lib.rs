//! A virtual NVMe controller with 0 to 32 namespaces and up to 64 I/O queue pairs.
//!
//! It follows NVM Express Base 2.0, NVM Command Set 1.0 and PCIe Transport 1.0. It has no socket, thread, clock or
//! device: its user feeds it register accesses and DMA maps, and a poller pulls commands out of it. Its
//! [`io_model::Source`] has the submission queue with identifier `n` as VQ `n`. Under weighted or deficit round robin,
//! VQ 1 is all I/O queues, and `turns` picks one.
//!
//! A command's way:
//!
//! 1. The guest writes an entry into its ring and the new tail to the doorbell page, or to the shadow
//!    page that it set up in its own memory (`dbbuf`). Nothing else happens here.
//! 2. The poller asks for the backlog: tail minus head, with the tail read from there and checked.
//! 3. The poller fetches (`io`): a completion entry is reserved, the entry is read once, the head
//!    moves, and opcode, namespace, size and block range are checked.
//! 4. The data pointer (`prp`, `sgl`) becomes an `IoBuf`: segments of guest memory with pins on
//!    their mappings. No copy; for a read or write no allocation, lock or system call either.
//! 5. A command that fails a check gets its status at once. One that passes gets a place in its
//!    queue's table (`queue`) and leaves as a device command with a token that names the place.
//! 6. The poller brings the token back with the outcome. The completion entry is written, its phase
//!    bit last, and the queue is marked.
//! 7. Once per poll iteration each marked queue raises its interrupt (`msix`).
//!
//! Everything that a guest or VMM can write is hostile. Admin commands (`admin`) run inside of
//! `service`; only Format NVM and Sanitize make device commands of their own, step by step. A reset (`registers`,
//! `controller`) drops all queues at once but reads as done only when nothing is in flight.
//! `journal` keeps the state that must outlive the process. `state` is the part of it that is not about I/O commands.
//! `takeover` resumes from it in another process, but executes no command again that ended two (`strikes`). A
//! controller may be in `parts`, one per poller. Namespaces can be attached, grow and be detached while it runs
//! (`attach`).
//!
//! Not implemented: Namespace Management and Attachment, metadata and protection information, fused commands,
//! Copy, Write Uncorrectable, reservations, directives, bit buckets, firmware
//! download, controller memory buffers, MSI, and time (interrupt coalescing is kept as a
//! feature but not acted on; no keep alive timer, busy time or power-on hours). A command identifier
//! that is used twice at the same time is not noticed.

#![forbid(unsafe_code)]

mod admin;
mod attach;
mod bounce;
mod config;
mod controller;
mod crash;
mod data;
mod dbbuf;
mod dsm;
mod io;
mod journal;
mod msix;
mod namespace;
mod parts;
mod pci;
mod previous;
mod prp;
mod queue;
mod queues;
mod registers;
mod sgl;
mod source;
mod state;
mod stats;
mod strikes;
mod takeover;
mod turns;
mod word;

pub use admin::{EraseRecord, FormatRecord, FormatStep, PromiseSource, Sanitize, SanitizeRecord, SanitizeState, nguid};
pub use attach::NamespaceError;
pub use config::{ConfigError, ControllerConfig, Doorbells, MAX_DEPTH, MAX_IO_QUEUES, MAX_NAMESPACES, NamespaceConfig};
pub use controller::{Controller, Event, Fatal};
pub use crash::{Crash, Swap, crash_at, swap};
pub use journal::journal_bytes;
pub use msix::{Interrupts, VECTORS};
pub use parts::{Part, PartMessage};
pub use pci::{BAR0_BYTES, BAR4_BYTES};
pub use previous::PREVIOUS_STATE_VERSION;
pub use state::{ControllerState, STATE_VERSION, StateError};
pub use stats::Stats;
pub use strikes::{GivenUp, strike};
