//! Random legal calls, and what must hold after each: a seed decides everything, and every failure names it.
//! Replay one with `POLICY_SEED=<seed> cargo test -p policy random_calls`.

use std::collections::HashMap;

use fastrand::Rng;
use io_model::{HwqId, Nanos, Op, TenantId, VqId};
use policy::{
    AnyPolicy, Class, Lpns, LpnsConfig, Next, Passthrough, Policy, TenantReport, TenantSlot, Terms, Variant, VqSlot,
};

const SLOTS: u64 = 24;
const TENANTS: u64 = 7;
const HWQS: u16 = 6;
const EXCLUSIVE: u16 = 3;
const STEPS: u32 = 4_000;

#[derive(Debug, Clone, Copy)]
struct Flight {
    slot: VqSlot,
    /// Which attachment of the slot it came from.
    generation: u64,
    hwq: HwqId,
    tenant: TenantSlot,
    op: Op,
    len_bytes: u64,
    sent: Nanos,
}

#[derive(Debug, Clone, Copy)]
struct Vq {
    tenant: TenantSlot,
    generation: u64,
    backlog: u32,
}

struct Model {
    random: Rng,
    policy: AnyPolicy,
    /// Of 100 steps, how many complete a command: few fill the queues, many keep them empty.
    completions: u64,
    exclusive: u16,
    /// Of these, those of the drive's class high.
    high: u16,
    depth: u32,
    /// Nothing but full queues may stop a command.
    unthrottled: bool,
    /// No report names a guaranteed tenant.
    unreported: bool,
    now: Nanos,
    vqs: HashMap<VqSlot, Vq>,
    flights: Vec<Flight>,
    reports: Vec<TenantReport>,
    generations: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let depth = 1 + random.u64(..12) as u32;
        let completions = 10 + random.u64(..30);
        let variant = if random.u64(..2) == 0 { Variant::Published } else { Variant::Corrected };
        let exclusive = if random.u64(..3) == 0 { 0 } else { EXCLUSIVE };
        let hwqs_high = [None, Some(0), Some(1), Some(EXCLUSIVE)][random.u64(..4) as usize];
        // The published rule throttles nobody while no report names a guaranteed tenant.
        let unreported = random.u64(..2) == 0;
        let unthrottled = exclusive == 0 || (unreported && variant == Variant::Published);
        let policy = if exclusive == 0 {
            AnyPolicy::from(Passthrough::new(HWQS, depth))
        } else {
            let config = LpnsConfig {
                variant,
                hwqs_exclusive: exclusive,
                hwqs_high,
                hwqs_shared: HWQS - exclusive,
                hwq_depth: depth,
                period: Nanos::from_millis(10),
                ..LpnsConfig::p5800x()
            };
            AnyPolicy::from(Lpns::new(config).expect("valid settings"))
        };
        let reports = (0..TENANTS).map(|tenant| {
            let class = match tenant {
                0 => Class::guaranteed(Some(Nanos::from_micros(40))),
                1 => Class::guaranteed(None),
                _ => Class::BestEffort { weight: 1 + random.u64(..10_000) as u32 },
            };
            let mean_latency = Nanos::from_micros(20);
            TenantReport { mean_latency, ..TenantReport::new(TenantId(tenant as u32), class) }
        });
        let reports = reports.collect();
        let generations = 0;
        let now = Nanos(0);
        let (vqs, flights) = (HashMap::new(), Vec::new());
        Self {
            random,
            policy,
            completions,
            exclusive,
            high: if exclusive == 0 { 0 } else { hwqs_high.unwrap_or(0) },
            depth,
            unthrottled,
            unreported,
            now,
            vqs,
            flights,
            reports,
            generations,
        }
    }

    fn slot(&mut self) -> VqSlot {
        VqSlot(self.random.u64(..SLOTS) as u16)
    }

    fn attach(&mut self) {
        let slot = self.slot();
        if self.vqs.contains_key(&slot) {
            return;
        }
        let tenant = TenantSlot(self.random.u64(..TENANTS) as u16);
        let terms = Terms::from(self.reports[usize::from(tenant.0)].class);
        let vq = VqId { tenant: TenantId(tenant.0.into()), index: 1 };
        self.policy.attach(slot, vq, tenant, &terms, self.now);
        self.generations += 1;
        self.vqs.insert(slot, Vq { tenant, generation: self.generations, backlog: 0 });
    }

    fn detach(&mut self) {
        let slot = self.slot();
        if self.vqs.remove(&slot).is_some() {
            self.policy.detach(slot, self.now);
        }
    }

    fn arrive(&mut self) {
        let slot = self.slot();
        let more = self.random.u64(..9) as u32;
        if let Some(vq) = self.vqs.get_mut(&slot) {
            vq.backlog = if more == 8 { 0 } else { vq.backlog + more };
            self.policy.arrived(slot, vq.backlog, self.now);
        }
    }

    /// Follows what the policy wants once. False: it wants nothing.
    fn send(&mut self) -> bool {
        match self.policy.next(self.now) {
            Next::Send { vq, hwq } => {
                self.obey(vq, hwq);
                true
            }
            Next::WaitUntil(at) => {
                assert!(at > self.now, "waits for the past");
                assert!(self.vqs.values().any(|vq| vq.backlog > 0), "waits with nothing to send");
                self.check_full_queues();
                false
            }
            Next::Idle => {
                assert!(self.vqs.values().all(|vq| vq.backlog == 0), "idle with something to send");
                false
            }
        }
    }

    /// A VQ waits with something to send only while its queue is full, but for the eighth that guaranteed VQs
    /// find there.
    fn check_full_queues(&self) {
        let reserve = if self.exclusive == 0 { 0 } else { (self.depth / 8).max(1).min(self.depth - 1) };
        for slot in self.vqs.iter().filter(|(_, vq)| self.unthrottled && vq.backlog > 0).map(|(slot, _)| slot) {
            let hwq = self.policy.hwq_of(*slot).expect("an attached VQ");
            let used = self.flights.iter().filter(|flight| flight.hwq == hwq).count() as u32;
            let keep = if hwq.0 < self.exclusive { 0 } else { reserve };
            assert!(used + keep >= self.depth, "{slot:?} waits at {hwq:?}, {used} of {} used", self.depth);
        }
    }

    fn obey(&mut self, slot: VqSlot, hwq: HwqId) {
        let vq = self.vqs.get_mut(&slot).expect("an attached VQ");
        assert!(vq.backlog > 0, "an empty VQ is asked");
        assert!(hwq.0 < HWQS);
        let in_flight = self.flights.iter().filter(|flight| flight.hwq == hwq);
        if hwq.0 < self.exclusive {
            let own = |flight: &Flight| (flight.slot, flight.generation) == (slot, vq.generation);
            assert!(in_flight.clone().all(own), "an exclusive queue carries two VQs' commands");
        }
        let guaranteed = self.reports[usize::from(vq.tenant.0)].class.is_guaranteed();
        assert!(guaranteed || hwq.0 >= self.high, "best effort goes over {hwq:?}, which is of the class high");
        assert!((in_flight.count() as u32) < self.depth, "a full queue is used");
        match self.random.u64(..20) {
            0 => {
                vq.backlog -= 1;
                self.policy.refused(slot, true, self.now);
            }
            1 => {
                vq.backlog = 0;
                self.policy.refused(slot, false, self.now);
            }
            _ => {
                vq.backlog -= 1;
                let tenant = vq.tenant;
                let generation = vq.generation;
                let op = [Op::Read, Op::Write, Op::Flush, Op::Discard][self.random.u64(..4) as usize];
                let len_bytes = if op == Op::Flush { 0 } else { 512 << self.random.u64(..12) };
                self.policy.sent(slot, hwq, op, len_bytes, self.now);
                self.reports[usize::from(tenant.0)].submitted += 1;
                self.flights.push(Flight { slot, generation, hwq, tenant, op, len_bytes, sent: self.now });
            }
        }
    }

    fn complete(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let at = self.random.u64(..self.flights.len() as u64) as usize;
        let Flight { slot, hwq, tenant, op, len_bytes, sent, .. } = self.flights.swap_remove(at);
        let latency = self.now - sent;
        let report = &mut self.reports[usize::from(tenant.0)];
        report.completed += 1;
        if let Some(target) = report.class.latency_target() {
            report.violations += u64::from(latency > target);
        }
        self.policy.completed(slot, hwq, tenant, op, len_bytes, latency, self.now);
    }

    fn interval(&mut self) {
        self.now += Nanos::from_millis(10);
        let guaranteed = |report: &TenantReport| matches!(report.class, Class::Guaranteed { .. });
        let named = self.reports.iter().filter(|report| !(self.unreported && guaranteed(report)));
        self.policy.demand();
        self.policy.interval(&named.copied().collect::<Vec<_>>(), self.now);
    }

    fn step(&mut self) {
        self.now += Nanos(self.random.u64(..5_000));
        match self.random.u64(..100) {
            0..4 => self.attach(),
            4..6 => self.detach(),
            6..30 => self.arrive(),
            30 => self.interval(),
            percent if percent <= 30 + self.completions => self.complete(),
            _ => {
                self.send();
            }
        }
    }

    /// Guaranteed tenants vanish from the reports, as the published rule would wait for them for ever; then
    /// everything that waits must go.
    fn drain(&mut self) {
        self.reports.retain(|report| matches!(report.class, Class::BestEffort { .. }));
        for _ in 0..3_000 {
            let reports = self.reports.clone();
            self.now += Nanos::from_millis(10);
            self.policy.demand();
            self.policy.interval(&reports, self.now);
            for _ in 0..4 * u32::from(HWQS) * self.depth {
                match self.policy.next(self.now) {
                    Next::Send { vq, hwq } => self.drain_one(vq, hwq),
                    _ => break,
                }
            }
            for Flight { slot, hwq, tenant, op, len_bytes, .. } in std::mem::take(&mut self.flights) {
                self.policy.completed(slot, hwq, tenant, op, len_bytes, Nanos(1), self.now);
            }
            if self.policy.next(self.now) == Next::Idle {
                break;
            }
        }
        let left: Vec<_> = self.vqs.iter().filter(|(_, vq)| vq.backlog > 0).collect();
        assert!(left.is_empty(), "never served: {left:?}");
    }

    fn drain_one(&mut self, slot: VqSlot, hwq: HwqId) {
        let vq = self.vqs.get_mut(&slot).expect("an attached VQ");
        vq.backlog -= 1;
        let (tenant, generation, op, len_bytes) = (vq.tenant, vq.generation, Op::Read, 4096);
        self.policy.sent(slot, hwq, op, len_bytes, self.now);
        self.flights.push(Flight { slot, generation, hwq, tenant, op, len_bytes, sent: self.now });
    }
}

fn run(seed: u64) {
    let mut model = Model::new(seed);
    (0..STEPS).for_each(|_| model.step());
    model.drain();
}

#[test]
fn invariants_hold_under_random_calls() {
    if let Some(seed) = std::env::var("POLICY_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed);
        return;
    }
    for seed in 0..300 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "replay with POLICY_SEED={seed}");
    }
}
