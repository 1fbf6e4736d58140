//! Ranges to zero and wipe.

use std::collections::{BTreeMap, BTreeSet};

use io_model::TenantId;
use layout::{Layout, WipeMethod, Wiping};

/// The jobs of a drive. Which ranges wait to be wiped is in its layout.
#[derive(Debug, Clone, Default)]
pub struct Jobs {
    /// Disks that a thread zeroes, or will. It may still write to one that has left.
    zeroing: BTreeSet<TenantId>,
    /// Ranges of deleted disks that pollers, controllers or the zeroing still use.
    held: BTreeMap<TenantId, Vec<u64>>,
    /// Maps of deleted thin disks that pollers still use.
    held_maps: BTreeMap<TenantId, Vec<u32>>,
    /// Ranges that the drive failed, and why. They stay reserved until the next start.
    failed: BTreeMap<u64, String>,
}

impl Jobs {
    /// The next range to wipe. `None`: there is none that may be written now.
    pub fn next<'l>(&self, layout: Option<&'l Layout>) -> Option<&'l Wiping> {
        let mut ranges = layout.into_iter().flat_map(Layout::wiping);
        ranges.find(|range| range.method != WipeMethod::Noise && self.may_wipe(range))
    }

    /// Where the ranges of deleted encrypted disks start that nothing uses any more.
    pub(crate) fn noise(&self, layout: Option<&Layout>) -> impl Iterator<Item = u64> {
        let ranges = layout.into_iter().flat_map(Layout::wiping);
        let free = ranges.filter(|range| range.method == WipeMethod::Noise && self.may_wipe(range));
        free.map(|range| range.offset_bytes)
    }

    fn may_wipe(&self, range: &Wiping) -> bool {
        let is_held = self.held.values().flatten().any(|offset_bytes| *offset_bytes == range.offset_bytes);
        !is_held && !self.failed.contains_key(&range.offset_bytes)
    }

    /// Why the range that starts there can't be wiped.
    pub fn failure(&self, offset_bytes: u64) -> Option<&str> {
        self.failed.get(&offset_bytes).map(String::as_str)
    }

    /// Why some range can't be wiped.
    pub fn any_failure(&self) -> Option<&str> {
        self.failed.values().next().map(String::as_str)
    }

    /// Whether a disk was deleted and is still in use.
    pub fn is_held(&self, id: TenantId) -> bool {
        self.held.contains_key(&id)
    }

    /// Whether something of a disk's range is being zeroed, or will be.
    pub fn is_zeroed(&self, id: TenantId) -> bool {
        self.zeroing.contains(&id)
    }

    pub(crate) fn hold(&mut self, id: TenantId, offsets: Vec<u64>, maps: Vec<u32>) {
        self.held.insert(id, offsets);
        self.held_maps.insert(id, maps);
    }

    /// The maps of a disk that pollers don't use any more.
    pub(crate) fn let_go_maps(&mut self, id: TenantId) -> Vec<u32> {
        self.held_maps.remove(&id).unwrap_or_default()
    }

    /// Nothing uses the ranges of a disk any more. `false`: they were not held, or the zeroing still writes there.
    pub(crate) fn let_go(&mut self, id: TenantId) -> bool {
        !self.is_zeroed(id) && self.held.remove(&id).is_some()
    }

    pub(crate) fn begin_zeroing(&mut self, id: TenantId) {
        self.zeroing.insert(id);
    }

    pub(crate) fn end_zeroing(&mut self, id: TenantId) {
        self.zeroing.remove(&id);
    }

    pub(crate) fn fail(&mut self, offset_bytes: u64, why: String) {
        self.failed.insert(offset_bytes, why);
    }
}
