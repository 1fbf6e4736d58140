//! The virtqueues as the poller sees them: VQ `n + 1` is virtqueue `n`, or one of its lanes; VQ 0 is the flush for a
//! client that goes.

use std::sync::atomic::{Ordering, fence};

use io_model::{Fetch, IoBuf, Outcome, QueuePriority, Source, Token};

use crate::Queues;

impl Source for Queues {
    #[inline]
    fn live_vqs(&self) -> u128 {
        self.live()
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        self.lane(vq).map_or(QueuePriority::Medium, |lane| self.priority_of(lane))
    }

    #[inline]
    fn rung(&mut self) -> u128 {
        Queues::rung(self)
    }

    /// Requests that can be fetched now, by the available index; commands of a request that was fetched in part; and
    /// requests to be done again after a restart. Publishes what was completed since the last look.
    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        match self.lane(vq) {
            Some(lane) => self.waiting(lane),
            None => self.wants_flush(),
        }
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        match self.lane(vq) {
            Some(lane) => self.fetch_from(lane),
            None => self.fetch_flush(),
        }
    }

    #[inline]
    fn take_work(&mut self) -> u32 {
        self.chain_work()
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
