//! A back end that remembers what reached it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use guest_memory::{Mapping, Refused};
use io_model::{Backend, Command, Done, HwqId, Io, Nanos, Outcome, TenantId};

/// What the queues of a drive did, for all of its pollers' [`Recorded`] queues; a clone is the same.
#[derive(Debug, Clone, Default)]
pub struct Record(Arc<Mutex<Vec<(Command, Outcome)>>>);

impl Record {
    /// The commands that were answered so far, oldest first, each with its outcome.
    pub fn ended(&self) -> Vec<(Command, Outcome)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Records each command when it is answered. It grows with every command: for tests only.
pub struct Recorded<B> {
    inner: B,
    record: Record,
    in_flight: Vec<(u32, Command)>,
}

impl<B: Backend> Recorded<B> {
    /// Around `inner`.
    pub fn new(inner: B, record: &Record) -> Self {
        Self { inner, record: record.clone(), in_flight: Vec::new() }
    }
}

impl<B: Backend> Backend for Recorded<B> {
    fn hwqs(&self) -> u16 {
        self.inner.hwqs()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        self.in_flight.push((io.tag, io.command));
        self.inner.submit(hwq, io, now);
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        let Self { inner, record, in_flight } = self;
        inner.reap(now, &mut |hwq, one| {
            if let Some(at) = in_flight.iter().position(|(tag, _)| *tag == one.tag) {
                let (_, command) = in_flight.swap_remove(at);
                record.0.lock().unwrap_or_else(PoisonError::into_inner).push((command, one.outcome));
            }
            done(hwq, one);
        });
    }

    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
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
