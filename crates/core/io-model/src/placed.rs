//! A front end whose disks lie in pieces, and whose commands may be of any length.

use std::ops::{Deref, DerefMut};

use guest_memory::IoBuf;

use crate::{Command, DeviceError, Extents, Fetch, Held, Nanos, Op, Outcome, Passage, QueuePriority, Source, Token};

/// Data of a command beyond this leaves in parts, so that its neighbours' commands get between them.
const PART_BYTES: u64 = 1 << 20;

/// Puts a source's commands where its disks lie on the drive. The source makes them with [`Place`](crate::Place)s at 0.
///
/// A command across the edge of a piece, or with more than 1 MiB of data, leaves in parts, one per
/// [`fetch`](Source::fetch). It ends once all parts are back, with the first failure of them. A VQ that leaves stays
/// live until the last part of its command is fetched; so the source, which waits for its commands, need not know.
///
/// A part that touches a [held](crate::HeldRange) range is fetched once it is released. Commands behind it in its VQ
/// wait, too.
#[derive(Debug)]
pub struct Placed<S> {
    source: S,
    disks: Vec<Extents>,
    /// Bit `i`: a command of VQ `i` has parts to be fetched. There is at most one.
    unfinished: u128,
    /// What tokens of parts stand for; a free entry is `None`.
    splits: Vec<Option<Split>>,
}

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
}

impl<S> Placed<S> {
    /// `disks` in the order of [`Command::disk`].
    pub fn new(source: S, disks: Vec<Extents>) -> Self {
        Self { source, disks, unfinished: 0, splits: Vec::new() }
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
}

impl<S: Source> Placed<S> {
    /// Almost always nothing is unfinished. Only then a shift by `vq` bits, which is slow, is needed.
    #[inline]
    fn has_unfinished(&self, vq: u16) -> bool {
        self.unfinished != 0 && self.unfinished >> vq & 1 != 0
    }

    /// Whether something waits for a held range: nothing tells when that is released.
    pub fn waits(&self) -> bool {
        self.unfinished != 0 && (0..128).any(|vq| self.has_unfinished(vq) && self.is_held(vq))
    }

    /// The command of a VQ that has parts to be fetched.
    fn unfinished_of(&self, vq: u16) -> Option<usize> {
        let is_its = |split: &Split| split.token.vq() == vq && split.fetched_bytes < split.whole.len_bytes;
        self.splits.iter().position(|entry| entry.as_ref().is_some_and(is_its))
    }

    /// Whether the next part of a VQ's command has to wait.
    #[cold]
    fn is_held(&self, vq: u16) -> bool {
        let Some(split) = self.unfinished_of(vq).and_then(|at| self.splits[at].as_ref()) else { return false };
        let Some(extents) = self.disks.get(usize::from(split.whole.disk)) else { return false };
        let part = split.next_part(extents).zip(extents.held());
        part.is_some_and(|(part, held)| held.delays(part.tenant_offset_bytes, part.len_bytes))
    }

    /// A command that does not lie in one piece, or whose disk may be held in part: its first part, or its end if the
    /// disk has not all of it.
    #[cold]
    fn split(&mut self, whole: Command, buf: IoBuf, token: Token) -> Fetch {
        let vq = token.vq();
        let is_inside = whole.tenant_offset_bytes.checked_add(whole.len_bytes).is_some_and(|end_bytes| {
            let last = end_bytes.checked_sub(1);
            last.is_some_and(|last| self.disks.get(usize::from(whole.disk)).and_then(|it| it.locate(last)).is_some())
        });
        if !is_inside {
            self.source.complete(token, Err(DeviceError::OutOfRange), buf);
            return Fetch::Handled;
        }
        let split = Split { whole, buf, token, fetched_bytes: 0, in_flight: 0, outcome: Ok(()), passages: Vec::new() };
        match self.splits.iter_mut().find(|entry| entry.is_none()) {
            Some(free) => *free = Some(split),
            None => self.splits.push(Some(split)),
        }
        self.unfinished |= 1 << vq;
        self.next_part(vq)
    }

    #[cold]
    fn next_part(&mut self, vq: u16) -> Fetch {
        let Some(at) = self.unfinished_of(vq) else { return Fetch::Empty };
        let Some(split) = &mut self.splits[at] else { return Fetch::Empty };
        let Some(extents) = self.disks.get(usize::from(split.whole.disk)) else { return Fetch::Empty };
        // Pieces only come: it was checked.
        let Some(command) = split.next_part(extents) else { return Fetch::Empty };
        let len_bytes = command.len_bytes;
        match extents.held().map(|held| held.enter(command.tenant_offset_bytes, len_bytes)) {
            None => {}
            Some(Ok(passage)) => split.passages.push(passage),
            Some(Err(Held::Waits)) => return Fetch::Empty,
            Some(Err(Held::Failed)) => {
                split.outcome = Err(DeviceError::Medium);
                split.fetched_bytes = split.whole.len_bytes;
                self.unfinished &= !(1 << vq);
                self.end_if_over(at);
                return Fetch::Handled;
            }
        }
        let has_data = command.op.has_data();
        let buf = if has_data { split.buf.part(split.fetched_bytes, len_bytes) } else { IoBuf::default() };
        split.fetched_bytes += len_bytes;
        split.in_flight += 1;
        if split.fetched_bytes == split.whole.len_bytes {
            self.unfinished &= !(1 << vq);
        }
        Fetch::Command(command, buf, Token::of_part(vq, at as u32))
    }

    #[cold]
    fn end_part(&mut self, token: Token, outcome: Outcome) {
        let at = token.spend_part() as usize;
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
    /// The part that is fetched next. `None`: it lies outside of the disk.
    fn next_part(&self, extents: &Extents) -> Option<Command> {
        let tenant_offset_bytes = self.whole.tenant_offset_bytes + self.fetched_bytes;
        let (offset_bytes, follow_bytes) = extents.locate(tenant_offset_bytes)?;
        let most_bytes = if self.whole.op.has_data() { PART_BYTES } else { u64::MAX };
        let len_bytes = (self.whole.len_bytes - self.fetched_bytes).min(follow_bytes).min(most_bytes);
        Some(Command { offset_bytes, tenant_offset_bytes, len_bytes, ..self.whole })
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
        self.source.live_vqs() | self.unfinished
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
        self.source.rung() | self.unfinished
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
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
            Fetch::Command(mut command, buf, token) if command.op != Op::Flush => {
                let extents = self.disks.get(usize::from(command.disk));
                match extents.and_then(|extents| extents.locate(command.tenant_offset_bytes)) {
                    Some((offset_bytes, follow_bytes))
                        if command.len_bytes <= follow_bytes
                            && (command.len_bytes <= PART_BYTES || !command.op.has_data())
                            && (command.len_bytes == 0 || extents.is_some_and(|extents| extents.held().is_none())) =>
                    {
                        command.offset_bytes = offset_bytes;
                        Fetch::Command(command, buf, token)
                    }
                    _ => self.split(command, buf, token),
                }
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
    fn complete(&mut self, token: Token, outcome: Outcome, buf: IoBuf) {
        if token.is_of_part() {
            return self.end_part(token, outcome);
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
