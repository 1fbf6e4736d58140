//! What a device is asked, checked as far as that needs no knowledge of the device.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use guest_memory::Mapping;
use rustix::io::Errno;

/// One request to a device. What is said here was checked; the rest is the device's to judge.
#[derive(Debug)]
pub enum Request {
    /// Read a region; answer with [`Reply::Data`] of exactly `len_bytes`.
    RegionRead {
        /// A region that exists and is readable.
        region: u32,
        /// Offset in it; offset and length are inside the region.
        offset_bytes: u64,
        /// 1 to 65536.
        len_bytes: u32,
    },
    /// Write a region.
    RegionWrite {
        /// A region that exists and is writable.
        region: u32,
        /// Offset in it; offset and length are inside the region.
        offset_bytes: u64,
        /// What to write; not empty.
        data: Vec<u8>,
    },
    /// Memory that the device may use from now on. Answer `EEXIST` if it overlaps.
    DmaMap {
        /// Where the device sees it; a multiple of 4 KiB, as the length is. Does not wrap around.
        iova: u64,
        /// Its length in bytes; not 0.
        len_bytes: u64,
        /// `None`: the client shared no descriptor that we could map; the range is a hole.
        mapping: Option<Arc<Mapping>>,
    },
    /// Memory that the device may not use any more. Answer once nothing in flight uses it, and
    /// `ENOENT` if it is not exactly a range that was mapped.
    DmaUnmap {
        /// As it was mapped.
        iova: u64,
        /// As it was mapped.
        len_bytes: u64,
    },
    /// As [`Request::DmaUnmap`] for every range.
    DmaUnmapAll,
    /// Interrupts: where to signal them, or what to do to them.
    SetIrqs(SetIrqs),
    /// Reset the device. Answer when it is done.
    Reset,
}

/// A change to interrupts of one type.
#[derive(Debug)]
pub struct SetIrqs {
    /// The type, as an index into [`DeviceSpec::irqs`](crate::DeviceSpec::irqs).
    pub index: u32,
    /// The interrupts, ascending, each below the type's count.
    pub vectors: Vec<u32>,
    /// What happens to them.
    pub change: IrqChange,
}

/// What happens to interrupts.
#[derive(Debug)]
pub enum IrqChange {
    /// Signal them by writing to these, one for each vector. Each is an eventfd in non-blocking mode.
    Assign(Vec<OwnedFd>),
    /// Signal them no more, close their eventfds.
    Deassign,
    /// Signal them now.
    Trigger,
    /// Hold them back.
    Mask,
    /// Let them through again.
    Unmask,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It was done.
    Done,
    /// It was done; this is what a [`Request::RegionRead`] read.
    Data(Vec<u8>),
    /// It was refused.
    Failed(Errno),
    /// It was refused, and the client is to be disconnected. The text goes to the log.
    Fatal(Errno, String),
}
