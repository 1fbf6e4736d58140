//! A client whose commands of 4 KiB go to addresses of the caller's: no load generator writes each piece once.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use load::disk::{Disk, DiskQueue, QueueShape, Request};
use load::{AnyDisk, AnyQueue, Direction, Frontend};

pub const BLOCK_BYTES: u64 = 4096;

/// One queue of a disk.
pub struct Strider {
    queue: AnyQueue,
    /// The connection.
    _disk: AnyDisk,
}

impl Strider {
    /// Attaches, with up to `depth` commands in flight.
    pub fn attach(socket: &Path, depth: u16) -> Result<Self> {
        let mut disk = AnyDisk::attach(socket, Frontend::Auto)?;
        let mut queues = disk.open_queues(&[QueueShape { depth, buffer_bytes: BLOCK_BYTES, priority: None }])?;
        Ok(Self { queue: queues.remove(0), _disk: disk })
    }

    /// Sends a command, unless the queue is full. Returns whether it was sent.
    pub fn send(&mut self, direction: Direction, offset_bytes: u64) -> Result<bool> {
        if self.queue.next_tag().is_none() {
            return Ok(false);
        }
        self.queue.send(Request { direction, offset_bytes, len_bytes: BLOCK_BYTES, durable: false })?;
        self.queue.ring()?;
        Ok(true)
    }

    /// Takes completions; returns how many there were.
    pub fn poll(&mut self) -> Result<u32> {
        let mut failed = None;
        let done = self.queue.poll(&mut |done| failed = failed.or(done.outcome.err()))?;
        ensure!(failed.is_none(), "a command failed: {}", failed.map_or(String::new(), |why| why.to_string()));
        Ok(done)
    }

    /// Whether commands are in flight.
    pub fn is_busy(&self) -> bool {
        self.queue.in_flight() > 0
    }

    /// Writes once to each of the units of `stride_bytes`, and returns the seconds that it took.
    pub fn write_each(&mut self, units: Range<u64>, stride_bytes: u64) -> Result<f64> {
        let begun = Instant::now();
        for unit in units {
            while !self.send(Direction::Write, unit * stride_bytes)? {
                self.poll()?;
            }
        }
        while self.is_busy() {
            self.poll()?;
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}
