//! Memory for encrypted data on its way to the drive: buffers of one poller, which its tenants share.

use std::sync::Arc;

use guest_memory::{IoBuf, MapError, Mapping};
use io_model::TenantId;

/// A class of buffers. They take no memory until they are used.
#[derive(Debug, Clone, Copy)]
struct Class {
    count: u64,
    bytes: u64,
}

/// For most commands, and for large ones, which go through in parts.
const CLASSES: [Class; 2] = [Class { count: 256, bytes: 16 << 10 }, Class { count: 32, bytes: 256 << 10 }];

/// A buffer that was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounce {
    class: usize,
    at: u64,
}

/// Buffers that are free, and how many each tenant has.
///
/// A tenant gets one only while more of its class are free than it has. Alone it may have half of them; a second tenant
/// then gets a quarter, and so on. So a tenant without a buffer gets the next free one, whatever the others want.
#[derive(Debug)]
pub(crate) struct Bounces {
    memory: Arc<Mapping>,
    free: [Vec<u64>; 2],
    /// Only tenants that have some.
    held: [Vec<(TenantId, usize)>; 2],
    /// One came back since it was last asked.
    has_news: bool,
}

impl Bounces {
    pub fn new() -> Result<Self, MapError> {
        let all: u64 = CLASSES.iter().map(|class| class.count * class.bytes).sum();
        let memory = Mapping::anonymous(all as usize)?;
        let mut start = 0;
        let free = CLASSES.map(|Class { count, bytes }| {
            let from = start;
            start += count * bytes;
            (0..count).map(|index| from + index * bytes).collect()
        });
        Ok(Self { memory, free, held: [Vec::new(), Vec::new()], has_news: false })
    }

    /// All buffers' memory.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// A buffer for a part of `len_bytes`, if the tenant may have one.
    pub fn take(&mut self, tenant: TenantId, len_bytes: u64) -> Option<Bounce> {
        let class = usize::from(len_bytes > CLASSES[0].bytes);
        let (free, held) = (&mut self.free[class], &mut self.held[class]);
        match held.iter_mut().find(|(of, _)| *of == tenant) {
            Some((_, held)) if *held >= free.len() => return None,
            Some((_, held)) => *held += 1,
            None if free.is_empty() => return None,
            None => held.push((tenant, 1)),
        }
        free.pop().map(|at| Bounce { class, at })
    }

    /// Takes back a buffer of the tenant.
    pub fn give(&mut self, tenant: TenantId, Bounce { class, at }: Bounce) {
        self.free[class].push(at);
        self.has_news = true;
        let held = &mut self.held[class];
        if let Some((_, held)) = held.iter_mut().find(|(of, _)| *of == tenant) {
            *held -= 1;
        }
        held.retain(|(_, held)| *held > 0);
    }

    /// Whether any buffer came back since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// The most bytes that the buffer holds.
    pub fn len_bytes(&self, bounce: Bounce) -> u64 {
        CLASSES[bounce.class].bytes
    }

    /// `len_bytes` of the buffer from `skip_bytes`, both within it.
    pub fn part(&self, bounce: Bounce, skip_bytes: u64, len_bytes: u64) -> IoBuf {
        let mut buf = IoBuf::default();
        buf.push(&self.memory, bounce.at + skip_bytes, len_bytes);
        buf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tenant_gets_what_another_has_none_of() {
        let mut bounces = Bounces::new().unwrap();
        let mut all =
            |tenant, bytes| -> Vec<Bounce> { std::iter::from_fn(|| bounces.take(TenantId(tenant), bytes)).collect() };
        let counts: Vec<usize> = (0..7).map(|tenant| all(tenant, 64 << 10).len()).collect();
        assert_eq!(counts, [16, 8, 4, 2, 1, 1, 0]);
        let small = all(0, 4096);
        assert_eq!(small.len(), 128, "classes have nothing to do with one another");
        for bounce in small {
            bounces.give(TenantId(0), bounce);
        }
        assert_eq!((bounces.free[0].len(), bounces.held[0].len()), (256, 0));
    }

    #[test]
    fn buffers_do_not_overlap() {
        let bounces = Bounces::new().unwrap();
        let mut ranges: Vec<(u64, u64)> =
            (0..2).flat_map(|class| bounces.free[class].iter().map(move |at| (*at, CLASSES[class].bytes))).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        let (last, bytes) = ranges[ranges.len() - 1];
        assert_eq!(last + bytes, bounces.memory.len_bytes());
    }
}
