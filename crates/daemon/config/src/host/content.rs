//! What a drive without a layout holds: file systems, volumes and RAID members, or any byte that is not zero.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use rustix::io::Errno;

use super::drive_mark::{MARK_BYTES, mark_in};

/// The first and last bytes that are read whole: superblocks, partition tables, LUKS headers and RAID metadata.
const HEAD_BYTES: u64 = 4 << 20;
const TAIL_BYTES: u64 = 1 << 20;
/// Copies of Btrfs's superblock lie at fixed places beyond the head.
const BTRFS_COPIES: [u64; 2] = [64 << 20, 256 << 30];
/// Between head and tail: a run of data as long as the distance of two samples is always found.
const SAMPLES: u64 = 2048;
const SAMPLE_BYTES: u64 = 16 << 10;

/// Data on a drive that no layout describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Where it lies, in bytes from the drive's start.
    pub at_bytes: u64,
    /// What it is, where its signature is known.
    pub kind: Option<&'static str>,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.unwrap_or("data");
        write!(f, "{kind} at byte {}", self.at_bytes)
    }
}

/// Where a signature lies.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Bytes from the start.
    Start(u64),
    /// Bytes before the end.
    End(u64),
    /// Bytes before the end, after that was rounded down to 64 KiB (md 0.90).
    EndOf64K(u64),
}

