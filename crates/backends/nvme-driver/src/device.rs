//! The seam between the driver and whatever carries it to a device.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use guest_memory::{IoBuf, MappedRange, MappedU32, Mapping};

use crate::Error;

/// A PCI function with NVMe registers in BAR0, as a driver needs it.
///
/// Offsets are in BAR0. Register access may be a message to another process and take a millisecond:
/// only set-up, errors and unmapped doorbells come here, never a command on a mapped doorbell.
pub trait PciDevice: Send {
    /// Reads a 32-bit register.
    fn read_u32(&mut self, offset: u64) -> Result<u32, Error>;

    /// Reads a 64-bit register in one access.
    fn read_u64(&mut self, offset: u64) -> Result<u64, Error>;

    /// Writes a 32-bit register.
    fn write_u32(&mut self, offset: u64, value: u32) -> Result<(), Error>;

    /// Writes a 64-bit register in one access.
    fn write_u64(&mut self, offset: u64, value: u64) -> Result<(), Error>;

    /// The doorbell register at `offset`: mapped if the device offers that, else one that sends.
    fn doorbell(&mut self, offset: u64) -> Result<Doorbell, Error>;

    /// Zeroed memory that the device can reach, at least `len_bytes` long, page aligned on both sides
    /// and contiguous in the device's addresses. It stays mapped until [`PciDevice::release_dma`] or
    /// until the device is dropped.
    fn allocate_dma(&mut self, len_bytes: usize) -> Result<DmaMemory, Error>;

    /// Unmaps memory of [`PciDevice::allocate_dma`]. The device must not use it any more.
    fn release_dma(&mut self, memory: DmaMemory) -> Result<(), Error>;

    /// Has MSI-X `vector` signal `event`.
    fn set_interrupt(&mut self, vector: u16, event: BorrowedFd<'_>) -> Result<(), Error>;

    /// Resets the function. Memory stays mapped.
    fn reset(&mut self) -> Result<(), Error>;

    /// How memory of others is reached. `None`: it can't be, and what moves there has to be copied.
    fn dma_space(&self) -> Option<Arc<dyn DmaSpace>> {
        None
    }

    /// Signals `event` when the device must be given up: it is unplugged, or the kernel wants it back and waits.
    /// Returns whether the device can tell.
    fn set_removal_event(&mut self, _event: BorrowedFd<'_>) -> Result<bool, Error> {
        Ok(false)
    }
}

/// Memory of others as the device reaches it. Its calls may take long (memory is pinned): none is for a poller.
pub trait DmaSpace: Send + Sync {
    /// Lets the device reach all of `mapping`; returns the device's address of its first byte.
    ///
    /// # Errors
    /// Nothing has changed then.
    fn map(&self, mapping: &Mapping) -> Result<u64, Error>;

    /// Takes that back. Nothing in flight points there.
    ///
    /// # Errors
    /// The device reaches it still.
    fn unmap(&self, iova: u64, len_bytes: u64) -> Result<(), Error>;
}

/// Rings a doorbell by other means than a store.
pub trait Ring: Send {
    /// Brings `value` to the device's register; it may arrive later (as a posted PCI write does).
    fn ring(&mut self, value: u32) -> Result<(), Error>;
}

/// One doorbell register.
pub enum Doorbell {
    /// In a mapped page: a store.
    Mapped(MappedU32),
    /// A message per write.
    Sent(Box<dyn Ring>),
}

impl Doorbell {
    /// Writes the register.
    #[inline]
    pub fn write(&mut self, value: u32) -> Result<(), Error> {
        match self {
            Self::Mapped(cell) => {
                cell.store(value);
                Ok(())
            }
            Self::Sent(ring) => ring.ring(value),
        }
    }
}

/// Memory shared with the device: a piece of one mapping and the address the device knows it by.
///
/// The device may write it at any time, so it is only copied from and to, never borrowed.
#[derive(Debug, Clone)]
pub struct DmaMemory {
    mapping: Arc<Mapping>,
    offset: u64,
    len_bytes: u64,
    iova: u64,
}

impl DmaMemory {
    /// All of `mapping`, known to the device as `iova`.
    pub fn new(mapping: Arc<Mapping>, iova: u64) -> Self {
        let len_bytes = mapping.len_bytes();
        Self { mapping, offset: 0, len_bytes, iova }
    }

    /// The device's address of its first byte.
    #[inline]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// `len_bytes` of it from `offset`. `None`: not all inside.
    pub fn slice(&self, offset: u64, len_bytes: u64) -> Option<Self> {
        self.check(offset, len_bytes)?;
        Some(Self {
            mapping: Arc::clone(&self.mapping),
            offset: self.offset + offset,
            len_bytes,
            iova: self.iova + offset,
        })
    }

    #[inline]
    fn check(&self, offset: u64, len_bytes: u64) -> Option<()> {
        (offset.checked_add(len_bytes)? <= self.len_bytes).then_some(())
    }

    /// Copies `out.len()` bytes out from `offset`. `None`: not all inside.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        self.check(offset, out.len() as u64)?;
        self.mapping.read_at(self.offset + offset, out)
    }

    /// Copies `data` in at `offset`. `None`: not all inside.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Option<()> {
        self.check(offset, data.len() as u64)?;
        self.mapping.write_at(self.offset + offset, data)
    }

    /// Copies all of `buf` in at `offset` (`to_device`), or out from there. `false`: not all inside, or lost.
    pub fn copy(&self, offset: u64, buf: &IoBuf, to_device: bool) -> bool {
        let is_inside = self.check(offset, buf.len_bytes()).is_some();
        is_inside && buf.copy_mapping(&self.mapping, self.offset + offset, to_device)
    }

    /// The 32-bit cell at `offset`. `None`: outside, or not aligned.
    pub(crate) fn cell(&self, offset: u64) -> Option<MappedU32> {
        self.check(offset, 4)?;
        MappedU32::new(&self.mapping, self.offset + offset)
    }

    /// A view for entries that are read often.
    pub(crate) fn range(&self) -> Option<MappedRange> {
        MappedRange::new(&self.mapping, self.offset, self.len_bytes)
    }
}
