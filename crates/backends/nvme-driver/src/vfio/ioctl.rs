//! The calls of linux/vfio.h that a driver needs, each with memory of its own for what it says and hears.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use guest_memory::Mapping;
use vfio_bindings::bindings::vfio as sys;

/// `_IO(VFIO_TYPE, VFIO_BASE + number)`.
const fn request(number: u32) -> libc::c_ulong {
    ((sys::VFIO_TYPE as u32) << 8 | (sys::VFIO_BASE + number)) as libc::c_ulong
}

const GET_API_VERSION: libc::c_ulong = request(0);
const CHECK_EXTENSION: libc::c_ulong = request(1);
const SET_IOMMU: libc::c_ulong = request(2);
const GROUP_GET_STATUS: libc::c_ulong = request(3);
const GROUP_SET_CONTAINER: libc::c_ulong = request(4);
const GROUP_GET_DEVICE_FD: libc::c_ulong = request(6);
const DEVICE_GET_INFO: libc::c_ulong = request(7);
const DEVICE_GET_REGION_INFO: libc::c_ulong = request(8);
const DEVICE_GET_IRQ_INFO: libc::c_ulong = request(9);
const DEVICE_SET_IRQS: libc::c_ulong = request(10);
const DEVICE_RESET: libc::c_ulong = request(11);
const IOMMU_GET_INFO: libc::c_ulong = request(12);
const IOMMU_MAP_DMA: libc::c_ulong = request(13);
const IOMMU_UNMAP_DMA: libc::c_ulong = request(14);

/// The most that the kernel is believed to have to say of its IOMMU or of a region.
const INFO_BYTES_MAX: u32 = 64 << 10;

/// A call whose argument is a number, or is not looked at.
fn call(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: the requests that come here take a number, or nothing: no memory of ours is touched.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// A call whose argument starts with its own size, `argsz`: the kernel touches no more than that.
///
/// # Safety
/// `argument` is the request's structure, all of it initialized, and its `argsz` says no more than its size.
#[allow(unsafe_code)]
unsafe fn call_with<T: ?Sized>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: &mut T) -> io::Result<i32> {
    // SAFETY: `argument` is ours alone for the call, which reads and writes within `argsz` bytes of it.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument).cast::<libc::c_void>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// The version of VFIO's interface.
pub(super) fn api_version(container: BorrowedFd<'_>) -> io::Result<u32> {
    call(container, GET_API_VERSION, 0).map(|version| version as u32)
}

/// Whether the kernel has an IOMMU model.
pub(super) fn has_extension(container: BorrowedFd<'_>, model: u32) -> io::Result<bool> {
    call(container, CHECK_EXTENSION, model.into()).map(|answer| answer > 0)
}

/// Chooses the IOMMU model of a container that has a group.
pub(super) fn set_iommu(container: BorrowedFd<'_>, model: u32) -> io::Result<()> {
    call(container, SET_IOMMU, model.into()).map(drop)
}

/// Whether all devices of a group are in hands that can't do harm.
pub(super) fn is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = sys::vfio_group_status { argsz: size_of::<sys::vfio_group_status>() as u32, flags: 0 };
    // SAFETY: the request's structure, with its size.
    #[allow(unsafe_code)]
    unsafe { call_with(group, GROUP_GET_STATUS, &mut status) }?;
    Ok(status.flags & sys::VFIO_GROUP_FLAGS_VIABLE != 0)
}

/// Puts a group into a container.
pub(super) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let mut fd: RawFd = container.as_raw_fd();
    // SAFETY: the request reads one `int` from there.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw mut fd) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens the device of that name.
