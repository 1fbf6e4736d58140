//! Reference counts of a qcow2 image that is to be written to.
//!
//! A program that was killed leaves clusters that are counted and that nothing refers to. They are given back here. A
//! cluster that is in use and is not counted would be given out again, so such an image is refused.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::qcow2::{COUNTS, Entry, Header, Image, OFFSET_MASK, be_u64};
use crate::{CHECK, CONVERT, Fault};

/// The autoclear bit of dirty bitmaps.
const BITMAPS: u64 = 1;
/// Offset of an entry of the table of reference counts: bits 9 to 63.
const BLOCK_MASK: u64 = !0x1ff;
/// Clusters that a file may have here: 16 TiB of clusters of 64 KiB.
const CLUSTERS_MAX: u64 = 1 << 28;

/// Checks that every cluster in use is counted, and gives back those that are counted and not in use. It takes time and
/// memory in proportion to the file: 2 bytes for each cluster.
///
/// # Errors
/// Counts are too low, two tables refer to one cluster, or the image has what a disk can't be written with.
pub fn mend(file: &File) -> Result<(), Fault> {
    compare_all(file, true)
}

/// As [`mend`], and changes nothing.
///
/// # Errors
/// As there.
pub fn check(file: &File) -> Result<(), Fault> {
    compare_all(file, false)
}

fn compare_all(file: &File, mends: bool) -> Result<(), Fault> {
    let image = Image::of(file)?;
    let header = Header::read(&image)?;
    refuse_unwritable(&header, &image)?;
    let mut uses = Uses::new(&header, &image);
    let blocks = count(&header, &image, &mut uses)?;
    for (number, at) in blocks {
        let lower = compare(&header, &image, (number, at), &mut uses)?;
        if let Some(block) = lower.filter(|_| mends) {
            file.write_all_at(&block, at)?;
        }
    }
    match uses.counts.iter().position(|count| *count > 0) {
        Some(cluster) => Err(too_low(cluster as u64 * header.cluster_bytes())),
        None => Ok(()),
    }
}

fn refuse_unwritable(header: &Header, image: &Image<'_>) -> Result<(), Fault> {
    const AMEND: &str = "upgrade it by `qemu-img amend -o compat=1.1 IMAGE`";
    let refused = [
        (header.version == 2, "it is of version 2", AMEND),
        (header.snapshots > 0, "it has snapshots within it", CONVERT),
        (header.autoclear & BITMAPS != 0, "it has dirty bitmaps", "remove them by `qemu-img bitmap --remove`"),
        (!(3..=6).contains(&header.count_order), "its reference counts have less than 8 bits (refcount_bits)", CONVERT),
        (image.len_bytes() >> header.cluster_bits >= CLUSTERS_MAX, "it has too many clusters", CONVERT),
    ];
    match refused.iter().find(|(is_refused, ..)| *is_refused) {
        Some((_, what, remedy)) => Err(Fault::new(*what, remedy)),
        None => Ok(()),
    }
}

fn too_low(at: u64) -> Fault {
    Fault::new(format!("the cluster at byte {at} is in use, and its reference count is too low"), CHECK)
}

/// How often each cluster of the file is in use, and not yet found counted.
struct Uses {
    cluster_bytes: u64,
    counts: Vec<u16>,
}

impl Uses {
    fn new(header: &Header, image: &Image<'_>) -> Self {
        let cluster_bytes = header.cluster_bytes();
        Self { cluster_bytes, counts: vec![0; image.len_bytes().div_ceil(cluster_bytes) as usize] }
    }

    /// A table or data is in these bytes, alone. What lies behind the file's end is not there.
    fn add(&mut self, at: u64, len_bytes: u64) -> Result<(), Fault> {
        for cluster in at / self.cluster_bytes..(at + len_bytes).div_ceil(self.cluster_bytes) {
            match self.counts.get_mut(cluster as usize) {
                Some(count @ 0) => *count = 1,
                Some(_) => {
                    let at = cluster * self.cluster_bytes;
                    return Err(Fault::new(format!("two of its tables refer to the cluster at byte {at}"), CHECK));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Compressed data is in these bytes, and other data may be in their clusters.
    fn share(&mut self, at: u64, end: u64) {
        for cluster in at / self.cluster_bytes..end.div_ceil(self.cluster_bytes) {
            if let Some(count) = self.counts.get_mut(cluster as usize) {
                *count = count.saturating_add(1);
            }
        }
    }
}

/// Counts all that the tables refer to. Returns blocks of reference counts: their numbers, and where they are.
fn count(header: &Header, image: &Image<'_>, uses: &mut Uses) -> Result<Vec<(u64, u64)>, Fault> {
    // Compressed data comes first: then a cluster that a table has as well is found.
    header.each_l2_table(image, |_, _, table| {
        for entry in table.chunks_exact(8) {
            if let Entry::Compressed { at, end } = header.entry(be_u64(entry, 0)) {
                uses.share(at, end);
            }
        }
        Ok(())
    })?;
    uses.add(0, header.cluster_bytes())?;
    uses.add(header.l1_at, header.l1_bytes)?;
    uses.add(header.counts_at, header.counts_bytes)?;
    header.each_l2_table(image, |at, _, table| {
        uses.add(at, header.cluster_bytes())?;
        for entry in table.chunks_exact(8) {
            if let Entry::Cluster { at, .. } = header.entry(be_u64(entry, 0)) {
                header.check_aligned(at & OFFSET_MASK, "a cluster")?;
                uses.add(at, header.cluster_bytes())?;
            }
        }
        Ok(())
    })?;
    let mut table = vec![0; header.counts_bytes as usize];
    image.read(&mut table, header.counts_at, COUNTS)?;
    let named = (0..).zip(table.chunks_exact(8)).map(|(number, entry)| (number, be_u64(entry, 0) & BLOCK_MASK));
    let blocks: Vec<(u64, u64)> = named.filter(|(_, at)| *at != 0).collect();
    for (_, at) in &blocks {
        header.check_aligned(*at, "a block of reference counts")?;
        image.refuse_cut(*at, header.cluster_bytes(), "a block of reference counts")?;
        uses.add(*at, header.cluster_bytes())?;
    }
    Ok(blocks)
}

/// Compares a block of counts with what is in use. Returns what it should be, if counts are too high.
fn compare(
    header: &Header,
    image: &Image<'_>,
    (number, at): (u64, u64),
    uses: &mut Uses,
) -> Result<Option<Vec<u8>>, Fault> {
    let mut block = vec![0; header.cluster_bytes() as usize];
    image.read(&mut block, at, "a block of reference counts")?;
    let count_bytes = 1 << (header.count_order - 3);
    let first = number.saturating_mul((block.len() / count_bytes) as u64);
    let mut is_changed = false;
    for (cluster, counted) in (first..).zip(block.chunks_exact_mut(count_bytes)) {
        let used = uses.counts.get_mut(cluster as usize).map_or(0, std::mem::take);
        let count = counted.iter().fold(0_u64, |count, byte| count << 8 | u64::from(*byte));
        if count < u64::from(used) {
            return Err(too_low(cluster * header.cluster_bytes()));
        }
        if count > u64::from(used) {
            let used = u64::from(used).to_be_bytes();
            counted.copy_from_slice(&used[8 - count_bytes..]);
            is_changed = true;
        }
    }
    Ok(is_changed.then_some(block))
}
