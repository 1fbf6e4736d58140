//! Guests, pollers and what connects them, before the first event.

use std::rc::Rc;
use std::sync::Arc;

use arbitration::Arbitration;
use io_model::{Extents, Nanos, Place, TenantId};
use policy::{Policy, PollerShape};
use poller::{Poller, Probe};

use super::{Awaited, Engine, MutexTurn, Node};
use crate::check::{Watch, turns};
use crate::contestant::Contestant;
use crate::device::SimBackend;
use crate::disks::WipeJob;
use crate::guest::Guest;
use crate::host::Layout;
use crate::job::Job;
use crate::measure::Tally;
use crate::observed::Observed;
use crate::port::{Port, SimSource};
use crate::sabotage::Sabotage;
use crate::scenario::{ChangeKind, ScenarioError, Tenant};
use crate::thin::{CopyJob, ThinJob};
use crate::workload::Workload;

impl<C: Contestant, P: Policy> Engine<'_, C, P> {
    pub(super) fn add_guests(&mut self) {
        let scenario = self.scenario;
        let mut start_bytes = 0;
        let mut seeds = fastrand::Rng::with_seed(scenario.seed);
        let turns = turns(scenario);
        for (at, tenant) in scenario.tenants.iter().enumerate() {
            self.ledger.borrow_mut().add_tenant(&tenant.terms, scenario.parts(at), start_bytes, tenant.size_bytes);
            self.watches.push(Watch::new(scenario.starvation_limit.0, turns[at]));
            start_bytes += tenant.size_bytes;
            let port = Port::new(tenant.vcpus, tenant.vqs, scenario.hwq_depth, self.path.kick);
            let jobs = self.jobs(at, seeds.u64(..));
            let tally = Tally::with_windows(scenario.window, scenario.warmup);
            let mut guest = Guest::new(port, scenario.costs.guest, &self.path, jobs, tally, seeds.u64(..));
            guest.measure_from_ns = scenario.warmup.0;
            if let Some(target) = tenant.terms.class.latency_target() {
                guest.target_ns = target.0;
            }
            self.guests.push(guest);
            self.probes.push(Arc::new(Probe::new(TenantId(at as u32), tenant.terms.class)));
        }
        if let Some(disks) = &self.disks {
            let job = WipeJob::new(Rc::clone(&disks.wipes));
            self.guests[usize::from(disks.wiper)].add_threads(vec![Box::new(job)]);
        }
        for change in scenario.changes.iter().filter(|change| change.kind == ChangeKind::Joins) {
            let guest = &mut self.guests[change.tenant];
            (guest.stopped, guest.awaited) = (true, true);
            guest.port.borrow().set_live(false);
        }
    }

    /// The threads of a tenant's guest.
    fn jobs(&self, at: usize, seed: u64) -> Vec<Box<dyn Job>> {
        let Tenant { size_bytes, first_writes, workload, .. } = &self.scenario.tenants[at];
        if *workload == Workload::Copy {
            return vec![Box::new(CopyJob::new(at, *size_bytes, &self.pool, seed))];
        }
        let jobs = workload.jobs(*size_bytes, seed);
        let Some(of) = *first_writes else { return jobs };
        let thin = |(thread, job)| -> Box<dyn Job> {
            Box::new(ThinJob::new(job, of, (at as u16, thread), &self.pool, seed ^ u64::from(thread + 1)))
        };
        (0..).zip(jobs).map(thin).collect()
    }

    pub(super) fn add_pollers(
        &mut self,
        hwqs: &[u16],
        build: &mut dyn FnMut(&PollerShape) -> Result<P, ScenarioError>,
        sabotage: Sabotage,
    ) -> Result<(), ScenarioError> {
        let scenario = self.scenario;
        let disks = self.extents();
        let mut first_hwq = 0;
        for (number, tenants) in scenario.pollers().into_iter().enumerate() {
            let guaranteed = tenants.iter().map(|&tenant| &scenario.tenants[tenant]);
            let guaranteed = guaranteed.filter(|tenant| tenant.terms.class.is_guaranteed());
            let per_queue = scenario.layout == Layout::PerQueue;
            let guaranteed_vqs = guaranteed.map(|tenant| if per_queue { 1 } else { tenant.vqs }).sum();
            let weighted = matches!(scenario.profile.arbitration, Arbitration::WeightedRoundRobin { .. });
            let shape = PollerShape { hwqs: hwqs[number], hwq_depth: scenario.hwq_depth, guaranteed_vqs, weighted };
            let policy = build(&shape)?;
            let weights = policy.wrr_weights();
            if let (Some(classes), Some(weights)) = (scenario.policy.hwq_classes(&shape), weights) {
                self.drive.borrow_mut().set_classes(first_hwq, &classes, weights);
            }
            self.drive.borrow_mut().add_poller(first_hwq);
            first_hwq += hwqs[number];
            let backend = SimBackend {
                shared: Rc::clone(&self.drive),
                meter: Rc::clone(&self.meter),
                poller: number as u16,
                hwqs: hwqs[number],
                depth: scenario.hwq_depth,
                touched: 0,
            };
            let mut poller = Poller::new(backend, policy, Arc::clone(&self.board), Nanos(0));
            poller.set_send_budget(self.path.batch);
            let (mut places, mut awaited) = (Vec::new(), Vec::new());
            for &tenant in &tenants {
                let (source, probe) = self.source(number as u16, tenant, disks[tenant].clone(), sabotage);
                if self.guests[tenant].awaited {
                    awaited.push(Awaited { tenant: tenant as u16, source, probe });
                } else if let Ok(slot) = poller.add(source, probe, &self.terms_of(tenant)) {
                    places.push((tenant as u16, slot));
                }
            }
            let node = Node {
                members: tenants.iter().map(|&tenant| tenant as u16).collect(),
                most_tenants: places.len(),
                rung: Vec::new(),
                tenants: places,
                awaited,
                weights,
                busy_until_ns: 0,
                wake_ns: u64::MAX,
                worked_ns: 0,
                spins: 0,
                turn: MutexTurn::Away,
                beside: self.beside(&tenants),
                poller,
            };
            self.nodes.push(node);
        }
        Ok(())
    }

    /// What a poller has of a tenant: all of its VQs, or the next one that none has yet.
    fn source(&mut self, poller: u16, tenant: usize, disk: Extents, sabotage: Sabotage) -> (Observed, Arc<Probe>) {
        let Tenant { vqs, terms, encrypted_sector_bytes, ref queue_priorities, .. } = self.scenario.tenants[tenant];
        let nodes = &mut self.nodes_of[tenant];
        if nodes.end == 0 {
            *nodes = poller..poller;
        }
        nodes.end = poller + 1;
        let vq = nodes.end - nodes.start;
        // A probe has one writer. What reports ask is the first poller's.
        let probe = match vq {
            1 => Arc::clone(&self.probes[tenant]),
            _ => Arc::new(Probe::new(TenantId(tenant as u32), terms.class)),
        };
        let port = &self.guests[tenant].port;
        let vqs = if self.scenario.layout == Layout::PerQueue { vq..=vq } else { 1..=vqs };
        let source = SimSource {
            port: Rc::clone(port),
            doorbells: Rc::clone(&port.borrow().doorbells),
            meter: Rc::clone(&self.meter),
            ledger: Rc::clone(&self.ledger),
            tenant: tenant as u16,
            place: Place::whole_drive(TenantId(tenant as u32)),
            poller,
            probe: Arc::clone(&probe),
            vq_bits: vqs.clone().fold(0, |bits, vq| bits | 1 << vq),
            vqs,
            priorities: queue_priorities.clone(),
            cipher_ns: encrypted_sector_bytes.map_or(0, |bytes| self.scenario.profile.cipher_ns(bytes)),
            sabotage,
        };
        (Observed::new(source, disk), probe)
    }

    /// The tenant and the vCPU beside which a poller of one VQ works: VQ 1 is vCPU 0's first, and so on.
    fn beside(&self, tenants: &[usize]) -> Option<(u16, u16)> {
        let &[tenant] = tenants else { return None };
        let vq = self.nodes_of[tenant].end - self.nodes_of[tenant].start;
        let beside = self.path.beside_vcpu && self.scenario.layout == Layout::PerQueue;
        beside.then_some((tenant as u16, vq - 1))
    }
}
