//! What a device is to the server: what it looks like to its client (regions, interrupts, and what may be done to
//! them), and what it is asked.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use client_socket::Session;
use guest_memory::Budget;
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::request::{IrqChange, Reply, Request, SetIrqs};
use crate::wire::{Access, RegionInfo, SetIrqsPayload};

const PAGE_BYTES: u64 = 4096;
/// QEMU refuses devices with more.
const MAX_REGIONS: usize = 100;
const MAX_IRQ_TYPES: usize = 50;
/// PCI allows 2048 MSI-X vectors.
const MAX_IRQS: u32 = 2048;
/// Bounds a GET_REGION_INFO reply; SPDK's client has room for 8 areas.
const MAX_AREAS: usize = 8;

/// Called by the server, on the device's own thread. A call may block until the owner of the device's state has done
/// it. Calls come in the order of the client's messages, between a [`connected`](Self::connected) and a
/// [`disconnected`](Self::disconnected).
pub trait Device: Send {
    /// A client attached.
    fn connected(&mut self, session: Session);

    /// Does what the client asks. Its next request is not read before this returns.
    fn request(&mut self, request: Request) -> Reply;

    /// A client that [is held](Session::is_held) has repeated its messages: its memory is mapped again, and its
    /// interrupts have their eventfds. For `_alone` it was not served. A device that keeps no state for this can't go
    /// on.
    fn restored(&mut self, _alone: Duration) {}

    /// This process ends, and the client goes on with the next one: what is in flight is to end and be noted, and
    /// nothing new to begin.
    fn left(&mut self) {}

    /// The client is gone. Its memory is to be let go and its eventfds closed; the rest of the device's state stays
    /// (specification, "Client Disconnection"). The next client is accepted when this returns.
    fn disconnected(&mut self, reason: &str);
}

/// A device. Always a PCI device, the only kind that the
/// specification knows.
#[derive(Debug)]
pub struct DeviceSpec {
    /// The tenant's name, for log lines and the thread.
    pub name: String,
    /// By VFIO region index. A PCI device has 9: BAR 0 to 5, the expansion ROM, configuration space, VGA.
    pub regions: Vec<RegionSpec>,
    /// By VFIO interrupt index. A PCI device has 5: INTx, MSI, MSI-X, error, request.
    pub irqs: Vec<IrqSpec>,
    /// DEVICE_RESET is offered.
    pub resettable: bool,
    /// How much memory its client may have mapped.
    pub budget: Arc<Budget>,
}

/// One region; the default is one that is not there.
#[derive(Debug, Default)]
pub struct RegionSpec {
    /// Its length in bytes; 0 if it is not there.
    pub size_bytes: u64,
    /// The client may read it.
    pub readable: bool,
    /// The client may write it.
    pub writable: bool,
    /// The part that the client may map.
    pub mmap: Option<MmapSpec>,
}

/// The part of a region that clients map instead of sending messages.
#[derive(Debug)]
pub struct MmapSpec {
    /// The file behind it. Seal it against shrinking: the client gets a descriptor to it.
    pub fd: Arc<OwnedFd>,
    /// Where byte 0 of the *region* would be in the file, bytes.
    pub file_offset_bytes: u64,
    /// Offset in the region and length of each area, bytes, multiples of 4 KiB, in ascending order.
    pub areas: Vec<(u64, u64)>,
}

/// One type of interrupt; the default is one that is not there.
#[derive(Debug, Clone, Copy, Default)]
pub struct IrqSpec {
    /// How many interrupts of the type there are; at most 2048.
    pub count: u32,
    /// They are signalled through eventfds.
    pub eventfd: bool,
    /// They can be masked and unmasked by message.
    pub maskable: bool,
    /// They mask themselves when they fire.
    pub automasked: bool,
    /// They can only be set up all at once.
    pub noresize: bool,
}

impl IrqSpec {
    /// `count` interrupts signalled through eventfds, as MSI-X is.
    pub fn eventfds(count: u32) -> Self {
        Self { count, eventfd: true, ..Self::default() }
    }

    pub(crate) fn flags(&self) -> u32 {
        [self.eventfd, self.maskable, self.automasked, self.noresize]
            .iter()
            .enumerate()
            .fold(0, |flags, (bit, &set)| flags | (u32::from(set) << bit))
    }
}

