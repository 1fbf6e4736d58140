//! Policies of others that the simulator compares ours with. No daemon offers one.
//!
//! They are built from papers and documentation, out of the same [`policy::parts`] as ours, and each says what it
//! leaves out. [`LabPolicy`] is any of them or any of the product's: what the simulator's pollers run.
//!
//! | module | what |
//! | --- | --- |
//! | `k2` | [`K2`]: a cap on all commands with the drive, guaranteed tenants first |
//! | `mqfq` | [`Mqfq`]: weighted shares, nobody further ahead than a gap |
//! | `d2fq` | [`D2fq`]: weighted shares by the drive's weighted round robin |
//! | `caps` | [`Caps`]: tenants take turns, and have no more than their limits |
//! | `reflex` | [`Reflex`]: tokens at the rate that the strictest target leaves |
//! | `gimbal` | [`Gimbal`]: a rate that follows the drive's latency, as congestion control does |
//! | `iocost` | [`IoCost`]: weighted shares of modelled device time, lent on, at a rate that follows latency |
//! | `bucket` | tokens |
//! | `config` | [`LabConfig`]: which policy, with all that it needs |
//! | `settings` | [`LabSettings`]: the same as a scenario asks for it |
//!
//! `lpns` and `fair` as printed are the product's own policies with [`Variant::Published`](policy::Variant::Published),
//! which no daemon's configuration names.

#![forbid(unsafe_code)]

mod bucket;
mod caps;
mod config;
mod d2fq;
mod gimbal;
mod iocost;
mod k2;
mod mqfq;
mod reflex;
mod settings;

pub use caps::Caps;
pub use config::{LabConfig, LabPolicy, OneOf};
pub use d2fq::{D2fq, D2fqConfig};
pub use gimbal::{Gimbal, GimbalConfig};
pub use iocost::{IoCost, IoCostConfig};
pub use k2::{K2, K2Config};
pub use mqfq::{Mqfq, MqfqConfig};
pub use reflex::{Reflex, ReflexConfig};
pub use settings::{FairAsked, LabKind, LabSettings, LpnsAsked};
