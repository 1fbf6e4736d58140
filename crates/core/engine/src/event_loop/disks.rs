//! Disks that come, grow and are deleted while others are used.

use io_model::Extents;
use policy::Policy;

use super::Engine;
use crate::contestant::Contestant;
use crate::disks::{DISK_STEP_BYTES, Disks, NewSpace};
use crate::sabotage::Sabotage;
use crate::scenario::{ScenarioError, Tenant, grown_fio};
use crate::workload::Workload;

impl<C: Contestant, P: Policy> Engine<'_, C, P> {
    /// Where disks move: those of the first tenants have their places, and the ledger knows them.
    pub(super) fn place_disks(&mut self, new_space: Option<NewSpace>) -> Result<(), ScenarioError> {
        let scenario = self.scenario;
        let Some(wiper) = scenario.wiper() else { return Ok(()) };
        let new_space = new_space.ok_or(ScenarioError::NoSpace)?;
        let there = |at: &usize| *at != wiper && !scenario.comes_later(*at);
        let there: Vec<usize> = (0..scenario.tenants.len()).filter(there).collect();
        let wanted = there.iter().map(|&at| (scenario.tenants[at].name.as_str(), scenario.tenants[at].size_bytes));
        let drive_bytes = scenario.drive_bytes;
        let full = || ScenarioError::DriveFull { name: "of all".to_owned(), drive_bytes };
        let space = new_space(&wanted.collect::<Vec<_>>(), drive_bytes).ok_or_else(full)?;
        let disks = Disks::new(space, wiper as u16);
        let mut ledger = self.ledger.borrow_mut();
        ledger.disks_move(drive_bytes, wiper as u16);
        for at in there {
            let ranges = disks.find(&scenario.tenants[at].name).unwrap_or_default();
            ledger.gives(at as u16, ranges.into_iter());
        }
        drop(ledger);
        self.disks = Some(disks);
        Ok(())
    }

    /// Where each tenant's disk lies at the start; nowhere for one that is still to come.
    pub(super) fn extents(&self) -> Vec<Extents> {
        let tenants = &self.scenario.tenants;
        let Some(disks) = &self.disks else {
            let mut end_bytes = 0;
            let follow = |tenant: &Tenant| {
                end_bytes += tenant.size_bytes;
                Extents::one(end_bytes - tenant.size_bytes, tenant.size_bytes)
            };
            return tenants.iter().map(follow).collect();
        };
        let place = |(at, name): (usize, &str)| {
            let all = Extents::one(0, self.scenario.drive_bytes);
            let placed = Extents::new(disks.find(name).unwrap_or_default());
            if at == usize::from(disks.wiper) { all } else { placed }
        };
        tenants.iter().map(|tenant| tenant.name.as_str()).enumerate().map(place).collect()
    }

    /// Threads whose copy is made, or that are to make one, go on.
    pub(super) fn wake_threads(&mut self) {
        loop {
            let woken = self.pool.borrow_mut().woken.pop();
            let Some((tenant, thread)) = woken else { return };
            self.guests[usize::from(tenant)].ready(thread, self.now_ns, &mut self.asks);
            self.answer(tenant);
        }
    }

    /// A tenant that comes gets its disk, where disks move. `false`: there is no room.
    pub(super) fn create(&mut self, tenant: usize) -> bool {
        let Some(disks) = &mut self.disks else { return true };
        let own = &self.scenario.tenants[tenant];
        let Some(ranges) = disks.create(&own.name, own.size_bytes) else { return false };
        let place = Extents::new(ranges.clone());
        self.ledger.borrow_mut().gives(tenant as u16, ranges.into_iter());
        for number in self.nodes_of[tenant].clone() {
            let awaited = &mut self.nodes[usize::from(number)].awaited;
            let its = awaited.iter_mut().filter(|awaited| usize::from(awaited.tenant) == tenant);
            its.for_each(|awaited| awaited.source.set_disk(place.clone()));
        }
        true
    }

    /// A tenant that is there gets a larger disk, and a thread that uses all of it.
    pub(super) fn grow(&mut self, tenant: usize, bytes: u64) {
        let Some(disks) = self.disks.as_mut().filter(|_| !self.guests[tenant].stopped) else { return };
        let own = &self.scenario.tenants[tenant];
        let Some(mut extents) = disks.grow(&own.name, bytes) else { return };
        let size_bytes = extents.iter().map(|(_, len_bytes)| len_bytes).sum();
        self.ledger.borrow_mut().gives(tenant as u16, extents.clone().into_iter());
        if let Some(last) = extents.last_mut().filter(|_| self.sabotage == Sabotage::WrongPiece) {
            last.0 += DISK_STEP_BYTES;
        }
        let place = Extents::new(extents);
        for number in self.nodes_of[tenant].clone() {
            let node = &mut self.nodes[usize::from(number)];
            let slot = node.tenants.iter().find(|(at, _)| usize::from(*at) == tenant).map(|(_, slot)| *slot);
            if let Some(source) = slot.and_then(|slot| node.poller.source_mut(slot)) {
                source.set_disk(place.clone());
            }
        }
        // It asks for more than otherwise equal tenants.
        self.changed[tenant] = true;
        let guest = &mut self.guests[tenant];
        let first = guest.threads();
        guest.add_threads(Workload::Fio(grown_fio()).jobs(size_bytes, self.scenario.seed ^ self.now_ns));
        for thread in first..guest.threads() {
            guest.ready(thread, self.now_ns, &mut self.asks);
        }
        self.answer(tenant as u16);
    }

    /// A tenant goes for good, and what its disk had is wiped.
    pub(super) fn delete(&mut self, tenant: usize) {
        let Some(disks) = &mut self.disks else { return };
        let name = &self.scenario.tenants[tenant].name;
        if disks.delete(name) {
            disks.leaving.push(tenant as u16);
        }
        if self.sabotage == Sabotage::WipeEarly {
            disks.has_left(name);
            self.wake_wiper();
        }
        self.leave(tenant);
        self.let_go_deleted();
    }

    /// Deleted tenants with nothing in flight any more leave their disks to the wiper.
    pub(super) fn let_go_deleted(&mut self) {
        let leaving = match &self.disks {
            Some(disks) if !disks.leaving.is_empty() => disks.leaving.clone(),
            _ => return,
        };
        for tenant in leaving {
            self.let_go(usize::from(tenant));
            let is_here = self.nodes.iter().any(|node| node.tenants.iter().any(|place| place.0 == tenant));
            let Some(disks) = self.disks.as_mut().filter(|_| !is_here) else { continue };
            disks.leaving.retain(|other| *other != tenant);
            self.ledger.borrow_mut().releases(tenant);
            let name = &self.scenario.tenants[usize::from(tenant)].name;
            match self.sabotage {
                Sabotage::SkipWiping => disks.skip_wiping(name),
                Sabotage::WipeEarly => {}
                _ => {
                    disks.has_left(name);
                    self.wake_wiper();
                }
            }
        }
    }

    fn wake_wiper(&mut self) {
        let Some(wiper) = self.disks.as_ref().map(|disks| disks.wiper) else { return };
        self.guests[usize::from(wiper)].ready(0, self.now_ns, &mut self.asks);
        self.answer(wiper);
    }

    /// What the wiper overwrote is free.
    pub(super) fn take_wiped(&mut self) {
        self.disks.iter_mut().for_each(Disks::take_wiped);
    }
}
