//! A command's data in the drive's words: PRP entries (Base 4.1.1) or SGL descriptors (Base 4.1.2).

use nvme_driver::{LIST_ENTRIES, QueuePair};
use nvme_spec::PAGE_BYTES;
use nvme_spec::data::{SglDescriptor, psdt, sgl_type};

/// A data pointer, and the bits of the command's flags that say how it is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub dptr: [u64; 2],
    pub flags: u8,
}

/// One piece of memory: the drive's address, and its length in bytes. `None`: the drive can't reach it.
pub(crate) type Piece = Option<(u64, u64)>;

/// Describes `pieces` by PRP entries, whose list goes to the next command's page. `None`: they have another shape.
#[inline]
pub(crate) fn by_prps(queue: &QueuePair, pieces: impl Iterator<Item = Piece>) -> Option<Pointer> {
    let (mut pages, mut dptr, mut list) = (0, [0; 2], 0);
    let mut at_boundary = true;
    for piece in pieces {
        let (mut at, mut left) = piece?;
        if !at_boundary || (pages > 0 && !at.is_multiple_of(PAGE_BYTES)) {
            return None;
        }
        while left > 0 {
            match pages {
                0 if !at.is_multiple_of(4) => return None,
                0 => dptr[0] = at,
                1 => dptr[1] = at,
                2 => {
                    queue.put_list(0, dptr[1])?;
                    list = queue.put_list(1, at)?;
                }
                _ => list = queue.put_list(pages - 1, at)?,
            }
            pages += 1;
            let step = left.min(PAGE_BYTES - at % PAGE_BYTES);
            at += step;
            left -= step;
        }
        at_boundary = at.is_multiple_of(PAGE_BYTES);
    }
    if pages > 2 {
        dptr[1] = list;
    }
    (pages > 0).then_some(Pointer { dptr, flags: psdt::PRP << 6 })
}

/// Describes `pieces`, whose addresses and lengths must be multiples of `granularity`, by SGL descriptors, which go to
/// the next command's page where they are several. `None`: that can't be.
pub(crate) fn by_sgl(queue: &QueuePair, pieces: impl Iterator<Item = Piece>, granularity: u64) -> Option<Pointer> {
    let (mut count, mut first, mut list) = (0, SglDescriptor::default(), 0);
    for piece in pieces {
        let (at, len_bytes) = piece?;
        if !at.is_multiple_of(granularity) || !len_bytes.is_multiple_of(granularity) {
            return None;
        }
        let descriptor = SglDescriptor::new(sgl_type::DATA_BLOCK, at, u32::try_from(len_bytes).ok()?);
        first = if count == 0 { descriptor } else { first };
        for (half, word) in words(descriptor).into_iter().enumerate() {
            list = queue.put_list(2 * count + half, word)?;
        }
        count += 1;
    }
    let bytes = u32::try_from(count * size_of::<SglDescriptor>()).ok()?;
    let pointer = match count {
        0 => return None,
        1 => first,
        _ => SglDescriptor::new(sgl_type::LAST_SEGMENT, list, bytes),
    };
    Some(Pointer { dptr: words(pointer), flags: psdt::SGL << 6 })
}

/// `pages` times the page at `page`, which is what zeros are written from. At most as many as a list has entries.
pub(crate) fn repeated(queue: &QueuePair, page: u64, len_bytes: u64) -> Option<Pointer> {
    let full = len_bytes / PAGE_BYTES;
    let rest = Some(len_bytes % PAGE_BYTES).filter(|rest| *rest > 0);
    if full as usize > LIST_ENTRIES {
        return None;
    }
    let pieces = (0..full).map(|_| PAGE_BYTES).chain(rest);
    by_prps(queue, pieces.map(|len_bytes| Some((page, len_bytes))))
}

fn words(descriptor: SglDescriptor) -> [u64; 2] {
    let SglDescriptor { address, length, kind, .. } = descriptor;
    [address, u64::from(length) | u64::from(kind) << 56]
}