/// Signatures as libblkid knows them, the more telling ones first.
const SIGNATURES: &[(&str, Place, &[u8])] = {
    use Place::{End, EndOf64K, Start};
    &[
        ("a LUKS volume", Start(0), b"LUKS\xba\xbe"),
        ("a LUKS volume", Start(0x4000), b"SKUL\xba\xbe"),
        ("a BitLocker volume", Start(3), b"-FVE-FS-"),
        ("an LVM physical volume", Start(512), b"LABELONE"),
        ("an LVM physical volume", Start(0), b"LABELONE"),
        ("an LVM physical volume", Start(1024), b"LABELONE"),
        ("an LVM physical volume", Start(1536), b"LABELONE"),
        ("a RAID member (md 1.1)", Start(0), b"\xfc\x4e\x2b\xa9"),
        ("a RAID member (md 1.2)", Start(4096), b"\xfc\x4e\x2b\xa9"),
        ("a RAID member (md 1.0)", End(8192), b"\xfc\x4e\x2b\xa9"),
        ("a RAID member (md 0.90)", EndOf64K(65_536), b"\xfc\x4e\x2b\xa9"),
        ("a RAID member (DDF)", End(512), b"\xde\x11\xde\x11"),
        ("a RAID member (Intel)", End(1024), b"Intel Raid ISM Cfg Sig. "),
        ("a DRBD volume", End(4096 - 60), b"\x83\x74\x02\x6b"),
        ("a Ceph BlueStore volume", Start(0), b"bluestore block device"),
        ("a Stratis volume", Start(516), b"!Stra0tis\x86\xff\x02^\x41rh"),
        ("a bcache or bcachefs volume", Start(4120), b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
        ("an Oracle ASM disk", Start(32), b"ORCLDISK"),
        ("a VDO volume", Start(0), b"dmvdo001"),
        ("a dm-integrity volume", Start(0), b"integrt\0"),
        ("a dm-verity volume", Start(0), b"verity\0\0"),
        ("a VMFS volume", Start(1 << 20), b"\x0d\xd0\x01\xc0"),
        ("a Btrfs file system", Start(0x1_0040), b"_BHRfS_M"),
        ("a Btrfs file system", Start(BTRFS_COPIES[0] + 64), b"_BHRfS_M"),
        ("a Btrfs file system", Start(BTRFS_COPIES[1] + 64), b"_BHRfS_M"),
        ("an XFS file system", Start(0), b"XFSB"),
        ("an ext2, ext3 or ext4 file system", Start(1080), b"\x53\xef"),
        ("an F2FS file system", Start(1024), b"\x10\x20\xf5\xf2"),
        ("an EROFS file system", Start(1024), b"\xe2\xe1\xf5\xe0"),
        ("a NILFS2 file system", Start(1030), b"\x34\x34"),
        ("a SquashFS file system", Start(0), b"hsqs"),
        ("a GFS2 file system", Start(65_536), b"\x01\x16\x19\x70"),
        ("an OCFS2 file system", Start(8192), b"OCFSV2"),
        ("a ReiserFS file system", Start(0x1_0034), b"ReIsEr"),
        ("a JFS file system", Start(32_768), b"JFS1"),
        ("an APFS container", Start(32), b"NXSB"),
        ("an HFS+ file system", Start(1024), b"H+"),
        ("a UFS file system", Start(0x1_0000 + 1372), b"\x19\x01\x54\x19"),
        ("an NTFS file system", Start(3), b"NTFS    "),
        ("an exFAT file system", Start(3), b"EXFAT   "),
        ("a FAT file system", Start(82), b"FAT32   "),
        ("a FAT file system", Start(54), b"FAT1"),
        ("an ISO 9660 image", Start(32_769), b"CD001"),
        ("a UDF file system", Start(32_769), b"BEA01"),
        ("swap space", Start(4086), b"SWAPSPACE2"),
        ("a GPT partition table", Start(512), b"EFI PART"),
        ("a GPT partition table", Start(4096), b"EFI PART"),
        ("the copy of a GPT partition table", End(512), b"EFI PART"),
        ("the copy of a GPT partition table", End(4096), b"EFI PART"),
        ("an MBR partition table or boot sector", Start(510), b"\x55\xaa"),
    ]
};
/// ZFS writes its magic number somewhere in a ring of uberblocks, in both byte orders.
const UBERBLOCKS: std::ops::Range<u64> = 128 << 10..256 << 10;
const UBERBLOCK_STEP_BYTES: u64 = 1 << 10;
const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;

/// What a range counts as that the drive can't read: as data, since nobody can say that it is empty.
const UNREADABLE: &str = "a range that can't be read";

/// Looks at a drive through `read`, which fills a buffer from a place that is a multiple of 4 KiB, or returns `false`
/// where the medium can't be read.
///
/// Reads the first 4 MiB, the last 1 MiB, and 2,048 samples of 16 KiB between them; smaller drives whole.
/// `None`: all of that is zero, but for a mark of ours.
pub fn look<E>(len_bytes: u64, mut read: impl FnMut(u64, &mut [u8]) -> Result<bool, E>) -> Result<Option<Content>, E> {
    for (start_bytes, end_bytes) in spans(len_bytes) {
        let mut span = vec![0; (end_bytes - start_bytes) as usize];
        if !read(start_bytes, &mut span)? {
            return Ok(Some(Content { at_bytes: start_bytes, kind: Some(UNREADABLE) }));
        }
        let data_in = |(index, block): (usize, &[u8])| {
            let at = block.iter().position(|byte| *byte != 0)?;
            mark_in(block).is_none().then_some(index * MARK_BYTES as usize + at)
        };
        if let Some(at) = span.chunks(MARK_BYTES as usize).enumerate().find_map(data_in) {
            let first = Content { at_bytes: start_bytes + at as u64, kind: None };
            return Ok(Some(named(&span, start_bytes, len_bytes).unwrap_or(first)));
        }
    }
    Ok(None)
}

/// What an image or a block device holds.
///
/// # Errors
/// It can't be read.
pub fn content_of(mut drive: &File) -> io::Result<Option<Content>> {
    let len_bytes = drive.seek(SeekFrom::End(0))?;
    let found = |mut drive: &File| {
        look(len_bytes, |at, part| {
            drive.seek(SeekFrom::Start(at))?;
            match drive.read_exact(part) {
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::IO | Errno::NODATA)) => Ok(false),
                read => read.map(|()| true),
            }
        })
    };
    if !drive.metadata()?.is_file() {
        return found(drive);
    }
    // An image knows what was ever written to it. Allocated blocks may be those of its extended attributes.
    match rustix::fs::seek(drive, rustix::fs::SeekFrom::Data(0)) {
        Err(Errno::NXIO) => Ok(None),
        written => {
            let written = Content { at_bytes: written.unwrap_or_default(), kind: None };
            Ok(Some(found(drive)?.unwrap_or(written)))
        }
    }
}

/// What is read, each from a multiple of 4 KiB, in order: head and tail before anything between them.
fn spans(len_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let head_end = HEAD_BYTES.min(len_bytes);
    let tail_start = (len_bytes.saturating_sub(TAIL_BYTES) & !4095).max(head_end);
    let between_bytes = tail_start - head_end;
    let is_small = between_bytes <= SAMPLES * SAMPLE_BYTES;
    let count = if is_small { between_bytes.div_ceil(SAMPLE_BYTES) } else { SAMPLES };
    let nth_bytes = move |index: u64| match is_small {
        true => index * SAMPLE_BYTES,
        // Each on its own: a distance that is rounded down would leave a gap before the tail.
        false => (between_bytes / SAMPLES * index + between_bytes % SAMPLES * index / SAMPLES) & !4095,
    };
    let sample = move |at: u64| (at, (at + SAMPLE_BYTES).min(tail_start));
    let copies = BTRFS_COPIES.into_iter().filter(move |at| (head_end..tail_start).contains(at)).map(sample);
    let samples = (0..count).map(move |index| sample(head_end + nth_bytes(index)));
    [(0, head_end), (tail_start, len_bytes)].into_iter().chain(copies).chain(samples).filter(|(from, to)| from < to)
}

