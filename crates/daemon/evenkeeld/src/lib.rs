//! The daemon: drives, pollers on them, and for each tenant a controller or disk behind a socket.

#![forbid(unsafe_code)]

mod clock;
mod control;
mod cpu_waits;
mod daemon;
mod device;
mod disk;
mod disk_client;
mod doorman;
mod drive;
mod foresight;
mod handler;
mod log;
mod patrol;
mod poller_thread;
mod promises_watch;
mod queues;
pub mod serve;
mod served;
mod snapshot;
