//! Calls into the controller, each followed by a look at what it did.

use std::sync::Arc;

use guest_memory::{Access, SpaceError};
use io_model::{Fetch, IoBuf, Op, Source, Token};
use nvme_controller::{Controller, EraseRecord, Event};
use nvme_spec::feature::fid;
use nvme_spec::identify::IDENTIFY_BYTES;
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::regs::{Cc, Csts, Reg};
use nvme_spec::{Sqe, Status};

use super::{Flight, IO_QUEUES, Wires, World};
use crate::commands::disk::{Answer, Bug};
use crate::commands::meaning::{Context, Meaning, Part, admin_data};
use crate::commands::model::{Cq, Model, Sq, State, Verdict};
use crate::commands::ram::{Piece, SLOTS};

/// The VQ that all I/O queues are under weighted arbitration.
const TOGETHER: u16 = 1;

/// Bytes of an answer that one look's admin work writes.
const ADMIN_LOOK_BYTES: u64 = 16 << 10;

/// Bytes of a Host Behavior Support data structure.
const HOST_BEHAVIOR_BYTES: u64 = 512;

impl World {
    /// Calls the controller.
    pub(super) fn call<T>(&mut self, call: impl FnOnce(&mut Controller<Wires>) -> T) -> T {
        self.look();
        let result = call(&mut self.controller);
        self.after_call();
        result
    }

    fn look(&mut self) {
        let bells = Arc::clone(&self.bells);
        self.model.look(&self.ram, |qid, is_head| {
            let mut out = [0; 4];
            bells.read_at(8 * u64::from(qid) + if is_head { 4 } else { 0 }, &mut out).expect("in the page");
            u32::from_le_bytes(out)
        });
    }

    /// Looks at everything that the controller may have done.
    pub(super) fn after_call(&mut self) {
        if self.resetting && self.controller.is_idle() {
            self.resetting = false;
        }
        while let Some(event) = self.controller.take_event() {
            let Event::Erase(record) = event else { continue };
            // A Sanitize is no part of the model: it fails.
            let format = if let EraseRecord::Format(format) = record { Some(format) } else { None };
            self.controller.recorded(record, format.is_some());
            format.into_iter().for_each(|format| self.recorded(format));
        }
        self.check_detached();
        let (enabled, csts) = (Cc(self.reg32(Reg::Cc)).en(), self.csts());
        if !self.resetting {
            assert!(enabled || !csts.rdy(), "ready, and not enabled");
            if enabled && csts.rdy() && self.model.sqs.is_empty() {
                self.add_admin_queues();
            }
        }
        if self.shut_down && self.controller.is_idle() {
            assert_eq!(csts.shst(), Csts::SHST_DONE, "a shutdown does not end");
        }
        self.blur(&[]);
        self.allow_event_indexes();
        self.model.end_deletions();
        self.model.collect(&mut self.ram);
        while let Some((iova, len_bytes)) = self.controller.take_unmapped(&mut ()) {
            self.quiet(iova, len_bytes);
        }
    }

    /// `written`: what the device writes now, besides what is in flight.
    fn blur(&mut self, written: &[(usize, Piece)]) {
        let reads = self.flights.iter().filter(|flight| matches!(flight.part, Part::Read { .. }));
        let pieces = reads.flat_map(|flight| flight.part.pieces()).chain(written);
        self.model.blur(&self.ram, pieces.map(|(_, piece)| piece));
    }

    /// Event indexes may change at any time.
    fn allow_event_indexes(&mut self) {
        let Some((_, events)) = self.model.pages else { return };
        if let Some(piece) = self.ram.one(events, 8 * (u64::from(IO_QUEUES) + 1), Access::Write) {
            self.ram.allow(&piece);
        }
    }

    /// Shadow doorbells change when queues come and when they are set up.
    fn allow_shadow(&mut self) {
        let Some((shadow, _)) = self.model.pages else { return };
        if let Some(piece) = self.ram.one(shadow, 8 * (u64::from(IO_QUEUES) + 1), Access::Write) {
            self.ram.allow(&piece);
        }
    }

    /// A range is reported as quiet: nothing in flight may use it.
    fn quiet(&mut self, iova: u64, len_bytes: u64) {
        let used = |pin: &(usize, u32)| self.flights.iter().any(|flight| flight.pins.contains(pin));
        let quiet = |pin: &(usize, u32)| (SLOTS[pin.0].iova, SLOTS[pin.0].len_bytes) == (iova, len_bytes) && !used(pin);
        let at = self.retired.iter().position(quiet);
        let at = at.unwrap_or_else(|| panic!("{iova:#x} is reported as quiet, but a command in flight uses it"));
        self.retired.swap_remove(at);
    }

