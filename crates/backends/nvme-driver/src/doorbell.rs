//! Ringing as seldom as the specification allows.

use std::sync::atomic::{Ordering, fence};

use guest_memory::MappedU32;

use crate::device::{Doorbell, Ring};
use crate::error::Error;

/// A shadow doorbell and the event index that says when the register must be written all the same
/// (Base 5.8, Doorbell Buffer Config).
pub(crate) struct Shadow {
    pub value: MappedU32,
    pub event_index: MappedU32,
}

/// One doorbell of a queue, with what it was last set to.
pub(crate) struct QueueDoorbell {
    register: Doorbell,
    shadow: Option<Shadow>,
    last: u16,
}

impl QueueDoorbell {
    pub(crate) fn new(register: Doorbell, shadow: Option<Shadow>) -> Self {
        Self { register, shadow, last: 0 }
    }

    /// Lets go of the register, whose mapping keeps the kernel from taking the device away. Nothing is told any more.
    pub(crate) fn disconnect(&mut self) {
        self.register = Doorbell::Sent(Box::new(Disconnected));
        self.shadow = None;
    }

    /// Tells the device about `index`.
    #[inline]
    pub(crate) fn ring(&mut self, index: u16) -> Result<(), Error> {
        let last = std::mem::replace(&mut self.last, index);
        if last == index {
            return Ok(());
        }
        if let Some(shadow) = &self.shadow {
            shadow.value.store(index.into());
            // Our store must be visible before we read the event index: the device stores its event
            // index and then looks at the doorbell once more. Otherwise both could miss each other.
            fence(Ordering::SeqCst);
            if !passes(shadow.event_index.load() as u16, index, last) {
                return Ok(());
            }
        }
        self.register.write(index.into())
    }
}

struct Disconnected;

impl Ring for Disconnected {
    fn ring(&mut self, _value: u32) -> Result<(), Error> {
        Err(Error::Removed)
    }
}

/// Whether going from `last` to `index` passes the event index: the device wants to hear of it.
fn passes(event_index: u16, index: u16, last: u16) -> bool {
    index.wrapping_sub(event_index).wrapping_sub(1) < index.wrapping_sub(last)
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn passes_only_when_the_event_index_lies_between() {
        assert!(passes(0, 1, 0), "the first command after the device looked at 0");
        assert!(passes(3, 5, 2));
        assert!(!passes(5, 5, 2), "the device waits for something beyond 5");
        assert!(!passes(1, 5, 2), "the device was told already");
        assert!(passes(6, 1, 6), "around the end of a queue of 8");
    }
}
