//! The back end around another one.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use guest_memory::{IoBuf, Mapping, Refused};
use io_model::{Backend, Command, DeviceError, Done, HwqId, Io, Nanos, Op, Outcome, Passage, TenantId};

use crate::bounces::{Bounce, Bounces};
use crate::change::KeyChange;
use crate::key::DiskCipher;
use crate::keys::{Access, DiskId, Keys};

/// The cipher's work between two looks at the queues: a neighbour's command waits for it.
const BUDGET_BYTES: u64 = 64 << 10;

/// Marks tags of commands that the cipher watches below; the poller's are small.
const OURS: u32 = 1 << 31;

/// Encrypts what goes to a back end, and decrypts what comes from it, by the [`Keys`] of each disk.
///
/// Disks without encryption pass through. A command of an encrypted disk covers whole sectors. A large write goes to
/// the drive in parts, one after the other.
pub struct Encrypted<B> {
    inner: B,
    keys: Arc<Keys>,
    ciphers: Ciphers,
    /// From the first encrypted disk on.
    bounces: Option<Bounces>,
    flights: Flights,
    /// Flights with work for the cipher, in turn.
    work: VecDeque<u32>,
    /// Writes that wait for a bounce buffer, in order.
    waiting: VecDeque<u32>,
    finished: VecDeque<(HwqId, Done)>,
    budget_bytes: u64,
    scratch: Box<[u8]>,
    now: Nanos,
}

/// A command of an encrypted disk that reads or writes.
struct Flight {
    hwq: HwqId,
    tag: u32,
    command: Command,
    /// The guest's. Empty while a read is with the drive.
    buf: IoBuf,
    /// Of a write's present part.
    bounce: Option<Bounce>,
    /// Where the present part starts in the command, and its length. All of a read is one part.
    part_at: u64,
    part_bytes: u64,
    /// How much of the part the cipher has done.
    ciphered: u64,
    /// Of a disk that is re-encrypted: data before it has the next key.
    boundary_bytes: u64,
    /// Of a command that began before its disk was re-encrypted.
    passage: Option<Passage>,
}

impl<B: Backend> Encrypted<B> {
    /// Around `inner`, whose commands are those of the disks of `keys`. Without encrypted disks it costs no memory.
    pub fn new(inner: B, keys: Arc<Keys>) -> Self {
        Self {
            inner,
            keys,
            ciphers: Ciphers::default(),
            bounces: None,
            flights: Flights::default(),
            work: VecDeque::new(),
            waiting: VecDeque::new(),
            finished: VecDeque::new(),
            budget_bytes: BUDGET_BYTES,
            scratch: Box::default(),
            now: Nanos(0),
        }
    }

    /// Takes over changes of the keys. A key that no disk has any more is no longer here then.
    #[inline]
    pub fn take_keys(&mut self) {
        if self.keys.changes() != self.ciphers.changes {
            self.take_changes();
        }
    }

    #[cold]
    fn take_changes(&mut self) {
        self.ciphers.rebuild(&self.keys);
        self.count_flights();
        if self.ciphers.are_all_plain || self.bounces.is_some() {
            return;
        }
        // Without memory for it, disks with a key do not answer.
        let Ok(bounces) = Bounces::new() else { return };
        // A drive that can't reach the buffers copies.
        let _ = self.inner.map_memory(TenantId(u32::MAX), bounces.memory());
        self.bounces = Some(bounces);
        self.scratch = vec![0; BUDGET_BYTES as usize].into();
        let depth = usize::from(self.inner.hwqs()) * self.inner.depth() as usize;
        [&mut self.work, &mut self.waiting].into_iter().for_each(|list| list.reserve(depth));
        self.finished.reserve(depth);
    }

    /// Counts commands in flight to a disk that is re-encrypted from now on. Nothing of it is held yet.
    fn count_flights(&mut self) {
        for flight in self.flights.entries.iter_mut().flatten().filter(|flight| flight.passage.is_none()) {
            let Command { tenant, disk, tenant_offset_bytes, len_bytes, .. } = flight.command;
            if let Some(Slot::Changing(Changing { change, .. })) = self.ciphers.of((tenant, disk)) {
                flight.passage = change.held().enter(tenant_offset_bytes, len_bytes).ok();
            }
        }
    }

