//! A slower drive.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;

use guest_memory::{Mapping, Refused};
use io_model::{Backend, Command, Done, HwqId, Io, Nanos, TenantId};

/// Completes what its rule names later than the drive below does: that long after it was found done there, which is
/// looked for at every kick and reap.
///
/// A delayed command still counts against its HWQ's depth. The drive below has done it before: what a delayed write
/// wrote can be read already.
pub struct Delay<B, R> {
    inner: B,
    rule: R,
    /// Of commands with the drive below that will be delayed, by tag.
    delays: HashMap<u32, Nanos>,
    /// Done below, by the time when that may be told, and the order.
    late: BTreeMap<(Nanos, u64), (HwqId, Done)>,
    order: u64,
    /// The latest time that was told.
    now: Nanos,
}

impl<B: Backend, R: FnMut(&Command) -> Nanos> Delay<B, R> {
    /// Delays each command by what `rule` says when it is submitted.
    pub fn new(inner: B, rule: R) -> Self {
        Self { inner, rule, delays: HashMap::new(), late: BTreeMap::new(), order: 0, now: Nanos(0) }
    }

    /// Takes what is done below.
    fn collect(&mut self) {
        let Self { inner, delays, late, order, now, .. } = self;
        inner.reap(*now, &mut |hwq, one| {
            let delay = delays.remove(&one.tag).unwrap_or_default();
            *order += 1;
            late.insert((*now + delay, *order), (hwq, one));
        });
    }
}

impl<B: Backend, R: FnMut(&Command) -> Nanos> Backend for Delay<B, R> {
    fn hwqs(&self) -> u16 {
        self.inner.hwqs()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        self.now = self.now.max(now);
        let delay = (self.rule)(&io.command);
        if delay > Nanos(0) {
            self.delays.insert(io.tag, delay);
        }
        self.inner.submit(hwq, io, now);
    }

    fn kick(&mut self) {
        self.inner.kick();
        // A drive that takes no time is done by now, and the delay counts from the submission.
        self.collect();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        self.now = self.now.max(now);
        self.collect();
        while let Some(first) = self.late.first_entry().filter(|first| first.key().0 <= now) {
            let (hwq, one) = first.remove();
            done(hwq, one);
        }
    }

    /// The time of the next delayed completion, even if the drive below can't tell its own. [`Backend::wake_fd`] wakes
    /// a sleeping poller for the drive's.
    fn next_event(&self) -> Option<Nanos> {
        let late = self.late.first_key_value().map(|((at, _), _)| *at);
        late.into_iter().chain(self.inner.next_event()).min()
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