    pub(super) fn map(&mut self, slot: usize, elsewhere: bool) {
        let mapping = self.ram.mapping(slot, elsewhere);
        let at = &SLOTS[slot];
        let was = self.ram.is_mapped(slot);
        if !was {
            self.ram.set_mapped(slot, elsewhere);
            // Parked completions may appear at once.
            let rings = self.model.cqs.keys().filter_map(|qid| self.model.cq_ring(&self.ram, *qid));
            for ring in rings.collect::<Vec<_>>() {
                Model::poison(&mut self.ram, &ring);
            }
            self.blur(&[]);
        }
        let result = self.call(|controller| controller.dma_map(at.iova, at.len_bytes, mapping, &mut ()));
        assert_eq!(result, if was { Err(SpaceError::Overlap) } else { Ok(()) }, "mapping slot {slot}");
    }

    pub(super) fn retire(&mut self, slot: usize) {
        self.retired.push((slot, self.ram.incarnations[slot]));
        self.ram.set_unmapped(slot);
    }

    pub(super) fn unmap(&mut self, slot: usize) {
        let at = &SLOTS[slot];
        let was = self.ram.is_mapped(slot);
        if was {
            self.retire(slot);
        }
        let result = self.call(|controller| controller.dma_unmap(at.iova, at.len_bytes));
        assert_eq!(result, Ok(()), "unmapping slot {slot}");
    }

    pub(super) fn unmap_all(&mut self) {
        for slot in (0..SLOTS.len()).filter(|slot| self.ram.is_mapped(*slot)).collect::<Vec<_>>() {
            self.retire(slot);
        }
        self.call(Controller::dma_unmap_all);
    }

    /// Asks for the backlog and fetches. Returns whether there was anything.
    pub(super) fn fetch(&mut self, qid: u16) -> bool {
        let vq = self.vq_of(qid);
        let backlog = self.call(|controller| controller.backlog(vq));
        if self.is_together() && qid > 0 { self.fetch_any(backlog) } else { self.fetch_of(qid, backlog) }
    }

    /// Fetches on the strength of an earlier look.
    pub(super) fn fetch_blindly(&mut self, qid: u16) -> bool {
        if self.is_together() && qid > 0 { self.fetch_any(0) } else { self.fetch_of(qid, 0) }
    }

    /// Whether the guest's I/O queues are one VQ, and the controller picks among them.
    fn is_together(&self) -> bool {
        let ams = Cc(self.reg32(Reg::Cc)).ams();
        !self.config.queues_singly && ams != Cc::AMS_ROUND_ROBIN && !self.model.sqs.is_empty()
    }

    fn vq_of(&self, qid: u16) -> u16 {
        if self.is_together() { qid.min(TOGETHER) } else { qid }
    }

    /// Fetches from whichever I/O queue has its turn, and finds out which one that was.
    fn fetch_any(&mut self, backlog: u32) -> bool {
        let qids = self.model.sqs.keys().copied().filter(|qid| *qid > 0);
        let heads: Vec<(u16, Sqe)> = qids.filter_map(|qid| Some((qid, self.model.peek(&self.ram, qid)?))).collect();
        self.look();
        for part in [TOGETHER + 1, IO_QUEUES] {
            assert_eq!(self.controller.backlog(part), 0, "VQ {part} is a part of another one");
        }
        let before = self.controller.stats();
        let fetched = self.controller.fetch(TOGETHER);
        let after = self.controller.stats();
        let (commands, rejected) = (after.commands - before.commands, after.rejected - before.rejected);
        assert!(!(self.shut_down && self.csts().shst() == Csts::SHST_DONE) || matches!(fetched, Fetch::Empty));
        let rejected = rejected == 1;
        let qid = match &fetched {
            Fetch::Command(_, _, token) => Some(token.vq()),
            Fetch::Handled => self.who_was_answered(&heads, rejected),
            Fetch::Empty => {
                let waits = heads.iter().any(|(_, sqe)| [nvm::COMPARE, nvm::VERIFY].contains(&sqe.opc));
                assert!(backlog == 0 || waits, "a backlog of {backlog}, and nothing to fetch");
                assert_eq!(commands, 0, "a command was taken and came to nothing");
                self.after_call();
                return false;
            }
        };
        match qid {
            // Several could have been answered, where nobody can see it: the guest gives up on its device.
            None => return self.give_up(),
            Some(qid) if commands == 1 => {
                let head = heads.iter().find(|(other, _)| *other == qid);
                let (_, sqe) = head.unwrap_or_else(|| panic!("a command of queue {qid}, which can't be reached"));
                self.model.fetched(qid);
                self.took(qid, sqe, rejected, fetched);
            }
            Some(qid) => self.took_next(qid, fetched),
        }
        self.after_call();
        true
    }