    /// The back end below.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Starts a command of an encrypted disk. `change`: the disk is re-encrypted.
    fn start(&mut self, hwq: HwqId, io: Io, sector_bytes: u64, change: Option<Arc<KeyChange>>, now: Nanos) {
        if let Err(refused) = check(&io.command, &io.buf, sector_bytes) {
            return self.finish(hwq, io.done(Err(refused)));
        }
        let Io { tag, command, buf } = io;
        if command.len_bytes == 0 {
            return self.inner.submit(hwq, Io { tag, command, buf }, now);
        }
        let (boundary_bytes, passage) = change.map_or((0, None), |change| {
            // Counted already, unless it was fetched before its disk was re-encrypted. Then nothing is held yet.
            let passage = change.held().enter(command.tenant_offset_bytes, command.len_bytes).ok();
            (change.held().range().start, passage)
        });
        let flight = |buf| Flight {
            hwq,
            tag,
            command,
            buf,
            bounce: None,
            part_at: 0,
            part_bytes: 0,
            ciphered: 0,
            boundary_bytes,
            passage,
        };
        if command.op != Op::Write {
            let below = self.flights.insert(flight(IoBuf::default())) | OURS;
            return self.inner.submit(hwq, Io { tag: below, command, buf }, now);
        }
        let id = self.flights.insert(flight(buf));
        if !self.begin_part(id) {
            self.waiting.push_back(id);
        }
    }

    /// Gives a write a bounce buffer for its next part. `false`: there is none for it now.
    fn begin_part(&mut self, id: u32) -> bool {
        let Some(flight) = self.flights.get_mut(id) else { return true };
        let rest = flight.command.len_bytes - flight.part_at;
        let Some(bounces) = &mut self.bounces else { return false };
        let Some(bounce) = bounces.take(flight.command.tenant, rest) else { return false };
        flight.bounce = Some(bounce);
        flight.part_bytes = rest.min(bounces.len_bytes(bounce));
        flight.ciphered = 0;
        self.work.push_back(id);
        true
    }

    /// Lets the cipher work, up to its budget. Commands take turns.
    fn cipher(&mut self) {
        while self.budget_bytes > 0 {
            let Some(id) = self.work.pop_front() else { return };
            let Some(flight) = self.flights.get_mut(id) else { continue };
            let disk = (flight.command.tenant, flight.command.disk);
            let before_boundary = flight.before_boundary();
            let cipher = self.ciphers.get(disk, before_boundary.is_some());
            let (Some(cipher), Some(bounces)) = (cipher, &self.bounces) else {
                self.end(id, Err(DeviceError::Gone));
                continue;
            };
            let most = before_boundary.unwrap_or(u64::MAX).min(self.budget_bytes);
            let bytes = (flight.part_bytes - flight.ciphered).min(most);
            self.budget_bytes -= bytes;
            let outcome = flight.cipher(cipher, bounces, &mut self.scratch[..bytes as usize]);
            let is_whole = flight.ciphered == flight.part_bytes;
            match outcome {
                Ok(()) if !is_whole => self.work.push_back(id),
                Ok(()) if flight.command.op == Op::Write => self.send_part(id),
                outcome => self.end(id, outcome),
            }
        }
    }

    /// Sends the present part of a write to the drive.
    fn send_part(&mut self, id: u32) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        let (Some(bounce), Some(bounces)) = (flight.bounce, &self.bounces) else { return };
        let Command { offset_bytes, tenant_offset_bytes, .. } = flight.command;
        let command = Command {
            offset_bytes: offset_bytes + flight.part_at,
            tenant_offset_bytes: tenant_offset_bytes + flight.part_at,
            len_bytes: flight.part_bytes,
            ..flight.command
        };
        let buf = bounces.part(bounce, 0, flight.part_bytes);
        self.inner.submit(flight.hwq, Io { tag: id | OURS, command, buf }, self.now);
    }

    /// The drive has done a read, or a part of a write.
    fn is_done_below(&mut self, id: u32, outcome: Outcome, buf: IoBuf) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        if !flight.command.op.has_data() {
            return self.end(id, outcome);
        }
        if flight.command.op == Op::Read {
            flight.buf = buf;
            flight.part_bytes = flight.command.len_bytes;
            match outcome {
                Ok(()) => self.work.push_back(id),
                Err(_) => self.end(id, outcome),
            }
            return;
        }
        flight.part_at += flight.part_bytes;
        let goes_on = outcome.is_ok() && flight.part_at < flight.command.len_bytes;
        if !goes_on {
            return self.end(id, outcome);
        }
        if let (Some(bounce), Some(bounces)) = (flight.bounce.take(), &mut self.bounces) {
            bounces.give(flight.command.tenant, bounce);
        }
        // Writes that wait come first.
        self.waiting.push_back(id);
    }

    fn end(&mut self, id: u32, outcome: Outcome) {
        let Some(Flight { hwq, tag, command, buf, bounce, .. }) = self.flights.remove(id) else { return };
        if let (Some(bounce), Some(bounces)) = (bounce, &mut self.bounces) {
            bounces.give(command.tenant, bounce);
        }
        self.finish(hwq, Done { tag, outcome, buf });
    }

    fn finish(&mut self, hwq: HwqId, done: Done) {
        self.finished.push_back((hwq, done));
    }

    /// Gives buffers to writes that wait, in order; a tenant that may have none yet is passed.
    fn serve_waiting(&mut self) {
        if !self.bounces.as_mut().is_some_and(Bounces::take_news) {
            return;
        }
        for _ in 0..self.waiting.len() {
            if let Some(id) = self.waiting.pop_front()
                && !self.begin_part(id)
            {
                self.waiting.push_back(id);
            }
        }
    }
}

