//! The plugin in front of a real daemon, with a host of its own in place of the kernel.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::disallowed_methods, reason = "it waits for processes")]

mod calls;
mod daemon;
mod fake;
mod kernel;
mod promises;
mod sanity;
