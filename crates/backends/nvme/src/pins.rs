//! Memory of guests that the drive reaches, as everybody who uses the drive shares it.
//!
//! To map it pins it, which takes seconds where there is much. So a client's thread does that before it orders anything
//! of a poller, and undoes it after the poller has let go; a poller that is told of the memory then only counts.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guest_memory::Mapping;
use nvme_driver::{DmaSpace, Error};
use nvme_spec::PAGE_BYTES;

/// What is mapped, each by its addresses in this process.
#[derive(Clone)]
pub struct Pins {
    space: Arc<dyn DmaSpace>,
    /// Off the way of commands.
    mapped: Arc<Mutex<HashMap<(usize, usize), Mapped>>>,
}

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pins").field("mappings", &self.lock().len()).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
struct Mapped {
    iova: u64,
    users: u32,
}

impl Pins {
    /// Over what carries the drive.
    pub(crate) fn new(space: Arc<dyn DmaSpace>) -> Self {
        Self { space, mapped: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(usize, usize), Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the drive reach `mapping` for as long as the answer lives. May take seconds.
    ///
    /// # Errors
    /// The kernel refuses: the limit of locked memory, of mappings, or it is memory of a kind that can't be pinned.
    pub fn pin(&self, mapping: &Mapping) -> Result<Pin, Error> {
        let Range { start, end } = mapping.addresses();
        let key = (start, end);
        // Locked while memory is mapped: other threads wait, for this memory and for any other.
        let mut mapped = self.lock();
        if let Some(known) = mapped.get_mut(&key) {
            known.users += 1;
            return Ok(Pin { pins: self.clone(), key, iova: known.iova });
        }
        let iova = self.space.map(mapping)?;
        if iova % PAGE_BYTES != start as u64 % PAGE_BYTES {
            self.space.unmap(iova, mapping.len_bytes())?;
            return Err(Error::Invalid("memory got another place in its page than it has here"));
        }
        mapped.insert(key, Mapped { iova, users: 1 });
        Ok(Pin { pins: self.clone(), key, iova })
    }
}

/// Memory that the drive reaches until the last of these is dropped, which may take long.
#[derive(Debug)]
pub struct Pin {
    pins: Pins,
    key: (usize, usize),
    iova: u64,
}

impl Pin {
    /// The drive's address of its first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    /// Where it lies in this process.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.key.0..self.key.1
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut mapped = self.pins.lock();
        let Some(known) = mapped.get_mut(&self.key) else { return };
        known.users -= 1;
        if known.users == 0 {
            mapped.remove(&self.key);
            // What carries the drive is gone, and its mappings with it; or the kernel keeps memory that nobody uses.
            let _ = self.pins.space.unmap(self.iova, (self.key.1 - self.key.0) as u64);
        }
    }
}
