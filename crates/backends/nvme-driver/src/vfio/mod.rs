//! A PCI function that the kernel hands to user space, by VFIO's groups and type 1 IOMMUs (linux/vfio.h).
//!
//! Registers are read and written by system calls on the function's file: they fail where a load would raise SIGBUS,
//! and only set-up and errors need them. Doorbells are mapped. The IOMMU lets the function reach what is mapped in its
//! [`Space`] and nothing else.

mod error;
mod info;
mod ioctl;
mod open;
mod space;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use guest_memory::{MappedU32, Mapping};
use nvme_spec::regs::DOORBELL_BASE;
use vfio_bindings::bindings::vfio as sys;

pub use self::error::VfioError;
use self::info::{Iommu, Region};
pub use self::open::{Member, NotAnAddress, PciAddress, VfioDescriptors, group_members};
use self::space::Space;
use crate::device::{DmaMemory, DmaSpace, Doorbell, PciDevice, Ring};
use crate::error::Error;

/// The PCI command register and its bits for memory space and bus mastering.
const PCI_COMMAND: u64 = 4;
const PCI_COMMAND_MEMORY_AND_MASTER: u16 = 0b110;
const MSIX: u32 = sys::VFIO_PCI_MSIX_IRQ_INDEX;

/// An NVMe controller's function through VFIO. When it is dropped, and with it every mapped [`Doorbell`] and
/// [`DmaSpace`] of it, the kernel resets the function, which reaches nothing of ours any more and can be had by others.
pub struct VfioDevice {
    address: PciAddress,
    file: Arc<File>,
    bar0: Region,
    /// What of BAR0 is mapped, by its offset there.
    mapped: Vec<(u64, Arc<Mapping>)>,
    interrupts: Interrupts,
    can_reset: bool,
    // After the function's file: it is the group's last user.
    space: Arc<Space>,
}

/// MSI-X as the kernel has it for a function.
struct Interrupts {
    /// How many there are.
    count: u32,
    /// All that will ever be used are to be there from the first one on.
    all_at_once: bool,
    is_on: bool,
}

impl VfioDevice {
    /// Opens a function that is bound to vfio-pci, and enables it.
    ///
    /// # Errors
    /// [`Error::Vfio`] mostly; nothing has changed then.
    pub fn open(address: PciAddress) -> Result<Self, Error> {
        Self::from_descriptors(VfioDescriptors::open(address)?)
    }

    /// Takes over a function that another process opened, and enables it. Memory is pinned in this process' name.
    ///
    /// # Errors
    /// As [`VfioDevice::open`].
    pub fn from_descriptors(descriptors: VfioDescriptors) -> Result<Self, Error> {
        let VfioDescriptors { address, container, group, device } = descriptors;
        let failed = |what| failed(address, what);
        let flags = ioctl::device_flags(device.as_fd()).map_err(failed("asking for the kind"))?;
        if flags & sys::VFIO_DEVICE_FLAGS_PCI == 0 {
            return Err(Error::Unsuitable("it is no PCI function"));
        }
        let region = |index: u32| -> Result<Region, Error> {
            let said = ioctl::region_info(device.as_fd(), index).map_err(failed("asking for the regions"))?;
            Region::parse(&said).ok_or(Error::Protocol("the kernel's description of a region is cut off"))
        };
        let (bar0, config) = (region(sys::VFIO_PCI_BAR0_REGION_INDEX)?, region(sys::VFIO_PCI_CONFIG_REGION_INDEX)?);
        if bar0.size_bytes <= DOORBELL_BASE {
            return Err(Error::Unsuitable("its BAR0 is too small for NVMe registers"));
        }
        let said = ioctl::iommu_info(container.as_fd()).map_err(failed("asking for the IOMMU"))?;
        let iommu = Iommu::parse(&said).ok_or(Error::Protocol("the kernel's description of the IOMMU is cut off"))?;
        if iommu.page_sizes & 4096 == 0 {
            return Err(Error::Unsuitable("its IOMMU has no pages of 4 KiB"));
        }
        let (count, irq_flags) = ioctl::interrupts(device.as_fd(), MSIX).map_err(failed("asking for MSI-X"))?;
        let all_at_once = irq_flags & sys::VFIO_IRQ_INFO_NORESIZE != 0;
        let file = File::from(device);
        enable(&file, config.offset).map_err(failed("enabling bus mastering"))?;
        Ok(Self {
            address,
            file: Arc::new(file),
            bar0,
            mapped: Vec::new(),
            interrupts: Interrupts { count, all_at_once, is_on: false },
            can_reset: flags & sys::VFIO_DEVICE_FLAGS_RESET != 0,
            space: Arc::new(Space::new(address, container, group, &iommu)),
        })
    }

    /// Where the function is.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Where a register is in the function's file.
    fn place(&self, offset: u64, len_bytes: u64) -> Result<u64, Error> {
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= self.bar0.size_bytes);
        let place = self.bar0.offset.checked_add(offset).filter(|_| inside);
        place.ok_or(Error::Invalid("no register lies behind BAR0's end"))
    }

    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Error> {
        let mut value = [0; N];
        self.file.read_exact_at(&mut value, self.place(offset, N as u64)?).map_err(gone(self.address))?;
        Ok(value)
    }

    fn write(&self, offset: u64, value: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(value, self.place(offset, value.len() as u64)?).map_err(gone(self.address))
    }

    /// The mapping with `offset` of BAR0 and where it starts there, made when it is first asked for. `None`: it can't
    /// be mapped.
    fn mapping(&mut self, offset: u64) -> Option<(u64, Arc<Mapping>)> {
        let has = |(start, mapping): &&(u64, Arc<Mapping>)| (*start..start + mapping.len_bytes()).contains(&offset);
        if let Some(found) = self.mapped.iter().find(has) {
            return Some(found.clone());
        }
        let (start, len_bytes) = self.bar0.mappable_at(offset)?;
        let mapping = Mapping::registers(self.file.as_fd(), self.bar0.offset.checked_add(start)?, len_bytes).ok()?;
        self.mapped.push((start, Arc::clone(&mapping)));
        Some((start, mapping))
    }
}

