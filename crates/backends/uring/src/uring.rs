//! One poller's queues.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos};
use rustix::event::{EventfdFlags, eventfd};

use crate::bounces::Bounces;
use crate::drive::{OpenError, Opened};
use crate::ring::Ring;

/// One poller's queues on a [`UringDrive`](crate::UringDrive).
///
/// It may be opened by any thread, and belongs to the one that first calls [`Backend::kick`]: from another one,
/// commands that need a ring end as [`DeviceError::Gone`]. Dropping it there waits until the drive is done with every
/// buffer; dropping it elsewhere leaks those that the drive may still write to.
pub struct Uring {
    rings: Vec<Ring>,
    depth: u32,
    bounces: Bounces,
    /// Commands that ended when they were submitted: refused, or moved at once.
    ready: VecDeque<(HwqId, Done)>,
    /// Signalled by every ring, once a poller asked for it.
    wake: Option<OwnedFd>,
}

impl Uring {
    pub(crate) fn new(drive: &Arc<Opened>, hwqs: u16, depth: u32) -> Result<Self, OpenError> {
        let rings = (0..hwqs).map(|_| Ring::new(drive, depth)).collect::<Result<_, _>>()?;
        Ok(Self { rings, depth, bounces: Bounces::new()?, ready: VecDeque::new(), wake: None })
    }

    /// An eventfd that all rings signal. Not the rings' own descriptors: whether those wake a waiter before deferred
    /// completions are posted depends on the kernel's version, and here there is one to wait for however many rings.
    fn make_wake(&self) -> io::Result<OwnedFd> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.rings.iter().try_for_each(|ring| ring.signal(&wake))?;
        Ok(wake)
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring").field("hwqs", &self.rings.len()).field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl Backend for Uring {
    fn hwqs(&self) -> u16 {
        self.rings.len() as u16
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn submit(&mut self, hwq: HwqId, io: Io, _now: Nanos) {
        let ended = match self.rings.get_mut(usize::from(hwq.0)) {
            Some(ring) => ring.submit(io, &mut self.bounces),
            None => Err((io, Err(DeviceError::Gone))),
        };
        if let Err((io, outcome)) = ended {
            self.ready.push_back((hwq, io.done(outcome)));
        }
    }

    fn kick(&mut self) {
        for (hwq, ring) in (0..).map(HwqId).zip(&mut self.rings) {
            ring.kick(&mut self.bounces, &mut |done| self.ready.push_back((hwq, done)));
        }
    }

    fn reap(&mut self, _now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        while let Some((hwq, one)) = self.ready.pop_front() {
            done(hwq, one);
        }
        for (hwq, ring) in (0..).map(HwqId).zip(&mut self.rings) {
            ring.reap(&mut self.bounces, &mut |one| done(hwq, one));
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        (!self.ready.is_empty()).then_some(Nanos(0))
    }

    fn wake_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if self.wake.is_none() {
            // Without it the poller goes on looking.
            self.wake = self.make_wake().ok();
        }
        self.wake.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests;
