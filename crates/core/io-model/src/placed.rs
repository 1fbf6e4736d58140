//! A front end whose disks lie in pieces, and whose commands may be of any length.

use std::ops::{Deref, DerefMut};

use guest_memory::IoBuf;

use crate::{Command, DeviceError, Extents, Fetch, Nanos, Op, Outcome, QueuePriority, Source, Token};

/// Data of a command beyond this leaves in parts, so that its neighbours' commands get between them.
const PART_BYTES: u64 = 1 << 20;

/// Puts a source's commands where its disks lie on the drive. The source makes them with [`Place`](crate::Place)s at 0.
///
/// A command across the edge of a piece, or with more than 1 MiB of data, leaves in parts, one per
/// [`fetch`](Source::fetch). It ends once all parts are back, with the first failure of them. A VQ that leaves stays
/// live until the last part of its command is fetched; so the source, which waits for its commands, need not know.
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

    /// A command that does not lie in one piece: its first part, or its end if the disk has not all of it.
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
        let split = Split { whole, buf, token, fetched_bytes: 0, in_flight: 0, outcome: Ok(()) };
        match self.splits.iter_mut().find(|entry| entry.is_none()) {
            Some(free) => *free = Some(split),
            None => self.splits.push(Some(split)),
        }
        self.unfinished |= 1 << vq;
        self.next_part(vq)
    }

    #[cold]
    fn next_part(&mut self, vq: u16) -> Fetch {
        let mut entries = self.splits.iter_mut().enumerate();
        let unfinished = entries.find_map(|(at, entry)| {
            let split = entry.as_mut()?;
            (split.token.vq() == vq && split.fetched_bytes < split.whole.len_bytes).then_some((at, split))
        });
        let Some((at, split)) = unfinished else { return Fetch::Empty };
        let start_bytes = split.whole.tenant_offset_bytes + split.fetched_bytes;
        let rest_bytes = split.whole.len_bytes - split.fetched_bytes;
        let extents = self.disks.get(usize::from(split.whole.disk));
        let Some((offset_bytes, follow_bytes)) = extents.and_then(|extents| extents.locate(start_bytes)) else {
            // Pieces only come: it was checked.
            return Fetch::Empty;
        };
        let has_data = split.whole.op.has_data();
        let len_bytes = rest_bytes.min(follow_bytes).min(if has_data { PART_BYTES } else { u64::MAX });
        let buf = if has_data { split.buf.part(split.fetched_bytes, len_bytes) } else { IoBuf::default() };
        split.fetched_bytes += len_bytes;
        split.in_flight += 1;
        if len_bytes == rest_bytes {
            self.unfinished &= !(1 << vq);
        }
        let command = Command { offset_bytes, tenant_offset_bytes: start_bytes, len_bytes, ..split.whole };
        Fetch::Command(command, buf, Token::of_part(vq, at as u32))
    }

    #[cold]
    fn end_part(&mut self, token: Token, outcome: Outcome) {
        let at = token.spend_part() as usize;
        let Some(entry) = self.splits.get_mut(at) else { return };
        let Some(split) = entry else { return };
        split.in_flight -= 1;
        split.outcome = split.outcome.and(outcome);
        if split.in_flight == 0
            && split.fetched_bytes == split.whole.len_bytes
            && let Some(Split { buf, token, outcome, .. }) = entry.take()
        {
            self.source.complete(token, outcome, buf);
        }
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
        self.source.rung()
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        let backlog = self.source.backlog(vq);
        if self.has_unfinished(vq) { backlog.saturating_add(1) } else { backlog }
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
                            && (command.len_bytes <= PART_BYTES || !command.op.has_data()) =>
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
