//! The HWQs, and from which of them the drive fetches next.

use std::collections::VecDeque;

use arbitration::{Arbiter, Arbitration};
use io_model::QueuePriority;

use crate::{Kind, Request};

/// Most HWQs that a drive can have.
pub const MAX_QUEUES: u16 = 128;

/// The HWQs' commands and their arbiter.
#[derive(Debug)]
pub(crate) struct Fetch {
    queues: Vec<VecDeque<Request>>,
    arbiter: Arbiter,
}

impl Fetch {
    pub(crate) fn new(hwqs: u16, arbitration: Arbitration) -> Self {
        let arbiter = Arbiter::new(arbitration, hwqs.min(MAX_QUEUES));
        let queues = (0..arbiter.queues()).map(|_| VecDeque::new()).collect();
        Self { queues, arbiter }
    }

    pub(crate) fn hwqs(&self) -> u16 {
        self.arbiter.queues()
    }

    pub(crate) fn arbitration(&self) -> Arbitration {
        self.arbiter.arbitration()
    }

    pub(crate) fn set_arbitration(&mut self, arbitration: Arbitration) {
        self.arbiter.set_arbitration(arbitration);
    }

    /// `false`: there is no such queue.
    pub(crate) fn set_class(&mut self, hwq: u16, class: QueuePriority) -> bool {
        self.arbiter.set_class(hwq, class)
    }

    /// `false`: there is no such queue.
    pub(crate) fn push(&mut self, hwq: u16, request: Request) -> bool {
        let Some(queue) = self.queues.get_mut(usize::from(hwq)) else { return false };
        queue.push_back(request);
        if queue.len() == 1 {
            self.arbiter.set_backlogged(hwq, true);
        }
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.arbiter.any_backlogged()
    }

    /// The next command by the arbiter's rule.
    pub(crate) fn next(&mut self) -> Option<(u16, Request)> {
        let hwq = self.arbiter.pick()?;
        let queue = self.queues.get_mut(usize::from(hwq))?;
        let request = queue.pop_front()?;
        self.arbiter.charge(hwq, data_bytes(&request));
        if queue.is_empty() {
            self.arbiter.set_backlogged(hwq, false);
        }
        Some((hwq, request))
    }
}

/// The data that a command moves: what deficit round robin charges.
fn data_bytes(request: &Request) -> u64 {
    match request.kind {
        Kind::Read | Kind::Write => request.len_bytes,
        Kind::Control => 0,
    }
}
