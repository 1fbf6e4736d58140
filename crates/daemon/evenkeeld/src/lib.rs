//! The daemon: drives, pollers on them, and for each tenant a controller or disk behind a socket.
//!
//! | module | what |
//! | --- | --- |
//! | `serve` | from a configuration file to a running daemon, and its end |
//! | `daemon`, `owner` | the owner of everything that lives, and the commands that change it |
//! | `served_drive`, `pollers`, `growing`, `leaving`, `zeroing`, `wiping` | one drive with its pollers, tenants and layout; what it gives and takes back |
//! | `opened` | what takes the rights of whoever starts the daemon |
//! | `front_end` | what a tenant sees: its queues at pollers, its client's thread |
//! | `drive` | the back ends that a configuration can name |
//! | `poller_thread`, `poller_waker`, `doorbell_scanner`, `queues` | the threads around pollers: how they sleep and wake |
//! | `http`, `api_socket`, `port`, `http_why`, `roles`, `disks`, `namespace_changes`, `problems`, `refused` | the API, its socket and its port, who may ask it for what, what it has the owner do, and what it says where that can't be done |
//! | `namespaces` | disks without a socket, and which controllers have them |
//! | `adding` | drives that come and go |
//! | `applying`, `own_file` | a configuration file that is applied while the daemon runs |
//! | `events` | what happened lately |
//! | `summaries`, `why` | what tenants got over the last day, kept in files; why one of them was slow then |
//! | `recording`, `traces` | every command of a tenant, while somebody asks for it |
//! | `stats_thread`, `snapshot`, `foresight`, `promises_watch`, `cpu_waits`, `stopwatch`, `metrics_thread`, `verdicts` | what is told of the tenants |
//! | `manager`, `status`, `pulse` | what the service manager is told, and whether pollers make progress |
//! | `log`, `stderr`, `panics`, `threads`, `clock` | log lines; last words; what a panic does; what a thread does first; the time |
//!
//! Not here: what a person types (`evenkeel`), and everything of the laboratory.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the daemon has a clock and threads")]

mod adding;
mod adopting;
mod answers;
mod api_socket;
mod applying;
mod body;
mod client_stream;
mod clock;
mod cpu_waits;
pub mod daemon;
mod disks;
mod doorbell_scanner;
mod drive;
mod events;
mod explain;
mod foreign_pages;
pub mod foresight;
mod front_end;
mod growing;
mod handover;
mod http;
mod http_why;
mod leaving;
mod live_thread;
mod log;
mod manager;
mod metrics_thread;
mod namespace_changes;
mod namespaces;
mod next_start;
mod nvme_drive;
mod open_files;
pub mod opened;
mod own_file;
mod owner;
mod panics;
mod places;
mod poller_thread;
mod poller_waker;
mod pollers;
mod port;
mod problems;
mod promises_watch;
mod pulse;
mod queues;
mod recording;
mod refused;
mod roles;
pub mod serve;
mod served_drive;
mod snapshot;
mod stats_thread;
mod status;
pub mod stderr;
mod stopwatch;
mod summaries;
mod threads;
mod totals;
mod traces;
mod verdicts;
mod why;
mod wiping;
mod zeroing;
