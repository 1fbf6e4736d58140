//! The journal: what must outlive the process that serves a guest, in memory that another process keeps.
//!
//! It has the controller's state, and each command that was fetched and not completed.
//!
//! Whatever instruction a process dies at, what it left here and in the guest's rings says what is to be done. A
//! process's stores become visible in their order (x86-64), so it takes an order of stores, and no more:
//!
//! | when | stores, in this order | dead before the last of them |
//! | --- | --- | --- |
//! | fetched | entry; its word: in flight, and the how-many-th of its queue | it was not fetched: it is in the ring still, as no completion has told the guest of a head past it |
//! | completed | completion, phase last; the completion queue's tail, with whose it was; word: done | the ring has a completion at the tail that is noted, of a command in flight: that is done. Or the tail says so |
//! | parked | word: parked, with its status | it is executed again |
//! | ended the process | word: in flight, with one strike more (`strikes`) | it counts nothing |
//! | anything else | the state, into the copy that is not in force; which one is in force; completions of admin commands | the state has those completions, and the ring shows which of them are posted |
//!
//! Executing a command again is right for all that NVM has: it was not completed, so its data are the guest's still.
//!
//! The guest's next server may read it, but believes none of it unchecked: see `recover`.

use std::sync::Arc;

use bytemuck::Zeroable;
use guest_memory::{MappedRange, Mapping};
use nvme_spec::Sqe;
use nvme_spec::entry::SQE_BYTES;

use crate::config::ControllerConfig;
use crate::crash::{self, Swap};
use crate::previous::{self, PREVIOUS_STATE_VERSION};
use crate::queue::Cq;
use crate::queues::QIDS;
use crate::state::{ControllerState, STATE_VERSION, StateError, magic};
use crate::strikes::Listed;
use crate::word::Word;

/// Where the number of the copy in force is.
const IN_FORCE: u64 = 0;
/// One word for each completion queue, on cache lines of their own.
const TAILS: u64 = 64;
const TAIL_BYTES: u64 = 64;
/// The two copies of the state.
const STATES: u64 = (TAILS + QIDS as u64 * TAIL_BYTES).next_multiple_of(4096);
/// Room for a state of either version, so that all that follows has the same place.
const STATE_BYTES: u64 = (previous::BYTES as u64).next_multiple_of(64);
const _: () = assert!(size_of::<ControllerState>() as u64 <= STATE_BYTES);
/// The tables of submission queues: words, then entries.
const TABLES: u64 = (STATES + 2 * STATE_BYTES).next_multiple_of(4096);
const WORD_BYTES: u64 = 8;

/// Length in bytes of a journal for such a controller, in whole pages. Pages of queues that are never made stay
/// untouched.
pub fn journal_bytes(config: &ControllerConfig) -> u64 {
    (TABLES + u64::from(config.max_io_queues) * table_bytes(config.max_depth)).next_multiple_of(4096)
}

fn table_bytes(depth: u16) -> u64 {
    (u64::from(depth) * WORD_BYTES).next_multiple_of(64) + u64::from(depth) * SQE_BYTES
}

/// Above the last command's place, as much of its number as there is room for.
const LAST_SHIFT: u32 = 40;

/// How far a completion queue is posted to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tail {
    pub tail: u16,
    pub phase: bool,
    last: (u16, u16, u64),
}

impl Tail {
    /// Whether the last completion was of that command.
    pub fn is_of(&self, sqid: u16, slot: u16, number: u64) -> bool {
        self.last == (sqid, slot, number << LAST_SHIFT >> LAST_SHIFT)
    }
}

/// The state in force in a journal, of whatever length. `None`: there is none, or of another version.
pub(crate) fn saved_state(journal: &Arc<Mapping>) -> Option<ControllerState> {
    let in_force = MappedRange::new(journal, 0, STATES)?.load_u64(IN_FORCE)?;
    let at = STATES + (in_force & 1) * STATE_BYTES;
    let mut state = ControllerState::zeroed();
    journal.read_at(at, bytemuck::bytes_of_mut(&mut state))?;
    if state.magic == magic(PREVIOUS_STATE_VERSION) {
        let mut bytes = [0; previous::BYTES];
        journal.read_at(at, &mut bytes)?;
        return Some(previous::read(&bytes));
    }
    (state.magic == magic(STATE_VERSION)).then_some(state)
}

/// The writing end, and what a successor reads.
#[derive(Debug)]
pub(crate) struct Journal {
    mapping: Arc<Mapping>,
    memory: MappedRange,
    listed: Listed,
    depth: u64,
    /// Which copy of the state is in force, by its last bit.
    in_force: u64,
}

impl Journal {
    /// An empty one.
    ///
    /// # Errors
    /// `memory` is shorter than [`journal_bytes`], or can't be written.
    pub fn begin(memory: &Arc<Mapping>, config: &ControllerConfig) -> Result<Self, StateError> {
        let mut this = Self::over(memory, config)?;
        this.in_force = 0;
        Ok(this)
    }

