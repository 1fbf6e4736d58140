//! A front end whose disks lie in pieces, and whose commands may be of any length.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use guest_memory::IoBuf;

use crate::piece_map::{Awaited, Step};
use crate::{Command, DeviceError, Extents, Fetch, Held, Nanos, Op, Outcome, Passage, QueuePriority, Source, Token};

/// Data of a command beyond this leaves in parts, so that its neighbours' commands get between them.
const PART_BYTES: u64 = 1 << 20;

/// Puts a source's commands where its disks lie on the drive. The source makes them with [`Place`](crate::Place)s at 0.
///
/// A command across the edge of a range, or with more than 1 MiB of data, leaves in parts, one per
/// [`fetch`](Source::fetch). It ends once all parts are back, with the first failure of them. A VQ that leaves stays
/// live until the last part of its command is fetched; so the source, which waits for its commands, need not know.
///
/// A part that touches a [held](crate::HeldRange) range is fetched once it is released. Commands behind it in its VQ
/// wait, too. A part that waits for pieces of a thin disk holds up no others.
pub struct Placed<S> {
    source: S,
    disks: Vec<Extents>,
    /// Bit `i`: a command of VQ `i` has parts to be fetched.
    unfinished: u128,
    /// Bit `i`: a command of VQ `i` waits for pieces.
    parked: u128,
    /// What tokens of parts stand for; a free entry is `None`.
    splits: Vec<Option<Split>>,
    /// Commands of thin disks and parts that were fetched and have not ended, by the epoch of their fetch.
    in_flight: [u32; 2],
    /// 0 or 1.
    epoch: usize,
    /// Dropped once all commands of the epoch before have ended.
    until_quiet: Vec<Witness>,
    /// As `until_quiet`, once the present epoch ends.
    until_next_quiet: Vec<Witness>,
}

/// Is dropped when something has ended.
pub type Witness = Arc<dyn Any + Send + Sync>;

/// A command in parts.
#[derive(Debug)]
struct Split {
    whole: Command,
    buf: IoBuf,
    token: Token,
    /// So much of it was fetched.
    fetched_bytes: u64,
    in_flight: u32,
    outcome: Outcome,
    /// Of parts in flight, and some that have ended.
    passages: Vec<Passage>,
    /// Pieces that its next part waits for.
    awaited: Option<Awaited>,
    /// There are no such pieces: it ends with the next fetch, so that the poller tells the guest.
    refused: Option<Outcome>,
}

impl<S> Placed<S> {
    /// `disks` in the order of [`Command::disk`].
    pub fn new(source: S, disks: Vec<Extents>) -> Self {
        Self {
            source,
            disks,
            unfinished: 0,
            parked: 0,
            splits: Vec::new(),
            in_flight: [0; 2],
            epoch: 0,
            until_quiet: Vec::new(),
            until_next_quiet: Vec::new(),
        }
    }

    /// Puts commands from now on where `extents` say. Commands in flight go on where they are, so a disk may grow or be
    /// new, but what it has stays where it lies.
    pub fn set_disk(&mut self, disk: u16, extents: Extents) {
        let at = usize::from(disk);
        if at >= self.disks.len() {
            self.disks.resize_with(at + 1, || Extents::new([]));
        }
        self.disks[at] = extents;
    }

    /// Drops `witness` once all commands of thin disks that were fetched before this call have ended: no command uses
    /// pieces that were taken from the disks before. Call [`settle`](Self::settle) until that.
    pub fn drop_when_quiet(&mut self, witness: Witness) {
        self.until_next_quiet.push(witness);
        self.settle();
    }

    /// Drops what waits for commands that have ended. `true`: something waits on.
    pub fn settle(&mut self) -> bool {
        if self.until_quiet.is_empty() && self.until_next_quiet.is_empty() {
            return false;
        }
        for _ in 0..2 {
            if self.in_flight[1 - self.epoch] == 0 {
                self.until_quiet = std::mem::take(&mut self.until_next_quiet);
                self.epoch = 1 - self.epoch;
            }
        }
        !self.until_quiet.is_empty() || !self.until_next_quiet.is_empty()
    }
}

impl<S: Source> Placed<S> {
    /// Almost always nothing is unfinished. Only then a shift by `vq` bits, which is slow, is needed.
    #[inline]
    fn has_unfinished(&self, vq: u16) -> bool {
        self.unfinished != 0 && self.unfinished >> vq & 1 != 0
    }

    /// Whether something waits for a held range or for pieces: nothing tells when they come.
    pub fn waits(&self) -> bool {
        self.parked != 0 || self.unfinished != 0 && (0..128).any(|vq| self.has_unfinished(vq) && self.is_held(vq))
    }

    /// The command of a VQ that has parts to be fetched.
    fn unfinished_of(&self, vq: u16) -> Option<usize> {
        let is_its = |split: &Split| split.token.vq() == vq && split.is_ready();
        self.splits.iter().position(|entry| entry.as_ref().is_some_and(is_its))
    }

