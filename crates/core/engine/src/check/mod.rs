//! What must be true in every run, whatever the scenario, the policy and the faults.
//!
//! | module | rules |
//! | --- | --- |
//! | here | [`Rule`], [`Violation`], and the book that they are written into |
//! | `ledger` | every command's way: exactly once, in bounds, to the queue it came from |
//! | `space` | the owner of each byte of the drive, while disks come, grow and go |
//! | `watch`, `turns` | tenants that wait while others are served |
//! | `shares` | weights over the measured time |
//! | `least` | the least share of each tenant over the measured time, under `evenkeel` |
//! | `limits` | IOPS and bandwidth ceilings over any span |
//! | `bound` | no command takes longer than its promised bound |
//! | `classes` | weights of classes over the measured time, under `wrr` and `drr` |
//!
//! Some policies are known to starve tenants: K2 serves guaranteed tenants without limit, LPNS as printed suspends the
//! others. It is reported all the same; [`sweep`](crate::sweep) says whom it forgives what, and why.

mod bound;
mod classes;
mod least;
mod ledger;
mod limits;
mod shares;
mod space;
mod turns;
mod watch;

use serde::Serialize;

pub use bound::BoundCounts;
pub(crate) use bound::Fetched;
pub(crate) use ledger::{Ledger, Service};
pub(crate) use shares::{Contender, Shares};
pub(crate) use turns::turns;
pub(crate) use watch::{Queue, Served, Watch};

/// Violations of one rule kept with their text; the rest is only counted.
const KEPT: usize = 16;

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// When, in ns from the start.
    pub at_ns: u64,
    /// Which rule.
    pub rule: Rule,
    /// The tenant's index, if it is about a tenant that waits.
    pub tenant: Option<u16>,
    /// The tenant, and what went wrong.
    pub what: String,
}

/// The rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Each fetched command completes exactly once, to the queue it came from.
    ExactlyOnce,
    /// A command stays within its tenant's range of the drive, at the place that its disk has there.
    InBounds,
    /// Each byte of the drive is one disk's at a time, stays at its place in that, and is nobody's again before it was
    /// overwritten.
    Space,
    /// A queue with commands waiting is served: not held for longer than the scenario's limit while others are
    /// served many times its turn; and under `evenkeel` who always asks gets a hundredth of what its weight would give.
    NoStarvation,
    /// Tenants that always have work get what their weights say (`mqfq`, `fair`, `wrr`, `drr`).
    Shares,
    /// A tenant that always asks gets its floor, if the drive can give all floors; else all get an equal fraction
    /// (`evenkeel`).
    Floors,
    /// A looser promise costs others no more, and a tighter one no less (`evenkeel`).
    Monotone,
    /// Nobody gets more than its limits.
    Limits,
    /// No command takes longer than the policy's bound, while the bound's assumptions hold (`lpns`).
    Bound,
    /// A tenant that comes is served, and one that left is forgotten: by the board and in the pollers' tables.
    Membership,
    /// Time goes on: a poller does not spin on one instant.
    Progress,
}

/// The broken rules of a run.
#[derive(Debug, Default)]
pub(crate) struct Book {
    kept: Vec<Violation>,
    count: u64,
}

impl Book {
    pub(crate) fn write(&mut self, at_ns: u64, rule: Rule, tenant: Option<u16>, what: impl FnOnce() -> String) {
        self.count += 1;
        if self.kept.iter().filter(|kept| kept.rule == rule).count() < KEPT {
            self.kept.push(Violation { at_ns, rule, tenant, what: what() });
        }
    }
}
