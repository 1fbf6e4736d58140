//! Policies and parts that are broken on purpose: each must be caught.

use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId};
use policy::{
    ArbitratedConfig, Bound, Cost, EvenkeelConfig, Floor, Limits, LpnsConfig, Next, Policy, PolicyConfig, PollerShape,
    TenantPriority, TenantSlot, Terms, VqSlot,
};
use rivals::{K2Config, LabConfig, LabPolicy, MqfqConfig};
use ssd_model::{Placement, Profile};

use super::ours::{Judged, judge as judge_ours};
use crate::Sabotage;
use crate::workload::{BlockSize, Fio, Workload};
use crate::{
    Change, ChangeKind, Contestant, FREE, GuestCosts, Layout, Report, Rule, Scenario, ScenarioError, Tenant, play_with,
};

/// What one broken thing led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// What was broken.
    pub name: &'static str,
    /// The rule that must catch it.
    pub expected: Rule,
    /// The rules that did, each once.
    pub seen: Vec<Rule>,
    /// What the expected rule said first, with tenant and time.
    pub first: Option<String>,
}

impl Canary {
    /// Whether it was.
    pub fn caught(&self) -> bool {
        self.seen.contains(&self.expected)
    }
}

/// Plays every broken policy and part.
pub fn canaries() -> Vec<Canary> {
    let policies = [
        ("a policy that starves a tenant", Flaw::Starves, Rule::NoStarvation),
        ("a policy that gives more than a limit", Flaw::ExceedsLimits, Rule::Limits),
        ("a policy under whose limits bytes are free", Flaw::TakesBytesForFree, Rule::Limits),
        ("a guaranteed tenant's limits that are forgotten", Flaw::ForgetsLimits, Rule::Limits),
        ("a policy that ignores weights", Flaw::IgnoresWeights, Rule::Shares),
        ("a policy that spins", Flaw::Spins, Rule::Progress),
        ("a wrr that takes all tenants for medium", Flaw::IgnoresClasses, Rule::Shares),
        ("a drr that charges commands instead of bytes", Flaw::ChargesCommands, Rule::Shares),
        ("a drr that forgets debts", Flaw::ForgetsDebts, Rule::Shares),
        ("an lpns whose cap best effort does not feel", Flaw::ExceedsBound, Rule::Bound),
        ("an evenkeel whose cap best effort does not feel", Flaw::ExceedsOurBound, Rule::Bound),
        ("a policy that leaves a tenant a command now and then", Flaw::Trickles, Rule::NoStarvation),
        ("an evenkeel that forgets floors", Flaw::ForgetsFloors, Rule::Floors),
        ("an evenkeel that gives others less beside a looser target", Flaw::TurnsTargets, Rule::Monotone),
    ];
    let parts = [
        ("a drive that completes twice", Sabotage::DeliverTwice, Rule::ExactlyOnce),
        ("a drive that loses a command", Sabotage::Lose, Rule::ExactlyOnce),
        ("a front end that reaches another tenant's range", Sabotage::ForeignRange, Rule::InBounds),
        ("a front end that completes into another queue", Sabotage::ForeignVq, Rule::ExactlyOnce),
        ("a grown disk whose last piece is a step off", Sabotage::WrongPiece, Rule::InBounds),
        ("a layout that gives out what was not overwritten", Sabotage::SkipWiping, Rule::Space),
        ("a wiper that does not wait for commands in flight", Sabotage::WipeEarly, Rule::InBounds),
    ];
    let policies = policies.map(|(name, flaw, rule)| judge(name, rule, play_flawed(flaw)));
    let parts = parts.map(|(name, sabotage, rule)| judge(name, rule, play_sabotaged(sabotage)));
    policies.into_iter().chain(parts).collect()
}

fn judge(name: &'static str, expected: Rule, played: Result<Report, ScenarioError>) -> Canary {
    let broken = played.map(|report| report.broken).unwrap_or_default();
    let first = broken.iter().find(|violation| violation.rule == expected);
    let first = first.map(|violation| format!("at {} ns: {}", violation.at_ns, violation.what));
    let mut seen: Vec<Rule> = broken.iter().map(|violation| violation.rule).collect();
    seen.sort();
    seen.dedup();
    Canary { name, expected, seen, first }
}

