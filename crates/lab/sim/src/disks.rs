//! Disks on the drive while they come, grow and are deleted: the daemon's own layout, and the wiper's work.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use io_model::units::Size;
use io_model::{Nanos, Op};
use layout::{DeviceIdentity, Extent, Layout, Placement, Wanted, WipeMethod};
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

/// The layout of a drive whose disks come and go.
pub(crate) struct Disks {
    layout: Layout,
    /// The wiper among the tenants.
    pub(crate) wiper: u16,
    /// Deleted tenants of which something may be with the drive.
    pub(crate) leaving: Vec<u16>,
    pub(crate) wipes: Rc<RefCell<Wipes>>,
    pub(crate) counts: DiskCounts,
}

impl Disks {
    /// These disks, by name and size, on an empty drive. `None`: they don't fit.
    pub(crate) fn new(disks: &[(&str, u64)], drive_bytes: u64, wiper: u16) -> Option<Self> {
        let device = DeviceIdentity { path: "model".to_owned(), size_bytes: drive_bytes, ..Default::default() };
        let wanted: Vec<Wanted<'_>> = disks.iter().map(|(name, size_bytes)| wanted(name, *size_bytes)).collect();
        let (mut layout, _) = Layout::plan(&wanted, &device, None).ok()?;
        layout.is_all_zeros();
        let (wipes, counts) = (Rc::default(), DiskCounts::default());
        Some(Self { layout, wiper, leaving: Vec::new(), wipes, counts })
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Placement> {
        self.layout.find(name)
    }

    /// Gives a new tenant its disk, if there is room.
    pub(crate) fn create(&mut self, name: &str, size_bytes: u64) -> Option<&Placement> {
        let device = self.layout.device().clone();
        match Layout::plan(&[wanted(name, size_bytes)], &device, Some(&self.layout)) {
            Ok((layout, _)) => {
                self.layout = layout;
                self.counts.created += 1;
            }
            Err(_) => self.counts.refused += 1,
        }
        self.layout.find(name)
    }

    /// Makes a disk larger, if it is there and there is room.
    pub(crate) fn grow(&mut self, name: &str, bytes: u64) -> Option<&Placement> {
        self.layout.find(name)?;
        if self.layout.grow(name, bytes).is_err() {
            self.counts.refused += 1;
            return None;
        }
        self.counts.grown += 1;
        self.layout.find(name)
    }

    /// What a disk has waits for the wiper. `false`: there is no such disk.
    pub(crate) fn delete(&mut self, name: &str) -> bool {
        let deleted = self.layout.release(name, WipeMethod::Zeros);
        self.counts.deleted += u64::from(deleted);
        deleted
    }

    /// Nothing of a deleted tenant is with the drive any more: the wiper may go there.
    pub(crate) fn has_left(&mut self, name: &str) {
        let left = self.layout.wiping().iter().filter(|range| range.former == name);
        self.wipes.borrow_mut().ranges.extend(left.map(layout::Wiping::extent));
    }

    /// Nobody overwrites what a deleted tenant left. For a canary.
    pub(crate) fn skip_wiping(&mut self, name: &str) {
        let left: Vec<u64> =
            self.layout.wiping().iter().filter(|range| range.former == name).map(|range| range.offset_bytes).collect();
        left.into_iter().for_each(|offset_bytes| {
            let _ = self.layout.set_wiped(offset_bytes, 1, 0);
        });
    }

    /// What the wiper has done is free.
    pub(crate) fn take_wiped(&mut self) {
        for Extent { offset_bytes, size_bytes } in self.wipes.borrow_mut().done.drain(..) {
            self.layout.set_wiped(offset_bytes, WipeMethod::Zeros.passes(), 0);
            self.counts.wiped_bytes += size_bytes;
        }
    }
}

fn wanted(name: &str, size_bytes: u64) -> Wanted<'_> {
    Wanted { name, size: Size(size_bytes), offset: None, lba_bytes: 512 }
}

/// What the wiper is to overwrite, oldest first, and what it has.
#[derive(Debug, Default)]
pub(crate) struct Wipes {
    ranges: VecDeque<Extent>,
    done: Vec<Extent>,
}

/// A range that is being overwritten.
#[derive(Debug)]
struct Run {
    range: Extent,
    next_bytes: u64,
    in_flight: u32,
    is_flushed: bool,
    has_failed: bool,
}

/// The wiper's thread: overwrites a range, flushes, tells. A range that the drive failed is never told of.
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
        let left_bytes = run.range.size_bytes - run.next_bytes;
        let shape = if left_bytes > 0 && run.in_flight < DEPTH {
            let (offset_bytes, len_bytes) = (run.range.offset_bytes + run.next_bytes, left_bytes.min(CHUNK_BYTES));
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