    /// A journal that another process began.
    ///
    /// # Errors
    /// As [`Journal::begin`].
    pub fn over(memory: &Arc<Mapping>, config: &ControllerConfig) -> Result<Self, StateError> {
        let range = MappedRange::new(memory, 0, journal_bytes(config)).filter(|_| memory.is_writable());
        let range = range.ok_or(StateError::Invalid("the journal's length"))?;
        let in_force = range.load_u64(IN_FORCE).unwrap_or(0);
        let listed = Listed::new(range.clone());
        Ok(Self { mapping: Arc::clone(memory), memory: range, listed, depth: config.max_depth.into(), in_force })
    }

    /// Whether nothing was ever put in force.
    pub fn is_blank(&self) -> bool {
        let mut copy = [0; STATE_BYTES as usize];
        self.in_force == 0 && self.mapping.read_at(STATES, &mut copy).is_some() && copy.iter().all(|byte| *byte == 0)
    }

    /// Puts another state in force, whole or not at all.
    pub fn record(&mut self, state: &ControllerState) {
        let next = self.in_force.wrapping_add(1);
        crash::point();
        // Its length was checked, and it is memory of our own.
        let _ = self.mapping.write_at(STATES + (next & 1) * STATE_BYTES, bytemuck::bytes_of(state));
        self.store(IN_FORCE, next);
        self.in_force = next;
    }

    /// A command was read from its ring.
    #[inline]
    pub fn fetched(&self, sqid: u16, slot: u16, sqe: &Sqe, number: u64) {
        if crash::is_swapped(Swap::WordBeforeEntry) {
            self.set_word(sqid, slot, Word::InFlight(number, 0));
        }
        crash::point();
        // Its length was checked, and it is memory of our own.
        let _ = self.memory.write_64(self.entry_at(sqid, slot), bytemuck::must_cast_ref(sqe));
        self.set_word(sqid, slot, Word::InFlight(number, 0));
    }

    /// This thread handles the command of that place from now on.
    #[inline]
    pub fn take_in_hand(&self, sqid: u16, slot: u16) {
        self.listed.take_in_hand(self.word_at(sqid, slot));
    }

    /// A place of a submission queue's table has changed.
    #[inline]
    pub fn set_word(&self, sqid: u16, slot: u16, word: Word) {
        self.store(self.word_at(sqid, slot), word.bits());
    }

    /// What a place of a submission queue's table has, and the entry that was fetched into it.
    pub fn slot(&self, sqid: u16, slot: u16) -> Option<(Word, Sqe)> {
        let mut sqe = Sqe::zeroed();
        let word = Word::of(self.memory.load_u64(self.word_at(sqid, slot))?);
        self.memory.read_64(self.entry_at(sqid, slot), bytemuck::must_cast_mut(&mut sqe))?;
        Some((word, sqe))
    }

    /// A submission queue begins. What an earlier one of its number left is forgotten.
    pub fn clear(&self, sqid: u16, entries: u16) {
        (0..entries).for_each(|slot| self.set_word(sqid, slot, Word::Unused));
    }

    /// The completion of a command is in its ring, as the last one there.
    #[inline]
    pub fn completed(&self, cq: &Cq, command: (u16, u16, u64)) {
        self.posted(cq, command);
        let (sqid, slot, number) = command;
        self.set_word(sqid, slot, Word::Done(number));
    }

    /// So far a completion queue has been posted to, the last time for a command of that submission queue, in that
    /// place and of that number: it is done, whatever its word says.
    #[inline]
    pub fn posted(&self, cq: &Cq, (sqid, slot, number): (u16, u16, u64)) {
        let last = u64::from(sqid) << 17 | u64::from(slot) << 24 | number << LAST_SHIFT;
        let tail = u64::from(cq.phase) << 16 | u64::from(cq.tail);
        self.store(TAILS + u64::from(cq.at.qid) * TAIL_BYTES, last | tail);
    }

    /// The tail of a completion queue as it was recorded.
    pub fn tail(&self, cqid: u16) -> Option<Tail> {
        let bits = self.memory.load_u64(TAILS + u64::from(cqid) * TAIL_BYTES)?;
        let (sqid, slot, number) = ((bits >> 17 & 0x7f) as u16, (bits >> 24) as u16, bits >> LAST_SHIFT);
        Some(Tail { tail: bits as u16, phase: bits >> 16 & 1 != 0, last: (sqid, slot, number) })
    }

    #[inline]
    fn store(&self, at: u64, bits: u64) {
        crash::point();
        // Its length was checked, and it is memory of our own.
        let _ = self.memory.store_u64(at, bits);
    }

    fn table(&self, sqid: u16) -> u64 {
        TABLES + u64::from(sqid.saturating_sub(1)) * table_bytes(self.depth as u16)
    }

    fn word_at(&self, sqid: u16, slot: u16) -> u64 {
        self.table(sqid) + u64::from(slot) * WORD_BYTES
    }

    fn entry_at(&self, sqid: u16, slot: u16) -> u64 {
        self.table(sqid) + (self.depth * WORD_BYTES).next_multiple_of(64) + u64::from(slot) * SQE_BYTES
    }
}
