//! What is done about a drive that does not end a command, or lies: each rung only if the one before did not help.

use std::sync::atomic::Ordering;

use nvme_driver::{Error, PciDevice};

use crate::queues::Mail;
use crate::thread::{ADMIN_LIMIT, DriveThread, Notice, Queue, Which, create_all, is_removed};

impl<D: PciDevice> DriveThread<D> {
    /// The first rung: a command is aborted. If that doesn't end it, its poller asks for the next one.
    pub(crate) fn abort(&mut self, which: Which, cid: u16, notify: &mut impl FnMut(Notice)) {
        let Some(qid) = self.set_of(which).map(|set| set.queues[usize::from(which.hwq)].qid) else { return };
        let Some(controller) = &mut self.controller else { return };
        let limit = self.drive.limit;
        notify(Notice::Warning(format!("a command did not end within {limit:?} and is aborted")));
        if let Err(error) = controller.admin().within(ADMIN_LIMIT).abort(qid, cid) {
            self.reset_or_give_up(&error, notify);
        }
    }

    /// The second rung: the drive forgets the queue, which is made anew.
    pub(crate) fn recover(&mut self, which: Which, notify: &mut impl FnMut(Notice)) {
        let Some(set) = self.set_of(which) else { return };
        let (entries, vector, Queue { qid, class, .. }) = (set.entries, set.vector, set.queues[usize::from(which.hwq)]);
        let Some(controller) = &mut self.controller else { return };
        let made = controller
            .delete_queues(qid, ADMIN_LIMIT)
            .and_then(|()| controller.create_queue_pair_with(entries, vector, class));
        match (made, self.set_of(which)) {
            (Ok(pair), Some(set)) => {
                set.replace(which.hwq, pair);
                notify(Notice::Warning(format!(
                    "its queue {qid} had lost commands or wrong completions; it was created again, its commands failed"
                )));
            }
            (Ok(_), None) => {}
            (Err(error), _) => self.reset_or_give_up(&error, notify),
        }
    }

    fn reset_or_give_up(&mut self, error: &Error, notify: &mut impl FnMut(Notice)) {
        match is_removed(error) {
            true => self.give_up(&error.to_string(), notify),
            false => self.reset(&error.to_string(), notify),
        }
    }

    /// The third and fourth rung: the controller is reset, or the function. All queues are made anew.
    pub(crate) fn reset(&mut self, why: &str, notify: &mut impl FnMut(Notice)) {
        if self.controller.is_none() {
            return;
        }
        self.sets.iter().for_each(|set| set.post(Mail::Hold));
        let mut last = why.to_owned();
        for (function, rung) in [(false, "controller"), (true, "function")] {
            match self.bring_back(function) {
                Ok(()) => {
                    let text = format!("{why}; its {rung} was reset, and all of its commands failed");
                    return notify(Notice::Warning(text));
                }
                Err(error) if is_removed(&error) => return self.give_up(&error.to_string(), notify),
                Err(error) => last = format!("{why}; a reset of its {rung} did not help: {error}"),
            }
        }
        self.give_up(&last, notify);
    }

    fn bring_back(&mut self, function: bool) -> Result<(), Error> {
        let Some(controller) = &mut self.controller else { return Ok(()) };
        controller.halt(function)?;
        controller.restart()?;
        if let Some(weights) = self.weights {
            controller.set_weights(weights)?;
        }
        // Every set before the first is told: a poller goes on only with a drive that is back.
        let mut made = Vec::new();
        for set in &self.sets {
            let classes: Vec<_> = set.queues.iter().map(|queue| queue.class).collect();
            made.push(create_all(controller, set.entries, set.vector, &classes)?.0);
        }
        for (set, pairs) in self.sets.iter_mut().zip(made) {
            for (index, pair) in (0..).zip(pairs) {
                set.replace(index, pair);
            }
        }
        self.watch_events();
        Ok(())
    }

    /// The last rung: what carries the drive is closed, so that it reaches no memory, and everything fails.
    pub(crate) fn give_up(&mut self, why: &str, notify: &mut impl FnMut(Notice)) {
        let Some(controller) = self.controller.take() else { return };
        controller.abandon();
        self.drive.is_gone.store(true, Ordering::Relaxed);
        self.sets.iter().for_each(|set| set.post(Mail::Gone));
        notify(Notice::Warning(format!(
            "the drive is given up, and everything that is asked of it fails: {why}. Add it again once it is \
             well (evenkeel drive claim, then evenkeel drive add)"
        )));
    }
}
