//! A cap that was chosen by hand.

use io_model::{HwqId, Nanos, Op, VqId};
use policy::{ConfigError, Next, Policy, PollerShape, TenantReport, TenantSlot, Terms, VqSlot};
use rivals::{K2, K2Config};
use sim::{Report, Scenario};

/// Plays a scenario with that cap at each poller.
pub fn play(scenario: &Scenario, max_in_flight: u32) -> Result<Report, String> {
    let report = sim::run_with(scenario, &mut |shape| Ok(FixedCap::new(max_in_flight, shape)?));
    report.map_err(|error| error.to_string())
}

/// A fixed cap on the commands in flight of each poller by itself, with promised tenants' commands first. If promised
/// tenants have their own pollers, only the others' commands are capped. K2 would split the cap among all pollers, and
/// a cap that leaves nothing to the others would keep a promise, too.
struct FixedCap(K2);

impl FixedCap {
    fn new(max_in_flight: u32, shape: &PollerShape) -> Result<Self, ConfigError> {
        Ok(Self(K2::new(&K2Config { max_in_flight }, shape)?))
    }
}

impl Policy for FixedCap {
    fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.0.attach(slot, vq, tenant, terms, now);
    }

    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.0.change_terms(tenant, terms, now);
    }

    fn forget(&mut self, tenant: TenantSlot) {
        self.0.forget(tenant);
    }

    fn detach(&mut self, slot: VqSlot, now: Nanos) {
        self.0.detach(slot, now);
    }

    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        self.0.arrived(slot, backlog, now);
    }

    fn next(&mut self, now: Nanos) -> Next {
        self.0.next(now)
    }

    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
        self.0.sent(slot, hwq, op, len_bytes, now);
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos) {
        self.0.refused(slot, consumed, now);
    }

    fn completed(
        &mut self,
        slot: VqSlot,
        hwq: HwqId,
        tenant: TenantSlot,
        op: Op,
        len_bytes: u64,
        latency: Nanos,
        now: Nanos,
    ) {
        self.0.completed(slot, hwq, tenant, op, len_bytes, latency, now);
    }

    fn interval(&mut self, _: &[TenantReport], _: Nanos) {}

    fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.0.backlog_of(slot)
    }
}
