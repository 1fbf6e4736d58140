//! A block device of the host, served through Linux' ublk driver.
//!
//! Containers and host processes use it as `/dev/ublkbN`.
//!
//! The driver puts each request into memory that the daemon maps, and completes a command that waits in the daemon's
//! ring. The daemon answers with a command that also waits for the next request. In between, the request waits in its
//! queue until the policy lets the poller take it. The kernel copies its data once, to or from a permanent buffer of
//! the daemon. So a back end that must know data addresses needs to be told only once. `docs/decisions/0019-ublk.md`
//! says why.
//!
//! - `spec`: the driver's interface, `include/uapi/linux/ublk_cmd.h`;
//! - `shape`: a device's parameters; `request`: a checked request from a descriptor;
//! - `queue`: one queue's requests, over any [`Kernel`]; `ring`: the real one *(unsafe)*;
//! - `queues`: the [`Source`](io_model::Source) of them;
//! - `control`: commands to `/dev/ublk-control`, which take CAP_SYS_ADMIN *(unsafe)*;
//! - `helper`, `server`: both ends of the privileged process that creates, starts and deletes devices for the
//!   unprivileged daemon; `message`: their messages.
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
