//! A drive that fails commands, or does not answer them.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guest_memory::{Mapping, Refused};
use io_model::{Backend, Command, DeviceError, Done, HwqId, Io, Nanos, Op, TenantId};

/// What becomes of a command that a [`Fault`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It fails, and never reaches the drive below.
    Fails(DeviceError),
    /// It is kept from the drive below and not answered until [`Faults::release`].
    Held,
}

/// Which commands meet which fate. A field that is `None` names all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What becomes of them.
    pub fate: Fate,
    /// Only these.
    pub op: Option<Op>,
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only those with a byte in this range of their tenant's own disk. A flush has none.
    pub in_tenant: Option<Range<u64>>,
    /// Only commands to this range of the drive.
    pub in_drive: Option<Range<u64>>,
    /// Only those submitted then or later.
    pub from: Nanos,
    /// The number of matching commands that pass before the first one fails.
    pub spared: u64,
    /// After these, every n-th matching command fails, the first included. At least 1.
    pub every: u64,
}

impl Fault {
    /// All commands meet `fate`.
    pub fn new(fate: Fate) -> Self {
        Self { fate, op: None, tenant: None, in_tenant: None, in_drive: None, from: Nanos(0), spared: 0, every: 1 }
    }

    fn names(&self, command: &Command, now: Nanos) -> bool {
        let Command { op, tenant, offset_bytes, tenant_offset_bytes, len_bytes, .. } = *command;
        let meets = |range: &Option<Range<u64>>, start: u64| {
            range.as_ref().is_none_or(|range| start < range.end && range.start < start.saturating_add(len_bytes))
        };
        now >= self.from
            && self.op.is_none_or(|only| only == op)
            && self.tenant.is_none_or(|only| only == tenant)
            && meets(&self.in_tenant, tenant_offset_bytes)
            && meets(&self.in_drive, offset_bytes)
    }
}

#[derive(Debug, Default)]
struct State {
    /// With how many commands each has named.
    faults: Vec<(Fault, u64)>,
    /// How often what is held was let go.
    releases: u64,
    held: u64,
    failed: u64,
    refusal: Option<Refused>,
}

/// The faults of a drive, for all of its pollers' [`Faulty`] queues; a clone is the same. Another thread may change
/// them.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<State>>);

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on. Of faults that name a command, the first set counts; all of them count it.
    pub fn add(&self, fault: Fault) {
        self.state().faults.push((fault, 0));
    }

    /// Forgets all faults. What is held stays held.
    pub fn clear(&self) {
        self.state().faults.clear();
    }

    /// Lets go of what is held: the drive below gets it at the next [`Backend::kick`]. Nobody is woken for that.
    pub fn release(&self) {
        self.state().releases += 1;
    }

    /// Refuses all memory that is told from now on, or none.
    pub fn refuse_memory(&self, refusal: Option<Refused>) {
        self.state().refusal = refusal;
    }

    /// Commands that are held.
    pub fn held(&self) -> u64 {
        self.state().held
    }

    /// Commands that were failed so far.
    pub fn failed(&self) -> u64 {
        self.state().failed
    }

    /// Decides about a command, and counts it.
    fn judge(&self, command: &Command, now: Nanos) -> Option<Fate> {
        let mut state = self.state();
        let mut fate = None;
        for (fault, named) in state.faults.iter_mut().filter(|(fault, _)| fault.names(command, now)) {
            let counts = named.checked_sub(fault.spared).is_some_and(|nth| nth.is_multiple_of(fault.every.max(1)));
            *named += 1;
            if counts {
                fate = fate.or(Some(fault.fate));
            }
        }
        match fate {
            Some(Fate::Fails(_)) => state.failed += 1,
            Some(Fate::Held) => state.held += 1,
            None => {}
        }
        fate
    }
}

/// Fails or holds what its [`Faults`] name; everything else is the drive's below.
pub struct Faulty<B> {
    inner: B,
    faults: Faults,
    failed: Vec<(HwqId, Done)>,
    held: Vec<(HwqId, Io, Nanos)>,
    /// How many releases it has seen.
    releases: u64,
    /// Commands with the drive below.
    below: u64,
}

impl<B: Backend> Faulty<B> {
    /// One poller's queues on a drive with these faults.
    pub fn new(inner: B, faults: &Faults) -> Self {
        let releases = faults.state().releases;
        Self { inner, faults: faults.clone(), failed: Vec::new(), held: Vec::new(), releases, below: 0 }
    }
}

impl<B: Backend> Backend for Faulty<B> {
    fn hwqs(&self) -> u16 {
        self.inner.hwqs()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        match self.faults.judge(&io.command, now) {
            Some(Fate::Fails(error)) => self.failed.push((hwq, io.done(Err(error)))),
            Some(Fate::Held) => self.held.push((hwq, io, now)),
            None => {
                self.below += 1;
                self.inner.submit(hwq, io, now);
            }
        }
    }

    fn kick(&mut self) {
        if !self.held.is_empty() {
            let mut state = self.faults.state();
            if state.releases != self.releases {
                state.held -= self.held.len() as u64;
                self.below += self.held.len() as u64;
                self.held.drain(..).for_each(|(hwq, io, since)| self.inner.submit(hwq, io, since));
            }
            self.releases = state.releases;
        }
        self.inner.kick();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        let below = &mut self.below;
        self.inner.reap(now, &mut |hwq, one| {
            *below = below.saturating_sub(1);
            done(hwq, one);
        });
        self.failed.drain(..).for_each(|(hwq, one)| done(hwq, one));
    }

    /// Never, while all that it has is held.
    fn next_event(&self) -> Option<Nanos> {
        if !self.failed.is_empty() {
            return Some(Nanos(0));
        }
        let only_held = self.below == 0 && !self.held.is_empty();
        self.inner.next_event().or_else(|| only_held.then_some(Nanos::MAX))
    }

    fn wake_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_fd()
    }

    fn map_memory(&mut self, tenant: TenantId, mapping: &Mapping) -> Result<(), Refused> {
        let refusal = self.faults.state().refusal;
        refusal.map_or_else(|| self.inner.map_memory(tenant, mapping), Err)
    }

    fn unmap_memory(&mut self, tenant: TenantId, mapping: &Mapping) {
        self.inner.unmap_memory(tenant, mapping);
    }
}

impl<B> Drop for Faulty<B> {
    fn drop(&mut self) {
        self.faults.state().held -= self.held.len() as u64;
    }
}
