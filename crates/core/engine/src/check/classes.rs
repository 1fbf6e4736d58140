//! What `wrr` and `drr` promise tenants that always have work.

use io_model::QueuePriority;
use policy::{ArbitratedConfig, COST_UNIT, TenantPriority, Terms};

use super::shares::Contender;

/// Two that are served round after round are never further apart than a round at the start of the measured time, nor at
/// its end; and each may be anywhere in its own turn at both.
const ROUNDS_APART: f64 = 4.0;

/// Cost of a KiB.
const COST_OF_KIB: f64 = COST_UNIT as f64 / 4.0;

/// A tenant's class, if it has a single one and that has a weight.
fn weighted_class(contender: &Contender) -> Option<QueuePriority> {
    match contender.terms.priority {
        TenantPriority::Fixed(class) if class != QueuePriority::Urgent => Some(class),
        _ => None,
    }
}

/// `drr`: bytes in proportion to the quanta, whatever the sizes. The last command of a turn overdraws.
pub(super) fn unequal_in_bytes(config: &ArbitratedConfig, one: &Contender, other: &Contender) -> Option<String> {
    let quantum =
        |tenant: &Contender| weighted_class(tenant).map(|class| f64::from(config.weight(class)) * COST_OF_KIB);
    let (own, others) = (quantum(one)?, quantum(other)?);
    let rounds = |tenant: &Contender, quantum: f64| (tenant.to.cost - tenant.from.cost) as f64 / quantum;
    let command = |tenant: &Contender, quantum: f64| tenant.to.most_cost as f64 / quantum;
    let most_apart = ROUNDS_APART + command(one, own) + command(other, others);
    told([rounds(one, own), rounds(other, others)], most_apart)
}

/// `wrr`: flows of one class take turns; classes get commands in proportion to their weights, all their flows together.
/// `is_parted`: their flows at other pollers count too, and over some time only.
pub(super) fn unequal_in_commands(
    config: &ArbitratedConfig,
    is_parted: bool,
    one: &Contender,
    other: &Contender,
    all: &[Contender],
) -> Option<String> {
    let commands = |tenant: &Contender| (tenant.to.commands - tenant.from.commands) as f64;
    let (own, others) = (weighted_class(one)?, weighted_class(other)?);
    if own == others {
        let burst = f64::from(config.arbitration_burst);
        return told([commands(one) / burst, commands(other) / burst], ROUNDS_APART);
    }
    // Turns can't be counted from outside for a tenant that chooses its class or got another, has limits, or rings for
    // nothing.
    let counted = |tenant: &Contender| {
        let Terms { limits, priority, .. } = tenant.terms;
        !tenant.rogue && !tenant.changed && limits.is_empty() && matches!(priority, TenantPriority::Fixed(_))
    };
    if is_parted || !all.iter().all(counted) {
        return None;
    }
    let rounds = |class: QueuePriority| {
        let flows = all.iter().filter(|tenant| weighted_class(tenant) == Some(class));
        flows.map(commands).sum::<f64>() / f64::from(config.weight(class))
    };
    told([rounds(own), rounds(others)], ROUNDS_APART)
}

fn told(rounds: [f64; 2], most_apart: f64) -> Option<String> {
    let apart = (rounds[0] - rounds[1]).abs();
    (apart > most_apart)
        .then(|| format!("{:.1} and {:.1} turns by weight, at most {most_apart:.1} apart", rounds[0], rounds[1]))
}