/// Two tenants with weights 1 and 4, each with more commands than the drive can take.
fn scenario(policy: impl Into<LabConfig>) -> Scenario {
    let tenant = |weight| Tenant {
        name: format!("weight {weight}"),
        terms: Terms::best_effort(weight),
        vcpus: 4,
        vqs: 4,
        queue_priorities: Vec::new(),
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes: 1 << 30,
        workload: Workload::Fio(Fio::random_4k(4, 128, 100)),
    };
    Scenario {
        layout: Layout::Mdev,
        policy: policy.into(),
        tenants: vec![tenant(1), tenant(4)],
        warmup: Nanos::from_millis(2),
        duration: Nanos::from_millis(20),
        starvation_limit: Nanos::from_millis(3),
        ..Scenario::new(Profile::p5800x())
    }
}

fn play_sabotaged(sabotage: Sabotage) -> Result<Report, ScenarioError> {
    let mut scenario = scenario(PolicyConfig::Passthrough);
    if let Sabotage::WrongPiece | Sabotage::SkipWiping | Sabotage::WipeEarly = sabotage {
        disks_move(&mut scenario);
    }
    play_with(&scenario, &mut |shape: &PollerShape| Ok(scenario.policy.build(shape)?), sabotage)
}

/// On a drive that is full: the second disk grows where a third one was that is deleted before, and deleted disks leave
/// room for a fourth.
fn disks_move(scenario: &mut Scenario) {
    const SIZE_BYTES: u64 = 4 << 20;
    let like = scenario.tenants[0].clone();
    scenario.tenants.extend([like.clone(), like.clone(), Tenant { workload: Workload::Wipe, ..like }]);
    for (at, tenant) in scenario.tenants.iter_mut().enumerate() {
        tenant.name = format!("t{at}");
        tenant.size_bytes = SIZE_BYTES;
    }
    scenario.tenants[4].size_bytes = 0;
    scenario.drive_bytes = 3 * SIZE_BYTES;
    let changes = [
        (5, 0, ChangeKind::Deleted),
        (10, 1, ChangeKind::Grows(SIZE_BYTES / 2)),
        (11, 2, ChangeKind::Deleted),
        (15, 3, ChangeKind::Joins),
    ];
    scenario.changes =
        changes.map(|(at_ms, tenant, kind)| Change { at: Nanos::from_millis(at_ms), tenant, kind }).to_vec();
}

/// A scenario with tenants of the classes medium and high. The second one's commands are large.
fn classes(policy: fn(ArbitratedConfig) -> PolicyConfig, start: ArbitratedConfig) -> Scenario {
    let mut scenario = scenario(policy(start));
    scenario.tenants[1].terms.priority = TenantPriority::Fixed(QueuePriority::High);
    if let Workload::Fio(fio) = &mut scenario.tenants[1].workload {
        fio.access.block_sizes = vec![BlockSize { bytes: 128 << 10, weight: 1 }];
    }
    scenario
}

/// A promise on a drive that behaves as its figures say, on a host that costs nothing: only the policy can break it.
fn promised() -> Scenario {
    let cost = Cost { flush: 1, ..Cost::default() };
    let mut scenario = scenario(PolicyConfig::Lpns(LpnsConfig { cost, ..LpnsConfig::p5800x() }));
    scenario.profile.placement = Placement::Pooled;
    scenario.costs.mediated = FREE;
    scenario.costs.guest =
        GuestCosts { app_ns: 0, submit_ns: 0, write_ns: 0, irq_ns: 0, complete_ns: 0, varies_permille: 0 };
    // A bound stands from the second interval on.
    scenario.duration = Nanos::from_millis(40);
    // One HWQ: the drive serves in the order of arrival.
    scenario.hwqs_shared = 1;
    let first = &mut scenario.tenants[0];
    first.terms = Terms::guaranteed(Some(Nanos::from_micros(50)));
    first.workload = Workload::Fio(Fio::random_4k(1, 1, 100));
    scenario
}

