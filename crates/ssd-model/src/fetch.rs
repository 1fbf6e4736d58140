//! From which HWQ the drive fetches next: round robin with a burst.

use std::collections::VecDeque;

use crate::Request;

/// Most HWQs that a drive can have.
pub const MAX_HWQS: u16 = 128;

/// The HWQs and the arbiter's place among them.
#[derive(Debug)]
pub(crate) struct Fetch {
    queues: Vec<VecDeque<Request>>,
    /// Bit `i`: queue `i` has a command, so that a turn costs the same however many queues idle.
    waiting: u128,
    burst: u32,
    at: u16,
    left_in_burst: u32,
}

impl Fetch {
    pub(crate) fn new(hwqs: u16, burst: u32) -> Self {
        let queues = (0..hwqs.min(MAX_HWQS)).map(|_| VecDeque::new()).collect();
        Self { queues, waiting: 0, burst: burst.max(1), at: 0, left_in_burst: burst.max(1) }
    }

    pub(crate) fn hwqs(&self) -> u16 {
        self.queues.len() as u16
    }

    /// `false`: there is no such queue.
    pub(crate) fn push(&mut self, hwq: u16, request: Request) -> bool {
        let Some(queue) = self.queues.get_mut(usize::from(hwq)) else { return false };
        queue.push_back(request);
        self.waiting |= 1 << hwq;
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The next command by the arbiter's rule.
    pub(crate) fn next(&mut self) -> Option<(u16, Request)> {
        if self.waiting == 0 {
            return None;
        }
        if self.left_in_burst == 0 || self.waiting & (1 << self.at) == 0 {
            self.at = self.following();
            self.left_in_burst = self.burst;
        }
        let queue = self.queues.get_mut(usize::from(self.at))?;
        let request = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting &= !(1 << self.at);
        }
        self.left_in_burst -= 1;
        Some((self.at, request))
    }

    /// The first waiting queue after the current one, which comes last.
    fn following(&self) -> u16 {
        let turned = self.waiting.rotate_right(u32::from(self.at) + 1);
        ((u32::from(self.at) + 1 + turned.trailing_zeros()) % 128) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn order(fetch: &mut Fetch) -> Vec<u16> {
        std::iter::from_fn(|| fetch.next()).map(|(hwq, _)| hwq).collect()
    }

    fn filled(burst: u32, hwqs: &[u16]) -> Fetch {
        let mut fetch = Fetch::new(MAX_HWQS, burst);
        for &hwq in hwqs {
            assert!(fetch.push(hwq, Request { tag: 0, kind: Kind::Read, offset_bytes: 0, len_bytes: 4096 }));
        }
        fetch
    }

    #[test]
    fn queues_take_turns() {
        assert_eq!(order(&mut filled(1, &[0, 0, 0, 5, 5, 127])), [0, 5, 127, 0, 5, 0]);
        assert_eq!(order(&mut filled(2, &[3, 3, 3, 7, 7, 7])), [3, 3, 7, 7, 3, 7]);
    }

    #[test]
    fn unknown_queues_are_refused() {
        let mut fetch = Fetch::new(2, 1);
        assert!(!fetch.push(2, Request { tag: 0, kind: Kind::Read, offset_bytes: 0, len_bytes: 4096 }));
        assert!(fetch.is_empty());
    }
}
