//! A drive's write buffer: takes commands while it has room, drains behind.

use std::collections::VecDeque;

const BLOCK_BYTES: u64 = 4096;

/// Bytes held and when they will be gone. It drains one command after another at a known rate, so when
/// room will come is known at once.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    capacity_bytes: u64,
    held_bytes: u64,
    /// When each held command is drained, and its bytes.
    draining: VecDeque<(u64, u64)>,
    drained_at: u64,
    last_admitted_at: u64,
    drain_ns: u64,
    further_ns: u64,
}

impl WriteBuffer {
    /// `drain_ns` for a command's first 4 KiB, `further_ns` for every further one.
    pub(crate) fn new(capacity_bytes: u64, drain_ns: u64, further_ns: u64) -> Self {
        let capacity_bytes = capacity_bytes.max(BLOCK_BYTES);
        Self {
            capacity_bytes,
            held_bytes: 0,
            draining: VecDeque::with_capacity((capacity_bytes / BLOCK_BYTES) as usize + 1),
            drained_at: 0,
            last_admitted_at: 0,
            drain_ns,
            further_ns,
        }
    }

    /// Takes a command whose data is there at `now_ns`; returns when the buffer had room for it. First in,
    /// first out: a small command does not pass a large one that waits. A command larger than the buffer
    /// waits until the buffer is empty.
    pub(crate) fn admit(&mut self, now_ns: u64, len_bytes: u64) -> u64 {
        let blocks = len_bytes.div_ceil(BLOCK_BYTES).max(1);
        let held = (blocks * BLOCK_BYTES).min(self.capacity_bytes);
        let mut at = now_ns.max(self.last_admitted_at);
        while let Some(&(gone_at, bytes)) = self.draining.front() {
            if gone_at > at {
                if self.held_bytes + held <= self.capacity_bytes {
                    break;
                }
                at = gone_at;
            }
            self.held_bytes -= bytes;
            self.draining.pop_front();
        }
        self.last_admitted_at = at;
        self.held_bytes += held;
        self.drained_at = at.max(self.drained_at) + self.drain_ns + (blocks - 1) * self.further_ns;
        self.draining.push_back((self.drained_at, held));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_admits_at_the_drain_rate() {
        let mut buffer = WriteBuffer::new(4 * BLOCK_BYTES, 5_000, 1_000);
        let admitted: Vec<u64> = (0..8).map(|_| buffer.admit(100, 4096)).collect();
        assert_eq!(admitted, [100, 100, 100, 100, 5_100, 10_100, 15_100, 20_100]);
        assert_eq!(buffer.admit(1_000_000, 512), 1_000_000, "it drained meanwhile");
    }

    #[test]
    fn a_command_larger_than_the_buffer_waits_for_all_of_it() {
        let mut buffer = WriteBuffer::new(4 * BLOCK_BYTES, 5_000, 1_000);
        assert_eq!(buffer.admit(0, 4096), 0);
        assert_eq!(buffer.admit(0, 64 * BLOCK_BYTES), 5_000);
        assert_eq!(buffer.admit(0, 4096), 5_000 + 5_000 + 63_000, "first in, first out");
    }
}