    /// Which queue's command was answered at once, by the completion that came, or because it could be no other.
    fn who_was_answered(&self, heads: &[(u16, Sqe)], rejected: bool) -> Option<u16> {
        let context = Context { ram: &self.ram, config: &self.config, namespaces: &self.namespaces };
        let fits = |(qid, sqe): &&(u16, Sqe)| {
            let meaning = context.io(sqe);
            let same = if rejected {
                matches!(meaning, Meaning::Rejected)
            } else {
                matches!(meaning, Meaning::Nothing | Meaning::Device(Part::Flush))
            };
            same && self.model.sqs[qid].may_yield()
        };
        let able: Vec<u16> = heads.iter().filter(fits).map(|(qid, _)| *qid).collect();
        assert!(!able.is_empty(), "a command was answered at once (rejected: {rejected}), but {heads:?} were waiting");
        let answered = able.iter().copied().find(|qid| self.model.newest_is_of(&self.ram, *qid));
        answered.or_else(|| (able.len() == 1).then(|| able[0]))
    }

    fn give_up(&mut self) -> bool {
        self.allow_event_indexes();
        let rings: Vec<Piece> = self.model.cqs.keys().filter_map(|qid| self.model.cq_ring(&self.ram, *qid)).collect();
        rings.iter().for_each(|ring| self.ram.allow(ring));
        self.forget();
        self.call(Controller::reset);
        false
    }

    /// `backlog`: what the controller says it has.
    fn fetch_of(&mut self, qid: u16, backlog: u32) -> bool {
        self.prepare_ring(qid);
        let sqe = self.model.peek(&self.ram, qid);
        let over = self.shut_down && self.csts().shst() == Csts::SHST_DONE;
        self.look();
        let before = self.controller.stats();
        let fetched = if qid == 0 { self.fetch_own(sqe.as_ref()) } else { self.controller.fetch(qid) };
        let after = self.controller.stats();
        let (commands, rejected) = (after.commands - before.commands, after.rejected - before.rejected);
        assert!(commands <= 1 && rejected <= commands, "one fetch, {commands} commands, {rejected} rejected");
        if commands == 1 {
            assert!(!over, "a command was fetched after the shutdown");
            let sqe = sqe.unwrap_or_else(|| panic!("a command of queue {qid}, whose memory can't be reached"));
            self.model.fetched(qid);
            self.took(qid, &sqe, rejected == 1, fetched);
        } else {
            let any = !matches!(fetched, Fetch::Empty);
            assert!(!over || !any, "device work after the shutdown");
            // Compare and Verify may have to wait for memory.
            let waits = sqe.is_some_and(|sqe| [nvm::COMPARE, nvm::VERIFY].contains(&sqe.opc));
            assert!(any || backlog == 0 || waits, "queue {qid}: a backlog of {backlog}, and nothing to fetch");
            self.took_next(qid, fetched);
            self.after_call();
            return any;
        }
        self.after_call();
        true
    }

    /// A device command of the controller's own, or one look's admin work. A long answer gets all looks that it takes.
    fn fetch_own(&mut self, head: Option<&Sqe>) -> Fetch {
        let own = self.controller.fetch(0);
        if !matches!(own, Fetch::Empty) {
            return own;
        }
        let before = self.controller.stats();
        if self.controller.service() == 0 {
            return Fetch::Empty;
        }
        let after = self.controller.stats();
        let answered = after.commands > before.commands && after.rejected == before.rejected;
        let log = head.filter(|sqe| answered && sqe.opc == admin::GET_LOG_PAGE);
        for _ in 1..log.map_or(0, |sqe| log_bytes(sqe).div_ceil(ADMIN_LOOK_BYTES)) {
            assert_eq!(self.controller.service(), 1, "an answer ends early");
        }
        Fetch::Handled
    }

