//! The bounce buffers of one poller, which its rings and tenants share.

use guest_memory::{IoBuf, MapError, Mapping};
use io_model::TenantId;

/// Not populated until used. A longer command goes through in parts; a command that gets none waits for one.
const COUNT: u64 = 64;
const BYTES: u64 = 256 << 10;

/// Buffers that are free, and how many each tenant has.
///
/// A tenant gets one only while more are free than it has. Alone it may have half of them; a second tenant then gets a
/// quarter, and so on. So a tenant without a buffer gets the next free one, whatever the others want.
#[derive(Debug)]
pub(crate) struct Bounces {
    free: Vec<IoBuf>,
    /// Only tenants that have some.
    held: Vec<(TenantId, usize)>,
}

impl Bounces {
    pub fn new() -> Result<Self, MapError> {
        let memory = Mapping::anonymous((COUNT * BYTES) as usize)?;
        let bounce = |index| {
            let mut buf = IoBuf::default();
            buf.push(&memory, index * BYTES, BYTES);
            buf
        };
        Ok(Self { free: (0..COUNT).map(bounce).collect(), held: Vec::new() })
    }

    fn held_mut(&mut self, tenant: TenantId) -> Option<&mut usize> {
        self.held.iter_mut().find(|(of, _)| *of == tenant).map(|(_, held)| held)
    }

    /// A buffer for a command of the tenant, if it may have one.
    pub fn take(&mut self, tenant: TenantId) -> Option<IoBuf> {
        let free = self.free.len();
        match self.held_mut(tenant) {
            Some(held) if *held >= free => return None,
            Some(held) => *held += 1,
            None if free == 0 => return None,
            None => self.held.push((tenant, 1)),
        }
        self.free.pop()
    }

    /// How many a tenant has.
    #[cfg(test)]
    pub fn held(&self, tenant: TenantId) -> usize {
        self.held.iter().find(|(of, _)| *of == tenant).map_or(0, |(_, held)| *held)
    }

    /// Takes back what [`Bounces::take`] gave to the tenant.
    pub fn give(&mut self, tenant: TenantId, bounce: IoBuf) {
        self.free.push(bounce);
        if let Some(held) = self.held_mut(tenant) {
            *held -= 1;
        }
        self.held.retain(|(_, held)| *held > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(bounces: &mut Bounces, tenant: TenantId) -> Vec<IoBuf> {
        std::iter::from_fn(|| bounces.take(tenant)).collect()
    }

    #[test]
    fn no_tenant_gets_what_another_has_none_of() {
        let mut bounces = Bounces::new().unwrap();
        let mut taken: Vec<(TenantId, Vec<IoBuf>)> =
            (0..7).map(TenantId).map(|tenant| (tenant, take_all(&mut bounces, tenant))).collect();
        let counts: Vec<usize> = taken.iter().map(|(_, bufs)| bufs.len()).collect();
        assert_eq!(counts, [32, 16, 8, 4, 2, 1, 1]);
        let late = TenantId(9);
        assert!(bounces.take(late).is_none(), "nothing is left");
        // The first buffer that comes back is not for tenants that have one.
        let back = taken[0].1.pop().unwrap();
        bounces.give(TenantId(0), back);
        assert!(taken.iter().all(|(tenant, _)| bounces.take(*tenant).is_none()));
        assert!(bounces.take(late).is_some());
    }

    #[test]
    fn what_comes_back_can_be_had_again() {
        let mut bounces = Bounces::new().unwrap();
        for _ in 0..3 {
            let taken = take_all(&mut bounces, TenantId(1));
            assert_eq!(taken.len() as u64, COUNT / 2);
            taken.into_iter().for_each(|bounce| bounces.give(TenantId(1), bounce));
            assert_eq!((bounces.free.len() as u64, bounces.held.len()), (COUNT, 0));
        }
    }
}
