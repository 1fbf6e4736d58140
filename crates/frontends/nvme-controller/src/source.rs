//! The controller as the poller sees it.

use std::sync::atomic::{Ordering, fence};

use io_model::{Fetch, IoBuf, Outcome, QueuePriority, Source, Token};

use crate::Controller;
use crate::crash::{self, Swap};
use crate::msix::Interrupts;
use crate::queue::Cq;
use crate::strikes;
use crate::turns::TOGETHER;

impl<I: Interrupts> Source for Controller<I> {
    #[inline]
    fn live_vqs(&self) -> u128 {
        let shown = if self.stopped { 0 } else { self.queues.shown };
        shown | u128::from(self.cache.is_wanted() || self.sanitizes())
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        self.asked_priority(vq)
    }

    #[inline]
    fn service(&mut self) -> u32 {
        if self.memory_is_lost() {
            return 0;
        }
        let did = self.work() || self.go_on_sanitizing();
        if did {
            self.post_admin();
        }
        did.into()
    }

    /// Commands of our own are asked for at each look.
    #[inline]
    fn rung(&mut self) -> u128 {
        self.queues.rung() | 1
    }

    /// Commands that can be fetched now: none while the queue is halted, its completion queue is full or
    /// its table is.
    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        match (vq, &self.queues.arbiter) {
            (0, _) => self.own_backlog(),
            (_, None) => self.io_backlog(vq),
            (TOGETHER, _) => self.backlog_together(),
            _ => 0,
        }
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        match (vq, &self.queues.arbiter) {
            (0, _) => self.fetch_own(),
            (_, None) => self.fetch_io(vq),
            (TOGETHER, _) => self.fetch_together(),
            _ => Fetch::Empty,
        }
    }

    #[inline]
    fn take_work(&mut self) -> u32 {
        // What was fetched is with the device.
        strikes::let_go();
        std::mem::take(&mut self.extra_work)
    }

    #[inline]
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        self.end(token, outcome, buf);
    }

    fn notify(&mut self) {
        let mut dirty = std::mem::take(&mut self.queues.dirty);
        if dirty == 0 {
            return;
        }
        if !self.irq.is_on() {
            // A guest that serves an interrupt may have read the new completions already: the pin stays low then.
            self.check_pin();
            return;
        }
        // Queues may share a vector: one interrupt then serves them all.
        let mut raised = 0u128;
        while dirty != 0 {
            let qid = dirty.trailing_zeros() as u16;
            dirty &= dirty - 1;
            let Some(cq) = self.queues.cq(qid).filter(|cq| cq.interrupts) else { continue };
            let vector = cq.vector;
            if raised & 1 << vector != 0 {
                continue;
            }
            raised |= 1 << vector;
            self.irq.raise(vector);
        }
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.queues.set_wakeup(wanted);
        // The caller looks at the backlog next. Without a full fence it could miss a tail that the guest
        // wrote before it looked at an event index that we had not written yet.
        fence(Ordering::SeqCst);
    }
}

impl<I: Interrupts> Controller<I> {
    /// Posts completions of admin commands that there are and can be posted, after recording what they say was done.
    pub(crate) fn post_admin(&mut self) {
        let is_reachable = |cq: &mut Cq| cq.view().is_some();
        let is_due = !self.queues.outbox.is_empty() && !self.work.is_executing;
        if is_due && self.queues.cq(0).is_some_and(is_reachable) {
            if !crash::is_swapped(Swap::PostedBeforeRecorded) {
                self.record();
            }
            self.queues.post_admin();
        }
    }

    /// Device commands of our own. Admin commands are not for the policy.
    fn own_backlog(&mut self) -> u32 {
        let flush = u32::from(self.cache.is_wanted());
        if self.stopped {
            return flush;
        }
        self.deliver_events();
        let erases = if self.erases() { self.format_backlog() } else { 0 };
        erases + flush
    }

    /// Whether steps of erasures may begin: a reset or shutdown waits for what is in flight.
    pub(crate) fn erases(&self) -> bool {
        !self.stopped && !self.is_resetting()
    }

    #[inline]
    pub(crate) fn io_backlog(&mut self, vq: u16) -> u32 {
        let awake = self.queues.awake;
        let bounce_is_full = self.bounce_is_full();
        let Some((sq, cq)) = self.queues.pair(vq) else { return 0 };
        if sq.deleting.is_some() || self.stopped {
            return 0;
        }
        let ranges = sq.stream.as_ref().map_or(0, |stream| stream.left());
        let mut invalid = sq.refresh(awake).is_err();
        if cq.free == 0 {
            invalid |= cq.refresh(awake).is_err();
        }
        sq.waits_for_bounce &= bounce_is_full;
        // Nothing is fetched whose completion could not be posted.
        let reachable = sq.view().is_some() && cq.view().is_some() && !sq.waits_for_bounce;
        let can_fetch = reachable && sq.has_room() && cq.free > 0;
        let again = if reachable { sq.again.len() as u32 } else { 0 };
        let waiting = if can_fetch { sq.waiting() } else { 0 };
        let all = sq.waiting() == waiting && sq.again.len() == again as usize;
        let known = sq.known_tail();
        self.queues.told(vq, known, all);
        if invalid {
            self.invalid_doorbell();
        }
        ranges + again + waiting
    }
}
