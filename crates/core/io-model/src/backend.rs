//! A device's queues as one poller sees them.

use std::os::fd::BorrowedFd;

use guest_memory::{IoBuf, Mapping, Refused};

use crate::{Command, DeviceError, HwqId, Nanos, Outcome, TenantId};

/// One request to a back end.
#[derive(Debug)]
pub struct Io {
    /// The poller's; comes back in [`Done`].
    pub tag: u32,
    /// What to do.
    pub command: Command,
    /// Data segments; owned by the back end until the request is done.
    pub buf: IoBuf,
}

impl Io {
    /// What every back end checks before it starts: the range lies inside of a device of `size_bytes`
    /// ([`DeviceError::OutOfRange`]), and the data segments hold exactly the range
    /// ([`DeviceError::Memory`]; reads and writes only).
    pub fn check(&self, size_bytes: u64) -> Outcome {
        let Command { op, offset_bytes, len_bytes, .. } = self.command;
        if offset_bytes.checked_add(len_bytes).is_none_or(|end_bytes| end_bytes > size_bytes) {
            return Err(DeviceError::OutOfRange);
        }
        if op.has_data() && self.buf.len_bytes() != len_bytes {
            return Err(DeviceError::Memory);
        }
        Ok(())
    }

    /// Ends the request.
    pub fn done(self, outcome: Outcome) -> Done {
        Done { tag: self.tag, outcome, buf: self.buf }
    }
}

/// One finished request.
#[derive(Debug)]
pub struct Done {
    /// The tag it was submitted with.
    pub tag: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// The buffer it was submitted with.
    pub buf: IoBuf,
}

/// A device as one poller sees it: HWQs `0..hwqs()`, each with room for `depth()` commands.
///
/// The poller never submits more than `depth()` commands to a queue at a time; a back end that can't
/// take one all the same completes it with an error. Ranges were validated by the front end, but a
/// back end still refuses what lies outside of the device ([`DeviceError::OutOfRange`]).
///
/// A back end may wrap another one and see everything that passes: a [`Command`] says all that there is to know.
///
/// # Memory
///
/// A device behind an IOMMU reaches only what was mapped for it, so a back end hears of memory as it comes and goes:
///
/// - A mapping is known by its addresses in this process ([`Mapping::addresses`]), which are also what the segments of
///   a command's buffer name. Two mappings that are told at a time to one back end don't overlap, except that a
///   tenant's pollers, or tenants that were given the same [`Mapping`], tell the same addresses: count them. Two
///   mappings of one file have addresses of their own.
/// - A poller tells its own back end, and no other. Back ends that share a device must count together.
/// - Commands point only into memory that was told before and not taken back since; a segment may go from one mapping
///   into the next where they touch. One exception: memory that a front end made for the one command (what a Compare
///   reads, the zeros of a Format; [`Mapping::is_own`]) is not told, since mapping it would cost more than copying.
///   A back end that can't reach it has to copy.
/// - [`Backend::unmap_memory`] is called when nothing in flight points into the memory. Once it has returned,
///   the memory may be gone and another mapping may have its addresses: a device must not reach them any more.
/// - A back end that is dropped takes all its mappings with it, without being told.
pub trait Backend {
    /// Number of HWQs.
    fn hwqs(&self) -> u16;

    /// Commands that one HWQ holds.
    fn depth(&self) -> u32;

    /// Queues a request; it may start only at [`Backend::kick`].
    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos);

    /// Starts what was queued, by `submit` or by `reap` (a command may take several steps). Once per poll
    /// iteration; cheap if nothing is queued.
    fn kick(&mut self);

    /// Hands out everything that finished, from every HWQ.
    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done));

    /// When something can next be reaped, if the back end knows (virtual time). `None`: unknown.
    fn next_event(&self) -> Option<Nanos> {
        None
    }

    /// Becomes readable when something may be reaped; for a poller that sleeps while commands are in flight, which
    /// watches it edge-triggered and never reads it. Called by the thread that kicks, and from then on completions may
    /// cost more. `None`: only [`Backend::next_event`], or looking, can tell.
    fn wake_fd(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Commands of `tenant` may point into `mapping` from now on. Not per I/O: may take system calls.
    ///
    /// # Errors
    /// The device can't reach it. Nothing has changed then; the client is told, and no command will point there.
    fn map_memory(&mut self, _tenant: TenantId, _mapping: &Mapping) -> Result<(), Refused> {
        Ok(())
    }

    /// Takes back what [`Backend::map_memory`] told, once for each time. Returns when the device can't reach it any
    /// more.
    fn unmap_memory(&mut self, _tenant: TenantId, _mapping: &Mapping) {}
}
