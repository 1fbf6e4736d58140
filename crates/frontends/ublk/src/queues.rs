//! Some of a device's queues as the poller sees them: VQ `n + 1` is queue `n`; VQ 0 is the flush of a server that goes.

use std::ops::Range;

use guest_memory::{IoBuf, MemoryListener, Refused};
use io_model::{CacheDebt, DeviceError, Fetch, Outcome, Place, Source, Token};

use crate::queue::{Kernel, Queue};
use crate::shape::Shape;

/// The queues that one poller serves.
pub struct Queues<K> {
    shape: Shape,
    place: Place,
    size_bytes: u64,
    range: Range<u16>,
    /// In the order of `range`; none before [`start`](Self::start), and fewer where the driver gave fewer.
    queues: Vec<Queue<K>>,
    cache: CacheDebt,
    flush_error: Option<DeviceError>,
    is_stopped: bool,
}

impl<K: Kernel> Queues<K> {
    /// Of a disk at `place`, none of them started.
    pub fn new(shape: Shape, place: Place, range: Range<u16>) -> Self {
        Self {
            shape,
            place,
            size_bytes: shape.size_bytes,
            range,
            queues: Vec::new(),
            cache: CacheDebt::new(shape.write_cache),
            flush_error: None,
            is_stopped: false,
        }
    }

    /// Serves the device's queues from now on, in the order of the range; `memory` is told of their buffers. An earlier
    /// server may have written if `is_recovered`.
    ///
    /// # Errors
    /// The drive can't reach the buffers; nothing is served.
    pub fn start(
        &mut self,
        queues: Vec<Queue<K>>,
        is_recovered: bool,
        memory: &mut dyn MemoryListener,
    ) -> Result<(), Refused> {
        for (at, queue) in queues.iter().enumerate() {
            if let Err(refused) = memory.map(queue.memory()) {
                queues[..at].iter().for_each(|queue| memory.unmap(queue.memory()));
                return Err(refused);
            }
        }
        if is_recovered {
            self.cache.assume_unflushed();
        }
        self.queues = queues;
        self.notify();
        Ok(())
    }

    /// The disk is longer, for commands from now on.
    pub fn grow(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.max(size_bytes);
    }

    /// Nothing is fetched any more.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.queues.iter_mut().for_each(Queue::stop);
    }

    /// After [`stop`](Self::stop): whether nothing is with the drive any more, nor in its cache. Where something is, it
    /// wants a flush.
    pub fn is_flushed(&mut self) -> bool {
        self.in_flight() == 0 && !self.cache.must_flush()
    }

    fn in_flight(&self) -> u32 {
        self.queues.iter().map(Queue::in_flight).sum()
    }

    /// Lets go of the device, and of the buffers.
    pub fn let_go(&mut self, memory: &mut dyn MemoryListener) {
        self.notify();
        for queue in self.queues.drain(..) {
            let buffers = std::sync::Arc::clone(queue.memory());
            // The kernel first: it writes there.
            drop(queue);
            memory.unmap(&buffers);
        }
    }

    /// Whether the device is served.
    pub fn is_started(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whether the kernel took the device away.
    pub fn is_gone(&self) -> bool {
        self.is_started() && self.queues.iter().all(Queue::is_gone)
    }

    /// What the kernel said that can't be; once each.
    pub fn take_fault(&mut self) -> Option<String> {
        self.queues.iter_mut().find_map(Queue::take_fault)
    }

    /// Why the flush for a server that goes failed; once.
    pub fn take_flush_error(&mut self) -> Option<DeviceError> {
        self.flush_error.take()
    }

    fn queue(&mut self, vq: u16) -> Option<&mut Queue<K>> {
        let at = vq.checked_sub(1)?.checked_sub(self.range.start)?;
        self.queues.get_mut(usize::from(at))
    }
}

impl<K: Kernel> Source for Queues<K> {
    #[inline]
    fn live_vqs(&self) -> u128 {
        if self.is_stopped {
            return u128::from(self.cache.is_wanted());
        }
        // As many bits as there are queues, from that of the first one.
        ((1 << self.queues.len()) - 1) << (self.range.start + 1)
    }

    #[inline]
    fn backlog(&mut self, vq: u16) -> u32 {
        if vq == 0 {
            return self.cache.is_wanted().into();
        }
        self.queue(vq).map_or(0, Queue::look)
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        if vq == 0 {
            return if self.cache.take() {
                Fetch::Command(self.place.flush(), IoBuf::default(), Token::new(0, 0, 0))
            } else {
                Fetch::Empty
            };
        }
        let (shape, place, size_bytes) = (self.shape, self.place, self.size_bytes);
        let in_flight = self.in_flight();
        let Some(queue) = self.queue(vq) else { return Fetch::Empty };
        let (fetch, op) = queue.take(vq, &shape, &place, size_bytes);
        if let Some(op) = op {
            self.cache.sent(op, || in_flight == 0);
        }
        fetch
    }

    #[inline]
    fn complete(&mut self, token: Token, outcome: Outcome, _buf: IoBuf) {
        let (vq, sectors, tag) = token.spend();
        if vq == 0 {
            self.cache.parted();
            self.flush_error = outcome.err();
            return;
        }
        self.cache.came_back(outcome);
        if let Some(queue) = self.queue(vq) {
            queue.end(tag as u16, sectors, outcome);
        }
    }

    fn notify(&mut self) {
        self.queues.iter_mut().for_each(Queue::submit);
    }

    /// The driver wakes a sleeping thread by itself: a request for it ends the thread's system call.
    fn set_wakeup(&mut self, _wanted: bool) {}
}

#[cfg(test)]
mod tests;
