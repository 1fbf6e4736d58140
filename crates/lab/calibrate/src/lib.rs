//! Measures a drive and finds the profile that behaves like it.
//!
//! Pure: a [`Backend`](io_model::Backend) and a [`Clock`] are passed in. Over a drive model with a [`VirtualClock`] a
//! calibration is deterministic and takes no time of day; over a real drive the same code measures in real time.
//!
//! | module | what |
//! | --- | --- |
//! | `clock`, `rig` | the measuring loop: bursts, closed loops, lone commands |
//! | `session` | the stages in order; each adds its part to [`Seen`] |
//! | `read_stages`, `window_stages`, `write_stages`, `cells` | the stages |
//! | `estimate` | medians, confidence intervals |
//! | `fit`, `fit_writes` | turn the measurements into a [`Profile`](ssd_model::Profile), each parameter with its [`Source`] |
//! | `model`, `judge` | the same loads on the fitted profile: how well it predicts |
//! | `cipher` | what encryption costs this host |
//!
//! Each parameter has an experiment that depends on it alone:
//!
//! - two reads at once collide, or not: stripe, units (addresses none of which collide with another), channels;
//! - many reads of one address: a unit's time; of one stripe by size: `further_ns`;
//! - lone reads of several stripes: the link; lone reads less unit and controller: the pipeline;
//! - many flushes, or small reads on different units, at once: the controller;
//! - one unit kept busy, a probe to another one: the window; two queues with much to do: the turns;
//! - lone writes and bursts: acknowledgement and link; reads beside writes: what writes occupy;
//! - writes that go on: drain rate and buffer.
//!
//! Times are those of the back end: the measuring loop's own time ([`Facts::own_ns`]) is subtracted.
//!
//! Not implemented: garbage collection (it would need hours of overwriting), arbitration other than round robin (a back
//! end can't choose classes), read caches, buffers beyond 1 GiB.

#![forbid(unsafe_code)]

mod cells;
mod cipher;
mod clock;
mod estimate;
mod fit;
mod fit_writes;
mod judge;
mod model;
mod read_stages;
mod rig;
mod seen;
mod session;
mod window_stages;
mod write_stages;

pub use cipher::CipherTimes;
pub use clock::{Clock, VirtualClock};
pub use estimate::Estimate;
pub use fit::{Fit, Parameter, Source, fit};
pub use judge::{Compared, judge};
pub use rig::{DEPTH, DEPTH_LEAST, Facts, Failure, HWQS, HWQS_LEAST, MAX_LEN_BYTES, NoMemory, Rig};
pub use seen::{Basics, Beside, Cell, Channels, Point, Reads, Seen, Sustained, Units, Window, WriteTimes};
pub use session::{Effort, Session, Stage};
pub use window_stages::BACKLOG;
