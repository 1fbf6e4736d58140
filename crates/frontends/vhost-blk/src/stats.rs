//! What a poller's part of a disk counts.

/// Counters since [`Queues`](crate::Queues) was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests fetched.
    pub requests: u64,
    /// Of these, requests refused by a check.
    pub rejected: u64,
    /// Interrupts sent.
    pub interrupts: u64,
}
