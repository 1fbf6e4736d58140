//! The daemon: pollers on drives, and for each tenant a controller or disk behind a socket.
//!
//! Modules import in the direction of this list: from a later room to an earlier one, never back.
//!
//! | room | modules |
//! | --- | --- |
//! | process | `log`, `stderr`, `panics`, `threads`, `open_files`, `poller_watchdog`: what every thread needs |
//! | threads that move commands | `front_end`: a tenant's queues at pollers and its client's thread; `poller_thread`, `poller_waker`, `doorbell_scanner`, `poller_shape`, `pollers`, `iteration_times`; `drive`, `nvme_drive`: the back ends; `zeroer`; `happening`: what they tell the owner |
//! | commands | `command`: what the owner is told, and by whom it is answered |
//! | HTTP | `http`, `http_observed`, `http_why`, `api_state`, `api_error`, `json_body`: routes; `api_socket`, `tcp_port`, `token`, `client_stream`, `connection_slots`, `roles`, `foreign_pages`: who may ask; `observer`, `live`, `scrape`, `stats`, `traces`, `response_cache`: what is read |
//! | the owner | `owner`: all drives and tenants, on one thread; `served_drive` with `namespaces`, `wipe_state`, `reencryption_state`: one drive; `disk_commands`, `namespace_changes`, `disk_zeroing`, `disk_wiping`, `disk_reencryption`, `tenant_removal`, `drive_hotplug`, `file_apply`, `adoption`, `next_start`, `config_file`, `trace_recording`, `status`: what changes them; `error_texts`: why not |
//! | the daemon | `startup`: opens what needs root; `daemon`, `serve`: starts and ends; `service_manager`, `state_versions` |
//!
//! What tenants get is read by the crate `observe`.
//!
//! Not here: the command line (`evenkeel`) and the laboratory.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the daemon has a clock and threads")]

mod adoption;
mod config_file;
pub mod daemon;
mod disk_commands;
mod disk_keys;
mod disk_reencryption;
mod disk_wiping;
mod disk_zeroing;
mod drive_hotplug;
mod error_texts;
mod file_apply;
mod guest_erasures;
mod log;
mod namespace_changes;
mod namespaces;
mod next_start;
mod owner;
mod reencryption_state;
pub mod serve;
mod served_drive;
mod service_manager;
pub mod startup;
mod status;
mod tenant_removal;
mod trace_recording;
mod wipe_state;
