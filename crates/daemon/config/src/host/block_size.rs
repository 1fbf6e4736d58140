//! The smallest blocks that a drive reads and writes, before it is opened to be served.

use std::fs::{File, read_to_string};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, open, statx};

/// What direct I/O takes on file systems that don't say.
const PAGE_BYTES: u32 = 4096;

/// Of a block device, by what sysfs has of it or of the one that it is a part of.
pub(super) fn of_device(sys: &Path) -> Option<u32> {
    let read = |up: &str| read_to_string(sys.join(up).join("queue/logical_block_size")).ok();
    read("").or_else(|| read("../"))?.trim().parse().ok()
}

/// Of an image that is to be made there: a file without a name, which is gone at once, tells.
pub(super) fn of_new_image(directory: &Path) -> Option<u32> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    open(directory, flags, Mode::RUSR | Mode::WUSR).ok().and_then(|file| of_image(&File::from(file)))
}

/// Of an image that is opened past the page cache, where its file system has that.
pub(super) fn of_image(image: &File) -> Option<u32> {
    let found = statx(image, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN).ok()?;
    if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN) {
        return Some(found.stx_dio_offset_align).filter(|bytes| *bytes > 0);
    }
    let flags = fcntl_getfl(image).ok()?;
    if flags.contains(OFlags::DIRECT) {
        return Some(PAGE_BYTES);
    }
    fcntl_setfl(image, flags | OFlags::DIRECT).ok()?;
    let _ = fcntl_setfl(image, flags);
    Some(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_device_has_its_blocks() {
        let sys = tempfile::tempdir().expect("a folder");
        let part = sys.path().join("vda1");
        std::fs::create_dir_all(sys.path().join("queue")).expect("a folder");
        std::fs::create_dir(&part).expect("a folder");
        assert_eq!(of_device(&part), None);
        std::fs::write(sys.path().join("queue/logical_block_size"), "4096\n").expect("a file");
        assert_eq!((of_device(sys.path()), of_device(&part)), (Some(4096), Some(4096)));
    }
}