    /// Whether the next part of a VQ's command has to wait.
    #[cold]
    fn is_held(&self, vq: u16) -> bool {
        let Some(split) = self.unfinished_of(vq).and_then(|at| self.splits[at].as_ref()) else { return false };
        let held =
            self.disks.get(usize::from(split.whole.disk)).and_then(|extents| extents.held().zip(split.next(extents)));
        held.is_some_and(|(held, (at_bytes, step))| held.delays(at_bytes, step.len_bytes()))
    }

    /// A command that takes more than a look-up: its first part, or its end if the disk has not all of it.
    #[cold]
    fn split(&mut self, whole: Command, buf: IoBuf, token: Token) -> Fetch {
        let vq = token.vq();
        let size_bytes = self.disks.get(usize::from(whole.disk)).map_or(0, Extents::size_bytes);
        let end_bytes = whole.tenant_offset_bytes.checked_add(whole.len_bytes);
        if !end_bytes.is_some_and(|end| 0 < end && end <= size_bytes) {
            self.source.complete(token, Err(DeviceError::OutOfRange), buf);
            return Fetch::Handled;
        }
        let split = Split {
            whole,
            buf,
            token,
            fetched_bytes: 0,
            in_flight: 0,
            outcome: Ok(()),
            passages: Vec::new(),
            awaited: None,
            refused: None,
        };
        match self.splits.iter_mut().find(|entry| entry.is_none()) {
            Some(free) => *free = Some(split),
            None => self.splits.push(Some(split)),
        }
        self.unfinished |= 1 << vq;
        self.next_part(vq)
    }

    /// Commands whose pieces are there go on.
    #[cold]
    fn unpark(&mut self) {
        self.parked = 0;
        for at in 0..self.splits.len() {
            let Some(split) = &mut self.splits[at] else { continue };
            let Some(answer) = split.awaited.as_ref().map(Awaited::answer) else { continue };
            let vq = 1 << split.token.vq();
            match answer {
                None => self.parked |= vq,
                Some(answer) => {
                    // A discard is no promise.
                    let outcome = if split.whole.op == Op::Discard { Ok(()) } else { answer };
                    split.refused = answer.is_err().then_some(outcome);
                    (split.awaited, self.unfinished) = (None, self.unfinished | vq);
                }
            }
        }
    }

    /// Nothing more of a command is fetched.
    fn give_up(&mut self, at: usize, outcome: Outcome) {
        if let Some(split) = &mut self.splits[at] {
            split.outcome = split.outcome.and(outcome);
            split.fetched_bytes = split.whole.len_bytes;
        }
        self.end_if_over(at);
    }

    /// Whether a VQ still has parts to be fetched.
    fn look_again(&mut self, vq: u16) {
        if self.unfinished_of(vq).is_none() {
            self.unfinished &= !(1 << vq);
        }
    }

    #[cold]
    fn next_part(&mut self, vq: u16) -> Fetch {
        let Some(at) = self.unfinished_of(vq) else { return Fetch::Empty };
        let Some(split) = &mut self.splits[at] else { return Fetch::Empty };
        if let Some(outcome) = split.refused.take() {
            self.give_up(at, outcome);
            self.look_again(vq);
            return Fetch::Handled;
        }
        let Some(extents) = self.disks.get(usize::from(split.whole.disk)) else { return Fetch::Empty };
        // Disks only grow: it was checked.
        let Some((at_bytes, step)) = split.next(extents) else { return Fetch::Empty };
        match extents.held().map(|held| held.enter(at_bytes, step.len_bytes())) {
            None => {}
            Some(Ok(passage)) => split.passages.push(passage),
            Some(Err(Held::Waits)) => return Fetch::Empty,
            Some(Err(Held::Failed)) => {
                self.give_up(at, Err(DeviceError::Medium));
                self.look_again(vq);
                return Fetch::Handled;
            }
        }
        let has_data = split.whole.op.has_data();
        let (offset_bytes, len_bytes) = match step {
            Step::Drive { offset_bytes, len_bytes } => (offset_bytes, len_bytes),
            Step::Nothing { len_bytes } => {
                if has_data && !split.fill_with_zeros(len_bytes) {
                    split.outcome = split.outcome.and(Err(DeviceError::Memory));
                }
                split.fetched_bytes += len_bytes;
                self.end_if_over(at);
                self.look_again(vq);
                return Fetch::Handled;
            }
            Step::Wait { first, count, wish } => {
                split.awaited = extents.map().map(|map| map.ask(first, count, wish));
                self.parked |= 1 << vq;
                self.look_again(vq);
                return Fetch::Handled;
            }
        };
        let command = Command { offset_bytes, tenant_offset_bytes: at_bytes, len_bytes, ..split.whole };
        let buf = if has_data { split.buf.part(split.fetched_bytes, len_bytes) } else { IoBuf::default() };
        split.fetched_bytes += len_bytes;
        split.in_flight += 1;
        self.look_again(vq);
        let mut token = Token::of_part(vq, at as u32);
        token.count(self.epoch);
        self.in_flight[self.epoch] += 1;
        Fetch::Command(command, buf, token)
    }

