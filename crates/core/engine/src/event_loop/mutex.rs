//! What pollers and vCPUs take from each other: the global mutex, and CPUs.

use policy::Policy;

use super::{Engine, Event, MutexTurn};
use crate::contestant::Contestant;
use crate::lock::Holder;

impl<C: Contestant, P: Policy> Engine<'_, C, P> {
    /// Whether a poller may step; else it waits for its turn.
    pub(super) fn has_mutex(&mut self, number: u16) -> bool {
        let node = &mut self.nodes[usize::from(number)];
        let has = node.turn == MutexTurn::Holds || self.mutex.ask(Holder::Poller(number));
        node.turn = if has { MutexTurn::Holds } else { MutexTurn::Waits };
        has
    }

    /// A poller's step is over when its time is.
    pub(super) fn leave_mutex(&mut self, number: u16) {
        let node = &mut self.nodes[usize::from(number)];
        if std::mem::replace(&mut node.turn, MutexTurn::Away) == MutexTurn::Holds {
            let at_ns = node.busy_until_ns;
            self.push(at_ns, Event::Release);
        }
    }

    /// An exit of a vCPU wants the mutex.
    pub(super) fn lock_for(&mut self, tenant: u16, vcpu: u16) {
        if self.mutex.ask(Holder::Vcpu { tenant, vcpu }) {
            self.grant(tenant, vcpu, 0);
        }
    }

    fn grant(&mut self, tenant: u16, vcpu: u16, handover_ns: u64) {
        let until_ns = self.now_ns + handover_ns + self.mutex.hold_ns();
        self.guests[usize::from(tenant)].granted(vcpu, until_ns);
        self.push(until_ns, Event::Vcpu { tenant, vcpu });
    }

    /// The mutex goes to the longest waiter.
    pub(super) fn release(&mut self) {
        match self.mutex.release() {
            Some((Holder::Vcpu { tenant, vcpu }, handover_ns)) => self.grant(tenant, vcpu, handover_ns),
            Some((Holder::Poller(number), handover_ns)) => {
                self.nodes[usize::from(number)].turn = MutexTurn::Holds;
                self.wake(number, self.now_ns + handover_ns);
            }
            None => {}
        }
    }

    /// What a poller worked beside a vCPU, that vCPU did not.
    pub(super) fn take_cpu(&mut self, number: u16) {
        let node = &self.nodes[usize::from(number)];
        let Some((tenant, vcpu)) = node.beside else { return };
        let until_ns = node.busy_until_ns;
        if let Some(at_ns) = self.guests[usize::from(tenant)].steal(vcpu, self.now_ns, until_ns) {
            self.push(at_ns, Event::Vcpu { tenant, vcpu });
        }
    }
}
