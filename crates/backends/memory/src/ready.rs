//! Finished requests that wait to be reaped.

use std::collections::VecDeque;

use io_model::{DeviceError, Done, HwqId, Io, Nanos, Outcome};

/// One poller's finished requests, in the order in which they finished.
///
/// Room for every command that the queues can hold is reserved at the start, so that a poller which
/// respects the depth never makes it allocate.
#[derive(Debug)]
pub(crate) struct Ready {
    hwqs: u16,
    depth: u32,
    done: VecDeque<(HwqId, Done)>,
}

impl Ready {
    /// For `hwqs` queues of `depth` commands.
    pub(crate) fn new(hwqs: u16, depth: u32) -> Self {
        let capacity = usize::from(hwqs).saturating_mul(depth as usize);
        Self { hwqs, depth, done: VecDeque::with_capacity(capacity) }
    }

    pub(crate) fn hwqs(&self) -> u16 {
        self.hwqs
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Ends a request; a queue that does not exist overrides the outcome.
    #[inline]
    pub(crate) fn push(&mut self, hwq: HwqId, io: Io, outcome: Outcome) {
        let outcome = if hwq.0 < self.hwqs { outcome } else { Err(DeviceError::Gone) };
        self.done.push_back((hwq, io.done(outcome)));
    }

    #[inline]
    pub(crate) fn reap(&mut self, done: &mut impl FnMut(HwqId, Done)) {
        while let Some((hwq, one)) = self.done.pop_front() {
            done(hwq, one);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// The past if something can be reaped, for [`io_model::Backend::next_event`].
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        (!self.is_empty()).then_some(Nanos(0))
    }
}
