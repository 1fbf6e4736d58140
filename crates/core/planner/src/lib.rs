//! Predicts what tenants will get from a drive: throughput, latency, a bound, and which promises hold.
//!
//! | module | what |
//! | --- | --- |
//! | `bound` | a latency that no command exceeds |
//! | `demand` | the input: [`Tenant`], [`Load`], [`Site`] |
//! | `figures` | a drive's performance figures, and those that policies need: [`drive_figures`] |
//! | `forecast` | the output: [`Forecast`] |
//! | `play` | a question as a scenario of the engine |
//! | `floors` | whether the minimums of best-effort tenants fit: [`judge_floors`] |
//! | `verdict` | which promises hold, and what prevents the others: [`judge`] |
//! | `outcome` | forecast and verdict together, and what to compute: [`Outcome`], [`Planner`] |
//! | `price` | what a promise costs other tenants: [`prices`] |
//! | `setting`, `advice` | the smallest change that makes promises hold: [`advise`], [`Change`] |
//! | `solve` | settings at which every promise holds: [`solve`] |

#![forbid(unsafe_code)]

mod advice;
mod bound;
mod demand;
#[cfg(test)]
mod fake;
mod figures;
mod floors;
mod forecast;
mod outcome;
mod play;
mod price;
mod setting;
mod solve;
mod verdict;

pub use advice::{Advice, Change, advise, round_up};
pub use demand::{FirstWrites, Load, Site, Size, Tenant};
pub use figures::{drive_figures, map_write};
pub use floors::{FloorForecast, FloorObstacle, FloorsForecast, judge_floors};
pub use forecast::{Forecast, LimitedBy, TenantForecast, Unmodelled, predict};
pub use outcome::{Outcome, Planner};
pub use play::{FULL, scenario};
pub use price::{Price, prices};
pub use setting::Setting;
pub use solve::{Solution, Unsolved, solve};
pub use verdict::{Obstacle, Promise, Verdict, judge, words};
