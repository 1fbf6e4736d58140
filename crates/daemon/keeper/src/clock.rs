//! Time that goes on over a program's replacement, and for the next process too.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Since the machine started.
pub fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
