//! Records every command of one tenant.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io_model::{Nanos, Op};

/// One command that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// When its doorbell was first seen.
    pub arrived: Nanos,
    /// What it did.
    pub op: Op,
    /// Which of the tenant's disks.
    pub disk: u16,
    /// The device failed it.
    pub failed: bool,
    /// Start in that disk; 0 for a flush.
    pub offset_bytes: u64,
    /// Length; 0 for a flush.
    pub len_bytes: u64,
    /// The time in the VQ since its doorbell was seen.
    pub waited: Nanos,
    /// The time with the device.
    pub served: Nanos,
}

/// The poller's end: it never waits, and allocates nothing.
#[derive(Debug)]
pub struct Recorder {
    ring: rtrb::Producer<Recorded>,
    /// One thread writes it: no locked instruction.
    lost: Arc<AtomicU64>,
}

/// The other end.
#[derive(Debug)]
pub struct Recording {
    ring: rtrb::Consumer<Recorded>,
    lost: Arc<AtomicU64>,
}

/// A ring for this many commands.
pub fn recorder(commands: usize) -> (Recorder, Recording) {
    let (producer, consumer) = rtrb::RingBuffer::new(commands);
    let lost = Arc::new(AtomicU64::new(0));
    (Recorder { ring: producer, lost: Arc::clone(&lost) }, Recording { ring: consumer, lost })
}

impl Recorder {
    /// Keeps one, or counts it as lost where there is no room.
    #[inline]
    pub(crate) fn record(&mut self, command: Recorded) {
        if self.ring.push(command).is_err() {
            self.lost.store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

impl Recording {
    /// The next one that is there.
    pub fn take(&mut self) -> Option<Recorded> {
        self.ring.pop().ok()
    }

    /// Commands that found no room since the start.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Nobody records any more: the tenant left the poller. What is there still can be taken.
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted() {
        let (mut recorder, mut recording) = recorder(2);
        let command = |offset_bytes| Recorded {
            arrived: Nanos(1),
            op: Op::Read,
            disk: 0,
            failed: false,
            offset_bytes,
            len_bytes: 4096,
            waited: Nanos(2),
            served: Nanos(3),
        };
        (0..5).for_each(|at| recorder.record(command(at)));
        assert_eq!(recording.lost(), 3);
        assert_eq!(recording.take(), Some(command(0)));
        recorder.record(command(7));
        assert!(!recording.is_over());
        drop(recorder);
        assert_eq!([recording.take(), recording.take(), recording.take()], [Some(command(1)), Some(command(7)), None]);
        assert!(recording.is_over());
        assert_eq!(recording.lost(), 3);
    }
}