    /// The guest cleans the memory of a completion queue that it is about to create.
    fn prepare_ring(&mut self, qid: u16) {
        let Some(sqe) = self.model.peek(&self.ram, qid).filter(|sqe| qid == 0 && sqe.opc == admin::CREATE_CQ) else {
            return;
        };
        let bytes = (u64::from(sqe.cdw10 >> 16) + 1) * 16;
        if let Some(ring) = self.ram.one(sqe.dptr[0], bytes, Access::Write) {
            Model::poison(&mut self.ram, &ring);
        }
    }

    /// The controller took this command out of its ring.
    fn took(&mut self, qid: u16, sqe: &Sqe, rejected: bool, fetched: Fetch) {
        if qid == 0 {
            assert!(matches!(fetched, Fetch::Handled), "an admin command went to the device: {fetched:?}");
            if rejected {
                self.model.start(0, sqe.cid, State::Due, Verdict::Failure);
            } else {
                self.took_admin(sqe);
            }
            return;
        }
        let context = Context { ram: &self.ram, config: &self.config, namespaces: &self.namespaces };
        let meaning = context.io(sqe);
        assert_eq!(rejected, matches!(meaning, Meaning::Rejected), "{sqe:?} means {meaning:?}; rejected: {rejected}");
        match (meaning, fetched) {
            (Meaning::Rejected, Fetch::Handled) => {
                self.model.start(qid, sqe.cid, State::Due, Verdict::Failure);
            }
            // Without a volatile cache there is nothing to flush.
            (Meaning::Nothing | Meaning::Device(Part::Flush), Fetch::Handled) => {
                self.model.start(qid, sqe.cid, State::Due, Verdict::Success);
            }
            (Meaning::Device(part), Fetch::Command(command, buf, token)) => {
                if let Part::Read { into, .. } = &part {
                    self.blur(&into.clone());
                }
                let serial = self.model.start(qid, sqe.cid, State::Device(1), Verdict::Any);
                self.fly(qid, (command, buf, token), part, Some(serial));
            }
            (Meaning::Stream(parts), fetched @ Fetch::Command(..)) => {
                let serial = self.model.start(qid, sqe.cid, State::Device(parts.len()), Verdict::Any);
                if let Some(sq) = self.model.sqs.get_mut(&qid) {
                    sq.stream = Some((serial, parts.into()));
                }
                self.took_next(qid, fetched);
            }
            (meaning, fetched) => panic!("{sqe:?} means {meaning:?}, and became {fetched:?}"),
        }
    }

    /// A fetch that took no command out of a ring: the next part of one that was taken before.
    fn took_next(&mut self, qid: u16, fetched: Fetch) {
        let (command, buf, token) = match fetched {
            Fetch::Command(command, buf, token) => (command, buf, token),
            // A look that pays for what an earlier one cost.
            Fetch::Handled if qid == 0 => return,
            Fetch::Handled => panic!("queue {qid}: something was handled, but no command was taken"),
            Fetch::Empty => return,
        };
        // For a guest that shut down or left.
        if qid == 0 && command.op == Op::Flush {
            return self.fly(qid, (command, buf, token), Part::Flush, None);
        }
        if let Some((part, serial)) = self.next_erase(&command).filter(|_| qid == 0) {
            return self.fly(qid, (command, buf, token), part, Some(serial));
        }
        let stream = self.model.sqs.get_mut(&qid).and_then(|sq| sq.stream.as_mut());
        let next = stream.and_then(|(serial, parts)| Some((*serial, parts.pop_front()?)));
        let (serial, part) = next.unwrap_or_else(|| panic!("queue {qid}: {command:?} belongs to no command"));
        self.fly(qid, (command, buf, token), part, Some(serial));
    }

    fn fly(
        &mut self,
        qid: u16,
        (command, buf, token): (io_model::Command, IoBuf, Token),
        part: Part,
        owner: Option<u64>,
    ) {
        assert_eq!(token.vq(), qid, "a token of another queue");
        let pins = part.pieces().iter().map(|(slot, _)| (*slot, self.ram.incarnations[*slot])).collect();
        self.flights.push(Flight { token, command, buf, part, owner, pins });
    }

