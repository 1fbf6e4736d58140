//! Going on where another process's controller was, whatever it died at.

use std::collections::BTreeSet;
use std::sync::Arc;

use guest_memory::Mapping;
use nvme_spec::opcode::create;
use nvme_spec::regs::{Aqa, Cc, Csts};
use nvme_spec::{Sqe, Status};

use crate::Controller;
use crate::admin::ERROR_RECOVERY;
use crate::config::ControllerConfig;
use crate::controller::Event;
use crate::dbbuf::ShadowPages;
use crate::journal::{Journal, Tail, saved_state};
use crate::msix::{Interrupts, VECTORS};
use crate::parts::{CqSpec, FarSq, SqSpec};
use crate::queue::{Again, Cq, Entry, Geometry, Parked, Sq};
use crate::queues::QIDS;
use crate::state::{ControllerState, CqState, SqState, StateError, join, serial_of};
use crate::strikes::{self, GivenUp};
use crate::word::Word;

impl<I: Interrupts> Controller<I> {
    /// A controller that goes on where the one was that kept the journal in `memory`, whatever that died at, and
    /// keeps it on. `doorbells` must be the same page. Nothing that its process gave the drive may land any more. Map
    /// guest memory next, and then [`resume`](Self::resume).
    ///
    /// # Errors
    /// There is no state of this version, or it contradicts itself or the configuration.
    pub fn take_over(
        config: ControllerConfig,
        doorbells: Arc<Mapping>,
        interrupts: I,
        memory: &Arc<Mapping>,
    ) -> Result<Self, StateError> {
        let state = saved_state(memory);
        // First: such a journal has another length.
        if let Some(were) = state.as_ref().map(|state| state.max_io_queues).filter(|were| *were != config.max_io_queues)
        {
            return Err(StateError::Queues { were, are: config.max_io_queues });
        }
        let journal = Journal::over(memory, &config)?;
        if state.is_none() && journal.is_blank() {
            // Its process ended before it recorded anything, so it had answered nothing that changes a controller.
            let mut this = Self::new(config, doorbells, interrupts)?;
            this.keep_journal(memory)?;
            return Ok(this);
        }
        let state = state.ok_or(StateError::Magic)?;
        if state.serial != serial_of(&config) {
            return Err(StateError::Invalid("it is another tenant's"));
        }
        if state.max_depth != config.max_depth {
            return Err(StateError::Invalid("the most entries that a queue has"));
        }
        let mut this = Self::new(config, doorbells, interrupts)?;
        this.restore_registers(&state)?;
        this.restore_namespaces(&state)?;
        for (qid, saved) in (0..).zip(&state.cqs).filter(|(_, saved)| saved.entries > 0) {
            this.restore_cq(qid, saved, &journal)?;
        }
        for (qid, saved) in (0..).zip(&state.sqs).filter(|(_, saved)| saved.entries > 0) {
            this.restore_sq(qid, saved, &journal)?;
        }
        this.resetting = state.is_resetting != 0;
        let (enabled, admin) = (this.regs.csts.rdy(), this.queues.sq(0).is_some());
        if this.config.part.is_first() {
            // Until a reset is done, it reads as ready, and has no queues any more.
            if enabled != admin && !(enabled && this.resetting) {
                return Err(StateError::Invalid("the admin queue"));
            }
            this.restore_admin(&state)?;
        }
        this.queues.journal = Some(journal);
        this.parts.forget_unless_first();
        Ok(this)
    }

    /// Commands that an earlier process fetched and did not complete, and that are still to be executed again.
    pub fn taken_over(&self) -> usize {
        self.queues.sqs().map(|sq| sq.again.len()).sum()
    }

    /// Goes on after a takeover, once guest memory is mapped as it was. An interrupt for each queue with completions
    /// that the guest has not read is raised at the next `notify`, as one may have been lost.
    pub fn resume(&mut self) {
        for qid in 0..QIDS as u16 {
            self.give_up_deleted(qid);
            self.finish_deletion(qid);
        }
        self.settle();
    }

    /// A queue that is being deleted does nothing again.
    pub(crate) fn give_up_deleted(&mut self, qid: u16) {
        while let Some(sqe) = self.queues.sq(qid).filter(|sq| sq.deleting.is_some()).and_then(Sq::take_again) {
            self.handled(qid, &sqe, Status::ABORTED_SQ_DELETION);
        }
    }

