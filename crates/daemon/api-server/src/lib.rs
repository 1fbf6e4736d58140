//! The daemon's HTTP API: routes, sockets, roles, and the data read for them.
//!
//! It gives the owner [commands](runtime::command) and tells what became of them; it knows nothing of pollers.
//!
//! | module | what |
//! | --- | --- |
//! | `http`, `http_why` | the routes, and the description of them all |
//! | `api_state`, `json_body`, `api_error` | what handlers share, requests, errors with their HTTP statuses |
//! | `api_socket`, `tcp_port`, `client_stream`, `connection_slots` | the sockets, and the order of clients |
//! | `roles`, `token`, `foreign_pages` | the rights of clients |
//! | `observer`, `live`, `scrape`, `stats`, `response_cache` | data read once for many clients |
//! | `traces` | traces of all commands of a tenant |

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it has a clock and threads")]

pub mod api_error;
pub mod api_socket;
pub mod api_state;
pub mod client_stream;
pub mod connection_slots;
pub mod foreign_pages;
pub mod http;
mod http_observed;
mod http_snapshots;
mod http_why;
pub mod json_body;
mod live;
pub mod observer;
pub mod response_cache;
pub mod roles;
mod scrape;
mod stats;
pub mod tcp_port;
pub mod token;
pub mod traces;
