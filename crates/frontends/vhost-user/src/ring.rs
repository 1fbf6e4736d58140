//! One ring as far as messages describe it.

use std::os::fd::OwnedFd;

use guest_memory::MappedRange;

use crate::device::RingSetup;
use crate::memory::Memory;
use crate::wire::RingAddresses;

/// A ring's state. The specification's three states are `running` (started) and `enabled`.
#[derive(Debug, Default)]
pub struct Ring {
    size: Option<u16>,
    addresses: Option<RingAddresses>,
    /// Where the parts of a running ring are in the guest; they stay there.
    placed: Option<Placed>,
    next_avail: u16,
    /// Kept here until the ring starts; then they are the device's.
    pub call: Option<OwnedFd>,
    pub err: Option<OwnedFd>,
    pub enabled: bool,
    /// An earlier process ran it, with this kick; it starts when all that its client said has been repeated.
    pub to_start: Option<Option<OwnedFd>>,
}

/// The guest physical addresses of a ring's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Placed {
    desc_table: u64,
    avail_ring: u64,
    used_ring: u64,
}

impl Ring {
    pub fn is_running(&self) -> bool {
        self.placed.is_some()
    }

    /// Refuses what may not change under a running ring.
    fn check_stopped(&self) -> Result<(), String> {
        if self.is_running() { Err("the ring is running".into()) } else { Ok(()) }
    }

    pub fn set_size(&mut self, size: u32, max_size: u16) -> Result<(), String> {
        self.check_stopped()?;
        match u16::try_from(size) {
            Ok(size) if size.is_power_of_two() && size <= max_size => self.size = Some(size),
            _ => return Err(format!("a ring of {size} entries; powers of two up to {max_size} can be served")),
        }
        Ok(())
    }

    pub fn set_addresses(&mut self, addresses: RingAddresses) -> Result<(), String> {
        self.check_stopped()?;
        if addresses.flags != 0 {
            return Err("a log of dirty pages was not offered".into());
        }
        let RingAddresses { desc_table, used_ring, avail_ring, flags: _ } = addresses;
        if !desc_table.is_multiple_of(16) || !avail_ring.is_multiple_of(2) || !used_ring.is_multiple_of(4) {
            return Err("an address is not aligned".into());
        }
        self.addresses = Some(addresses);
        Ok(())
    }

    pub fn set_next_avail(&mut self, next_avail: u32) -> Result<(), String> {
        self.check_stopped()?;
        self.next_avail = u16::try_from(next_avail).map_err(|_| format!("an index of {next_avail}; it has 16 bits"))?;
        Ok(())
    }

    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Makes it run: returns what the device needs to serve it.
    pub fn start(
        &mut self,
        memory: &Memory,
        features: u64,
        inflight: Option<(u16, MappedRange)>,
        kick: Option<OwnedFd>,
    ) -> Result<RingSetup, String> {
        self.check_stopped()?;
        let size = self.size.ok_or("its size was not set (SET_VRING_NUM)")?;
        if let Some((queue_size, _)) = &inflight
            && size > *queue_size
        {
            return Err(format!("the log of requests in flight is for rings of {queue_size} entries, not of {size}"));
        }
        let addresses = self.addresses.as_ref().ok_or("its addresses were not set (SET_VRING_ADDR)")?;
        let placed = place(addresses, size, memory)?;
        self.placed = Some(placed);
        let Placed { desc_table, avail_ring, used_ring } = placed;
        Ok(RingSetup {
            size,
            desc_table,
            avail_ring,
            used_ring,
            next_avail: self.next_avail,
            features,
            enabled: self.enabled,
            kick,
            call: self.call.take(),
            err: self.err.take(),
            inflight: inflight.map(|(_, part)| part),
        })
    }

    /// It does not run any more, and goes on from `next_avail`.
    pub fn stopped(&mut self, next_avail: u16) {
        self.placed = None;
        self.next_avail = next_avail;
    }

    /// What messages made of it, in words; where a running one goes on is the device's.
    #[cfg(test)]
    pub fn summary(&self) -> String {
        let Self { size, addresses, next_avail, call, err, enabled, .. } = self;
        let next_avail = (!self.is_running()).then_some(next_avail);
        let (call, err) = (call.is_some(), err.is_some());
        format!("{size:?} {addresses:?} {next_avail:?} {call} {err} {enabled} {}", self.is_running())
    }

    /// Whether the ring, if it runs, is where it was in another table too.
    pub fn stays_in(&self, memory: &Memory) -> bool {
        match (&self.placed, &self.addresses, self.size) {
            (Some(placed), Some(addresses), Some(size)) => place(addresses, size, memory).as_ref() == Ok(placed),
            _ => true,
        }
    }
}

/// Finds a ring's parts in the guest. Sizes and alignments are those of Virtio 1.2, section 2.7.
fn place(addresses: &RingAddresses, size: u16, memory: &Memory) -> Result<Placed, String> {
    let entries = u64::from(size);
    let find = |what: &str, user_addr: u64, len_bytes: u64, align: u64| {
        memory.guest_addr(user_addr, len_bytes, align).ok_or_else(|| {
            format!(
                "its {what} at {user_addr:#x} is not in one memory region, or not aligned there (all memory of the \
                     VM must be shared; QEMU: share=on)"
            )
        })
    };
    Ok(Placed {
        desc_table: find("descriptor table", addresses.desc_table, 16 * entries, 16)?,
        avail_ring: find("available ring", addresses.avail_ring, 6 + 2 * entries, 2)?,
        used_ring: find("used ring", addresses.used_ring, 6 + 8 * entries, 4)?,
    })
}
