//! The kernel's end of one queue: a ring, and the descriptors, which the driver shows us.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use io_uring::types::Fixed;
use io_uring::{IoUring, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::queue::Kernel;
use crate::shape::Shape;
use crate::spec::{IoCmd, IoDesc, descriptors_at, op};

/// A queue of a device. The driver takes answers only from the thread that calls [`Kernel::submit`] first.
pub struct Ring {
    uring: IoUring,
    queue: u16,
    descriptors: Descriptors,
}

/// Descriptors of one queue, which the driver writes and we read.
struct Descriptors {
    start: NonNull<IoDesc>,
    depth: u16,
    len_bytes: usize,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(device: BorrowedFd<'_>, queue: u16, depth: u16) -> io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        let len_bytes = (usize::from(depth) * size_of::<IoDesc>()).next_multiple_of(page_bytes);
        let at = descriptors_at(queue, page_bytes);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), len_bytes, ProtFlags::READ, flags, device, at)? };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, depth, len_bytes })
    }

    fn read(&self, tag: u16) -> IoDesc {
        if tag >= self.depth {
            return IoDesc { op_flags: u32::MAX, ..IoDesc::default() };
        }
        // SAFETY: inside of the mapping, whose memory stays as long as it is mapped; page-aligned plus a multiple of
        // the size. The driver does not write to it before the request is answered, and any bits are a descriptor.
        unsafe { self.start.as_ptr().add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nothing refers any more. It was mapped with this length, so it can't fail.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

impl Ring {
    /// For a queue of an open `/dev/ublkcN`. Needs no rights beyond the descriptor.
    ///
    /// # Errors
    /// The kernel has no memory left, or the descriptor is not such a device.
    pub fn new(device: BorrowedFd<'_>, queue: u16, shape: &Shape) -> io::Result<Self> {
        let uring = IoUring::builder()
            .dontfork()
            .setup_clamp()
            .setup_submit_all()
            // What the driver has for us waits until we look or sleep: it interrupts no command that is on its way.
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .build(u32::from(shape.depth))?;
        let submitter = uring.submitter();
        submitter.register_files(&[device.as_raw_fd()])?;
        // To the device, and nothing else.
        submitter.register_restrictions(&mut [
            Restriction::sqe_op(opcode::UringCmd16::CODE),
            Restriction::sqe_flags_required(Flags::FIXED_FILE.bits()),
        ])?;
        submitter.register_enable_rings()?;
        Ok(Self { uring, queue, descriptors: Descriptors::map(device, queue, shape.depth)? })
    }

    fn push(&mut self, op: u32, tag: u16, result: i32, addr: u64) {
        let command = IoCmd { q_id: self.queue, tag, result, addr };
        let entry = opcode::UringCmd16::new(Fixed(0), op).cmd(bytemuck::cast(command)).build();
        let entry = entry.user_data(u64::from(tag));
        // SAFETY: the entry points to nothing; what the driver writes to later is the buffer at `addr`, which the
        // queue keeps until the ring is gone. There is one entry at a time for each tag, so there is room.
        let _ = unsafe { self.uring.submission().push(&entry) };
    }
}

impl Kernel for Ring {
    fn descriptor(&self, tag: u16) -> IoDesc {
        self.descriptors.read(tag)
    }

    fn fetch(&mut self, tag: u16, addr: u64) {
        self.push(op::FETCH_REQ, tag, 0, addr);
    }

    fn commit(&mut self, tag: u16, result: i32, addr: u64) {
        self.push(op::COMMIT_AND_FETCH_REQ, tag, result, addr);
    }

    fn submit(&mut self) {
        // Interrupted or out of memory: what was not taken goes with the next one.
        let _ = self.uring.submit();
    }

    fn next(&mut self) -> Option<(u16, i32)> {
        let next = self.uring.completion().next();
        let next = next.or_else(|| {
            // Requests wait that the driver hands over only to a thread that enters the kernel.
            if !self.uring.submission().taskrun() {
                return None;
            }
            let _ = self.uring.submit();
            self.uring.completion().next()
        });
        next.map(|entry| (entry.user_data() as u16, entry.result()))
    }
}
