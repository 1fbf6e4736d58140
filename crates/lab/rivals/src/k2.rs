//! K2: few commands with the drive at a time, real-time ones first ("K2: Work-Constraining Scheduling of NVMe-Attached
//! Storage", Miemietz et al., RTSS '19).
//!
//! A guaranteed tenant is K2's real-time class: whenever the drive has room under the cap, its commands go first,
//! without limit, so it can starve the others, as published. Within a class VQs take turns and each VQ is first in,
//! first out; the published scheduler has one list per class, which we can't have, since commands stay in the guests'
//! queues. K2 stands for one lock around one drive, and so does one poller. Of several each has its
//! part of the cap (see `split`): what real-time tenants used there, and the rest by the VQs that ask. So real-time
//! commands go before others of their own poller at once, and before those of other pollers within some intervals.
//!
//! Not implemented: the levels within the real-time class, and a cap in bytes (a later variant).

use io_model::{HwqId, Nanos, Op, QueuePriority};
use policy::parts::{ByFlow, Claim, Flows, Links, List, Standing, Turns};
use policy::{ConfigError, Next, PollerShape, TenantSlot, Terms, VqSlot};

/// Settings of [`K2`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct K2Config {
    /// Commands that all tenants may have with the drive together, 1 or more. Published: 32; LPNS compares 8, 16 and
    /// 32.
    pub max_in_flight: u32,
}

impl Default for K2Config {
    fn default() -> Self {
        Self { max_in_flight: 32 }
    }
}

/// Ready VQs by class.
#[derive(Debug, Default)]
pub struct Classes {
    real_time: List,
    best_effort: List,
    links: Links,
    is_real_time: Vec<bool>,
}

impl Classes {
    fn list(&mut self, flow: u16) -> (&mut List, &mut Links) {
        let list = if self.is_real_time[usize::from(flow)] { &mut self.real_time } else { &mut self.best_effort };
        (list, &mut self.links)
    }

    fn front(&self) -> Option<u16> {
        self.real_time.front().or(self.best_effort.front())
    }
}

impl Turns for Classes {
    const SOME_GO_FIRST: bool = true;

    fn attach(&mut self, flow: u16, terms: &Terms) {
        if self.is_real_time.len() <= usize::from(flow) {
            self.is_real_time.resize(usize::from(flow) + 1, false);
            self.links.grow(self.is_real_time.len());
        }
        self.is_real_time[usize::from(flow)] = terms.class.is_guaranteed();
    }

    fn moved(&mut self, flow: u16, from: Standing, to: Standing) {
        let (list, links) = self.list(flow);
        if from == Standing::Ready {
            list.remove(links, flow);
        }
        if to == Standing::Ready {
            list.push_back(links, flow);
        }
    }

    fn goes_first(&self, flow: u16) -> bool {
        self.is_real_time[usize::from(flow)]
    }

    fn claim(&self, flow: u16) -> Claim {
        if self.goes_first(flow) { Claim::First } else { Claim::Weight(1.0) }
    }
}

/// The K2 policy of one poller.
#[derive(Debug)]
pub struct K2 {
    /// Each VQ is a flow of its own.
    flows: Flows<Classes>,
}

impl K2 {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(config: &K2Config, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        ConfigError::check(config.max_in_flight >= 1, "max_in_flight", "must be at least 1")?;
        let flows = Flows::new(Classes::default(), shape.hwqs, shape.hwq_depth);
        Ok(Self { flows: flows.within(config.max_in_flight.into()) })
    }
}

impl ByFlow for K2 {
    type Turns = Classes;

    fn flows(&self) -> &Flows<Classes> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Classes> {
        &mut self.flows
    }

    fn flow_for(&self, slot: VqSlot, _: TenantSlot, _: QueuePriority) -> u16 {
        slot.0
    }

    #[inline]
    fn pick(&mut self, now: Nanos) -> Next {
        self.flows.next_within(now, |turns| turns.front())
    }

    #[inline]
    fn sending(&mut self, flow: u16, _: Op, _: u64) {
        self.flows.serve(flow, 1);
    }

    /// Its VQs are flows of their own wherever they are.
    fn set_part(&mut self, _: TenantSlot, _: f64) {}

    #[inline]
    fn turn_over(&mut self, flow: u16, _: Option<HwqId>) {
        if self.flows.is_ready(flow) {
            let (list, links) = self.flows.turns.list(flow);
            list.rotate(links, flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use io_model::{TenantId, VqId};

    use super::*;
    use policy::Policy;

    const T0: Nanos = Nanos(0);
    const WAIT: Next = Next::WaitUntil(Nanos::MAX);

    /// VQ 0 is guaranteed, 1 and 2 are not.
    fn policy(max_in_flight: u32) -> K2 {
        let shape = PollerShape { hwqs: 2, hwq_depth: 64, guaranteed_vqs: 1, weighted: false };
        let mut policy = K2::new(&K2Config { max_in_flight }, &shape).unwrap();
        for slot in 0..3 {
            let terms = if slot == 0 { Terms::guaranteed(None) } else { Terms::best_effort(u32::from(slot) * 100) };
            let vq = VqId { tenant: TenantId(slot.into()), index: 1 };
            policy.attach(VqSlot(slot), vq, TenantSlot(slot), &terms, T0);
        }
        policy
    }

    fn send(policy: &mut K2) -> Option<u16> {
        let Next::Send { vq, hwq } = policy.next(T0) else { return None };
        policy.sent(vq, hwq, Op::Read, 4096, T0);
        Some(vq.0)
    }

    #[test]
    fn the_cap_counts_everyone_and_the_guaranteed_tenant_gets_the_next_room() {
        let mut policy = policy(4);
        policy.arrived(VqSlot(1), 10, T0);
        policy.arrived(VqSlot(2), 10, T0);
        let order: Vec<_> = std::iter::from_fn(|| send(&mut policy)).collect();
        assert_eq!(order, [1, 2, 1, 2]);
        policy.arrived(VqSlot(0), 2, T0);
        assert_eq!(policy.next(T0), WAIT);
        for expected in [0, 0, 1] {
            policy.completed(VqSlot(1), HwqId(1), TenantSlot(1), Op::Read, 4096, T0, T0);
            assert_eq!(send(&mut policy), Some(expected));
            assert_eq!(policy.next(T0), WAIT);
        }
    }

    #[test]
    fn no_room_at_all_is_refused() {
        let shape = PollerShape { hwqs: 1, hwq_depth: 1, guaranteed_vqs: 0, weighted: false };
        assert_eq!(K2::new(&K2Config { max_in_flight: 0 }, &shape).unwrap_err().field, "max_in_flight");
        let shape = PollerShape { hwqs: 0, ..shape };
        assert_eq!(K2::new(&K2Config::default(), &shape).unwrap_err().field, "hwqs");
    }
}
