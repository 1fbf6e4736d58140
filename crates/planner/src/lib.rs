//! What tenants will get from a drive before they are there: throughput, latency, a bound; which promises hold.
//!
//! | module | what |
//! | --- | --- |
//! | `demand` | what is asked: [`Tenant`], [`Load`], [`Site`] |
//! | `forecast` | what is answered: [`Forecast`] |

#![forbid(unsafe_code)]

mod demand;
mod forecast;

pub use demand::{Host, Load, Site, Size, Tenant};
pub use forecast::{Forecast, LimitedBy, TenantForecast, Unmodelled, predict};