/// What the kernel's refusal of `what` is to the operator.
fn failed(address: PciAddress, what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| VfioError::Kernel { what, address, reason: error.to_string() }.into()
}

/// A register could not be reached.
fn gone(address: PciAddress) -> impl Fn(io::Error) -> Error {
    move |error| Error::Gone { peer: address.to_string(), reason: error.to_string() }
}

/// Lets the function be reached, and reach memory.
fn enable(file: &File, config_offset: u64) -> io::Result<()> {
    let at = config_offset + PCI_COMMAND;
    let mut command = [0; 2];
    file.read_exact_at(&mut command, at)?;
    let command = u16::from_le_bytes(command) | PCI_COMMAND_MEMORY_AND_MASTER;
    file.write_all_at(&command.to_le_bytes(), at)
}

impl PciDevice for VfioDevice {
    fn read_u32(&mut self, offset: u64) -> Result<u32, Error> {
        self.read(offset).map(u32::from_le_bytes)
    }

    /// One access where the kernel has such ones (6.10), else two of 32 bits, which NVMe allows (Base 3.1.1).
    fn read_u64(&mut self, offset: u64) -> Result<u64, Error> {
        self.read(offset).map(u64::from_le_bytes)
    }

    fn write_u32(&mut self, offset: u64, value: u32) -> Result<(), Error> {
        self.write(offset, &value.to_le_bytes())
    }

    /// As [`VfioDevice::read_u64`].
    fn write_u64(&mut self, offset: u64, value: u64) -> Result<(), Error> {
        self.write(offset, &value.to_le_bytes())
    }

    fn doorbell(&mut self, offset: u64) -> Result<Doorbell, Error> {
        if offset < DOORBELL_BASE {
            return Err(Error::Invalid("no doorbell below 0x1000"));
        }
        let place = self.place(offset, 4)?;
        let mapped = self.mapping(offset);
        let cell = mapped.and_then(|(start, mapping)| MappedU32::new(&mapping, offset - start));
        Ok(match cell {
            Some(cell) => Doorbell::Mapped(cell),
            None => {
                let (file, address) = (Arc::clone(&self.file), self.address);
                Doorbell::Sent(Box::new(Written { file, place, address }))
            }
        })
    }

    fn allocate_dma(&mut self, len_bytes: usize) -> Result<DmaMemory, Error> {
        let len = len_bytes.max(1).checked_next_multiple_of(4096);
        let len = len.ok_or_else(|| Error::Memory(format!("{len_bytes} bytes are too many")))?;
        let mapping = Mapping::anonymous(len)?;
        let iova = self.space.map(&mapping)?;
        Ok(DmaMemory::new(mapping, iova))
    }

    fn release_dma(&mut self, memory: DmaMemory) -> Result<(), Error> {
        self.space.unmap(memory.iova(), memory.len_bytes())
    }

    fn set_interrupt(&mut self, vector: u16, event: BorrowedFd<'_>) -> Result<(), Error> {
        let vector = u32::from(vector);
        let Interrupts { count, all_at_once, is_on } = self.interrupts;
        if vector >= count {
            return Err(Error::Invalid("the controller has no such interrupt vector"));
        }
        let set = |start: u32, events: &[RawFd]| {
            let set = ioctl::set_events(self.file.as_fd(), MSIX, start, events);
            set.map_err(failed(self.address, "setting an interrupt up"))
        };
        if is_on {
            return set(vector, &[event.as_raw_fd()]);
        }
        // The first one turns MSI-X on, with as many vectors as are named.
        let mut events = vec![-1; if all_at_once { count } else { vector + 1 } as usize];
        events[vector as usize] = event.as_raw_fd();
        set(0, &events)?;
        self.interrupts.is_on = true;
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Error> {
        if !self.can_reset {
            return Err(Error::Unsuitable("its function can't be reset"));
        }
        ioctl::reset(self.file.as_fd()).map_err(failed(self.address, "a function reset"))
    }

    fn dma_space(&self) -> Option<Arc<dyn DmaSpace>> {
        let space: Arc<dyn DmaSpace> = self.space.clone();
        Some(space)
    }

    fn set_removal_event(&mut self, event: BorrowedFd<'_>) -> Result<bool, Error> {
        let set = ioctl::set_events(self.file.as_fd(), sys::VFIO_PCI_REQ_IRQ_INDEX, 0, &[event.as_raw_fd()]);
        set.map_err(failed(self.address, "asking to be told of a removal"))?;
        Ok(true)
    }
}

/// A doorbell that can't be mapped.
struct Written {
    file: Arc<File>,
    place: u64,
    address: PciAddress,
}

impl Ring for Written {
    fn ring(&mut self, value: u32) -> Result<(), Error> {
        self.file.write_all_at(&value.to_le_bytes(), self.place).map_err(gone(self.address))
    }
}