impl Flight {
    /// Bytes from where the cipher is up to the boundary behind which the disk has its former key. `None`: it is there,
    /// or the disk has one key.
    fn before_boundary(&self) -> Option<u64> {
        let at = self.command.tenant_offset_bytes + self.part_at + self.ciphered;
        self.boundary_bytes.checked_sub(at).filter(|bytes| *bytes > 0)
    }

    /// The next `scratch.len()` bytes of the part: between the guest's memory, `scratch`, and a write's bounce buffer.
    fn cipher(&mut self, cipher: &mut DiskCipher, bounces: &Bounces, scratch: &mut [u8]) -> Outcome {
        let at = self.part_at + self.ciphered;
        let offset_bytes = self.command.tenant_offset_bytes + at;
        if self.buf.copy_to_at(at, scratch) < scratch.len() {
            return Err(DeviceError::Memory);
        }
        let (ciphered, to, skip) = match self.bounce {
            Some(bounce) => {
                let to = bounces.part(bounce, 0, self.part_bytes);
                (cipher.encrypt(offset_bytes, scratch), to, self.ciphered)
            }
            None => (cipher.decrypt(offset_bytes, scratch), std::mem::take(&mut self.buf), at),
        };
        let is_copied = to.copy_from_at(skip, scratch) == scratch.len();
        if self.bounce.is_none() {
            self.buf = to;
        }
        self.ciphered += scratch.len() as u64;
        // OpenSSL fails for want of memory at most.
        ciphered.map_err(|_| DeviceError::Gone)?;
        if is_copied { Ok(()) } else { Err(DeviceError::Memory) }
    }
}

impl<B: Backend> Backend for Encrypted<B> {
    fn hwqs(&self) -> u16 {
        self.inner.hwqs()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        self.take_keys();
        if self.ciphers.are_all_plain {
            return self.inner.submit(hwq, io, now);
        }
        self.now = now;
        match self.ciphers.of((io.command.tenant, io.command.disk)) {
            Some(Slot::Plain) => self.inner.submit(hwq, io, now),
            Some(Slot::Cipher(cipher)) => {
                let sector_bytes = cipher.sector_bytes();
                self.start(hwq, io, sector_bytes, None, now);
            }
            Some(Slot::Changing(Changing { change, former, .. })) => {
                let (sector_bytes, change) = (former.sector_bytes(), Some(Arc::clone(change)));
                self.start(hwq, io, sector_bytes, change, now);
            }
            Some(Slot::Locked) | None => self.finish(hwq, io.done(Err(DeviceError::Gone))),
        }
    }

    fn kick(&mut self) {
        self.take_keys();
        self.budget_bytes = BUDGET_BYTES;
        self.cipher();
        self.inner.kick();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        if self.ciphers.are_all_plain {
            return self.inner.reap(now, done);
        }
        self.now = now;
        let mut below = std::mem::take(&mut self.flights.below);
        self.inner.reap(now, &mut |hwq, one| {
            if one.tag & OURS == 0 {
                done(hwq, one);
            } else {
                below.push((one.tag & !OURS, one.outcome, one.buf));
            }
        });
        below.drain(..).for_each(|(id, outcome, buf)| self.is_done_below(id, outcome, buf));
        self.flights.below = below;
        self.serve_waiting();
        self.cipher();
        self.finished.drain(..).for_each(|(hwq, one)| done(hwq, one));
    }

    fn next_event(&self) -> Option<Nanos> {
        let has_work = !self.work.is_empty() || !self.finished.is_empty();
        if has_work { Some(self.now) } else { self.inner.next_event() }
    }

    fn wake_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_fd()
    }

    fn map_memory(&mut self, tenant: TenantId, mapping: &Mapping) -> Result<(), Refused> {
        self.inner.map_memory(tenant, mapping)
    }

    fn unmap_memory(&mut self, tenant: TenantId, mapping: &Mapping) {
        self.inner.unmap_memory(tenant, mapping);
    }
}

