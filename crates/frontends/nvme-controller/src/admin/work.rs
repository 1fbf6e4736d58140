//! What the admin queue may cost: its poller's other tenants wait for it.
//!
//! The policy has no say about admin commands, so each of the poller's looks takes one command, or a part of a long
//! answer. What a command touches beyond [`LOOK_BYTES`] is a debt that the next looks work off by doing nothing.

use guest_memory::IoBuf;
use nvme_spec::{Sqe, Status};

use crate::Controller;
use crate::msix::Interrupts;

/// Bytes that one look touches: a microsecond or two.
pub(crate) const LOOK_BYTES: u64 = 16 << 10;

/// What a long answer ends with.
static ZEROES: [u8; LOOK_BYTES as usize] = [0; LOOK_BYTES as usize];

/// What the admin queue has in hand.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// A command is being executed: what is recorded meanwhile would have half of it.
    pub is_executing: bool,
    answer: Option<Answer>,
    debt_bytes: u64,
}

/// An answer whose command completes once the rest of it is zeroed.
#[derive(Debug)]
struct Answer {
    /// As a successor would execute it again.
    sqe: Sqe,
    buf: IoBuf,
    done_bytes: u64,
}

impl Work {
    /// A command touched this many bytes at once.
    pub fn charge(&mut self, bytes: u64) {
        self.debt_bytes += bytes.saturating_sub(LOOK_BYTES);
    }

    /// Works off debt. `true`: that was this look.
    fn pay(&mut self) -> bool {
        let owes = self.debt_bytes > 0;
        self.debt_bytes = self.debt_bytes.saturating_sub(LOOK_BYTES);
        owes
    }

    /// The command whose answer is being written.
    pub fn in_hand(&self) -> Option<&Sqe> {
        Some(&self.answer.as_ref()?.sqe)
    }

    /// A reset: the command completes to nobody.
    pub fn drop_answer(&mut self) {
        self.answer = None;
    }
}

impl<I: Interrupts> Controller<I> {
    /// One look's work. Returns whether there was any; there may be more.
    #[inline]
    pub(crate) fn work(&mut self) -> bool {
        self.work.pay() || self.answer_on(LOOK_BYTES) || !self.stopped && self.execute_next()
    }

    /// Completes a command with an answer of as many bytes as `buf` holds: `start`, and zeros behind it. Writes as much
    /// as a look may.
    pub(super) fn begin_answer(&mut self, sqe: &Sqe, buf: IoBuf, start: &[u8]) {
        let done_bytes = buf.copy_from_at(0, start) as u64;
        self.work.answer = Some(Answer { sqe: *sqe, buf, done_bytes });
        self.answer_on(LOOK_BYTES.saturating_sub(done_bytes));
    }

    /// Writes at most this many bytes more of the answer. `false`: there is none.
    #[inline]
    fn answer_on(&mut self, most_bytes: u64) -> bool {
        let Some(Answer { sqe, buf, done_bytes }) = self.work.answer.take() else { return false };
        let left = buf.len_bytes() - done_bytes;
        let now = left.min(most_bytes);
        buf.copy_from_at(done_bytes, &ZEROES[..now as usize]);
        if now < left {
            self.work.answer = Some(Answer { sqe, buf, done_bytes: done_bytes + now });
        } else {
            self.recycle(buf);
            self.queues.complete_admin(sqe.cid, 0, Status::SUCCESS);
        }
        true
    }
}
