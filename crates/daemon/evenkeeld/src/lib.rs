//! The daemon: pollers on drives, and for each tenant a controller or disk behind a socket.
//!
//! | module | what |
//! | --- | --- |
//! | `serve` | starts the daemon from a configuration file, and ends it |
//! | `daemon`, `owner` | the owner thread, which owns all drives and tenants, and the commands to it |
//! | `served_drive`, `pollers`, `growing`, `leaving`, `zeroing`, `wiping` | one drive with its pollers, tenants and layout; what it gives and takes back |
//! | `opened` | opens what needs the rights of the user that starts the daemon |
//! | `front_end` | a tenant's front end: its queues at pollers, its client's thread |
//! | `drive` | the back ends that a configuration can name |
//! | `poller_thread`, `poller_waker`, `doorbell_scanner`, `queues` | the threads around pollers: how they sleep and wake |
//! | `http`, `api_socket`, `port`, `http_why`, `roles`, `disks`, `namespace_changes`, `problems`, `refused` | the HTTP API: routes, socket, TCP port, roles, its commands to the owner, its errors |
//! | `namespaces` | namespaces without a socket, and the controllers that have them |
//! | `adding` | drives that are added and removed |
//! | `applying`, `own_file` | a configuration file that is applied while the daemon runs |
//! | `events` | the event log |
//! | `summaries`, `why` | what tenants got over the last day, in files; why one of them was slow |
//! | `recording`, `traces` | traces of all commands of a tenant, while a client asks for one |
//! | `stats_thread`, `snapshot`, `foresight`, `promises_watch`, `cpu_waits`, `stopwatch`, `metrics_thread`, `verdicts` | what is told of the tenants |
//! | `manager`, `status`, `pulse` | messages to the service manager, and whether pollers make progress |
//! | `log`, `stderr`, `panics`, `threads`, `clock` | log lines; last messages; panic handling; what each thread does first; the time |
//!
//! Not here: the command line (`evenkeel`) and the laboratory.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the daemon has a clock and threads")]

mod adding;
mod adopting;
mod answers;
mod api_error;
mod api_socket;
mod applying;
mod asked;
mod body;
mod client_stream;
pub mod command;
pub mod daemon;
mod disks;
mod doorbell_scanner;
mod drive;
mod foreign_pages;
mod front_end;
mod growing;
mod handover;
mod happening;
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
mod pulse;
mod queues;
mod recording;
mod roles;
pub mod serve;
mod served_drive;
mod stats_thread;
mod status;
pub mod stderr;
mod stopwatch;
mod threads;
mod token;
mod traces;
mod wipes;
mod wiping;
mod zeroing;
