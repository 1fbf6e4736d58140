//! What tenants will get from a drive before they are there: throughput, latency, a bound; which promises hold.
//!
//! | module | what |
//! | --- | --- |
//! | `blame` | a promise failed: whose fault it was |
//! | `bound` | what no command exceeds |
//! | `demand` | what is asked: [`Tenant`], [`Load`], [`Site`] |
//! | `figures` | a drive's arithmetic, and what policies must know of it: [`drive_figures`] |
//! | `forecast` | what is answered: [`Forecast`] |
//! | `model` | how: a queueing network, solved for its mean values |
//! | `floors` | what tenants are to get at least: whether it fits: [`judge_floors`] |
//! | `verdict` | which promises hold, and what is in the way: [`judge`] |
//! | `outcome` | both together, and who asks: [`Outcome`], [`Planner`] |
//! | `price` | what a promise costs the others: [`price`](price()), [`prices`] |
//! | `setting`, `advice` | the smallest change that makes promises hold: [`advise`], [`Change`] |
//! | `solve` | settings at which every promise holds: [`solve`] |

#![forbid(unsafe_code)]

mod advice;
mod blame;
mod bound;
mod demand;
#[cfg(test)]
mod fake;
mod figures;
mod floors;
mod forecast;
mod model;
mod outcome;
mod price;
mod setting;
mod solve;
mod verdict;

pub use advice::{Advice, Change, advise, round_up};
pub use blame::{Blame, Culprit, Evidence, Measured, blame};
pub use demand::{Host, Load, Site, Size, Tenant};
pub use figures::drive_figures;
pub use floors::{FloorForecast, FloorObstacle, FloorsForecast, judge_floors};
pub use forecast::{Forecast, LimitedBy, TenantForecast, Unmodelled, predict};
pub use model::Tail;
pub use outcome::{Outcome, Planner};
pub use price::{Price, price, prices};
pub use setting::Setting;
pub use solve::{Solution, Unsolved, solve};
pub use verdict::{Obstacle, Promise, Verdict, judge};