fn play_flawed(flaw: Flaw) -> Result<Report, ScenarioError> {
    let mut scenario = match flaw {
        Flaw::Starves | Flaw::Spins => scenario(PolicyConfig::Passthrough),
        Flaw::ExceedsLimits => scenario(LabConfig::Caps),
        Flaw::TakesBytesForFree => scenario(LabConfig::K2(K2Config::default())),
        Flaw::ForgetsLimits => promised(),
        Flaw::IgnoresWeights => scenario(LabConfig::Mqfq(MqfqConfig::default())),
        Flaw::IgnoresClasses => classes(PolicyConfig::Wrr, ArbitratedConfig::wrr()),
        Flaw::ChargesCommands | Flaw::ForgetsDebts => classes(PolicyConfig::Drr, ArbitratedConfig::drr()),
        Flaw::ExceedsBound => promised(),
        Flaw::ExceedsOurBound => {
            let cost = Cost { flush: 1, ..Cost::default() };
            Scenario {
                policy: PolicyConfig::Evenkeel(EvenkeelConfig { cost, ..EvenkeelConfig::p5800x() }).into(),
                ..promised()
            }
        }
        Flaw::Trickles => scenario(ours()),
        Flaw::ForgetsFloors => with_floor(),
        Flaw::TurnsTargets => {
            // Nobody takes what the victim does not get.
            let mut scenario = with_floor();
            scenario.tenants.truncate(2);
            scenario.tenants[1].terms.floor = Floor::default();
            scenario
        }
    };
    scenario.tenants[0].terms.limits = match flaw {
        Flaw::ExceedsLimits => Limits { rw_ios_per_sec: 50_000, ..Limits::default() },
        Flaw::TakesBytesForFree => Limits { r_mbytes_per_sec: 100, burst: Nanos::from_millis(1), ..Limits::default() },
        Flaw::ForgetsLimits => Limits { r_ios_per_sec: 2_000, ..Limits::default() },
        _ => Limits::default(),
    };
    let mut build = |shape: &PollerShape| {
        let inner = match flaw {
            Flaw::Starves | Flaw::Spins | Flaw::IgnoresWeights | Flaw::Trickles => {
                LabConfig::Product(PolicyConfig::Passthrough).build(shape)?
            }
            _ => scenario.policy.build(shape)?,
        };
        Ok(Flawed { inner, flaw, victims: Vec::new(), trickles: flaw == Flaw::Trickles, heard: Nanos(0) })
    };
    let mut play_it = |scenario: &Scenario| play_with(scenario, &mut build, Sabotage::None);
    match flaw {
        Flaw::ForgetsFloors | Flaw::TurnsTargets => {
            let Judged { report, violations, .. } = judge_ours(&scenario, &mut play_it)?;
            Ok(Report { broken: violations, ..report })
        }
        _ => play_it(&scenario),
    }
}

fn ours() -> PolicyConfig {
    PolicyConfig::Evenkeel(EvenkeelConfig::p5800x())
}

/// A promise beside a tenant with a floor and one that would take all of the drive.
fn with_floor() -> Scenario {
    let mut scenario = scenario(ours());
    let busy = scenario.tenants[1].clone();
    let first = &mut scenario.tenants[0];
    first.terms = Terms::guaranteed(Some(TURNED_AT));
    first.workload = Workload::Fio(Fio::random_4k(1, 1, 100));
    scenario.tenants[1].terms.floor = Floor { ios_per_sec: 300_000, mbytes_per_sec: 0 };
    scenario.tenants.push(Tenant { terms: Terms::best_effort(16), ..busy });
    scenario.warmup = Nanos::from_millis(200);
    scenario.duration = Nanos::from_millis(100);
    scenario
}

/// What is wrong with a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// Never hears of tenant 1's commands.
    Starves,
    /// Gives a fifth more than configured.
    ExceedsLimits,
    /// Takes no notice of lengths.
    TakesBytesForFree,
    /// Takes no notice of limits.
    ForgetsLimits,
    /// Takes turns.
    IgnoresWeights,
    /// Wants to be asked again at once, for ever.
    Spins,
    /// Takes no notice of configured priorities.
    IgnoresClasses,
    /// Takes every command for one of 4 KiB.
    ChargesCommands,
    /// Takes no command for more than the least quantum.
    ForgetsDebts,
    /// Takes best effort's commands for flushes, which cost next to nothing.
    ExceedsBound,
    /// Takes best effort's commands for flushes, under evenkeel.
    ExceedsOurBound,
    /// Hears of tenant 1's commands once in a while.
    Trickles,
    /// Takes no notice of floors.
    ForgetsFloors,
    /// As `Trickles`, beside a target that is looser than a limit.
    TurnsTargets,
}

