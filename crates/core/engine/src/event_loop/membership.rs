//! Tenants that come, go and get other terms while others run.

use io_model::{Nanos, Source};
use policy::{Policy, PolicyConfig, Terms};

use super::{Engine, Node};
use crate::check::Rule;
use crate::contestant::Contestant;
use crate::scenario::{Change, ChangeKind};

impl<P: Policy> Node<P> {
    /// Takes on a tenant that it has a source for.
    fn take_on(&mut self, tenant: u16, terms: &Terms) -> bool {
        let Some(at) = self.awaited.iter().position(|awaited| awaited.tenant == tenant) else { return false };
        let awaited = self.awaited.swap_remove(at);
        let Ok(slot) = self.poller.add(awaited.source, awaited.probe, terms) else { return false };
        self.tenants.push((tenant, slot));
        self.most_tenants = self.most_tenants.max(self.tenants.len());
        true
    }
}

impl<C: Contestant, P: Policy> Engine<'_, C, P> {
    pub(super) fn change(&mut self, number: u32) {
        let Change { tenant, kind, .. } = self.scenario.changes[number as usize];
        match kind {
            ChangeKind::Joins => self.join(tenant),
            ChangeKind::NewTerms(terms) => self.change_terms(tenant, terms),
            ChangeKind::Leaves => self.leave(tenant),
            ChangeKind::Grows(bytes) => self.grow(tenant, bytes),
            ChangeKind::Deleted => self.delete(tenant),
        }
    }

    /// The tenant is there from now on, unless it is already, or left before it came.
    pub(super) fn join(&mut self, tenant: usize) {
        if !std::mem::replace(&mut self.guests[tenant].awaited, false) || !self.create(tenant) {
            return;
        }
        let guest = &mut self.guests[tenant];
        guest.stopped = false;
        guest.port.borrow().set_live(true);
        self.unsettle();
        for number in self.nodes_of[tenant].clone() {
            let terms = self.terms_of(tenant);
            if !self.nodes[usize::from(number)].take_on(tenant as u16, &terms) {
                let what = || format!("poller {number}: tenant {tenant} can't come");
                self.ledger.borrow_mut().violate(Rule::Membership, what);
            }
        }
        self.start(tenant);
        self.poke_all(tenant);
    }

    /// Its threads begin.
    pub(super) fn start(&mut self, tenant: usize) {
        for thread in 0..self.guests[tenant].threads() {
            self.guests[tenant].ready(thread, self.now_ns, &mut self.asks);
        }
        self.answer(tenant as u16);
    }

    fn change_terms(&mut self, tenant: usize, terms: Terms) {
        self.terms[tenant] = terms;
        // `fair` has weights of its own, which it learnt under the old terms and unlearns epoch by epoch.
        let learns = matches!(self.scenario.policy.product(), Some(PolicyConfig::Fair(_)));
        self.changed[tenant] |= learns || self.now_ns > self.scenario.warmup.0;
        self.guests[tenant].target_ns = terms.class.latency_target().map_or(u64::MAX, |target| target.0);
        self.ledger.borrow_mut().set_terms(tenant as u16, &terms);
        self.unsettle();
        for number in self.nodes_of[tenant].clone() {
            let terms = self.terms_of(tenant);
            let node = &mut self.nodes[usize::from(number)];
            if let Some(&(_, slot)) = node.tenants.iter().find(|place| usize::from(place.0) == tenant)
                && !node.poller.change_terms(slot, &terms, Nanos(self.now_ns))
            {
                let what = || format!("poller {number}: tenant {tenant} is not there to change its terms");
                self.ledger.borrow_mut().violate(Rule::Membership, what);
            }
        }
        self.poke_all(tenant);
    }

    /// A tenant's terms at its pollers.
    pub(super) fn terms_of(&self, tenant: usize) -> Terms {
        Terms { pollers: self.scenario.parts(tenant), ..self.terms[tenant] }
    }

    fn unsettle(&mut self) {
        let mut ledger = self.ledger.borrow_mut();
        ledger.set_now(self.now_ns);
        ledger.unsettle();
    }

    /// Takes a tenant that left out of its pollers, once nothing of it is with the drive.
    pub(super) fn let_go(&mut self, tenant: usize) {
        if !self.guests[tenant].stopped {
            return;
        }
        let now = Nanos(self.now_ns);
        for number in self.nodes_of[tenant].clone() {
            let node = &mut self.nodes[usize::from(number)];
            let place = node.tenants.iter().position(|place| usize::from(place.0) == tenant);
            let Some(at) = place else { continue };
            let slot = node.tenants[at].1;
            // A command in parts whose last one was not fetched yet.
            let is_live = node.poller.source_mut(slot).is_some_and(|source| source.live_vqs() != 0);
            if !is_live && node.poller.remove(slot, now).is_some() {
                node.tenants.remove(at);
            }
        }
    }

    /// The board names exactly the tenants that are with a poller.
    pub(super) fn check_board(&self) {
        let places = self.nodes.iter().flat_map(|node| &node.tenants);
        let mut here: Vec<u32> = places.map(|place| u32::from(place.0)).collect();
        here.sort_unstable();
        here.dedup();
        let named: Vec<u32> = self.board.tenants().iter().map(|tenant| tenant.tenant().0).collect();
        if here != named {
            let what = || format!("tenants {here:?} are there, the board names {named:?}");
            self.ledger.borrow_mut().violate(Rule::Membership, what);
        }
    }

    /// A poller's table of tenants is as long as the most that it had at a time.
    pub(super) fn check_tables(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let (length, most) = (node.poller.table_lengths().0, node.most_tenants);
            if length > most {
                let what = || format!("poller {number}: a table of {length} tenants for {most} at a time at most");
                self.ledger.borrow_mut().violate(Rule::Membership, what);
            }
        }
    }
}
