//! Scatter gather lists: a command's data as byte ranges (NVMe Base 2.0, 4.1.2).

use bytemuck::Zeroable;
use guest_memory::{Access, GuestMemory, IoBuf};
use io_model::PLAIN_DESCRIPTORS;
use nvme_spec::Status;
use nvme_spec::data::{SglDescriptor, sgl_type};

/// Descriptors of one command at most. Hosts build far fewer, and nothing else bounds how many empty
/// ones a guest could make us walk. Those above the usual are charged to it.
const MAX_DESCRIPTORS: u64 = 1024;

const DESCRIPTOR_BYTES: u64 = 16;

/// Descriptors read at a time, onto the stack.
const CHUNK: usize = 32;

struct Walk<'a> {
    memory: &'a mut GuestMemory,
    access: Access,
    buf: &'a mut IoBuf,
    /// Bytes of the command that no descriptor described yet.
    rest: u64,
    /// Descriptors that may still be read.
    budget: u64,
}

/// Adds the `len_bytes` that the descriptor in the command describes to `buf`.
pub(crate) fn translate(
    memory: &mut GuestMemory,
    dptr: [u64; 2],
    len_bytes: u64,
    access: Access,
    buf: &mut IoBuf,
    work: &mut u32,
) -> Result<(), Status> {
    let descriptor: SglDescriptor = bytemuck::must_cast(dptr);
    let mut walk = Walk { memory, access, buf, rest: len_bytes, budget: MAX_DESCRIPTORS };
    match kind(&descriptor)? {
        sgl_type::DATA_BLOCK => walk.data(&descriptor)?,
        _ => {
            let walked = walk.segments(descriptor);
            *work += ((MAX_DESCRIPTORS - walk.budget) as u32).saturating_sub(PLAIN_DESCRIPTORS);
            walked?;
        }
    }
    // More bytes than the command moves were refused on the way; SGLS says so.
    if walk.rest == 0 { Ok(()) } else { Err(Status::SGL_DATA_LENGTH_INVALID) }
}

/// A descriptor's type, if it is one of the three that we take: bit buckets and keyed or transport
/// data blocks are not offered.
fn kind(descriptor: &SglDescriptor) -> Result<u8, Status> {
    match (descriptor.sgl_type(), descriptor.sub_type()) {
        (kind @ (sgl_type::DATA_BLOCK | sgl_type::SEGMENT | sgl_type::LAST_SEGMENT), 0) => Ok(kind),
        _ => Err(Status::SGL_TYPE_INVALID),
    }
}

impl Walk<'_> {
    fn data(&mut self, block: &SglDescriptor) -> Result<(), Status> {
        let len_bytes = u64::from(block.length);
        if (block.address | len_bytes) & 3 != 0 {
            return Err(Status::SGL_GRANULARITY_INVALID);
        }
        self.rest = self.rest.checked_sub(len_bytes).ok_or(Status::SGL_DATA_LENGTH_INVALID)?;
        let added = self.memory.translate(block.address, len_bytes, self.access, self.buf);
        added.map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    /// Follows a chain of segments to its end.
    fn segments(&mut self, first: SglDescriptor) -> Result<(), Status> {
        let mut next = Some(first);
        while let Some(segment) = next {
            next = self.segment(&segment)?;
        }
        Ok(())
    }

    /// Walks one segment; the descriptor of the one after it.
    fn segment(&mut self, segment: &SglDescriptor) -> Result<Option<SglDescriptor>, Status> {
        let len_bytes = u64::from(segment.length);
        if len_bytes == 0 || !len_bytes.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(Status::INVALID_SGL_SEGMENT);
        }
        let is_last = segment.sgl_type() == sgl_type::LAST_SEGMENT;
        let count = len_bytes / DESCRIPTOR_BYTES;
        self.budget = self.budget.checked_sub(count).ok_or(Status::INVALID_SGL_COUNT)?;
        let mut done = 0;
        while done < count {
            let mut chunk = [SglDescriptor::zeroed(); CHUNK];
            let n = (count - done).min(CHUNK as u64);
            let chunk = &mut chunk[..n as usize];
            let at = segment.address.checked_add(done * DESCRIPTOR_BYTES).ok_or(Status::DATA_TRANSFER_ERROR)?;
            let read = self.memory.read(at, bytemuck::must_cast_slice_mut(chunk));
            read.map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            for descriptor in chunk.iter() {
                done += 1;
                match (kind(descriptor)?, done == count) {
                    // Only a last segment may end with data.
                    (sgl_type::DATA_BLOCK, true) if !is_last => return Err(Status::INVALID_SGL_SEGMENT),
                    (sgl_type::DATA_BLOCK, _) => self.data(descriptor)?,
                    (_, true) if !is_last => return Ok(Some(*descriptor)),
                    (_, true) => return Err(Status::INVALID_SGL_SEGMENT),
                    (_, false) => return Err(Status::INVALID_SGL_COUNT),
                }
            }
        }
        Ok(None)
    }
}
