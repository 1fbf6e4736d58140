//! The daemon's clock: nanoseconds since the process started it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

    /// When it was zero, since 1970, as far as the host's clock can be believed.
    pub fn started_at_unix(&self) -> Duration {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since_1970.saturating_sub(self.start.elapsed())
    }

    /// Now. One read of the time-stamp counter, no system call.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }
}