    /// An admin command that was accepted.
    fn took_admin(&mut self, sqe: &Sqe) {
        let (state, verdict) = match sqe.opc {
            admin::ASYNC_EVENT_REQUEST => (State::Held, Verdict::Any),
            admin::DELETE_SQ => (State::Deleting(sqe.cdw10 as u16), Verdict::Success),
            admin::FORMAT_NVM => (State::Formatting, Verdict::Any),
            admin::SANITIZE => (State::Due, Verdict::Any),
            _ => (State::Due, Verdict::Success),
        };
        let serial = self.model.start(0, sqe.cid, state, verdict);
        let (qid, entries) = (sqe.cdw10 as u16, (sqe.cdw10 >> 16) as u16);
        match sqe.opc {
            admin::CREATE_CQ => {
                let cq = Cq::new(entries.saturating_add(1), sqe.dptr[0]);
                assert!(self.model.cqs.insert(qid, cq).is_none(), "queue {qid} was created twice");
                self.allow_shadow();
            }
            admin::CREATE_SQ => {
                let sq = Sq::new((sqe.cdw11 >> 16) as u16, entries.saturating_add(1), sqe.dptr[0]);
                assert!(self.model.cqs.contains_key(&sq.cqid), "a submission queue without completion queue");
                assert!(self.model.sqs.insert(qid, sq).is_none(), "queue {qid} was created twice");
                self.allow_shadow();
            }
            admin::DELETE_CQ => {
                let used = self.model.sqs.values().any(|sq| sq.cqid == qid);
                assert!(self.model.cqs.remove(&qid).is_some() && !used, "queue {qid} can't be deleted");
            }
            admin::DELETE_SQ => self.delete_sq(qid),
            admin::DOORBELL_BUFFER_CONFIG => {
                self.model.pages = Some((sqe.dptr[0], sqe.dptr[1]));
                self.allow_shadow();
            }
            admin::FORMAT_NVM => self.begin_formats(sqe, serial),
            admin::IDENTIFY => self.given(sqe, IDENTIFY_BYTES as u64),
            admin::GET_LOG_PAGE => {
                self.given(sqe, log_bytes(sqe));
            }
            admin::GET_FEATURES if sqe.cdw10 as u8 == fid::HOST_BEHAVIOR && sqe.cdw10 >> 8 & 7 != 3 => {
                self.given(sqe, HOST_BEHAVIOR_BYTES);
            }
            _ => {}
        }
    }

    /// An answer of this many bytes was written to the place that the command names.
    fn given(&mut self, sqe: &Sqe, len_bytes: u64) {
        let pieces = admin_data(&self.ram, sqe, len_bytes, Access::Write);
        let pieces = pieces.unwrap_or_else(|| panic!("{sqe:?} was answered, but names no memory"));
        self.blur(&pieces);
        // A completion queue that can be told apart shares no byte with them.
        pieces.iter().for_each(|(_, piece)| self.ram.allow(piece));
    }

    fn delete_sq(&mut self, qid: u16) {
        let sq = self.model.sqs.get_mut(&qid).unwrap_or_else(|| panic!("queue {qid} does not exist"));
        sq.deleting = true;
        if let Some((serial, parts)) = sq.stream.take() {
            parts.iter().for_each(|_| self.model.part_done(serial, Verdict::Failure));
        }
    }

    /// The device ends one of its commands.
    pub(super) fn finish_one(&mut self, which: usize, answer: Answer) {
        if self.flights.is_empty() {
            return;
        }
        let Flight { token, command, buf, part, owner, .. } = self.flights.swap_remove(which % self.flights.len());
        let equal = self.disk.execute(&command, &buf, &part, answer, &mut self.ram);
        let verdict = match (&part, answer.outcome) {
            (_, Err(_)) => Verdict::Failure,
            (Part::Compare { .. }, Ok(())) if !equal => Verdict::Exactly(Status::COMPARE_FAILURE),
            (_, Ok(())) => Verdict::Success,
        };
        if let Some(serial) = owner {
            self.model.part_done(serial, verdict);
            self.format_step_done(u32::from(command.disk) + 1, serial, verdict);
        }
        self.look();
        match self.disk.bug {
            Some(Bug::LosesCompletion) => {
                token.spend();
            }
            Some(Bug::CompletesTwice) => {
                let (vq, generation, id) = token.spend();
                self.controller.complete(Token::new(vq, generation, id), answer.outcome, buf);
                self.controller.complete(Token::new(vq, generation, id), answer.outcome, IoBuf::default());
            }
            _ => self.controller.complete(token, answer.outcome, buf),
        }
        self.after_call();
    }
}

/// How much a Get Log Page asks for.
fn log_bytes(sqe: &Sqe) -> u64 {
    let dwords = u64::from(sqe.cdw10 >> 16) | u64::from(sqe.cdw11 & 0xffff) << 16;
    (dwords + 1) * 4
}