pub(super) fn device(group: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the request reads a string that ends with a zero; what it answers is a new descriptor that nobody else
    // has.
    #[allow(unsafe_code)]
    unsafe {
        let fd = libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr());
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// `VFIO_DEVICE_FLAGS_*` of a device.
pub(super) fn device_flags(device: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = sys::vfio_device_info { argsz: size_of::<sys::vfio_device_info>() as u32, ..Default::default() };
    // SAFETY: the request's structure, with its size.
    #[allow(unsafe_code)]
    unsafe { call_with(device, DEVICE_GET_INFO, &mut info) }?;
    Ok(info.flags)
}

/// What the kernel says of a region, as `vfio_region_info` with what follows it.
pub(super) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<Vec<u8>> {
    grown(size_of::<sys::vfio_region_info>(), |bytes| {
        // The third word says which.
        bytes[8..12].copy_from_slice(&index.to_ne_bytes());
        // SAFETY: the buffer has the request's structure at its start and says its own length.
        #[allow(unsafe_code)]
        unsafe {
            call_with(device, DEVICE_GET_REGION_INFO, bytes)
        }
    })
}

/// What the kernel says of a container's IOMMU, as `vfio_iommu_type1_info` with what follows it.
pub(super) fn iommu_info(container: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    grown(size_of::<sys::vfio_iommu_type1_info>(), |bytes| {
        // SAFETY: the buffer has the request's structure at its start and says its own length.
        #[allow(unsafe_code)]
        unsafe {
            call_with(container, IOMMU_GET_INFO, bytes)
        }
    })
}

/// Asks once for how much there is to say, and once for all of it. The first word of what is asked with, and of what
/// comes back, is its size.
fn grown(at_least: usize, ask: impl Fn(&mut [u8]) -> io::Result<i32>) -> io::Result<Vec<u8>> {
    let mut len = at_least;
    loop {
        let mut bytes = vec![0; len];
        bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        ask(&mut bytes)?;
        let wanted = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if wanted as usize <= len {
            return Ok(bytes);
        }
        if wanted > INFO_BYTES_MAX {
            return Err(io::Error::other(format!("the kernel has {wanted} bytes to say")));
        }
        len = wanted as usize;
    }
}

/// How many interrupts a device has under `index`, and its `VFIO_IRQ_INFO_*`.
pub(super) fn interrupts(device: BorrowedFd<'_>, index: u32) -> io::Result<(u32, u32)> {
    let mut info = sys::vfio_irq_info { argsz: size_of::<sys::vfio_irq_info>() as u32, index, ..Default::default() };
    // SAFETY: the request's structure, with its size.
    #[allow(unsafe_code)]
    unsafe { call_with(device, DEVICE_GET_IRQ_INFO, &mut info) }?;
    Ok((info.count, info.flags))
}

/// Has interrupts from `start` of `index` signal `events`; -1: nobody.
pub(super) fn set_events(device: BorrowedFd<'_>, index: u32, start: u32, events: &[RawFd]) -> io::Result<()> {
    let flags = sys::VFIO_IRQ_SET_DATA_EVENTFD | sys::VFIO_IRQ_SET_ACTION_TRIGGER;
    let head = size_of::<sys::vfio_irq_set>() as u32;
    let words = [head + 4 * events.len() as u32, flags, index, start, events.len() as u32];
    let mut bytes: Vec<u32> = words.into_iter().chain(events.iter().map(|&fd| fd as u32)).collect();
    // SAFETY: a `vfio_irq_set` of five words and `count` descriptors behind it, `argsz` bytes in all.
    #[allow(unsafe_code)]
    unsafe { call_with(device, DEVICE_SET_IRQS, bytes.as_mut_slice()) }?;
    Ok(())
}

/// Resets the function.
pub(super) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    call(device, DEVICE_RESET, 0).map(drop)
}

/// Pins a mapping, whole pages of it, and lets the container's devices reach it: to write there only if we may too.
pub(super) fn map(container: BorrowedFd<'_>, mapping: &Mapping, iova: u64, len_bytes: u64) -> io::Result<()> {
    let write = if mapping.is_writable() { sys::VFIO_DMA_MAP_FLAG_WRITE } else { 0 };
    let mut map = sys::vfio_iommu_type1_dma_map {
        argsz: size_of::<sys::vfio_iommu_type1_dma_map>() as u32,
        flags: sys::VFIO_DMA_MAP_FLAG_READ | write,
        vaddr: mapping.addresses().start as u64,
        iova,
        size: len_bytes,
    };
    // SAFETY: the request's structure, with its size. It names a mapping, which changes behind our back anyway. The
    // kernel pins its pages as long as devices reach them, so that no device writes to a page that has another use by
    // then.
    #[allow(unsafe_code)]
    unsafe { call_with(container, IOMMU_MAP_DMA, &mut map) }?;
    Ok(())
}

/// Takes back what was mapped at exactly these addresses; returns how many bytes that were.
pub(super) fn unmap(container: BorrowedFd<'_>, iova: u64, len_bytes: u64) -> io::Result<u64> {
    let mut unmap = sys::vfio_iommu_type1_dma_unmap {
        argsz: size_of::<sys::vfio_iommu_type1_dma_unmap>() as u32,
        iova,
        size: len_bytes,
        ..Default::default()
    };
    // SAFETY: the request's structure, with its size.
    #[allow(unsafe_code)]
    unsafe { call_with(container, IOMMU_UNMAP_DMA, &mut unmap) }?;
    Ok(unmap.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_of_the_kernels_header() {
        assert_eq!((GET_API_VERSION, IOMMU_UNMAP_DMA), (0x3b64, 0x3b72));
    }

    #[test]
    fn what_grows_while_it_is_asked_is_asked_again() {
        let sizes = std::cell::RefCell::new(vec![60_u32, 80, 80]);
        let said = grown(24, |bytes| {
            bytes[..4].copy_from_slice(&sizes.borrow_mut().remove(0).to_ne_bytes());
            Ok(0)
        });
        assert_eq!(said.expect("said").len(), 80);
        let endless = grown(24, |bytes| {
            bytes[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
            Ok(0)
        });
        assert!(endless.is_err());
    }
}
