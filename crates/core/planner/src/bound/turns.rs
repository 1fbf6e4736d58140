//! What a policy may send before a command whose tenant has all of its own ahead of it.

use arbitration::QuantaKib;
use io_model::{Op, QueuePriority};
use policy::{ArbitratedConfig, COST_UNIT, Class, Cost, FairConfig, PolicyConfig};

use crate::{Load, Tenant};

/// Bytes of a reference command, in KiB.
const REFERENCE_KIB: f64 = 4.0;
/// `fair` moves weights down to a quarter while all of them sum to what is configured; with some room for clamping.
const FAIR_FACTOR: f64 = 5.0;

/// What goes first.
pub(super) enum Ahead {
    /// The policy holds nothing back.
    Nobody,
    /// A number of commands, which fill the window `spans` times.
    Commands { count: f64, spans: f64 },
    /// There is no end to it.
    Unlimited,
}

/// The largest and the least cost of a tenant's commands, in reference commands.
pub(super) fn costs(cost: &Cost, tenant: &Tenant) -> (f64, f64) {
    let (mut most, mut least) = (0.0_f64, f64::INFINITY);
    for size in &tenant.sizes {
        for (op, is_there) in [(Op::Read, tenant.read_share > 0.0), (Op::Write, tenant.read_share < 1.0)] {
            if is_there {
                let one = f64::from(cost.of(op, size.len_bytes)) / f64::from(COST_UNIT);
                (most, least) = (most.max(one), least.min(one));
            }
        }
    }
    (most, least.min(most))
}

/// The most that this many commands of these tenants cost together, if each is drawn independently: one in 10⁹ lies
/// beyond six standard deviations.
fn together(cost: &Cost, tenants: &mut dyn Iterator<Item = &Tenant>, commands: f64) -> f64 {
    let one = |tenant: &Tenant| {
        let (mut mean, mut square) = (0.0, 0.0);
        for size in &tenant.sizes {
            for (op, part) in [(Op::Read, tenant.read_share), (Op::Write, 1.0 - tenant.read_share)] {
                let one = f64::from(cost.of(op, size.len_bytes)) / f64::from(COST_UNIT);
                mean += part * size.part * one;
                square += part * size.part * one * one;
            }
        }
        let deviation = (square - mean * mean).max(0.0).sqrt();
        (commands * mean + 6.0 * commands.sqrt() * deviation).min(commands * costs(cost, tenant).0)
    };
    tenants.map(one).fold(0.0, f64::max)
}

pub(super) fn ahead(policy: &PolicyConfig, tenants: &[Tenant], at: usize) -> Ahead {
    let Load::Closed { depth } = tenants[at].load else { return Ahead::Unlimited };
    let depth = f64::from(depth);
    match policy {
        PolicyConfig::Wrr(config) => by_class(config, tenants, at, depth),
        PolicyConfig::Drr(config) => by_bytes(config, tenants, at, depth),
        PolicyConfig::Fair(config) => by_weight(config, tenants, at, depth),
        PolicyConfig::Passthrough => {
            let each = depth / f64::from(tenants[at].vcpus.max(1));
            let vqs: f64 = tenants.iter().map(|tenant| f64::from(tenant.vcpus)).sum();
            Ahead::Commands { count: (each + 1.0) * vqs, spans: 0.0 }
        }
        // Promised tenants alone have a limit; what one has beyond it waits for itself.
        PolicyConfig::Lpns(config) => match tenants[at].class {
            Class::BestEffort { .. } => Ahead::Unlimited,
            Class::Guaranteed { .. } => {
                let work = together(&config.cost, &mut tenants[at..=at].iter(), depth);
                let limit = super::lpns_limit(config, tenants);
                if work >= limit { Ahead::Commands { count: depth, spans: spans(work, limit) } } else { Ahead::Nobody }
            }
        },
        _ => Ahead::Unlimited,
    }
}

fn others_urgent(tenants: &[Tenant], at: usize) -> bool {
    tenants.iter().enumerate().any(|(other, tenant)| other != at && tenant.priority == QueuePriority::Urgent)
}

fn spans(cost: f64, max_in_flight: f64) -> f64 {
    (cost / max_in_flight).ceil()
}

