//! Disks on the drive while they come, grow and are deleted, and the wiper's work.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use io_model::{Nanos, Op};
use serde::Serialize;

use crate::job::{Action, Job, Shape};

/// The daemon's wiper writes this much at a time, with `DEPTH` writes in flight.
const CHUNK_BYTES: u64 = 128 << 10;
const DEPTH: u32 = 4;

/// What happened to disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DiskCounts {
    /// Made while others ran.
    pub created: u64,
    /// Made larger.
    pub grown: u64,
    /// Not made, or not made larger, since there was no room.
    pub refused: u64,
    /// Deleted.
    pub deleted: u64,
    /// Bytes of deleted ones that were overwritten.
    pub wiped_bytes: u64,
    /// Of these, bytes that others got then.
    pub reused_bytes: u64,
    /// Commands that went to the drive beyond the guests' own: those across an edge of a piece went as several.
    pub further_parts: u64,
}

impl DiskCounts {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for DiskCounts {
    fn add_assign(&mut self, other: Self) {
        self.created += other.created;
        self.grown += other.grown;
        self.refused += other.refused;
        self.deleted += other.deleted;
        self.wiped_bytes += other.wiped_bytes;
        self.reused_bytes += other.reused_bytes;
        self.further_parts += other.further_parts;
    }
}

/// Ranges of the drive, each an offset and a length in bytes.
pub type Ranges = Vec<(u64, u64)>;

/// Disks lie on the drive in whole multiples of this.
pub const DISK_STEP_BYTES: u64 = 4096;

/// What decides where disks lie on the drive. In the laboratory it is the daemon's layout.
pub trait DiskSpace: std::fmt::Debug {
    /// Where a disk lies. `None`: there is no such disk.
    fn ranges(&self, name: &str) -> Option<Ranges>;
    /// Gives a new disk its place. `false`: there is no room.
    fn create(&mut self, name: &str, size_bytes: u64) -> bool;
    /// Makes a disk larger by that much. `false`: there is no room.
    fn grow(&mut self, name: &str, bytes: u64) -> bool;
    /// Deletes a disk. `false`: there is no such disk.
    fn delete(&mut self, name: &str) -> bool;
    /// What a deleted disk left, to be overwritten before others get it.
    fn to_wipe(&self, name: &str) -> Ranges;
    /// The range that begins there was overwritten: it is free.
    fn wiped(&mut self, offset_bytes: u64);
}

/// Places these disks, by name and size in bytes, on an empty drive of a size in bytes. `None`: they don't fit.
pub type NewSpace = fn(&[(&str, u64)], u64) -> Option<Box<dyn DiskSpace>>;

/// The disks of a drive on which they come and go.
pub(crate) struct Disks {
    space: Box<dyn DiskSpace>,
    /// The wiper among the tenants.
    pub(crate) wiper: u16,
    /// Deleted tenants of which something may be with the drive.
    pub(crate) leaving: Vec<u16>,
    pub(crate) wipes: Rc<RefCell<Wipes>>,
    pub(crate) counts: DiskCounts,
}

impl Disks {
    pub(crate) fn new(space: Box<dyn DiskSpace>, wiper: u16) -> Self {
        Self { space, wiper, leaving: Vec::new(), wipes: Rc::default(), counts: DiskCounts::default() }
    }

    pub(crate) fn find(&self, name: &str) -> Option<Ranges> {
        self.space.ranges(name)
    }

    /// Gives a new tenant its disk, if there is room.
    pub(crate) fn create(&mut self, name: &str, size_bytes: u64) -> Option<Ranges> {
        let is_made = self.space.create(name, size_bytes);
        *(if is_made { &mut self.counts.created } else { &mut self.counts.refused }) += 1;
        self.space.ranges(name)
    }

    /// Makes a disk larger, if it is there and there is room.
    pub(crate) fn grow(&mut self, name: &str, bytes: u64) -> Option<Ranges> {
        self.space.ranges(name)?;
        let is_grown = self.space.grow(name, bytes);
        *(if is_grown { &mut self.counts.grown } else { &mut self.counts.refused }) += 1;
        self.space.ranges(name).filter(|_| is_grown)
    }

    /// What a disk has waits for the wiper. `false`: there is no such disk.
    pub(crate) fn delete(&mut self, name: &str) -> bool {
        let deleted = self.space.delete(name);
        self.counts.deleted += u64::from(deleted);
        deleted
    }

    /// Nothing of a deleted tenant is with the drive any more: the wiper may go there.
    pub(crate) fn has_left(&mut self, name: &str) {
        self.wipes.borrow_mut().ranges.extend(self.space.to_wipe(name));
    }

    /// Nobody overwrites what a deleted tenant left. For a canary.
    pub(crate) fn skip_wiping(&mut self, name: &str) {
        self.space.to_wipe(name).into_iter().for_each(|(offset_bytes, _)| self.space.wiped(offset_bytes));
    }

    /// What the wiper has done is free.
    pub(crate) fn take_wiped(&mut self) {
        for (offset_bytes, size_bytes) in self.wipes.borrow_mut().done.drain(..) {
            self.space.wiped(offset_bytes);
            self.counts.wiped_bytes += size_bytes;
        }
    }
}

/// The wiper's ranges, oldest first, and those done.
#[derive(Debug, Default)]
pub(crate) struct Wipes {
    ranges: VecDeque<(u64, u64)>,
    done: Ranges,
}

/// A range that is being overwritten.
#[derive(Debug)]
struct Run {
    range: (u64, u64),
    next_bytes: u64,
    in_flight: u32,
    is_flushed: bool,
    has_failed: bool,
}

/// The wiper's thread: overwrites a range, flushes, reports. A range that the drive failed is never reported.
#[derive(Debug)]
pub(crate) struct WipeJob {
    wipes: Rc<RefCell<Wipes>>,
    run: Option<Run>,
}

impl WipeJob {
    pub(crate) fn new(wipes: Rc<RefCell<Wipes>>) -> Self {
        Self { wipes, run: None }
    }
}

impl Job for WipeJob {
    fn next(&mut self, _: Nanos) -> Action {
        if self.run.is_none() {
            let next = self.wipes.borrow_mut().ranges.pop_front();
            let start = |range| Run { range, next_bytes: 0, in_flight: 0, is_flushed: false, has_failed: false };
            self.run = next.map(start);
        }
        let Some(run) = &mut self.run else { return Action::WaitCompletion };
        let left_bytes = run.range.1 - run.next_bytes;
        let shape = if left_bytes > 0 && run.in_flight < DEPTH {
            let (offset_bytes, len_bytes) = (run.range.0 + run.next_bytes, left_bytes.min(CHUNK_BYTES));
            run.next_bytes += len_bytes;
            Shape { op: Op::Write, offset_bytes, len_bytes: len_bytes as u32 }
        } else if left_bytes == 0 && run.in_flight == 0 && !run.is_flushed {
            run.is_flushed = true;
            Shape { op: Op::Flush, offset_bytes: 0, len_bytes: 0 }
        } else {
            return Action::WaitCompletion;
        };
        run.in_flight += 1;
        Action::Submit { shape, since: None }
    }

    fn failed(&mut self) {
        if let Some(run) = &mut self.run {
            run.has_failed = true;
        }
    }

    fn completed(&mut self, _: &Shape, _: Nanos, _: Nanos) {
        let Some(run) = &mut self.run else { return };
        run.in_flight -= 1;
        if run.is_flushed && run.in_flight == 0 {
            if !run.has_failed {
                self.wipes.borrow_mut().done.push(run.range);
            }
            self.run = None;
        }
    }
}