impl DeviceSpec {
    /// Finds what would make the device useless or unsafe to serve; the text says which and why.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.name.contains('\0') {
            return Err("its name has a NUL".into());
        }
        if self.regions.len() > MAX_REGIONS || self.irqs.len() > MAX_IRQ_TYPES {
            return Err(format!("more than {MAX_REGIONS} regions or {MAX_IRQ_TYPES} interrupt types"));
        }
        if let Some(irq) = self.irqs.iter().find(|irq| irq.count > MAX_IRQS) {
            return Err(format!("{} interrupts of one type; at most {MAX_IRQS} can be served", irq.count));
        }
        for (index, region) in self.regions.iter().enumerate() {
            region.check().map_err(|why| format!("region {index}: {why}"))?;
        }
        Ok(())
    }

    /// The reply to GET_REGION_INFO, before encoding.
    pub(crate) fn region_info(&self, index: u32, with_mmap: bool) -> Result<RegionInfo<'_>, Errno> {
        let region = self.region(index)?;
        let mmap = region.mmap.as_ref().filter(|_| with_mmap);
        Ok(RegionInfo {
            access_flags: u32::from(region.readable) | u32::from(region.writable) << 1,
            index,
            size_bytes: region.size_bytes,
            file_offset_bytes: mmap.map_or(0, |mmap| mmap.file_offset_bytes),
            areas: mmap.map_or(&[], |mmap| &mmap.areas),
        })
    }

    pub(crate) fn region(&self, index: u32) -> Result<&RegionSpec, Errno> {
        self.regions.get(index as usize).ok_or(Errno::INVAL)
    }

    pub(crate) fn irq(&self, index: u32) -> Result<&IrqSpec, Errno> {
        self.irqs.get(index as usize).ok_or(Errno::INVAL)
    }

    /// Checks an access against the region's bounds and permissions.
    pub(crate) fn check_access(&self, access: &Access, max_data_bytes: u32, write: bool) -> Result<(), Errno> {
        let region = self.region(access.region)?;
        let end = access.offset_bytes.checked_add(u64::from(access.len_bytes)).ok_or(Errno::INVAL)?;
        if access.len_bytes == 0 || access.len_bytes > max_data_bytes || end > region.size_bytes {
            return Err(Errno::INVAL);
        }
        let allowed = if write { region.writable } else { region.readable };
        if allowed { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Checks SET_IRQS and names the interrupts that it is about.
    ///
    /// Not supported: eventfds for *mask* and *unmask* events, which no known client sends.
    pub(crate) fn check_irqs(&self, payload: &SetIrqsPayload, eventfds: Vec<OwnedFd>) -> Result<SetIrqs, Errno> {
        const DATA_MASK: u32 = 0b111;
        const DATA_NONE: u32 = 1;
        const DATA_BOOL: u32 = 1 << 1;
        const DATA_EVENTFD: u32 = 1 << 2;
        const ACTION_MASK: u32 = 1 << 3;
        const ACTION_UNMASK: u32 = 1 << 4;
        const ACTION_TRIGGER: u32 = 1 << 5;

        let SetIrqsPayload { flags, index, start, count, ref bools } = *payload;
        let irq = self.irq(index)?;
        let end = start.checked_add(count).filter(|&end| end <= irq.count).ok_or(Errno::INVAL)?;
        let (data, action) = (flags & DATA_MASK, flags & !DATA_MASK);
        let masking = action == ACTION_MASK || action == ACTION_UNMASK;
        if !masking && action != ACTION_TRIGGER {
            return Err(Errno::INVAL);
        }
        if count == 0 {
            // Only "disable the whole type" has no range.
            let disable = data == DATA_NONE && action == ACTION_TRIGGER && start == 0 && eventfds.is_empty();
            let whole = SetIrqs { index, vectors: (0..irq.count).collect(), change: IrqChange::Deassign };
            return if disable { Ok(whole) } else { Err(Errno::INVAL) };
        }
        let state = match action {
            ACTION_MASK => IrqChange::Mask,
            ACTION_UNMASK => IrqChange::Unmask,
            _ => IrqChange::Trigger,
        };
        if (masking && !irq.maskable) || (data != DATA_EVENTFD && !eventfds.is_empty()) {
            return Err(Errno::INVAL);
        }
        let all: Vec<u32> = (start..end).collect();
        let (vectors, change) = match data {
            DATA_NONE => (all, state),
            DATA_BOOL if bools.len() as u64 == u64::from(count) => {
                (all.into_iter().zip(bools).filter(|(_, set)| **set != 0).map(|(vector, _)| vector).collect(), state)
            }
            DATA_EVENTFD if masking => return Err(Errno::NOTSUP),
            DATA_EVENTFD if !irq.eventfd => return Err(Errno::INVAL),
            DATA_EVENTFD if eventfds.is_empty() => (all, IrqChange::Deassign),
            DATA_EVENTFD if eventfds.len() as u64 == u64::from(count) => (all, IrqChange::Assign(eventfds)),
            _ => return Err(Errno::INVAL),
        };
        Ok(SetIrqs { index, vectors, change })
    }
}

impl RegionSpec {
    fn check(&self) -> Result<(), String> {
        let Some(mmap) = &self.mmap else { return Ok(()) };
        if mmap.areas.is_empty() || mmap.areas.len() > MAX_AREAS {
            return Err(format!("{} areas to map; 1 to {MAX_AREAS} can be offered", mmap.areas.len()));
        }
        let mut last_end = 0;
        for &(offset, len) in &mmap.areas {
            let aligned = [offset, len, mmap.file_offset_bytes].iter().all(|n| n.is_multiple_of(PAGE_BYTES));
            let end = offset.checked_add(len).filter(|&end| end <= self.size_bytes);
            match end {
                Some(end) if aligned && len > 0 && offset >= last_end => last_end = end,
                _ => return Err(format!("area {offset:#x}+{len:#x} overlaps, is not aligned or not inside")),
            }
        }
        let stat = fstat(&mmap.fd).map_err(|errno| format!("the file behind it: {errno}"))?;
        let needed = mmap.file_offset_bytes.checked_add(last_end);
        if needed.is_none_or(|needed| needed > u64::try_from(stat.st_size).unwrap_or(0)) {
            return Err("the file behind it is too short".into());
        }
        Ok(())
    }
}
