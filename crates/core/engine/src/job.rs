//! What a guest's application does, one I/O at a time.

use io_model::{Nanos, Op};

/// One I/O of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// What to do.
    pub op: Op,
    /// Where on the tenant's own disk; a multiple of 512.
    pub offset_bytes: u64,
    /// How much; a multiple of 512, above 0 but for a flush.
    pub len_bytes: u32,
}

/// What a job wants now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Submit this. Its latency counts from `since`: the time it should have been submitted at (an arrival that
    /// had to wait for its CPU waited). `None`: from when its CPU turns to it.
    Submit {
        /// What.
        shape: Shape,
        /// Since when it waits.
        since: Option<Nanos>,
    },
    /// Nothing before this time, unless something completes first; then ask again.
    WaitUntil(Nanos),
    /// Nothing until something completes.
    WaitCompletion,
    /// Nothing any more.
    Done,
}

/// An operation of an application that took one or more I/Os.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Its kind, as a report names it: `read`, `update`, …
    pub kind: &'static str,
    /// From its start to its end.
    pub latency: Nanos,
}

/// One thread of an application. It belongs to one vCPU and submits to that vCPU's queue.
///
/// `next` is asked until it does not answer `Submit`; then again after each `completed`, or at the time that it
/// named. It may not answer `Submit` for ever: a job has a depth.
pub trait Job {
    /// What now?
    fn next(&mut self, now: Nanos) -> Action;

    /// The next I/O passed to `completed` failed.
    fn failed(&mut self) {}

    /// One of its I/Os ended.
    fn completed(&mut self, shape: &Shape, latency: Nanos, now: Nanos);

    /// An operation that ended since the last call, if this job has operations. Asked after each `next` and
    /// `completed` until there is none.
    fn take_operation(&mut self) -> Option<Operation> {
        None
    }
}
