//! The daemon's own layout decides where disks lie.

use engine::{DISK_STEP_BYTES, DiskSpace, Ranges};
use io_model::units::Size;
use layout::{DeviceIdentity, Extent, Layout, Wanted, WipeMethod, Wiping};

const _: () = assert!(DISK_STEP_BYTES == layout::RANGE_STEP_BYTES);

/// These disks, by name and size, on an empty drive. `None`: they don't fit.
pub(crate) fn new(disks: &[(&str, u64)], drive_bytes: u64) -> Option<Box<dyn DiskSpace>> {
    let device = DeviceIdentity { path: "model".to_owned(), size_bytes: drive_bytes, ..Default::default() };
    let wanted: Vec<Wanted<'_>> = disks.iter().map(|(name, size_bytes)| wanted(name, *size_bytes)).collect();
    let (mut layout, _) = Layout::plan(&wanted, None, &device, None).ok()?;
    layout.is_all_zeros();
    Some(Box::new(Placed(layout)))
}

fn wanted(name: &str, size_bytes: u64) -> Wanted<'_> {
    Wanted { name, size: Size(size_bytes), offset: None, lba_bytes: 512, is_thin: false }
}

fn range(extent: Extent) -> (u64, u64) {
    (extent.offset_bytes, extent.size_bytes)
}

/// The layout of a drive whose disks come and go.
#[derive(Debug)]
struct Placed(Layout);

impl DiskSpace for Placed {
    fn ranges(&self, name: &str) -> Option<Ranges> {
        Some(self.0.find(name)?.extents.iter().copied().map(range).collect())
    }

    fn create(&mut self, name: &str, size_bytes: u64) -> bool {
        let device = self.0.device().clone();
        let planned = Layout::plan(&[wanted(name, size_bytes)], None, &device, Some(&self.0));
        planned.map(|(layout, _)| self.0 = layout).is_ok()
    }

    fn grow(&mut self, name: &str, bytes: u64) -> bool {
        self.0.grow(name, bytes).is_ok()
    }

    fn delete(&mut self, name: &str) -> bool {
        self.0.release(name, None)
    }

    fn to_wipe(&self, name: &str) -> Ranges {
        let left = self.0.wiping().iter().filter(|wiping| wiping.former == name);
        left.map(Wiping::extent).map(range).collect()
    }

    fn wiped(&mut self, offset_bytes: u64) {
        self.0.set_wiped(offset_bytes, WipeMethod::Zeros.passes(), 0);
    }
}