    /// Admin commands that are not completed.
    fn restore_admin(&mut self, state: &ControllerState) -> Result<(), StateError> {
        let len = state.outbox_len as usize;
        self.queues.outbox.extend(state.outbox.get(..len).ok_or(StateError::Invalid("admin completions"))?);
        self.formats = state.formats;
        if !self.config.has_format() && state.running.iter().any(|running| running.format > 0) {
            return Err(StateError::Invalid("a Format goes on, which a controller of several pollers has not"));
        }
        for (nsid, saved) in (1..).zip(&state.running).filter(|(_, saved)| saved.format > 0) {
            self.begin_format_anew(saved.begins(nsid), saved.cid, Status(saved.status));
        }
        if let Some(sq) = self.queues.sq(0).filter(|_| state.is_in_hand != 0) {
            sq.again.push_back(Again { slot: 0, number: 0, sqe: bytemuck::must_cast(state.in_hand) });
        }
        self.recount(0);
        Ok(())
    }

    /// Delete commands that wait.
    fn deleting(&self) -> usize {
        self.queues.sqs().filter(|sq| sq.deleting.is_some()).count() + self.parts.deleting()
    }

    /// Free completion entries of an inherited queue, but for those that are unread: those that are not to come.
    fn recount(&mut self, cqid: u16) {
        let of_commands = self.namespaces.formats().filter_map(|format| Some(format.to_begin_anew()?.0.format));
        let formats = of_commands.collect::<BTreeSet<_>>().len();
        let of_admin = self.queues.outbox.len() + formats + self.deleting();
        let its = self.queues.sqs().filter(|sq| sq.cqid == cqid);
        let to_come: usize =
            its.map(|sq| if sq.at.qid == 0 { of_admin + sq.again.len() } else { sq.in_flight() }).sum();
        if let Some(cq) = self.queues.cq(cqid) {
            let parked = cq.parked.len() as u16;
            cq.free = (cq.at.entries - 1).saturating_sub(to_come as u16 + parked);
        }
    }

    fn restore_registers(&mut self, state: &ControllerState) -> Result<(), StateError> {
        if !state.events.is_sane() {
            return Err(StateError::Invalid("the held event requests"));
        }
        (self.regs.asq, self.regs.acq) = (state.asq, state.acq);
        (self.regs.cc, self.regs.csts, self.regs.aqa) = (Cc(state.cc), Csts(state.csts), Aqa(state.aqa));
        self.regs.int_mask = state.int_mask;
        self.stopped = self.regs.csts.shst() != Csts::SHST_NONE;
        self.cache.assume_unflushed();
        if self.regs.csts.rdy() && !self.regs.cap.offers_ams(self.regs.cc.ams()) {
            return Err(StateError::Invalid("the arbitration mechanism"));
        }
        if !state.features.is_sane() {
            return Err(StateError::Invalid("the weights of queues"));
        }
        (self.features, self.health) = (state.features, state.health);
        self.start_arbitration();
        (self.events, self.errors) = (state.events, state.errors);
        self.pci.load(&state.pci);
        self.irq.control = self.pci.msix_control();
        self.irq.armed = state.irq_armed != 0;
        self.irq.table = state.irq_table;
        self.irq.written = join(state.irq_written);
        self.irq.wire_masked = join(state.irq_wire_masked);
        self.irq.pending = join(state.irq_pending) & ((1 << VECTORS) - 1);
        let pages = ShadowPages { shadow: state.shadow, events: state.shadow_events };
        self.queues.doorbells.pages = (state.has_shadow != 0).then_some(pages);
        Ok(())
    }

    /// What came or went meanwhile, the guest is told.
    fn restore_namespaces(&mut self, state: &ControllerState) -> Result<(), StateError> {
        for (nsid, saved) in (1..).zip(&state.namespaces) {
            let was_there = saved.lba_bytes > 0;
            match self.namespaces.get_mut(nsid) {
                Some(namespace) if was_there => {
                    if !namespace.config().lba_sizes.contains(&saved.lba_bytes) {
                        return Err(StateError::Invalid("a block size"));
                    }
                    namespace.set_lba_bytes(saved.lba_bytes);
                    namespace.error_recovery = saved.error_recovery & ERROR_RECOVERY;
                }
                None if !was_there => {}
                _ => self.namespace_changed(nsid),
            }
        }
        Ok(())
    }

    /// Whether a saved queue is one that this controller could have.
    fn fits(&self, qid: u16, entries: u16, index: u16) -> Result<(), StateError> {
        let most = if qid == 0 { 4096 } else { self.config.max_depth };
        let sized = (2..=most).contains(&entries) && qid <= self.config.max_io_queues;
        if sized && index < entries { Ok(()) } else { Err(StateError::Invalid("a queue's size or index")) }
    }

