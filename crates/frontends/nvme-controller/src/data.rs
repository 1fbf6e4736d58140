//! A command's data pointer, PRP or SGL, and the transfers of admin commands.

use guest_memory::{Access, GuestMemory, IoBuf};
use nvme_spec::data::psdt;
use nvme_spec::{Sqe, Status};

use crate::{prp, sgl};

/// Adds the `len_bytes` that the command's data pointer describes to `buf`, and what that cost beyond the usual to
/// `work`. PRPs cost what the data does.
#[inline]
pub(crate) fn translate(
    memory: &mut GuestMemory,
    sqe: &Sqe,
    len_bytes: u64,
    access: Access,
    buf: &mut IoBuf,
    work: &mut u32,
) -> Result<(), Status> {
    match sqe.psdt() {
        psdt::PRP => prp::translate(memory, sqe.dptr, len_bytes, access, buf),
        psdt::SGL => sgl::translate(memory, sqe.dptr, len_bytes, access, buf, work),
        // No metadata, so no SGL for it; 11b is reserved.
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Gives an admin command's answer to the host. Admin commands use PRPs (PCIe transport 1.0, 3.4).
pub(crate) fn give(memory: &mut GuestMemory, sqe: &Sqe, data: &[u8]) -> Result<(), Status> {
    let mut buf = IoBuf::default();
    prp::translate(memory, sqe.dptr, data.len() as u64, Access::Write, &mut buf)?;
    whole(buf.copy_from(data) == data.len())
}

/// Takes an admin command's data from the host.
pub(crate) fn take(memory: &mut GuestMemory, sqe: &Sqe, data: &mut [u8]) -> Result<(), Status> {
    let mut buf = IoBuf::default();
    prp::translate(memory, sqe.dptr, data.len() as u64, Access::Read, &mut buf)?;
    whole(buf.copy_to(data) == data.len())
}

/// What a copy that was not whole means: memory that the host took away, or that went bad.
pub(crate) fn whole(is_whole: bool) -> Result<(), Status> {
    if is_whole { Ok(()) } else { Err(Status::DATA_TRANSFER_ERROR) }
}
