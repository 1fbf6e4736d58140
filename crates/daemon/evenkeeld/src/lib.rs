//! The daemon: drives, pollers on them, and for each tenant a controller or disk behind a socket.
//!
//! | module | what |
//! | --- | --- |
//! | `serve` | from a configuration file to a running daemon, and its end |
//! | `daemon`, `owner`, `pollers` | the owner of everything that lives, and the commands that change it |
//! | `opened` | what takes the rights of whoever starts the daemon |
//! | `front_end` | what a tenant sees: its queues at pollers, its client's thread |
//! | `drive` | the back ends that a configuration can name |
//! | `poller_thread`, `poller_waker`, `doorbell_scanner`, `queues` | the threads around pollers: how they sleep and wake |
//! | `http`, `roles`, `disks` | the API, who may ask it for what, and what it has the owner do |
//! | `applying`, `own_file` | a configuration file that is applied while the daemon runs |
//! | `events` | what happened lately |
//! | `control`, `snapshot`, `foresight`, `promises_watch`, `cpu_waits` | what is told of the tenants |
//! | `log`, `stderr`, `panics`, `threads`, `clock` | log lines; last words; what a panic does; what a thread does first; the time |
//!
//! Not here: what a person types (`evenkeel`), and everything of the laboratory.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the daemon has a clock and threads")]

mod applying;
mod client_stream;
mod clock;
mod control;
mod cpu_waits;
pub mod daemon;
mod disks;
mod doorbell_scanner;
mod drive;
mod events;
pub mod foresight;
mod front_end;
mod growing;
mod http;
mod log;
pub mod opened;
mod own_file;
mod owner;
mod panics;
mod poller_thread;
mod poller_waker;
mod pollers;
mod promises_watch;
mod queues;
mod roles;
pub mod serve;
mod snapshot;
pub mod stderr;
mod threads;
mod wiping;
mod zeroing;