    fn restore_cq(&mut self, qid: u16, saved: &CqState, journal: &Journal) -> Result<(), StateError> {
        let CqState { iova, entries, vector, interrupts, .. } = *saved;
        let (tail, phase) = match qid {
            // As it was recorded.
            0 => (saved.tail, saved.phase != 0),
            _ => journal.tail(qid).map(|it| (it.tail, it.phase)).ok_or(StateError::Magic)?,
        };
        self.fits(qid, entries, tail)?;
        if vector >= VECTORS {
            return Err(StateError::Invalid("an interrupt vector"));
        }
        let at = Geometry { qid, entries, iova };
        if !self.config.part.has_cq(qid) {
            self.parts.cqs.insert(qid, CqSpec { at, vector, interrupts: interrupts != 0 });
            return Ok(());
        }
        let mut cq = Cq::new(at, vector, interrupts != 0, None);
        (cq.tail, cq.phase, cq.is_inherited) = (tail, phase, true);
        self.queues.insert_cq(cq);
        Ok(())
    }

    fn restore_sq(&mut self, qid: u16, saved: &SqState, journal: &Journal) -> Result<(), StateError> {
        let SqState { iova, entries, cqid, head, priority, is_deleting, deleting_cid, .. } = *saved;
        self.fits(qid, entries, head)?;
        if !self.has_cq(cqid) || (qid == 0) != (cqid == 0) {
            return Err(StateError::Invalid("a submission queue's completion queue"));
        }
        if priority > create::QPRIO_LOW {
            return Err(StateError::Invalid("a submission queue's priority"));
        }
        if !self.config.part.has_cq(cqid) {
            let spec = SqSpec { at: Geometry { qid, entries, iova }, cqid, priority };
            let deleting = (is_deleting != 0).then_some(deleting_cid);
            self.parts.sqs.insert(qid, FarSq { spec, deleting });
            return Ok(());
        }
        let generation = self.next_generation();
        let mut sq = Sq::new(Geometry { qid, entries, iova }, cqid, priority, generation, None);
        (sq.head, sq.tail) = (head, head);
        if qid > 0 {
            let last = journal.tail(cqid).ok_or(StateError::Magic)?;
            let Inherited { parked, given_up } = inherit(&mut sq, last, journal).ok_or(StateError::Magic)?;
            self.queues.cq(cqid).into_iter().for_each(|cq| cq.parked.extend(&parked));
            for (sqe, strikes) in given_up {
                let given_up = GivenUp::new(qid, &sqe, strikes);
                self.log_error(qid, sqe.cid, strikes::STATUS, given_up.blocks.map_or(0, |(lba, _)| lba), sqe.nsid);
                self.wiring_events.push_back(Event::GivenUp(given_up));
            }
            sq.deleting = (is_deleting != 0).then_some(deleting_cid);
        }
        self.queues.insert_sq(sq);
        if is_deleting != 0 {
            self.queues.retire_sq(qid);
        }
        if qid > 0 {
            self.recount(cqid);
        }
        Ok(())
    }
}

/// What is inherited of a submission queue but for what is executed again.
struct Inherited {
    /// Completions to be posted.
    parked: Vec<Parked>,
    /// Commands that get an error, with their strikes.
    given_up: Vec<(Sqe, u16)>,
}

/// Takes over a submission queue's commands in flight, to be executed again in the order in which they were fetched.
fn inherit(sq: &mut Sq, last: Tail, journal: &Journal) -> Option<Inherited> {
    let qid = sq.at.qid;
    let park = |slot, number, cid, status| {
        let entry = Entry::new(0, 0, qid, cid, status);
        Parked { entry, sqid: qid, slot, number }
    };
    let (mut again, mut parked, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
    for slot in 0..sq.at.entries {
        let (word, sqe) = journal.slot(qid, slot)?;
        sq.fetched = sq.fetched.max(word.number());
        match word {
            Word::InFlight(number, _) | Word::Parked(number, _) if last.is_of(qid, slot, number) => {
                journal.set_word(qid, slot, Word::Done(number));
            }
            Word::Unused | Word::Done(_) => {}
            Word::InFlight(number, strikes) if strikes < strikes::MOST => again.push(Again { slot, number, sqe }),
            Word::InFlight(number, strikes) => {
                given_up.push((sqe, strikes));
                parked.push(park(slot, number, sqe.cid, strikes::STATUS));
            }
            Word::Parked(number, status) => parked.push(park(slot, number, sqe.cid, Status(status))),
        }
    }
    again.sort_unstable_by_key(|again| again.number);
    parked.sort_unstable_by_key(|parked| parked.number);
    again.iter().for_each(|again| sq.occupy(again.slot));
    sq.head = (sq.fetched % u64::from(sq.at.entries)) as u16;
    sq.tail = sq.head;
    sq.again = again.into();
    // The head that they tell is the one of now: nothing was fetched since.
    parked.iter_mut().for_each(|parked| parked.entry = parked.entry.with_head(sq.head));
    Some(Inherited { parked, given_up })
}
