//! Physical region pages: a command's data as guest pages (NVMe Base 2.0, 4.1.1).

use guest_memory::{Access, GuestMemory, IoBuf};
use nvme_spec::data::PRP_BYTES;
use nvme_spec::{PAGE_BYTES, Status};

/// List entries read at a time, onto the stack.
const CHUNK: usize = 64;

/// Adds the `len_bytes` that the two PRP entries describe to `buf`.
#[inline]
pub(crate) fn translate(
    memory: &mut GuestMemory,
    [prp1, prp2]: [u64; 2],
    len_bytes: u64,
    access: Access,
    buf: &mut IoBuf,
) -> Result<(), Status> {
    if prp1 & 3 != 0 {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    let first = len_bytes.min(PAGE_BYTES - prp1 % PAGE_BYTES);
    add(memory, prp1, first, access, buf)?;
    match len_bytes - first {
        0 => Ok(()),
        rest if rest <= PAGE_BYTES => page(memory, prp2, rest, access, buf),
        rest => list(memory, prp2, rest, access, buf),
    }
}

#[inline]
fn add(memory: &mut GuestMemory, iova: u64, len_bytes: u64, access: Access, buf: &mut IoBuf) -> Result<(), Status> {
    memory.translate(iova, len_bytes, access, buf).map_err(|_| Status::DATA_TRANSFER_ERROR)
}

/// An entry after the first: the start of a page.
fn page(memory: &mut GuestMemory, entry: u64, len_bytes: u64, access: Access, buf: &mut IoBuf) -> Result<(), Status> {
    if !entry.is_multiple_of(PAGE_BYTES) {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    add(memory, entry, len_bytes, access, buf)
}

/// Walks a list. It ends: each list page but the first holds at least 511 data entries, and `rest` was
/// bounded by the transfer limit.
fn list(memory: &mut GuestMemory, mut at: u64, mut rest: u64, access: Access, buf: &mut IoBuf) -> Result<(), Status> {
    if !at.is_multiple_of(PRP_BYTES) {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    while rest > 0 {
        let in_page = (PAGE_BYTES - at % PAGE_BYTES) / PRP_BYTES;
        let wanted = rest.div_ceil(PAGE_BYTES);
        let chains = wanted > in_page;
        let mut left = if chains { in_page - 1 } else { wanted };
        while left > 0 {
            let mut entries = [0u64; CHUNK];
            let n = left.min(CHUNK as u64);
            read(memory, at, &mut entries[..n as usize])?;
            for entry in &entries[..n as usize] {
                let bytes = rest.min(PAGE_BYTES);
                page(memory, *entry, bytes, access, buf)?;
                rest -= bytes;
            }
            at += n * PRP_BYTES;
            left -= n;
        }
        if chains {
            let mut next = [0u64; 1];
            read(memory, at, &mut next)?;
            [at] = next;
            if !at.is_multiple_of(PAGE_BYTES) {
                return Err(Status::PRP_OFFSET_INVALID);
            }
        }
    }
    Ok(())
}

fn read(memory: &mut GuestMemory, at: u64, entries: &mut [u64]) -> Result<(), Status> {
    memory.read(at, bytemuck::must_cast_slice_mut(entries)).map_err(|_| Status::DATA_TRANSFER_ERROR)
}
