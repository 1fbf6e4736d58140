//! The memory that a client shares, as a table of regions.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guest_memory::{Budget, GuestMemory, MapError, Mapping, check_memory};
use rustix::fs::fstat;

use crate::wire::RegionPayload;

/// Regions that a client may share at a time, told to it as the number of memory slots. QEMU has 509 slots on
/// most machines; each region costs the daemon a mapping.
pub const MAX_REGIONS: usize = 509;

/// One region of guest memory.
#[derive(Debug, Clone)]
pub struct Region {
    /// Guest physical address of its first byte.
    pub guest_addr: u64,
    /// Its address in the client, which is how messages name rings.
    pub user_addr: u64,
    /// Its length in bytes; not 0. Neither address range wraps around.
    pub len_bytes: u64,
    /// Its bytes, from the first one on. `None`: a hole, whose file can't be mapped.
    pub mapping: Option<Arc<Mapping>>,
    /// Which piece of which file. `None` for a hole: no file system is asked what its file is.
    source: Option<Source>,
    /// What is to be said of a new hole.
    pub(crate) warning: Option<String>,
}

/// A place in a file that is mapped, which keeps the numbers from being another file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    device: u64,
    inode: u64,
    offset_bytes: u64,
}

impl Region {
    /// Maps what a client shares, as far as its budget goes; what is mapped already in `known` is not mapped once more:
    /// clients tell all of their memory again when some is added. The text says what is wrong with it.
    pub(crate) fn map(
        payload: &RegionPayload,
        file: &OwnedFd,
        known: &Memory,
        budget: &Arc<Budget>,
    ) -> Result<Self, String> {
        let RegionPayload { guest_addr, len_bytes, user_addr, offset_bytes } = *payload;
        let refuse = |why: &str| Err(format!("the memory region {payload}: {why}"));
        if len_bytes == 0 {
            return refuse("it is empty");
        }
        if guest_addr.checked_add(len_bytes).is_none() || user_addr.checked_add(len_bytes).is_none() {
            return refuse("it wraps around");
        }
        let mapped = check_memory(file.as_fd()).and_then(|()| {
            // The kernel alone answers for what is memory.
            let stat = fstat(file).map_err(MapError::Os)?;
            let source = Source { device: stat.st_dev, inode: stat.st_ino, offset_bytes };
            let same = |region: &&Self| (region.source, region.len_bytes) == (Some(source), len_bytes);
            let mapping = match known.regions.iter().find(same).and_then(|region| region.mapping.as_ref()) {
                Some(mapping) => Arc::clone(mapping),
                None => Mapping::within(budget, file.as_fd(), offset_bytes, len_bytes, true)?,
            };
            Ok((mapping, source))
        });
        let hole = Self { guest_addr, user_addr, len_bytes, mapping: None, source: None, warning: None };
        match mapped {
            Ok((mapping, source)) => Ok(Self { mapping: Some(mapping), source: Some(source), ..hole }),
            Err(error) if error.is_of_file() => {
                let is_known = known.regions.iter().any(|region| region.is_same_hole(&hole));
                let warning = (!is_known).then(|| error.hole(file.as_fd(), guest_addr, len_bytes));
                Ok(Self { warning, ..hole })
            }
            Err(error) => refuse(&error.to_string()),
        }
    }

    fn is_same_hole(&self, other: &Self) -> bool {
        let place = |region: &Self| (region.guest_addr, region.user_addr, region.len_bytes);
        self.mapping.is_none() && place(self) == place(other)
    }

    fn overlaps(&self, other: &Self) -> bool {
        // Ends don't wrap around, `map` saw to that.
        let overlap = |a: u64, b: u64| a < b + other.len_bytes && b < a + self.len_bytes;
        overlap(self.guest_addr, other.guest_addr) || overlap(self.user_addr, other.user_addr)
    }
}

/// All memory that a client shares; no two regions overlap, neither in the guest nor in the client.
/// A clone shares the mappings.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    regions: Vec<Region>,
}

impl Memory {
    /// The regions, in the order in which the client named them.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The guest's physical address space; make one for each thread that needs it, which then counts its pins by
    /// itself.
    pub fn guest_memory(&self) -> GuestMemory {
        let mut memory = GuestMemory::default();
        for region in &self.regions {
            let mapping = region.mapping.as_ref().map(Mapping::alias);
            let mapped = memory.map(region.guest_addr, region.len_bytes, mapping, &mut ());
            debug_assert!(mapped.is_ok(), "regions were checked when they were added");
        }
        memory
    }

    /// The guest physical address of `len_bytes` at an address of the client's, if they are in one region, no hole, and
    /// aligned to `align` both in the guest and in our mapping of it.
    pub(crate) fn guest_addr(&self, user_addr: u64, len_bytes: u64, align: u64) -> Option<u64> {
        self.regions.iter().filter(|region| region.mapping.is_some()).find_map(|region| {
            let offset = user_addr.checked_sub(region.user_addr)?;
            let end = offset.checked_add(len_bytes)?;
            let guest_addr = region.guest_addr.checked_add(offset)?;
            let aligned = offset.is_multiple_of(align) && guest_addr.is_multiple_of(align);
            (end <= region.len_bytes && aligned).then_some(guest_addr)
        })
    }

    /// Adds a region. The text says why not.
    pub(crate) fn add(&mut self, region: Region) -> Result<(), String> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(format!("more than {MAX_REGIONS} memory regions"));
        }
        if let Some(other) = self.regions.iter().find(|other| other.overlaps(&region)) {
            return Err(format!(
                "the memory region {:#x}+{:#x} overlaps {:#x}+{:#x}, in the guest or in the client",
                region.guest_addr, region.len_bytes, other.guest_addr, other.len_bytes
            ));
        }
        self.regions.push(region);
        Ok(())
    }

    /// Takes out the region with exactly these addresses and this length.
    pub(crate) fn remove(&mut self, payload: &RegionPayload) -> Result<(), String> {
        let same = |region: &Region| {
            let Region { guest_addr, user_addr, len_bytes, .. } = *region;
            payload.is_same_place(&RegionPayload { guest_addr, user_addr, len_bytes, offset_bytes: 0 })
        };
        let at = self.regions.iter().position(same).ok_or_else(|| format!("there is no memory region {payload}"))?;
        self.regions.remove(at);
        Ok(())
    }
}
