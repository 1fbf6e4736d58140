//! Files and block devices through io_uring.
//!
//! [`UringDrive`] is an open drive: its size and alignment, and what it can do. Each poller opens queues of
//! its own from it ([`Uring`]), one ring per HWQ. With `O_DIRECT` data moves straight between the drive and
//! guest memory.
//!
//! - `drive`: opening, and finding out about size, alignment and discard;
//! - `uring`: the [`Backend`](io_model::Backend): queues, refusals, the bounce buffers that they share;
//! - `bounces`: those buffers, and who may have one;
//! - `nvme`: NVMe commands to a drive that the kernel's driver has, past the block layer;
//! - `kernel_ring`: an io_uring, with entries of the length that its commands take;
//! - `ring`: one io_uring and the commands in it, which it owns until the kernel is done with them;
//! - `flight`: one command's way through the kernel, in as many steps as it takes;
//! - `flushes`: which tenants must learn of a failed flush, which the kernel tells once;
//! - `zero`: zeroing a range without a ring, for a thread that may wait;
//! - `errno`: what the kernel's errors mean for a device.
//!
//! System calls: one `io_uring_enter` per [`kick`](io_model::Backend::kick) and ring with anything queued, and
//! one per [`reap`](io_model::Backend::reap) and ring where the kernel says that completions wait to be
//! posted. A poll that finds nothing makes none. Why that is the cheapest way, and why guest memory is not
//! registered: `docs/decisions/0003-io-uring-buffers.md`. A poller that would rather sleep gets an eventfd
//! ([`wake_fd`](io_model::Backend::wake_fd)), which costs the kernel a signal per completion from then on.
//!
//! A ring is restricted before it runs: to reads, writes, flushes and fallocate, or to NVMe commands, on the drive
//! alone. Entries need no system call each, so no seccomp filter sees them.
//!
//! Of a file on tmpfs short reads and writes pass the ring by: a system call each, since the kernel would hand each to
//! a thread of its own. `docs/decisions/0026-io-uring-what-helps.md` has that, and what else was weighed.
//!
//! Not implemented: kernel-side polling (`IORING_SETUP_SQPOLL`, `IORING_SETUP_IOPOLL`), registered buffers, ranges
//! smaller than the drive's logical block, growing or shrinking a drive that is open.

#![allow(clippy::disallowed_methods, reason = "a drive that a killed daemon had may be released a little later")]

mod bounces;
mod drive;
mod errno;
mod flight;
mod flushes;
mod kernel_ring;
mod nvme;
mod ring;
mod uring;
mod zero;

pub use drive::{Kind, OpenError, UringDrive};
pub use uring::Uring;