fn by_class(config: &ArbitratedConfig, tenants: &[Tenant], at: usize, depth: f64) -> Ahead {
    if others_urgent(tenants, at) {
        return Ahead::Unlimited;
    }
    let turn = |priority: QueuePriority| match priority {
        QueuePriority::Urgent | QueuePriority::High => f64::from(config.high_weight),
        QueuePriority::Medium => f64::from(config.medium_weight),
        QueuePriority::Low => f64::from(config.low_weight),
    };
    let own = tenants[at].priority;
    let max_in_flight = f64::from(config.max_in_flight);
    let cost = Cost::default();
    if own == QueuePriority::Urgent {
        let (most, _) = costs(&cost, &tenants[at]);
        return Ahead::Commands { count: depth, spans: spans(depth * most, max_in_flight) };
    }
    let burst = f64::from(config.arbitration_burst.max(1));
    let rivals = tenants.iter().filter(|tenant| tenant.priority == own).count() as f64;
    let slots = (depth / burst).ceil() * burst * rivals;
    let rounds = (slots / turn(own)).ceil() + 1.0;
    let (mut count, mut work) = (0.0, 0.0);
    for class in [QueuePriority::High, QueuePriority::Medium, QueuePriority::Low] {
        let mut rivals = tenants.iter().filter(|tenant| tenant.priority == class).peekable();
        if rivals.peek().is_none() {
            continue;
        }
        let commands = if class == own { slots + turn(own) } else { rounds * turn(class) };
        count += commands;
        work += together(&cost, &mut rivals, commands);
    }
    Ahead::Commands { count, spans: spans(work, max_in_flight) }
}

fn by_bytes(config: &ArbitratedConfig, tenants: &[Tenant], at: usize, depth: f64) -> Ahead {
    if others_urgent(tenants, at) {
        return Ahead::Unlimited;
    }
    let quanta = QuantaKib {
        high: config.high_weight.into(),
        medium: config.medium_weight.into(),
        low: config.low_weight.into(),
    };
    let quantum = |tenant: &Tenant| {
        let kib = match tenant.priority {
            QueuePriority::Urgent | QueuePriority::High => quanta.high,
            QueuePriority::Medium => quanta.medium,
            QueuePriority::Low => quanta.low,
        };
        f64::from(kib) / REFERENCE_KIB
    };
    let max_in_flight = f64::from(config.max_in_flight);
    let cost = Cost::default();
    let own = together(&cost, &mut tenants[at..=at].iter(), depth);
    if tenants[at].priority == QueuePriority::Urgent {
        return Ahead::Commands { count: depth, spans: spans(own, max_in_flight) };
    }
    // One round more for what is owed, one for the turn that has just passed.
    let rounds = (own / quantum(&tenants[at])).ceil() + 2.0;
    let (mut count, mut work) = (depth, own);
    for (_, tenant) in tenants.iter().enumerate().filter(|(other, _)| *other != at) {
        let (most, least) = costs(&cost, tenant);
        let sent = rounds * quantum(tenant) + most;
        work += sent;
        count += sent / least;
    }
    Ahead::Commands { count, spans: spans(work, max_in_flight) }
}

fn by_weight(config: &FairConfig, tenants: &[Tenant], at: usize, depth: f64) -> Ahead {
    let weight = |tenant: &Tenant| match tenant.class {
        Class::BestEffort { weight } => f64::from(weight.max(1)),
        Class::Guaranteed { .. } => 1.0,
    };
    let own = together(&config.cost, &mut tenants[at..=at].iter(), depth);
    let (mut count, mut work) = (depth, own);
    for (_, tenant) in tenants.iter().enumerate().filter(|(other, _)| *other != at) {
        let (most, least) = costs(&config.cost, tenant);
        let sent = own * FAIR_FACTOR * weight(tenant) / weight(&tenants[at]) + most;
        work += sent;
        count += sent / least;
    }
    Ahead::Commands { count, spans: spans(work, fair_window(config)) }
}

/// What `fair` lets be in flight, in reference commands.
pub(super) fn fair_window(config: &FairConfig) -> f64 {
    let per_unit = (config.window.0 as f64 / config.reference_time.0.max(1) as f64).max(1.0 / f64::from(COST_UNIT));
    per_unit * f64::from(config.parallel_units)
}
