//! The daemon's clock: nanoseconds since the process started it.

use std::time::Instant;

use io_model::Nanos;

/// A monotonic clock; copies agree with each other.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at zero.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Now. One read of the time-stamp counter, no system call.
    #[inline]
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
