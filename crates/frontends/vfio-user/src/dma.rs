//! Maps what a client shares, and checks that what it passes is what it should be.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guest_memory::{Budget, MapError, Mapping, OverBudget};
use rustix::io::Errno;

use crate::request::{IrqChange, Request, SetIrqs};
use crate::wire::DmaMap;

/// Maps the file behind a DMA map, if there is one, as far as the client's budget goes. A file that can't be mapped
/// leaves a hole, and a text for the log: the guest may never use it for its commands.
///
/// # Errors
/// The error for the client, and a text for the log.
pub fn admit(
    map: &DmaMap,
    fd: Option<OwnedFd>,
    budget: &Arc<Budget>,
) -> Result<(Request, Option<String>), (Errno, String)> {
    let DmaMap { flags, offset_bytes, iova, len_bytes } = *map;
    let refuse = |errno, why: &str| {
        Err((errno, format!("DMA map of {len_bytes:#x} bytes at {iova:#x}, file offset {offset_bytes:#x}: {why}")))
    };
    if flags & !(DmaMap::READABLE | DmaMap::WRITABLE | DmaMap::MMAP) != 0 {
        return refuse(Errno::INVAL, "flags that are not known");
    }
    if len_bytes == 0 || iova.checked_add(len_bytes).is_none() {
        return refuse(Errno::INVAL, "empty, or it wraps around");
    }
    if [offset_bytes, iova, len_bytes].iter().any(|n| !n.is_multiple_of(4096)) {
        return refuse(Errno::INVAL, "not aligned to 4 KiB");
    }
    let hole = Request::DmaMap { iova, len_bytes, mapping: None };
    let writable = flags & DmaMap::WRITABLE != 0;
    let fd = match fd {
        None if flags & DmaMap::MMAP != 0 => return refuse(Errno::INVAL, "no file descriptor came along"),
        None => return Ok((hole, None)),
        // A range that the device may neither read nor write.
        Some(_) if !writable && flags & DmaMap::READABLE == 0 => return Ok((hole, None)),
        Some(fd) => fd,
    };
    match Mapping::within(budget, fd.as_fd(), offset_bytes, len_bytes, writable) {
        Ok(mapping) => Ok((Request::DmaMap { iova, len_bytes, mapping: Some(mapping) }, None)),
        Err(error) if error.is_of_file() => Ok((hole, Some(error.hole(fd.as_fd(), iova, len_bytes)))),
        Err(error) => {
            let errno = match error {
                MapError::Os(errno) => errno,
                MapError::NotMemory => Errno::NOTSUP,
                MapError::OverBudget(OverBudget::Bytes { .. }) => Errno::NOMEM,
                MapError::OverBudget(OverBudget::Maps { .. }) => Errno::NOSPC,
                MapError::BadRange { .. } | MapError::PastEnd { .. } => Errno::INVAL,
            };
            refuse(errno, &error.to_string())
        }
    }
}

/// Checks that what a client wants to be signalled through are eventfds.
///
/// # Errors
/// `EINVAL`: something else than an eventfd.
pub fn admit_eventfds(irqs: &SetIrqs) -> Result<(), Errno> {
    let IrqChange::Assign(eventfds) = &irqs.change else { return Ok(()) };
    eventfds.iter().try_for_each(eventfd::admit)
}
