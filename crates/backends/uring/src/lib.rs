//! Files and block devices through io_uring.
//!
//! [`UringDrive`] is an open drive with its size, alignment and abilities. Each poller opens its own queues from it
//! ([`Uring`]), with one ring per HWQ. With `O_DIRECT`, data moves directly between the drive and guest memory.
//!
//! - `drive`: opening a drive, and finding its size, alignment and discard support;
//! - `uring`: the [`Backend`](io_model::Backend): queues, refused commands, shared bounce buffers;
//! - `bounces`: the bounce buffers;
//! - `nvme`: NVMe commands to a drive that is bound to the kernel's driver, past the block layer;
//! - `kernel_ring`: an io_uring with entries of the length that its commands need;
//! - `ring`: one io_uring and the commands in it, which it owns until the kernel is done with them;
//! - `flight`: one command's way through the kernel, in one or more steps;
//! - `files`: the file behind it, or several, each in a window of its addresses;
//! - `flushes`: the tenants that must learn of a failed flush, because the kernel reports it only once;
//! - `zero`: zeroing a range, and finding its holes, without a ring, for a thread that may wait;
//! - `errno`: the meaning of the kernel's errors for a device.
//!
//! System calls: one `io_uring_enter` per [`kick`](io_model::Backend::kick) and ring with queued commands. One more per
//! [`reap`](io_model::Backend::reap) and ring where the kernel has completions to post. A poll that finds nothing makes
//! none. `docs/decisions/0003-io-uring-buffers.md` says why this is cheapest and why guest memory is not registered. A
//! poller that may sleep gets an eventfd ([`wake_fd`](io_model::Backend::wake_fd)). From then on each completion costs
//! the kernel a signal.
//!
//! Each ring is restricted before it runs: to reads, writes, flushes and fallocate, or to NVMe commands, on this drive
//! only. Submitting needs no system call per entry, so seccomp filters can't see the entries.
//!
//! Short reads and writes of a file on tmpfs bypass the ring, with a system call each: the kernel would pass each to a
//! worker thread. `docs/decisions/0026-io-uring-what-helps.md` has the measurements.
//!
//! Not implemented: kernel-side polling (`IORING_SETUP_SQPOLL`, `IORING_SETUP_IOPOLL`), registered buffers, ranges
//! smaller than the drive's logical block, growing or shrinking a drive that is open.

#![allow(clippy::disallowed_methods, reason = "a drive that a killed daemon had may be released a little later")]

mod bounces;
mod drive;
mod errno;
mod files;
mod flight;
mod flushes;
mod kernel_ring;
mod nvme;
mod ring;
mod uring;
mod zero;

pub use drive::{Kind, NoRing, OpenError, UringDrive, try_rings};
pub use files::WINDOW_BYTES;
pub use uring::Uring;
