//! Policies and parts that are broken on purpose: each must be caught.

use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId};
use policy::{
    AnyPolicy, ArbitratedConfig, CapsConfig, Class, Limits, MqfqConfig, Next, Passthrough, Policy, PolicyConfig,
    PollerShape, TenantPriority, VqSlot,
};
use ssd_model::Profile;

use crate::sabotage::Sabotage;
use crate::workload::{BlockSize, Fio, Workload};
use crate::{Layout, Report, Rule, Scenario, ScenarioError, Tenant, play};

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
        ("a policy that gives more than a cap", Flaw::ExceedsCaps, Rule::Caps),
        ("a policy that ignores weights", Flaw::IgnoresWeights, Rule::Shares),
        ("a policy that spins", Flaw::Spins, Rule::Progress),
        ("a wrr that takes all tenants for medium", Flaw::IgnoresClasses, Rule::Shares),
        ("a drr that charges commands instead of bytes", Flaw::ChargesCommands, Rule::Shares),
        ("a drr that forgets debts", Flaw::ForgetsDebts, Rule::Shares),
    ];
    let parts = [
        ("a drive that completes twice", Sabotage::DeliverTwice, Rule::ExactlyOnce),
        ("a drive that loses a command", Sabotage::Lose, Rule::ExactlyOnce),
        ("a front end that reaches another tenant's range", Sabotage::ForeignRange, Rule::InBounds),
        ("a front end that completes into another queue", Sabotage::ForeignVq, Rule::ExactlyOnce),
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
fn scenario(policy: PolicyConfig) -> Scenario {
    let tenant = |weight| Tenant {
        name: format!("weight {weight}"),
        class: Class::BestEffort { weight },
        vcpus: 4,
        vqs: 4,
        queue_priorities: Vec::new(),
        size_bytes: 1 << 30,
        workload: Workload::Fio(Fio::random_4k(4, 128, 100)),
    };
    Scenario {
        layout: Layout::Mdev,
        policy,
        tenants: vec![tenant(1), tenant(4)],
        warmup: Nanos::from_millis(2),
        duration: Nanos::from_millis(20),
        starvation_limit: Nanos::from_millis(3),
        ..Scenario::new(Profile::p5800x())
    }
}

fn play_sabotaged(sabotage: Sabotage) -> Result<Report, ScenarioError> {
    let scenario = scenario(PolicyConfig::Passthrough);
    play(&scenario, &mut |shape: &PollerShape| Ok(scenario.policy.build(shape)?), sabotage)
}

/// The same with tenants of the classes medium and high; the second one's commands are large.
fn classes(policy: fn(ArbitratedConfig) -> PolicyConfig, start: ArbitratedConfig) -> Scenario {
    let high = TenantPriority::Fixed(QueuePriority::High);
    let config = ArbitratedConfig { priorities: vec![TenantPriority::default(), high], ..start };
    let mut scenario = scenario(policy(config));
    if let Workload::Fio(fio) = &mut scenario.tenants[1].workload {
        fio.access.block_sizes = vec![BlockSize { bytes: 128 << 10, weight: 1 }];
    }
    scenario
}

fn play_flawed(flaw: Flaw) -> Result<Report, ScenarioError> {
    let limits = vec![Limits { rw_ios_per_sec: 50_000, ..Limits::default() }];
    let scenario = match flaw {
        Flaw::Starves | Flaw::Spins => scenario(PolicyConfig::Passthrough),
        Flaw::ExceedsCaps => scenario(PolicyConfig::Caps(CapsConfig { limits })),
        Flaw::IgnoresWeights => scenario(PolicyConfig::Mqfq(MqfqConfig::default())),
        Flaw::IgnoresClasses => classes(PolicyConfig::Wrr, ArbitratedConfig::wrr()),
        Flaw::ChargesCommands | Flaw::ForgetsDebts => classes(PolicyConfig::Drr, ArbitratedConfig::drr()),
    };
    let mut build = |shape: &PollerShape| {
        let inner = match flaw {
            Flaw::Starves | Flaw::Spins | Flaw::IgnoresWeights => Passthrough::new(shape.hwqs, shape.hwq_depth).into(),
            Flaw::IgnoresClasses => PolicyConfig::Wrr(ArbitratedConfig::wrr()).build(shape)?,
            Flaw::ChargesCommands | Flaw::ForgetsDebts => scenario.policy.build(shape)?,
            Flaw::ExceedsCaps => {
                let limits = vec![Limits { rw_ios_per_sec: 60_000, ..Limits::default() }];
                PolicyConfig::Caps(CapsConfig { limits }).build(shape)?
            }
        };
        Ok(Flawed { inner, flaw, victims: Vec::new() })
    };
    play(&scenario, &mut build, Sabotage::None)
}

/// What is wrong with a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// Never hears of tenant 1's commands.
    Starves,
    /// Gives a fifth more than configured.
    ExceedsCaps,
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
}

impl Flaw {
    /// What it takes a length for.
    fn reckons(self, len_bytes: u64) -> u64 {
        match self {
            Self::ChargesCommands => 4_096,
            Self::ForgetsDebts => len_bytes.min(64 << 10),
            _ => len_bytes,
        }
    }
}

/// A policy with a flaw.
struct Flawed {
    inner: AnyPolicy,
    flaw: Flaw,
    /// Slots that are starved.
    victims: Vec<VqSlot>,
}

impl Policy for Flawed {
    fn attach(&mut self, slot: VqSlot, vq: VqId, class: Class, now: Nanos) {
        if self.flaw == Flaw::Starves && vq.tenant == TenantId(1) {
            self.victims.push(slot);
        }
        self.inner.attach(slot, vq, class, now);
    }

    fn detach(&mut self, slot: VqSlot, now: Nanos) {
        self.inner.detach(slot, now);
    }

    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        if !self.victims.contains(&slot) {
            self.inner.arrived(slot, backlog, now);
        }
    }

    fn next(&mut self, now: Nanos) -> Next {
        if self.flaw == Flaw::Spins { Next::WaitUntil(now) } else { self.inner.next(now) }
    }

    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
        self.inner.sent(slot, hwq, op, self.flaw.reckons(len_bytes), now);
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos) {
        self.inner.refused(slot, consumed, now);
    }

    fn completed(
        &mut self,
        slot: VqSlot,
        hwq: HwqId,
        tenant: TenantId,
        op: Op,
        len_bytes: u64,
        latency: Nanos,
        now: Nanos,
    ) {
        self.inner.completed(slot, hwq, tenant, op, self.flaw.reckons(len_bytes), latency, now);
    }

    fn interval(&mut self, reports: &[policy::TenantReport], now: Nanos) {
        self.inner.interval(reports, now);
    }
}
