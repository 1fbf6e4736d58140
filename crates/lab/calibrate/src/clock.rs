//! Time, passed in.

use io_model::Nanos;

/// The time that commands are measured by.
pub trait Clock {
    /// Now. Never goes back.
    fn now(&mut self) -> Nanos;

    /// Nothing to do until `next`, or for an unknown time: a real clock pauses for a moment at most, a virtual one goes
    /// on to `next`.
    fn wait(&mut self, next: Option<Nanos>);

    /// Time during which nobody could look, since the clock started: the host's CPU was elsewhere. What was measured
    /// meanwhile is the host's doing.
    fn lost(&self) -> Nanos {
        Nanos(0)
    }
}

/// Time that passes only during waits.
#[derive(Debug, Clone, Copy, Default)]
pub struct VirtualClock(Nanos);

impl Clock for VirtualClock {
    fn now(&mut self) -> Nanos {
        self.0
    }

    fn wait(&mut self, next: Option<Nanos>) {
        self.0 = self.0.max(next.unwrap_or_default());
    }
}
