//! Policies that others published, to compare with: the simulator runs them, the daemon offers none.
//!
//! | module | what |
//! | --- | --- |
//! | `reflex` | [`Reflex`]: tokens at the rate that the strictest target leaves |
//! | `gimbal` | [`Gimbal`]: a rate that follows the drive's latency, as congestion control does |
//! | `iocost` | [`IoCost`]: weighted shares of modelled device time, lent on, at a rate that follows latency |
//! | `bucket` | tokens |
//!
//! They are built from papers and documentation, and each says what it leaves out. All need one poller for a drive.

mod bucket;
mod gimbal;
mod iocost;
mod reflex;

pub use gimbal::{Gimbal, GimbalConfig};
pub use iocost::{IoCost, IoCostConfig};
pub use reflex::{Reflex, ReflexConfig};
