//! A drive that does nothing, at once.

use io_model::{Backend, Done, HwqId, Io, Nanos};

use crate::ready::Ready;

/// A drive of a given size without content.
#[derive(Debug, Clone, Copy)]
pub struct NullDrive {
    size_bytes: u64,
}

impl NullDrive {
    /// A drive that claims to hold `size_bytes`; commands beyond that are refused.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes }
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// `hwqs` queues of `depth` commands each, for one poller.
    pub fn open_queues(&self, hwqs: u16, depth: u32) -> Null {
        Null { size_bytes: self.size_bytes, ready: Ready::new(hwqs, depth) }
    }
}

/// One poller's queues on a [`NullDrive`].
#[derive(Debug)]
pub struct Null {
    size_bytes: u64,
    ready: Ready,
}

impl Backend for Null {
    fn hwqs(&self) -> u16 {
        self.ready.hwqs()
    }

    fn depth(&self) -> u32 {
        self.ready.depth()
    }

    #[inline]
    fn submit(&mut self, hwq: HwqId, io: Io, _now: Nanos) {
        let outcome = io.check(self.size_bytes);
        self.ready.push(hwq, io, outcome);
    }

    fn kick(&mut self) {}

    #[inline]
    fn reap(&mut self, _now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        self.ready.reap(done);
    }

    fn next_event(&self) -> Option<Nanos> {
        self.ready.next_event()
    }
}