/// Whether an encrypted disk has such a range. What is refused here never reaches the drive.
fn check(command: &Command, buf: &IoBuf, sector_bytes: u64) -> Outcome {
    let Command { op, offset_bytes, tenant_offset_bytes, len_bytes, .. } = *command;
    if offset_bytes.checked_add(len_bytes).is_none() || tenant_offset_bytes.checked_add(len_bytes).is_none() {
        return Err(DeviceError::OutOfRange);
    }
    if !(tenant_offset_bytes | len_bytes).is_multiple_of(sector_bytes) {
        return Err(DeviceError::Unsupported);
    }
    if op.has_data() && buf.len_bytes() != len_bytes {
        return Err(DeviceError::Memory);
    }
    Ok(())
}

/// The disks as this poller knows them.
struct Ciphers {
    changes: u64,
    /// No disk was ever encrypted.
    are_all_plain: bool,
    /// By disk, in order.
    slots: Vec<(DiskId, Access, Slot)>,
}

impl Default for Ciphers {
    fn default() -> Self {
        Self { changes: 0, are_all_plain: true, slots: Vec::new() }
    }
}

enum Slot {
    Plain,
    Cipher(Box<DiskCipher>),
    Changing(Changing),
    Locked,
}

/// A disk that is re-encrypted.
struct Changing {
    change: Arc<KeyChange>,
    former: Box<DiskCipher>,
    next: Box<DiskCipher>,
}

impl Changing {
    /// `None`: there is no memory for OpenSSL.
    fn new(change: &Arc<KeyChange>) -> Option<Self> {
        let cipher = |key| DiskCipher::new(key).ok().map(Box::new);
        Some(Self { change: Arc::clone(change), former: cipher(change.former())?, next: cipher(change.next())? })
    }
}

impl Ciphers {
    /// Takes over all changes so far. A cipher whose key stays is kept.
    fn rebuild(&mut self, keys: &Keys) {
        self.changes = keys.changes();
        let mut before = std::mem::take(&mut self.slots);
        let mut kept = |disk: DiskId, key: &Arc<_>| {
            let at = before.binary_search_by_key(&disk, |(its, ..)| *its).ok()?;
            let (_, access, slot) = &mut before[at];
            let is_same = matches!(access, Access::Key(own) if Arc::ptr_eq(own, key));
            is_same.then(|| std::mem::replace(slot, Slot::Locked))
        };
        let slot = |(disk, access): (DiskId, Access)| {
            let slot = match &access {
                Access::Plain => Slot::Plain,
                Access::Locked => Slot::Locked,
                Access::Key(key) => kept(disk, key).unwrap_or_else(|| {
                    // Without memory for OpenSSL the disk does not answer.
                    DiskCipher::new(key).map_or(Slot::Locked, |cipher| Slot::Cipher(Box::new(cipher)))
                }),
                Access::Changing(change) => Changing::new(change).map_or(Slot::Locked, Slot::Changing),
            };
            (disk, access, slot)
        };
        self.slots = keys.disks().into_iter().map(slot).collect();
        self.are_all_plain &= self.slots.iter().all(|(_, access, _)| matches!(access, Access::Plain));
    }

    #[inline]
    fn at(&self, disk: DiskId) -> Option<usize> {
        self.slots.binary_search_by_key(&disk, |(its, ..)| *its).ok()
    }

    #[inline]
    fn of(&self, disk: DiskId) -> Option<&Slot> {
        self.at(disk).map(|at| &self.slots[at].2)
    }

    /// The cipher of a disk. Of one that is re-encrypted: by its next key, or by its former one.
    fn get(&mut self, disk: DiskId, by_next: bool) -> Option<&mut DiskCipher> {
        let at = self.at(disk)?;
        match &mut self.slots[at].2 {
            Slot::Cipher(cipher) => Some(cipher),
            Slot::Changing(Changing { next, .. }) if by_next => Some(next),
            Slot::Changing(Changing { former, .. }) => Some(former),
            Slot::Plain | Slot::Locked => None,
        }
    }
}

/// Flights by number.
#[derive(Default)]
struct Flights {
    entries: Vec<Option<Flight>>,
    free: Vec<u32>,
    /// Done below in the present look.
    below: Vec<(u32, Outcome, IoBuf)>,
}

impl Flights {
    fn insert(&mut self, flight: Flight) -> u32 {
        if let Some(id) = self.free.pop() {
            self.entries[id as usize] = Some(flight);
            return id;
        }
        self.entries.push(Some(flight));
        self.entries.len() as u32 - 1
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut Flight> {
        self.entries.get_mut(id as usize)?.as_mut()
    }

    /// `None`: a back end that completes twice.
    fn remove(&mut self, id: u32) -> Option<Flight> {
        let flight = self.entries.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(flight)
    }
}
