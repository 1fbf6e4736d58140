//! The end of an interval: what a thousand tenants did must not make one iteration long, so those who did nothing are
//! not looked at.

use io_model::{Backend, Nanos, Source};
use policy::{Policy, TenantSlot};

use super::Poller;
use crate::{INTERVAL, INTERVALS_PER_PERIOD};

impl<S: Source, B: Backend, P: Policy> Poller<S, B, P> {
    pub(super) fn end_interval(&mut self, now: Nanos) {
        let stirring = self.stirring.iter().filter_map(|slot| self.tenants[usize::from(slot.0)].as_ref());
        stirring.for_each(|tenant| tenant.probe.next_interval());
        self.hear_others(now);
        self.policy.interval(&self.reports.tenants, now);
        self.publish_bounds();
        self.tell_inside();
        self.next_interval += INTERVAL;
        if self.next_interval <= now {
            // We slept through some intervals; they were idle.
            self.next_interval = now + INTERVAL;
        }
    }

    /// Tells other pollers what is asked for here, and the policy what is there.
    fn hear_others(&mut self, now: Nanos) {
        let Self { reports, tenants, vqs, shared, policy, .. } = self;
        for (slot, ..) in &reports.parts {
            if let Some(Some(tenant)) = tenants.get(usize::from(slot.0))
                && tenant.stirs
            {
                let slots = (0..128).filter(|index| tenant.live & (1 << index) != 0).map(|index| tenant.slots[index]);
                let waiting = slots.map(|slot| u64::from(vqs[usize::from(slot.0)].backlog)).sum::<u64>();
                tenant.probe.asks(waiting + u64::from(tenant.inflight));
            }
        }
        shared.publish_demand(policy.demand());
        self.board.reports(reports, shared);
        for (slot, part) in &reports.parts {
            policy.asks_here(*slot, *part, now);
        }
        if let Some(own) = reports.own {
            policy.demands(&reports.demands, own, now);
        }
    }

    /// After the policy's interval: a bound is about what may go from now on. Those who did nothing have the same one,
    /// which is published once.
    fn publish_bounds(&mut self) {
        let Self { stirring, tenants, policy, shared, .. } = self;
        let cap = policy.idle_bound(false).and_then(|bound| bound.rests_on.best_effort_cap);
        shared.publish(policy.idle_bound(true), cap);
        stirring.retain(|slot| {
            let Some(tenant) = &mut tenants[usize::from(slot.0)] else { return false };
            if tenant.inflight == 0 && tenant.probe.was_calm() && tenant.probe.rest() {
                (tenant.stirs, tenant.shown) = (false, None);
                shared.turn(*slot);
                return false;
            }
            tenant.probe.publish_hwqs(std::mem::take(&mut tenant.hwqs_used));
            if tenant.terms.class.is_guaranteed() {
                let bound = policy.bound(tenant.probe.tenant());
                if tenant.shown != Some(bound) && tenant.probe.publish_bound(bound) {
                    tenant.shown = Some(bound);
                }
            }
            true
        });
    }

    /// Publishes what operators may want to see: each tenant's once per period, some at each interval, so that no
    /// iteration takes the time for a thousand of them.
    fn tell_inside(&mut self) {
        let Self { inside, policy, tenants, vqs, intervals, .. } = self;
        *intervals = (*intervals + 1) % INTERVALS_PER_PERIOD;
        inside.publish(|tell| policy.figures(tell));
        for at in (*intervals..tenants.len()).step_by(INTERVALS_PER_PERIOD) {
            let Some(tenant) = &mut tenants[at] else { continue };
            let (mut waiting, mut rest) = (0, tenant.live | tenant.told);
            tenant.told = tenant.live;
            while rest != 0 {
                let index = rest.trailing_zeros() as u16;
                rest &= rest - 1;
                let slot = (tenant.live & (1 << index) != 0).then(|| tenant.slots[usize::from(index)]);
                tenant.probe.publish_hwq(index, slot.and_then(|slot| policy.hwq_of(slot)));
                waiting += slot.map_or(0, |slot| u64::from(vqs[usize::from(slot.0)].backlog));
            }
            tenant.probe.publish_inside(waiting, |tell| policy.tenant_figures(TenantSlot(at as u16), tell));
        }
    }
}
