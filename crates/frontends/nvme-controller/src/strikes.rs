//! Which journalled command a thread handles, so that a panic there counts against that command.
//!
//! A command that ends the process would end each one that executes it again. So the journal has a number of strikes
//! for it, which [`strike`] raises from the panic itself; at [`MOST`] a successor ends the command with an error.
//! Nothing else counts: neither a kill from outside, nor a panic in a thread that has no command in hand.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use guest_memory::MappedRange;
use nvme_spec::opcode::nvm;
use nvme_spec::{Sqe, Status};

use crate::word::Word;

/// The number of processes that a command may end. The first may have had another reason; two are no chance.
pub(crate) const MOST: u16 = 2;

/// What the guest gets for such a command. It would end the daemon again.
pub(crate) const STATUS: Status = Status::INTERNAL_ERROR.dnr();

thread_local! {
    /// A journal's number from 1, and where in it the command's word is. 0: no command.
    static IN_HAND: Cell<u64> = const { Cell::new(0) };
}

/// The journals of this process's controllers, by their number.
static JOURNALS: Mutex<Vec<Option<MappedRange>>> = Mutex::new(Vec::new());

/// A journal's place among those of this process. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Listed(usize);

impl Listed {
    pub fn new(journal: MappedRange) -> Self {
        let mut journals = JOURNALS.lock().unwrap_or_else(PoisonError::into_inner);
        let at = journals.iter().position(Option::is_none).unwrap_or(journals.len());
        if at == journals.len() {
            journals.push(None);
        }
        journals[at] = Some(journal);
        Self(at)
    }

    /// This thread handles the command whose word is there, until [`let_go`].
    #[inline]
    pub fn take_in_hand(&self, word_at: u64) {
        IN_HAND.set((self.0 as u64 + 1) << 32 | word_at & u64::from(u32::MAX));
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut journals = JOURNALS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = journals.get_mut(self.0) {
            *place = None;
        }
    }
}

/// This thread handles no command any more.
#[inline]
pub(crate) fn let_go() {
    IN_HAND.set(0);
}

/// Counts that this process ends by what the calling thread does now, against the command that it has in hand. For a
/// panic hook or a signal handler: it neither waits nor allocates, and counts once.
pub fn strike() {
    let Ok(in_hand) = IN_HAND.try_with(Cell::take) else { return };
    let (number, word_at) = (in_hand >> 32, in_hand & u64::from(u32::MAX));
    let Some(at) = number.checked_sub(1) else { return };
    // Another thread may just add a journal. Then the next process executes the command once more.
    let Ok(journals) = JOURNALS.try_lock() else { return };
    let Some(Some(journal)) = journals.get(at as usize) else { return };
    if let Some(Word::InFlight(command, strikes)) = journal.load_u64(word_at).map(Word::of) {
        // Its length was checked, and it is memory of our own.
        let _ = journal.store_u64(word_at, Word::InFlight(command, strikes.saturating_add(1)).bits());
    }
}

/// A command that is not executed again, since it ended the processes that did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenUp {
    /// Its submission queue.
    pub qid: u16,
    /// Its opcode.
    pub opc: u8,
    /// Its namespace.
    pub nsid: u32,
    /// Its first logical block and their number. `None`: it has none.
    pub blocks: Option<(u64, u32)>,
    /// Processes that it ended.
    pub strikes: u16,
}

impl GivenUp {
    pub(crate) fn new(qid: u16, sqe: &Sqe, strikes: u16) -> Self {
        let has_blocks = !matches!(sqe.opc, nvm::FLUSH | nvm::DATASET_MANAGEMENT);
        let blocks = has_blocks.then(|| (sqe.slba(), u32::from(sqe.nlb()) + 1));
        Self { qid, opc: sqe.opc, nsid: sqe.nsid, blocks, strikes }
    }
}

impl std::fmt::Display for GivenUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { qid, opc, nsid, blocks, strikes } = self;
        write!(f, "a command of queue {qid} (opcode {opc:#04x}, namespace {nsid}")?;
        if let Some((lba, count)) = blocks {
            write!(f, ", LBAs {lba} to {}", lba.saturating_add(u64::from(*count) - 1))?;
        }
        write!(f, ") ended the daemon {strikes} times and is not executed again: it gets an error")
    }
}
