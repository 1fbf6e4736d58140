//! A block device of the host's, served through Linux' ublk driver: `/dev/ublkbN`, for containers and host processes.
//!
//! The driver puts each request into memory that we map, and wakes a command that waits in a ring of ours; we answer by
//! a command that also waits for the next one. Between the two a request is ours: it waits in its queue until the
//! policy lets the poller take it. The kernel copies its data once, to or from a buffer of ours that stays: so back
//! ends that must know where data may lie are told once. Why so: `docs/decisions/0019-ublk.md`.
//!
//! - `spec`: the driver's interface, `include/uapi/linux/ublk_cmd.h`;
//! - `shape`: what a device is like; `request`: what a descriptor asks for, checked;
//! - `queue`: one queue's requests, over any [`Kernel`]; `ring`: the real one *(unsafe)*;
//! - `queues`: the [`Source`](io_model::Source) of them;
//! - `control`: commands to `/dev/ublk-control`, which take CAP_SYS_ADMIN *(unsafe)*;
//! - `helper`, `server`: the two ends of the process that has that right, and makes, starts and deletes devices for the
//!   daemon, which has not; `message`: what they say to each other.
//!
//! Not implemented: zero copy (Linux 6.15) and automatic buffer registration (6.16), zoned devices, devices of
//! unprivileged users (the driver gives them no recovery), growing a device that is there (6.16).

mod control;
mod helper;
mod message;
mod queue;
mod queues;
mod request;
mod ring;
#[allow(clippy::disallowed_methods, reason = "the process that makes devices is its own: nobody else waits in it")]
mod server;
mod shape;
pub mod spec;

pub use control::{CONTROL_PATH, is_there};
pub use helper::{ARGUMENT, DIRECTORY, Device, Helper, HelperError, Wanted, mark};
pub use queue::{Kernel, Queue, buffers};
pub use queues::Queues;
pub use request::{Rejected, translate};
pub use ring::Ring;
pub use server::serve;
pub use shape::{BadShape, MAX_QUEUES, Shape};