/// Time between two commands of a tenant that is left one now and then: none of its VQs waits long enough to starve.
const TRICKLE: Nanos = Nanos::from_micros(500);
/// The loosest target beside which nothing is wrong.
const TURNED_AT: Nanos = Nanos::from_micros(60);

impl Flaw {
    /// What it takes terms for.
    fn understands(self, terms: &Terms) -> Terms {
        let mut terms = *terms;
        match self {
            Self::ExceedsLimits => terms.limits.rw_ios_per_sec += terms.limits.rw_ios_per_sec / 5,
            Self::ForgetsLimits => terms.limits = Limits::default(),
            Self::IgnoresClasses => terms.priority = TenantPriority::default(),
            Self::ForgetsFloors => terms.floor = Floor::default(),
            _ => {}
        }
        terms
    }

    /// What it takes a command for; `victim`: of tenant 1.
    fn reckons(self, victim: bool, op: Op, len_bytes: u64) -> (Op, u64) {
        match self {
            Self::ChargesCommands => (op, 4_096),
            Self::TakesBytesForFree => (op, 0),
            Self::ForgetsDebts => (op, len_bytes.min(64 << 10)),
            Self::ExceedsBound | Self::ExceedsOurBound if victim => (Op::Flush, 0),
            _ => (op, len_bytes),
        }
    }
}

/// A policy with a flaw.
struct Flawed {
    inner: LabPolicy,
    flaw: Flaw,
    /// Tenant 1's slots.
    victims: Vec<VqSlot>,
    /// Hears of them once in a while only.
    trickles: bool,
    /// When it heard of them last.
    heard: Nanos,
}

impl Policy for Flawed {
    fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        if vq.tenant == TenantId(1) {
            self.victims.push(slot);
        }
        let is_looser = terms.class.latency_target().is_some_and(|target| target > TURNED_AT);
        self.trickles |= self.flaw == Flaw::TurnsTargets && is_looser;
        self.inner.attach(slot, vq, tenant, &self.flaw.understands(terms), now);
    }

    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.inner.change_terms(tenant, &self.flaw.understands(terms), now);
    }

    fn forget(&mut self, tenant: TenantSlot) {
        self.inner.forget(tenant);
    }

    fn detach(&mut self, slot: VqSlot, now: Nanos) {
        self.inner.detach(slot, now);
    }

    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        if !self.victims.contains(&slot) || self.flaw != Flaw::Starves && !self.trickles {
            self.inner.arrived(slot, backlog, now);
        }
    }

    fn next(&mut self, now: Nanos) -> Next {
        if self.trickles && now - self.heard >= TRICKLE && !self.victims.is_empty() {
            self.heard = now;
            self.victims.rotate_left(1);
            self.inner.arrived(self.victims[0], 1, now);
        }
        if self.flaw == Flaw::Spins { Next::WaitUntil(now) } else { self.inner.next(now) }
    }

    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
        let (op, len_bytes) = self.flaw.reckons(self.victims.contains(&slot), op, len_bytes);
        self.inner.sent(slot, hwq, op, len_bytes, now);
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos) {
        self.inner.refused(slot, consumed, now);
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
        let (op, len_bytes) = self.flaw.reckons(self.victims.contains(&slot), op, len_bytes);
        self.inner.completed(slot, hwq, tenant, op, len_bytes, latency, now);
    }

    fn demand(&mut self) -> Option<policy::Demand> {
        self.inner.demand()
    }

    fn demands(&mut self, all: &[policy::Demand], own: usize, now: Nanos) {
        self.inner.demands(all, own, now);
    }

    fn asks_here(&mut self, tenant: TenantSlot, part: f64, now: Nanos) {
        self.inner.asks_here(tenant, part, now);
    }

    fn interval(&mut self, reports: &[policy::TenantReport], now: Nanos) {
        self.inner.interval(reports, now);
    }

    fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.inner.backlog_of(slot)
    }

    fn bound(&self, tenant: TenantId) -> Option<Bound> {
        self.inner.bound(tenant)
    }

    fn idle_bound(&self, guaranteed: bool) -> Option<Bound> {
        self.inner.idle_bound(guaranteed)
    }
}