    #[cold]
    fn end_part(&mut self, token: Token, outcome: Outcome) {
        let at = token.spend().2 as usize;
        let Some(Some(split)) = self.splits.get_mut(at) else { return };
        split.in_flight -= 1;
        split.outcome = split.outcome.and(outcome);
        if split.in_flight == 0 {
            split.passages.clear();
        }
        self.end_if_over(at);
    }

    fn end_if_over(&mut self, at: usize) {
        let is_over = |split: &mut Split| split.in_flight == 0 && split.fetched_bytes == split.whole.len_bytes;
        if let Some(Split { buf, token, outcome, .. }) = self.splits[at].take_if(is_over) {
            self.source.complete(token, outcome, buf);
        }
    }
}

impl Split {
    /// Whether it has parts to be fetched, and the next one waits for no piece.
    fn is_ready(&self) -> bool {
        self.awaited.is_none() && self.fetched_bytes < self.whole.len_bytes
    }

    /// Where the part that is fetched next starts in the disk, and what it meets. `None`: it lies outside of the disk.
    fn next(&self, extents: &Extents) -> Option<(u64, Step)> {
        let at_bytes = self.whole.tenant_offset_bytes + self.fetched_bytes;
        let most_bytes = if self.whole.op.has_data() { PART_BYTES } else { u64::MAX };
        let len_bytes = (self.whole.len_bytes - self.fetched_bytes).min(most_bytes);
        Some((at_bytes, extents.step(self.whole.op, at_bytes, len_bytes)?))
    }

    /// A read of what the disk has no piece for. `false`: the memory is lost.
    fn fill_with_zeros(&self, len_bytes: u64) -> bool {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut done_bytes = 0;
        while done_bytes < len_bytes {
            let count = (len_bytes - done_bytes).min(ZEROS.len() as u64) as usize;
            if self.buf.copy_from_at(self.fetched_bytes + done_bytes, &ZEROS[..count]) < count {
                return false;
            }
            done_bytes += count as u64;
        }
        true
    }
}

impl<S: fmt::Debug> fmt::Debug for Placed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed").field("source", &self.source).field("disks", &self.disks).finish_non_exhaustive()
    }
}

/// What is particular to the source. What [`Source`] has is not: a method call finds that of `Placed` first.
impl<S> Deref for Placed<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.source
    }
}

impl<S> DerefMut for Placed<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.source
    }
}

impl<S: Source> Source for Placed<S> {
    #[inline]
    fn live_vqs(&self) -> u128 {
        self.source.live_vqs() | self.unfinished | self.parked
    }

    fn priority(&self, vq: u16) -> QueuePriority {
        self.source.priority(vq)
    }

    #[inline]
    fn service(&mut self) -> u32 {
        self.source.service()
    }

    #[inline]
    fn rung(&mut self) -> u128 {
        if self.parked != 0 {
            self.unpark();
        }
        self.source.rung() | self.unfinished
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        // Of sources that count all VQs as rung, too.
        if self.parked != 0 {
            self.unpark();
        }
        let backlog = self.source.backlog(vq);
        match self.has_unfinished(vq) {
            false => backlog,
            true if self.is_held(vq) => 0,
            true => backlog.saturating_add(1),
        }
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        if self.has_unfinished(vq) {
            return self.next_part(vq);
        }
        match self.source.fetch(vq) {
            Fetch::Command(mut command, buf, mut token) if command.op != Op::Flush => {
                let extents = self.disks.get(usize::from(command.disk));
                match extents.and_then(|extents| extents.locate_for(&command)) {
                    Some((offset_bytes, follow_bytes, is_thin))
                        if command.len_bytes <= follow_bytes
                            && (command.len_bytes <= PART_BYTES || !command.op.has_data()) =>
                    {
                        command.offset_bytes = offset_bytes;
                        if is_thin {
                            token.count(self.epoch);
                            self.in_flight[self.epoch] += 1;
                        }
                        Fetch::Command(command, buf, token)
                    }
                    _ => self.split(command, buf, token),
                }
            }
            Fetch::Command(mut flush, buf, token) => {
                flush.offset_bytes = self.disks.get(usize::from(flush.disk)).map_or(0, Extents::flush_at_bytes);
                Fetch::Command(flush, buf, token)
            }
            fetched => fetched,
        }
    }

    fn take_waited_before(&mut self) -> Nanos {
        self.source.take_waited_before()
    }

    #[inline]
    fn take_work(&mut self) -> u32 {
        self.source.take_work()
    }

    #[inline]
    fn complete(&mut self, mut token: Token, outcome: Outcome, buf: IoBuf) {
        if token.has_notes() {
            let (is_part, epoch) = token.take_notes();
            if let Some(epoch) = epoch {
                self.in_flight[epoch] -= 1;
            }
            if is_part {
                return self.end_part(token, outcome);
            }
        }
        self.source.complete(token, outcome, buf);
    }

    fn notify(&mut self) {
        self.source.notify();
    }

    fn set_wakeup(&mut self, wanted: bool) {
        self.source.set_wakeup(wanted);
    }
}
