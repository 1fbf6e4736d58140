//! The virtqueues as the poller sees them: VQ `n + 1` is virtqueue `n`.

use std::sync::atomic::{Ordering, fence};

use io_model::{Fetch, IoBuf, Outcome, Source, Token};

use crate::Queues;

impl Source for Queues {
    #[inline]
    fn live_vqs(&self) -> u128 {
        self.live()
    }

    /// Requests that can be fetched now, by the available index; commands of a request that was fetched in part; and
    /// requests to be done again after a restart. Publishes what was completed since the last look.
    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        vq.checked_sub(1).map_or(0, |queue| self.waiting(queue))
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        vq.checked_sub(1).map_or(Fetch::Empty, |queue| self.fetch_from(queue))
    }

    #[inline]
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        self.end(token, outcome, buf);
    }

    fn notify(&mut self) {
        self.announce();
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.arm(wanted);
        // The caller looks at the backlog next. Without a full fence it could miss an index that the driver
        // wrote before it looked at an event index that we had not written yet.
        fence(Ordering::SeqCst);
    }
}