/// What the signatures in a span say.
fn named(span: &[u8], start_bytes: u64, len_bytes: u64) -> Option<Content> {
    let bytes_at = |at: u64, len: usize| {
        let from = usize::try_from(at.checked_sub(start_bytes)?).ok()?;
        span.get(from..from.checked_add(len)?)
    };
    let place = |place: Place| match place {
        Place::Start(at) => Some(at),
        Place::End(before) => len_bytes.checked_sub(before),
        Place::EndOf64K(before) => (len_bytes & !0xffff).checked_sub(before),
    };
    let known = SIGNATURES.iter().find_map(|(kind, its_place, magic)| {
        let at_bytes = place(*its_place)?;
        (bytes_at(at_bytes, magic.len())? == *magic).then_some(Content { at_bytes, kind: Some(kind) })
    });
    let is_uberblock = |at: &u64| {
        bytes_at(*at, 8).and_then(|bytes| bytes.try_into().ok()).is_some_and(|bytes| {
            u64::from_le_bytes(bytes) == UBERBLOCK_MAGIC || u64::from_be_bytes(bytes) == UBERBLOCK_MAGIC
        })
    };
    let zfs = || {
        let at_bytes = UBERBLOCKS.step_by(UBERBLOCK_STEP_BYTES as usize).find(is_uberblock)?;
        Some(Content { at_bytes, kind: Some("a ZFS pool member") })
    };
    known.or_else(zfs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive of zeros, but for some bytes.
    fn found(len_bytes: u64, at_bytes: u64, data: &[u8]) -> Option<Content> {
        let read = |at: u64, part: &mut [u8]| {
            assert_eq!(at % 4096, 0, "drives read whole blocks");
            assert!(at + part.len() as u64 <= len_bytes, "nothing is beyond the end");
            let (start, end) = (at.max(at_bytes), (at + part.len() as u64).min(at_bytes + data.len() as u64));
            if start < end {
                let its = &data[(start - at_bytes) as usize..(end - at_bytes) as usize];
                part[(start - at) as usize..(end - at) as usize].copy_from_slice(its);
            }
            Ok::<_, io::Error>(true)
        };
        look(len_bytes, read).expect("nothing fails here")
    }

    /// Only here: a signature at a place that is not read, or that is called something else.
    #[test]
    fn every_signature_is_read_and_named() {
        let len_bytes = (300 << 30) + 4096 * 7;
        for (kind, place, magic) in SIGNATURES {
            let at_bytes = match place {
                Place::Start(at) => *at,
                Place::End(before) => len_bytes - before,
                Place::EndOf64K(before) => (len_bytes & !0xffff) - before,
            };
            assert_eq!(found(len_bytes, at_bytes, magic), Some(Content { at_bytes, kind: Some(kind) }), "{kind}");
        }
        let zfs = found(len_bytes, 130 << 10, &UBERBLOCK_MAGIC.to_le_bytes());
        assert_eq!(zfs.and_then(|found| found.kind), Some("a ZFS pool member"));
    }

    /// Only here: a drive with a bad block that can't be served, whatever its operator says, or that counts as empty.
    #[test]
    fn what_cannot_be_read_is_not_empty() {
        let unreadable = look(1 << 30, |at, _| Ok::<_, io::Error>(at < 512 << 20));
        let content = unreadable.ok().flatten().expect("something");
        assert_eq!(content.to_string(), format!("{UNREADABLE} at byte {}", content.at_bytes));
        assert!(content.at_bytes >= 512 << 20);
    }

    #[test]
    fn zeros_are_nothing_and_a_long_run_of_data_is_found_wherever_it_lies() {
        for len_bytes in [512, 4096, 1 << 20, (5 << 20) + 512, 40 << 20, 1 << 40] {
            assert_eq!(found(len_bytes, 0, &[]), None);
            assert!(found(len_bytes, len_bytes - 1, &[7]).is_some(), "the last byte of {len_bytes}");
        }
        // Small drives are read whole.
        for at_bytes in (0..30 << 20).step_by(1_234_567) {
            assert_eq!(found(30 << 20, at_bytes, &[7]), Some(Content { at_bytes, kind: None }));
        }
        for len_bytes in [100 << 20, 1 << 30] {
            let run = vec![7; (len_bytes / SAMPLES + SAMPLE_BYTES) as usize];
            let end = len_bytes - run.len() as u64;
            // The last ones end just before the tail.
            let last = (end - TAIL_BYTES - (9 << 20)..end).step_by(500_000).chain([end - TAIL_BYTES]);
            for at_bytes in (0..end).step_by(77_777_777).chain(last) {
                assert!(found(len_bytes, at_bytes, &run).is_some(), "{at_bytes} of {len_bytes}");
            }
        }
    }
}
